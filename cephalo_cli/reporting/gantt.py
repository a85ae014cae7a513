"""One step as a picture: what every rank did when, what the network did, and how full each rank was.

Ranks whose lanes are identical share a row, and collectives that all ranks see at the same time are drawn once; so a
cluster of 64 ranks stays legible.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cephalo_cli.artifacts import store
from cephalo_cli.reporting.canvas import (
    COLOURS,
    INK,
    MANY_ROWS,
    MARKERS,
    SERIES,
    check_suffix,
    figure,
    row_height,
    save,
    tidy,
    time_unit,
)
from cephalo_cli.reporting.sheet import rank_ranges
from cephalo_cli.timeline import Event, MemorySample, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_step", "plot_step"]

Spans: TypeAlias = dict[str, list[tuple[float, float]]]
"""Start and length of the spans of each colour."""

WIDTH = 10.0
MEMORY_HEIGHT = 2.4
NETWORK = ("gather", "reduce")
COPIES = ("copy in", "copy out")
COMPUTE = ("forward", "recompute", "backward", "optimizer")
BINS = 480
NEAR = 0.3
"""From this share of the limit on the limit is in the picture; below it, curves would lie on the axis."""
SHORTEST = 1e-9
"""Length of the axis of a step that takes no time at all."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Ranks that did the same at the same time."""

    ranks: tuple[int, ...]
    label: str
    spans: Spans


def plot_step(timeline: Timeline, path: str | Path, *, force: bool = False) -> None:
    """Draw the lanes of one step above the memory of its ranks, as PNG or SVG by the file's ending.

    Raises:
        UsageError: The ending is another.
        ArtifactError: The file exists and ``force`` is false, or it cannot be written.
    """
    check_suffix(path)
    store.check_writable(path, force=force)
    save(draw_step(timeline), path, force=force)


def draw_step(timeline: Timeline) -> "Figure":
    """Draw the same as a figure."""
    rows = _rows(timeline)
    shared = _shared(timeline)
    gantt_height = 0.9 + row_height(len(rows)) * (len(rows) + 1)
    memory_height = MEMORY_HEIGHT if timeline.memory else 0.0
    drawn = figure(WIDTH, gantt_height + memory_height)
    if timeline.memory:
        upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=[gantt_height, memory_height])
        _draw_memory(lower, timeline)
    else:
        upper = lower = drawn.subplots()
    _draw_lanes(upper, rows, shared)
    scale, unit = time_unit(timeline.duration_s)
    lower.set_xlim(0, timeline.duration_s or SHORTEST)
    lower.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    lower.set_xlabel(f"time since the start of the step ({unit})")
    return drawn


def _rows(timeline: Timeline) -> list[_Row]:
    groups: dict[tuple[object, ...], list[int]] = {}
    own: list[list[Event]] = [[] for _ in timeline.rank_names]
    for event in timeline.events:
        own[event.rank].append(event)
    for rank, events in enumerate(own):
        same = (
            _kind(timeline.rank_names[rank]),
            *((each.lane, each.name, each.start_s, each.end_s) for each in events),
        )
        groups.setdefault(same, []).append(rank)
    return [
        _Row(
            ranks=tuple(ranks),
            label=f"{rank_ranges(ranks)} · {_kind(timeline.rank_names[ranks[0]])}",
            spans=_spans(own[ranks[0]]),
        )
        for ranks in groups.values()
    ]


def _kind(rank_name: str) -> str:
    """The device in ``rank 2 · p40 · node-a``."""
    parts = rank_name.split(" · ")
    return parts[1] if len(parts) > 1 else rank_name


def _spans(events: Iterable[Event]) -> Spans:
    """Group spans by colour; what follows without a gap in the same unit and colour becomes one."""
    spans: Spans = {}
    last: dict[str, tuple[str, float]] = {}
    for event in events:
        colour = event.name.split(" ", 1)[0] if event.lane == "compute" else event.lane
        what = event.name.split(" #", 1)[0]
        mine = spans.setdefault(colour, [])
        before, end = last.get(colour, ("", -1.0))
        if mine and before == what and event.start_s <= end:
            start, _ = mine.pop()
            mine.append((start, event.end_s - start))
        elif event.end_s > event.start_s:
            mine.append((event.start_s, event.end_s - event.start_s))
        last[colour] = what, event.end_s
    return spans


def _shared(timeline: Timeline) -> Spans:
    """Collectives, where every rank sees the same ones at the same time; else nothing."""
    seen: dict[int, list[Event]] = {}
    for event in timeline.events:
        if event.lane in NETWORK:
            seen.setdefault(event.rank, []).append(event)
    alike = {tuple((each.name, each.start_s, each.end_s) for each in events) for events in seen.values()}
    return _spans(next(iter(seen.values()))) if len(alike) == 1 else {}


