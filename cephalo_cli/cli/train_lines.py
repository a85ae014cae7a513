"""What a training says while it runs: one line a step for people, one JSON line a step for programs."""

import json
from collections.abc import Callable
from typing import IO

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.quantities import format_bytes, format_percent, format_rate, format_seconds

__all__ = ["json_line", "numerics_line", "step_line", "write_lines"]


def numerics_line(numerics: dict[str, str]) -> str:
    """Name the dtypes in force, those that agree together."""
    purposes: dict[str, list[str]] = {}
    for purpose, dtype in numerics.items():
        purposes.setdefault(dtype, []).append(purpose)
    return "numerics: " + "; ".join(f"{', '.join(names)} {dtype}" for dtype, names in purposes.items())


def step_line(step: StepReport, plan: Plan, num_steps: int) -> str:
    """Say what a step did."""
    words = [f"step {step.step}/{num_steps}", f"loss {_number(step.loss, '.4f')}"]
    words.append(f"gradient {_number(step.grad_norm, '.3f')}" + (" (update left out)" if step.skipped else ""))
    if step.learning_rate is not None:
        words.append(f"lr {step.learning_rate:.3g}")
    if step.tokens_per_s is not None:
        words.append(format_rate(step.tokens_per_s, "tokens"))
    if step.model_flops_utilization is not None:
        words.append(f"MFU {format_percent(step.model_flops_utilization)}")
    if step.peak_memory_bytes is not None:
        words.append(format_bytes(step.peak_memory_bytes))
    words.append(_duration(step))
    if step.slowest_rank is not None and step.slowest_compute_s is not None:
        device = plan.ranks[step.slowest_rank].device
        words.append(f"slowest rank {step.slowest_rank} ({device}) {format_seconds(step.slowest_compute_s)}")
    if step.validation_loss is not None:
        words.append(f"validation loss {step.validation_loss:.4f}")
    return "  ".join(words)


def json_line(step: StepReport) -> str:
    """Write the same for programs."""
    return json.dumps(step.model_dump(mode="json")) + "\n"


def write_lines(lines: IO[str]) -> Callable[[StepReport], None]:
    """Give what writes one JSON line a step, at once, so that a killed training leaves what it had."""

    def write(step: StepReport) -> None:
        lines.write(json_line(step))
        lines.flush()

    return write


def _duration(step: StepReport) -> str:
    took = format_seconds(step.step_s)
    if not step.predicted_step_s:
        return took
    off = step.step_s / step.predicted_step_s - 1
    sign = "+" if off >= 0 else "-"
    return f"{took} ({format_seconds(step.predicted_step_s)} planned, {sign}{format_percent(abs(off))})"


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
