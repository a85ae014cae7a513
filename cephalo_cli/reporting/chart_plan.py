"""A plan as a picture: who computes how much, who stores how much, and how full each rank is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import RankPlan
from cephalo_cli.reporting.canvas import COLOURS, INK, MANY_ROWS, TERMS, figure, rank_axis, row_height, size_unit, tidy
from cephalo_cli.reporting.sheet import rank_ranges
from cephalo_cli.reporting.words import microbatches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_plan"]

WIDTH = 10.0
HALF = 0.34
OVER = "#C00000"


def draw_plan(plan: Plan) -> "Figure":
    """Draw samples, state share, and memory by term against the limit; ranks with equal parts share a row."""
    groups: dict[tuple[object, ...], list[RankPlan]] = {}
    for rank in plan.ranks:
        part = (rank.device, rank.microbatch_sizes, rank.state_share, rank.recompute, rank.offload, rank.memory)
        groups.setdefault(part, []).append(rank)
    rows = [ranks[0] for ranks in groups.values()]
    labels = [f"{rank_ranges([rank.rank for rank in ranks])} · {ranks[0].device}" for ranks in groups.values()]
    drawn = figure(WIDTH, 1.3 + row_height(len(rows)) * len(rows))
    left, middle, right = drawn.subplots(1, 3, sharey=True, width_ratios=[1, 0.7, 2])
    gap = "\n" if len(rows) <= MANY_ROWS else "  "
    _bars(
        left,
        [float(sum(row.microbatch_sizes)) for row in rows],
        [_work(row, gap=gap) for row in rows],
        COLOURS["backward"],
    )
    left.set_xlabel("samples a step")
    tidy(left, title="Work")
    rank_axis(left, labels)
    _bars(middle, [100 * row.state_share for row in rows], [f"{100 * row.state_share:.1f}" for row in rows], "#009E73")
    middle.set_xlabel("share of the state (%)")
    tidy(middle, title="State")
    middle.tick_params(axis="y", length=0)
    _memory(right, rows)
    drawn.legend(loc="outside lower right", ncols=6, frameon=False, fontsize=8, handlelength=1.2, columnspacing=1.0)
    return drawn


def _work(row: RankPlan, *, gap: str) -> str:
    extras = ["recompute"] * row.recompute + ["offload"] * row.offload
    return gap.join([microbatches(row.microbatch_sizes), *([" + ".join(extras)] if extras else [])])


def _bars(axes: "Axes", values: Sequence[float], words: Sequence[str], colour: str) -> None:
    most = max(values) or 1.0
    size = 7.5 if len(values) <= MANY_ROWS else 6
    axes.barh(range(len(values)), values, height=2 * HALF, color=colour)
    axes.set_xlim(0, 1.7 * most)
    for row, (value, word) in enumerate(zip(values, words, strict=True)):
        axes.annotate(
            word, (value, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=size, color=INK
        )


def _memory(axes: "Axes", rows: Sequence[RankPlan]) -> None:
    """Terms stacked in a bar; a black line at the limit; what is over the limit is outlined in red."""
    scale, unit = size_unit(max(row.memory.limit_bytes for row in rows))
    start = [0.0] * len(rows)
    for term, colour in TERMS.items():
        lengths = [getattr(row.memory, f"{term}_bytes") / scale for row in rows]
        axes.barh(
            range(len(rows)),
            lengths,
            left=start,
            height=2 * HALF,
            color=colour,
            edgecolor="white",
            linewidth=0.3,
            label=term,
        )
        start = [before + length for before, length in zip(start, lengths, strict=True)]
    axes.plot([], [], color="black", linewidth=2.0, label="limit")
    for number, row in enumerate(rows):
        limit = row.memory.limit_bytes / scale
        over = start[number] > limit
        axes.plot(
            [limit, limit],
            [number - 0.45, number + 0.45],
            color=OVER if over else "black",
            linewidth=2.0,
        )
        share = 100 * row.memory.total_bytes / row.memory.limit_bytes if row.memory.limit_bytes else 0.0
        axes.annotate(
            f"{share:.0f} %{' !' if over else ''}",
            (max(limit, start[number]), number),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5 if len(rows) <= MANY_ROWS else 6,
            color=OVER if over else INK,
        )
    axes.set_xlim(0, 1.12 * max(*start, *(row.memory.limit_bytes / scale for row in rows)))
    axes.set_xlabel(f"memory ({unit})")
    tidy(axes, title="Memory")
    axes.tick_params(axis="y", length=0)
