"""A plan as a picture: who computes how much, who stores how much, how full each rank is, and what else there was."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import Alternative, RankPlan
from cephalo_cli.quantities import format_count
from cephalo_cli.reporting.canvas import COLOURS, INK, MANY_ROWS, TERMS, figure, rank_axis, row_height, size_unit, tidy
from cephalo_cli.reporting.describe_plan import saves_memory_by, with_chosen
from cephalo_cli.reporting.sheet import rank_ranges
from cephalo_cli.reporting.words import microbatches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_plan", "draw_strategies"]

WIDTH = 10.0
HALF = 0.34
OVER = "#C00000"
CHOSEN, OTHER = "#0072B2", "#AAAAAA"


def draw_plan(plan: Plan, *, strategies: bool = True) -> "Figure":
    """Draw samples, state share, and memory by term against the limit; ranks with equal parts share a row.

    Args:
        plan: What to draw.
        strategies: Whether the throughput of all strategies is drawn below, where the plan knows others.
    """
    groups: dict[tuple[object, ...], list[RankPlan]] = {}
    for rank in plan.ranks:
        part = rank.model_dump(exclude={"rank", "node", "expected"})
        groups.setdefault(tuple(map(repr, part.values())), []).append(rank)
    rows = [ranks[0] for ranks in groups.values()]
    labels = [f"{rank_ranges([rank.rank for rank in ranks])} · {ranks[0].device}" for ranks in groups.values()]
    others = with_chosen(plan) if strategies and plan.alternatives else ()
    heights = [1.2 + row_height(len(rows)) * len(rows), *([0.9 + 0.26 * len(others)] if others else [])]
    drawn = figure(WIDTH, sum(heights))
    grid = drawn.add_gridspec(len(heights), 3, width_ratios=[1, 0.7, 2], height_ratios=heights)
    left = drawn.add_subplot(grid[0, 0])
    middle, right = (drawn.add_subplot(grid[0, column], sharey=left) for column in (1, 2))
    gap = "\n" if len(rows) <= MANY_ROWS else "  "
    samples = [float(sum(row.microbatch_sizes)) for row in rows]
    _bars(left, samples, [_work(row, plan.model.num_layers, gap=gap) for row in rows], COLOURS["backward"])
    left.set_xlabel("samples a step")
    tidy(left, title="Work")
    rank_axis(left, labels)
    shares = [100 * row.state_share for row in rows]
    _bars(middle, shares, [f"{share:.1f} %" for share in shares], "#009E73")
    middle.set_xticks([tick for tick in middle.get_xticks() if 0 <= tick <= min(100, middle.get_xlim()[1])])
    middle.set_xlabel("share of the state (%)")
    tidy(middle, title="State")
    _memory(right, rows)
    for axes in (middle, right):
        axes.tick_params(axis="y", length=0, labelleft=False)
    if others:
        _strategies(drawn.add_subplot(grid[1, :]), plan, others)
    return drawn


def draw_strategies(plan: Plan) -> "Figure":
    """Draw the throughput of the plan and of what else was planned; what does not fit is hatched."""
    others = with_chosen(plan)
    drawn = figure(WIDTH, 0.9 + 0.28 * len(others))
    _strategies(drawn.subplots(), plan, others)
    return drawn


def _work(row: RankPlan, num_layers: int, *, gap: str) -> str:
    extras = saves_memory_by(row, num_layers)
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
        axes.plot([limit, limit], [number - 0.45, number + 0.45], color=OVER if over else "black", linewidth=2.0)
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
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
        ncols=6,
        frameon=False,
        fontsize=7.5,
        handlelength=1.0,
        columnspacing=0.8,
        handletextpad=0.4,
    )


def _strategies(axes: "Axes", plan: Plan, others: Sequence[Alternative]) -> None:
    rates = [other.samples_per_s or 0.0 for other in others]
    for number, (other, rate) in enumerate(zip(others, rates, strict=True)):
        mine = other.strategy == plan.strategy
        colour = CHOSEN if mine else OTHER
        axes.barh(
            number,
            rate,
            height=2 * HALF,
            color=colour if other.feasible else "white",
            edgecolor=colour,
            hatch=None if other.feasible else "////",
            linewidth=0.8,
        )
        said = ["does not fit"] * (not other.feasible) + ["this plan"] * mine
        words = ", ".join([*([format_count(rate)] if rate else []), *said])
        axes.annotate(
            words, (rate, number), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK
        )
    axes.set_xlim(0, 1.25 * max(rates) or 1.0)
    axes.set_xlabel("samples a second")
    tidy(axes, title="Throughput of the strategies")
    rank_axis(axes, [other.strategy for other in others])
    axes.set_ylabel("")
