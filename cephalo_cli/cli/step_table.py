"""A training's steps as lines of a table that grows: what a terminal of 80 columns has room for."""

from collections.abc import Callable, Mapping, Sequence

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.quantities import format_bytes, format_change, format_count, format_percent, format_seconds

__all__ = ["WARM_UP", "StepTable"]

WARM_UP = "warm-up"
"""Said of a run's first step, whose duration no plan means to predict."""
DROPPED_FIRST = ("lr", "MFU", "memory", "grad", "slowest", "tok/s")
"""Columns in the order in which a narrow terminal goes without them."""


class StepTable:
    """Lines of a table whose columns are chosen by the first step.

    Args:
        plan: What is trained.
        num_steps: Number of the last step.
        width: Columns of the terminal.
    """

    def __init__(self, plan: Plan, num_steps: int, width: int) -> None:
        self._plan, self._num_steps, self._width = plan, num_steps, width
        self._columns: dict[str, tuple[int, Callable[[StepReport], str]]] = {}
        self._first = 0

    def lines(self, step: StepReport) -> list[str]:
        """Return the line of a step, below the heads at the first one."""
        heads = []
        if not self._columns:
            self._first = step.step
            self._columns = self._chosen(step)
            heads = [self._line(list(self._columns))]
        line = self._line([write(step) for _, write in self._columns.values()])
        if step.validation_loss is not None:
            line += f"\n{'':{len(self._step(step))}}  validation loss {step.validation_loss:.4f}"
        return [*heads, line]

    def _chosen(self, step: StepReport) -> dict[str, tuple[int, Callable[[StepReport], str]]]:
        """Width and writer by head, as many as the terminal has room for."""
        slowest = max(len(f"{rank.rank} {rank.device}") for rank in self._plan.ranks)
        columns: dict[str, tuple[int, Callable[[StepReport], str]]] = {
            "step": (len(f"{self._num_steps}/{self._num_steps}"), self._step),
            "loss": (7, lambda each: "none" if each.loss is None else f"{each.loss:.4f}"),
            "grad": (7, _gradient),
            "lr": (7, lambda each: "" if each.learning_rate is None else f"{each.learning_rate:.1e}"),
            "tok/s": (6, lambda each: "" if each.tokens_per_s is None else format_count(each.tokens_per_s)),
            "MFU": (6, lambda each: _percent(each.model_flops_utilization)),
            "memory": (8, lambda each: "" if each.peak_memory_bytes is None else format_bytes(each.peak_memory_bytes)),
            "time": (7, lambda each: format_seconds(each.step_s)),
            "vs plan": (8, self._against_plan),
            "slowest": (max(slowest, len("slowest")), self._slowest),
        }
        known: Mapping[str, object] = {
            "lr": step.learning_rate,
            "tok/s": step.tokens_per_s,
            "MFU": step.model_flops_utilization,
            "memory": step.peak_memory_bytes,
            "vs plan": step.predicted_step_s,
            "slowest": step.slowest_rank,
        }
        for name, value in known.items():
            if value is None:
                del columns[name]
        for name in DROPPED_FIRST:
            if sum(width + 2 for width, _ in columns.values()) - 2 > self._width:
                columns.pop(name, None)
        return columns

    def _line(self, words: Sequence[str]) -> str:
        widths = [width for width, _ in self._columns.values()]
        last = len(widths) - 1
        cells = [
            word.ljust(width) if number == last and "slowest" in self._columns else word.rjust(width)
            for number, (word, width) in enumerate(zip(words, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    def _step(self, step: StepReport) -> str:
        return f"{step.step}/{self._num_steps}"

    def _against_plan(self, step: StepReport) -> str:
        if step.step == self._first:
            return WARM_UP
        return format_change(step.step_s / step.predicted_step_s - 1) if step.predicted_step_s else ""

    def _slowest(self, step: StepReport) -> str:
        rank = step.slowest_rank
        return "" if rank is None else f"{rank} {self._plan.ranks[rank].device}"


def _gradient(step: StepReport) -> str:
    if step.skipped:
        return "skipped"
    return "none" if step.grad_norm is None else f"{step.grad_norm:.3g}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else format_percent(fraction)
