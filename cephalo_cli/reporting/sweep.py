"""One plan under several values of something: a table, a CSV and a picture."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Report, store
from cephalo_cli.reporting.canvas import SERIES, check_suffix, figure, save, tidy, time_unit
from cephalo_cli.reporting.sheet import Column, Sheet, Value, plain, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType

__all__ = ["Sweep"]

WIDTH, HEIGHT = 10.0, 3.6
OVER = "#C00000"
_OF_SEVERAL = re.compile(r"(\d+) of \d+ ranks")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Reports of one plan with one thing changed."""

    changes: tuple[str, ...]
    """Each ``PATH=VALUE``, all of the same path."""
    reports: tuple[Report, ...]
    """The report under each change."""

    @property
    def path(self) -> str:
        """What was changed."""
        return self.changes[0].partition("=")[0]

    @property
    def sheet(self) -> Sheet:
        """One row a value, as plain data; the first row is what the others are measured against."""
        rows = [self._row(change, report) for change, report in zip(self.changes, self.reports, strict=True)]
        return Sheet(
            name="sweep",
            title=f"Sweep of {self.path}",
            columns=(
                Column(key="value", title="value"),
                Column(key="step_s", title="step", kind="seconds"),
                Column(key="step_ratio", title="time", kind="ratio"),
                Column(key="samples_per_s", title="samples/s", kind="count"),
                Column(key="wait_fraction", title="waits", kind="percent"),
                Column(key="peak_memory_fraction", title="fullest", kind="percent"),
                Column(key="bottleneck", title="bottleneck"),
            ),
            rows=tuple(rows),
            bad=frozenset(
                (number, "peak_memory_fraction") for number, report in enumerate(self.reports) if _fullest(report) > 1
            ),
        )

    @property
    def rows(self) -> dict[str, object]:
        """What ``--json`` prints."""
        return plain([self.sheet])

    def tables(self) -> list["RenderableType"]:
        """What people see."""
        return rendered([self.sheet])

    def csv(self) -> str:
        """The same as comma-separated values, with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.key for column in self.sheet.columns])
        writer.writerows([row.get(column.key) for column in self.sheet.columns] for row in self.sheet.rows)
        return text.getvalue()

    def plot(self, path: str | Path, *, force: bool = False) -> None:
        """Draw step time and the fullest rank against the values, as PNG or SVG.

        Raises:
            UsageError: The file's ending is another.
            ArtifactError: The file exists and ``force`` is false, or it cannot be written.
        """
        check_suffix(path)
        store.check_writable(path, force=force)
        drawn = figure(WIDTH, HEIGHT)
        left, right = drawn.subplots(1, 2)
        values = [change.partition("=")[2] for change in self.changes]
        steps = [report.step_s for report in self.reports]
        scale, unit = time_unit(max(steps))
        _points(left, values, [step / scale for step in steps], [False] * len(steps))
        left.set_ylabel(f"one step ({unit})")
        full = [_fullest(report) for report in self.reports]
        _points(right, values, [100 * share for share in full], [share > 1 for share in full])
        right.axhline(100, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
        right.set_ylabel("memory of the fullest rank (% of limit)")
        for axes in (left, right):
            axes.set_xlabel(self.path)
            tidy(axes)
        save(drawn, path, force=force)

    def _row(self, change: str, report: Report) -> Mapping[str, Value]:
        first = self.reports[0].step_s
        waits = sum(rank.wait_s for rank in report.ranks) / len(report.ranks)
        return {
            "value": change.partition("=")[2],
            "step_s": report.step_s,
            "step_ratio": report.step_s / first if first else None,
            "samples_per_s": report.samples_per_s,
            "wait_fraction": waits / report.step_s if report.step_s else None,
            "peak_memory_fraction": _fullest(report),
            "bottleneck": _brief(report.bottleneck or ""),
        }


def _brief(bottleneck: str) -> str:
    """The part of a report's sentence that says what a step is bound by, short enough for a column."""
    what = bottleneck.partition(":")[0].partition(" (")[0].partition(",")[0]
    return _OF_SEVERAL.sub(r"\1 ranks", what).replace("Copies to and from host memory", "Host copies")


def _fullest(report: Report) -> float:
    """Largest peak over the ranks, divided by the rank's limit."""
    terms = [rank.memory for rank in report.ranks if rank.memory is not None]
    return max((memory.total_bytes / memory.limit_bytes for memory in terms if memory.limit_bytes), default=0.0)


def _points(axes: "Axes", labels: Sequence[str], values: Sequence[float], over: Sequence[bool]) -> None:
    axes.plot(range(len(labels)), values, color=SERIES[0], linewidth=1.2, marker="o", markersize=5)
    for number, bad in enumerate(over):
        if bad:
            axes.plot([number], [values[number]], color=OVER, marker="X", markersize=9, linestyle="none")
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylim(0, 1.15 * max(values) or 1.0)
