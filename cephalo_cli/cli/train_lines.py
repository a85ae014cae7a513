"""What a training says while it runs: one line a step for people, one JSON line a step for programs.

On a terminal the lines are a table that fits it; in a log every line says all by itself.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.cli.step_table import WARM_UP, StepTable
from cephalo_cli.errors import ArtifactError
from cephalo_cli.quantities import format_bytes, format_change, format_percent, format_rate, format_seconds

__all__ = ["StepTeller", "json_line", "numerics_line", "step_line"]


def numerics_line(numerics: dict[str, str]) -> str:
    """Name the dtypes in force, those that agree together."""
    purposes: dict[str, list[str]] = {}
    for purpose, dtype in numerics.items():
        purposes.setdefault(dtype, []).append(purpose)
    return "dtypes: " + "; ".join(f"{', '.join(names)} {dtype}" for dtype, names in purposes.items())


def step_line(step: StepReport, plan: Plan, num_steps: int, *, warm_up: bool = False) -> str:
    """Say what a step did.

    Args:
        step: The step.
        plan: What is trained.
        num_steps: Number of the last step.
        warm_up: Whether it is a run's first step, whose duration no plan means to predict.
    """
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
    words.append(f"{format_seconds(step.step_s)} ({WARM_UP})" if warm_up else _duration(step))
    if step.slowest_rank is not None and step.slowest_compute_s is not None:
        device = plan.ranks[step.slowest_rank].device
        words.append(f"slowest rank {step.slowest_rank} ({device}) {format_seconds(step.slowest_compute_s)}")
    if step.validation_loss is not None:
        words.append(f"validation loss {step.validation_loss:.4f}")
    return "  ".join(words)


def json_line(step: StepReport) -> str:
    """Write the same for programs."""
    return json.dumps(step.model_dump(mode="json")) + "\n"


class StepTeller:
    """Tells of every step: one line, the progress bar, and what `write_to` opened.

    Args:
        plan: What is trained.
        num_steps: Number of the last step.
        note: Says a line.
        advance: Moves the progress bar.
    """

    def __init__(
        self, plan: Plan, num_steps: int, note: Callable[[str], None], advance: Callable[[float, str], None]
    ) -> None:
        self._plan, self._num_steps, self._note, self._advance = plan, num_steps, note, advance
        width = shutil.get_terminal_size().columns
        self._table = StepTable(plan, num_steps, width) if sys.stderr.isatty() else None
        self._has_begun = False
        self._writers: dict[str, Callable[[StepReport], None]] = {}

    def __call__(self, step: StepReport) -> None:
        """Tell of one step."""
        self._advance(step.step / self._num_steps, f"step {step.step}/{self._num_steps}")
        if self._table is not None:
            for line in self._table.lines(step):
                self._note(line)
        else:
            self._note(step_line(step, self._plan, self._num_steps, warm_up=not self._has_begun))
        self._has_begun = True
        for name, write in list(self._writers.items()):
            try:
                write(step)
            except OSError as error:
                del self._writers[name]
                self._note(f"training goes on although {name} cannot be written any more: {error.strerror or error}")

    def write_to(self, metrics: str | None, tensorboard: str | None, stack: ExitStack) -> None:
        """Open a file of JSON lines and a folder of TensorBoard scalars, until the stack closes.

        Raises:
            UsageError: TensorBoard is not installed.
        """
        if metrics is not None:
            self._writers[metrics] = _written_at_once(stack.enter_context(_opened(Path(metrics))))
        if tensorboard is not None:
            from cephalo_cli.executor.board import Board

            self._writers[tensorboard] = stack.enter_context(Board(Path(tensorboard))).add


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
    try:
        yield file
    finally:
        with suppress(OSError):  # what cannot be written was told of
            file.close()


def _written_at_once(lines: IO[str]) -> Callable[[StepReport], None]:
    """Write one JSON line a step, so that a killed training leaves what it had."""

    def write(step: StepReport) -> None:
        lines.write(json_line(step))
        lines.flush()

    return write


def _duration(step: StepReport) -> str:
    took = format_seconds(step.step_s)
    if not step.predicted_step_s:
        return took
    off = format_change(step.step_s / step.predicted_step_s - 1)
    return f"{took} ({format_seconds(step.predicted_step_s)} planned, {off})"


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