def _draw_lanes(axes: "Axes", rows: Sequence[_Row], shared: Spans) -> None:
    from matplotlib.patches import Patch

    labels = []
    for number, row in enumerate(rows):
        _bars(axes, number, row.spans, network=not shared)
        labels.append(row.label)
    if shared:
        for colour in NETWORK:
            _bar(axes, -1.0, 0.3, shared.get(colour, []), colour)
    small = len(rows) > MANY_ROWS
    axes.set_yticks([-1.0] * bool(shared) + [float(number) for number in range(len(rows))])
    axes.set_yticklabels(["network"] * bool(shared) + labels)
    axes.set_ylim(len(rows) - 0.4, -1.6 if shared else -0.6)
    tidy(axes)
    axes.tick_params(axis="y", labelsize=6 if small else 8, length=0)
    axes.set_ylabel("rank · device")
    used = set(shared).union(*(row.spans for row in rows))
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in used]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _bars(axes: "Axes", y: float, spans: Spans, *, network: bool) -> None:
    """Compute in the middle of a row; below it what else the rank sees for itself, in thin strips."""
    strips = [lane for lane in (*NETWORK, *COPIES) if lane in spans and (network or lane in COPIES)]
    half = 0.36 if not strips else 0.22
    centre = y if not strips else y - 0.14
    axes.plot([0, 1], [centre, centre], color="#DDDDDD", linewidth=0.8, zorder=0, transform=axes.get_yaxis_transform())
    for colour in COMPUTE:
        _bar(axes, centre, half, spans.get(colour, []), colour)
    thickness = 0.32 / max(1, len(strips))
    for number, lane in enumerate(strips):
        _bar(axes, y + 0.12 + thickness * (number + 0.5), thickness / 2, spans[lane], lane)


def _bar(axes: "Axes", y: float, half: float, spans: Sequence[tuple[float, float]], colour: str) -> None:
    if spans:
        edges = "white" if colour in COMPUTE[:3] else COLOURS.get(colour, INK)
        axes.broken_barh(
            spans, (y - half, 2 * half), facecolors=COLOURS.get(colour, INK), edgecolors=edges, linewidth=0.3
        )


def _draw_memory(axes: "Axes", timeline: Timeline) -> None:
    """Curves of all ranks, as a share of what each may use; equal curves are drawn once, the fullest is named."""
    curves = _curves(timeline)
    limits = timeline.limit_bytes
    few = len(curves) <= len(SERIES)
    fullest = max(curves, key=lambda curve: max(curve.used))
    quiet = next((number for number, curve in enumerate(curves) if not few and curve is not fullest), -1)
    for number, curve in enumerate(curves):
        loud = few or curve is fullest
        colour = SERIES[number] if few else "#D55E00" if loud else "#999999"
        axes.step(
            [timeline.duration_s * number / BINS for number in range(BINS + 1)],
            [*curve.used, curve.used[-1]],
            where="post",
            color=colour,
            linewidth=1.3 if loud else 0.5,
            alpha=1.0 if loud else 0.6,
            label=_label(curve, few=few, loud=loud, first=number == quiet),
            marker=MARKERS[number] if few else None,
            markersize=3.5,
            markevery=(BINS // 40 * number, BINS // 8),
            zorder=3 if loud else 2,
        )
    if limits:
        most = max(fullest.used)
        is_near = most > NEAR
        words = "limit" if is_near else f"limit: {1 / most:.0f} times as much" if most else "limit: far above"
        at = 1.0 if is_near else 1.2 * most or 1.0
        if is_near:
            axes.axhline(1.0, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
        axes.annotate(
            words, (1, at), xycoords=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8, color="black"
        )
        axes.set_ylim(0, max(1.12, 1.1 * most) if is_near else 1.12 * at)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.set_ylabel("memory (share of limit)")
    else:
        axes.set_ylim(0, None)
        axes.set_ylabel("memory (GiB)")
    tidy(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)


def _label(curve: "_Curve", *, few: bool, loud: bool, first: bool) -> str | None:
    if few:
        return curve.label
    return f"fullest: {curve.label}" if loud else "the others" if first else None


@dataclass(frozen=True, kw_only=True)
class _Curve:
    label: str
    used: tuple[float, ...]
    """In each of `BINS` equal stretches of the step."""


def _curves(timeline: Timeline) -> list[_Curve]:
    own: dict[int, list[MemorySample]] = {}
    for sample in timeline.memory:
        own.setdefault(sample.rank, []).append(sample)
    groups: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for rank, samples in own.items():
        scale = timeline.limit_bytes[rank] if timeline.limit_bytes else 2**30
        used = tuple(most / scale for most in _most_in_each(samples, timeline.duration_s))
        groups.setdefault((_kind(timeline.rank_names[rank]), used), []).append(rank)
    return [_Curve(label=f"{rank_ranges(ranks)} · {kind}", used=used) for (kind, used), ranks in groups.items()]


def _most_in_each(samples: Sequence[MemorySample], duration_s: float) -> list[int]:
    """The most memory in each of `BINS` equal stretches of the step, so that no peak is lost."""
    most = [0] * BINS
    ends = [*(sample.time_s for sample in samples[1:]), duration_s]
    for sample, end in zip(samples, ends, strict=True):
        if end == sample.time_s:
            continue
        total = _total(sample.bytes_by_term)
        first = int(sample.time_s / duration_s * BINS)
        last = math.ceil(end / duration_s * BINS)
        for index in range(max(0, first), min(BINS, max(last, first + 1))):
            most[index] = max(most[index], total)
    return most


def _total(terms: Mapping[str, int]) -> int:
    return sum(terms.values())
