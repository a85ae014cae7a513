"""Steps as pictures: where the time of each rank goes, and plans and reports against each other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Report
from cephalo_cli.artifacts.report import RankReport, StepReport
from cephalo_cli.quantities import format_seconds
from cephalo_cli.reporting.canvas import (
    COLOURS,
    INK,
    MARKERS,
    SERIES,
    figure,
    rank_axis,
    row_height,
    size_unit,
    tidy,
    time_unit,
)
from cephalo_cli.reporting.compare_steps import RankSide, Side
from cephalo_cli.reporting.sheet import rank_ranges

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_report", "draw_sides"]

WIDTH = 10.0
HALF = 0.34
OTHER = "#AAAAAA"
PARTS = (
    ("forward", "forward", COLOURS["forward"]),
    ("backward", "backward", COLOURS["backward"]),
    ("optimizer", "optimizer", COLOURS["optimizer"]),
    ("network", "wait for the network", COLOURS["gather"]),
    ("gather", "wait for gather", COLOURS["gather"]),
    ("reduce", "wait for reduce", COLOURS["reduce"]),
    ("copy", "wait for copies", COLOURS["copy in"]),
    ("late", "wait for late ranks", "#CCCCCC"),
    ("idle", "other wait", COLOURS["idle"]),
    ("wait", "wait", OTHER),
)
"""Key, name in the legend and colour of each part of a rank's step."""


def draw_report(report: Report) -> "Figure":
    """Draw where every rank's step goes; below it the loss, where the report has one."""
    groups: dict[tuple[object, ...], list[RankReport]] = {}
    for rank in report.ranks:
        groups.setdefault((rank.device, rank.compute_s, rank.wait_s, _parts(rank)), []).append(rank)
    rows = [ranks[0] for ranks in groups.values()]
    labels = [f"{rank_ranges([rank.rank for rank in ranks])} · {ranks[0].device}" for ranks in groups.values()]
    losses = [step for step in report.steps if step.loss is not None]
    bars_height = 1.3 + row_height(len(rows)) * len(rows)
    if losses:
        drawn = figure(WIDTH, bars_height + 2.6)
        upper, lower = drawn.subplots(2, 1, height_ratios=[bars_height, 2.6])
        _loss(lower, losses)
    else:
        drawn = figure(WIDTH, bars_height)
        upper = drawn.subplots()
    scale, unit = time_unit(report.step_s)
    start = [0.0] * len(rows)
    parts = [dict(_parts(row)) for row in rows]
    for part, name, colour in PARTS:
        lengths = [seconds.get(part, 0.0) / scale for seconds in parts]
        if any(lengths):
            upper.barh(
                range(len(rows)),
                lengths,
                left=start,
                height=2 * HALF,
                color=colour,
                edgecolor="white",
                linewidth=0.3,
                label=name,
            )
        start = [before + length for before, length in zip(start, lengths, strict=True)]
    upper.set_xlim(0, 1.02 * max(start, default=1.0) or 1.0)
    upper.set_xlabel(f"one step ({unit})")
    upper.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=8, frameon=False, fontsize=8, handlelength=1.2, columnspacing=1.0
    )
    tidy(upper)
    rank_axis(upper, labels)
    return drawn


def draw_sides(sides: Sequence[Side]) -> "Figure":
    """Draw the step of every side and of its alternatives; beside it compute and peak memory of every rank."""
    bars: list[tuple[str, float, str, bool]] = []
    for number, each in enumerate(sides):
        bars.append((_title(each), each.step_s, SERIES[number % len(SERIES)], True))
    are_many = sum(bool(each.alternatives) for each in sides) > 1
    for each in sides:
        where = each.name if are_many and each.name else "planned"
        bars += [(f"{other}, {where}", step_s, OTHER, fits) for other, fits, step_s, _ in each.alternatives if step_s]
    ranks = [f"{number} · {rank.device}" for number, rank in enumerate(sides[0].ranks)]
    same = all(len(each.ranks) == len(ranks) for each in sides)
    height = 1.2 + max(0.36 * len(bars), row_height(len(ranks)) * len(ranks) if same else 0.0)
    drawn = figure(WIDTH, height)
    if not same:
        _steps(drawn.subplots(), bars)
        return drawn
    left, middle, right = drawn.subplots(1, 3, width_ratios=[1.3, 1, 1])
    _steps(left, bars)
    scale, unit = time_unit(max(rank.compute_s for each in sides for rank in each.ranks))
    _dots(middle, sides, lambda rank: rank.compute_s / scale)
    middle.set_xlabel(f"compute in a step ({unit})")
    tidy(middle, title="Compute")
    rank_axis(middle, ranks)
    scale, unit = size_unit(max(rank.memory_bytes for each in sides for rank in each.ranks))
    _dots(right, sides, lambda rank: rank.memory_bytes / scale)
    limits = [(number, rank.limit_bytes / scale) for number, rank in enumerate(sides[0].ranks) if rank.limit_bytes]
    for number, limit in limits:
        right.plot([limit, limit], [number - 0.3, number + 0.3], color="black", linewidth=2.0, zorder=1)
    if limits:
        right.set_xlim(0, max(right.get_xlim()[1], 1.08 * max(limit for _, limit in limits)))
    right.set_xlabel(f"peak memory ({unit}{'; bar: limit' if limits else ''})")
    tidy(right, title="Memory")
    rank_axis(right, ranks)
    right.set_ylabel("")
    return drawn


def _dots(axes: "Axes", sides: Sequence[Side], value: Callable[[RankSide], float]) -> None:
    """A mark for every side and rank, in the colours of the bars beside them."""
    for number, each in enumerate(sides):
        axes.plot(
            [value(rank) for rank in each.ranks],
            range(len(each.ranks)),
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            markersize=5.5,
            markerfacecolor="none",
            markeredgewidth=1.4,
            color=SERIES[number % len(SERIES)],
        )
    axes.set_xlim(0, 1.08 * max(value(rank) for each in sides for rank in each.ranks) or 1.0)
    axes.grid(axis="y", color="#EEEEEE")


def _parts(rank: RankReport) -> tuple[tuple[str, float], ...]:
    """Seconds by colour; what the report does not tell apart is one part."""
    if rank.forward_s is None or rank.backward_s is None:
        compute = {"backward": rank.compute_s}
    else:
        compute = {"forward": rank.forward_s, "backward": rank.backward_s, "optimizer": rank.optimizer_s or 0.0}
    if rank.exposed_gather_s is None or rank.exposed_reduce_s is None:
        return tuple({**compute, "wait": rank.wait_s}.items())
    waits = {"gather": rank.exposed_gather_s, "reduce": rank.exposed_reduce_s, "copy": rank.exposed_copy_s or 0.0}
    idle = max(0.0, rank.wait_s - sum(waits.values()))
    if rank.late_s is not None:
        network = waits.pop("gather") + waits.pop("reduce") - rank.late_s
        waits |= {"network": max(0.0, network), "late": rank.late_s}
    return tuple({**compute, **waits, "idle": idle}.items())


def _title(each: Side) -> str:
    if not each.name:
        return f"{each.strategy}, {each.what}"
    return each.name if each.name == each.what else f"{each.name} ({each.what})"


def _steps(axes: "Axes", bars: Sequence[tuple[str, float, str, bool]]) -> None:
    longest = max(seconds for _, seconds, _, _ in bars)
    scale, unit = time_unit(longest)
    for number, (_, seconds, colour, fits) in enumerate(bars):
        if colour != OTHER:  # the mark that this side has in the panels beside it
            axes.plot(
                [0.03 * longest / scale],
                [number],
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                color="white",
                markerfacecolor="none",
                markeredgewidth=1.4,
                zorder=3,
            )
        axes.barh(
            number,
            seconds / scale,
            height=2 * HALF,
            color=colour if fits else "white",
            edgecolor=colour,
            hatch=None if fits else "////",
            linewidth=0.8,
        )
        words = format_seconds(seconds) + ("" if fits else ", does not fit")
        axes.annotate(
            words,
            (seconds / scale, number),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set_xlim(0, (1.55 if all(fits for *_, fits in bars) else 1.95) * longest / scale)
    axes.set_xlabel(f"one step ({unit})")
    tidy(axes, title="Step")
    rank_axis(axes, [label for label, _, _, _ in bars])
    axes.set_ylabel("")


def _loss(axes: "Axes", steps: Sequence[StepReport]) -> None:
    """Draw the loss over the steps, with a gap where a step had none."""
    from matplotlib.ticker import MaxNLocator

    losses = [float("nan") if step.loss is None else step.loss for step in steps]
    axes.plot([step.step for step in steps], losses, color=SERIES[0], linewidth=1.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    tidy(axes, title="Loss")
