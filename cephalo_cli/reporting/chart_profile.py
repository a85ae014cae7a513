"""A profile as a picture: seconds and memory of every unit against microbatch size, a curve for each device type.

Both axes are logarithmic: slow and fast devices are legible together, and proportional cost is a straight line.
"""

from typing import TYPE_CHECKING

from cephalo_cli.artifacts.profile import Basis, UnitKind
from cephalo_cli.reporting.canvas import MARKERS, SERIES, figure, size_unit, tidy, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_profile"]

WIDTH, HEIGHT = 10.0, 6.0
KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")
DASHES = (0, (4, 2))
NUM_MARKERS = 4
WIDEST, NARROWEST = 4.0, 1.3
"""Line widths in points: curves that lie on each other stay visible, as the first is drawn widest."""


def draw_profile(profile: Basis) -> "Figure":
    """Draw forward (full line) and backward (dashed) above, working memory below."""
    from matplotlib.lines import Line2D

    kinds = [kind for kind in KINDS if any(kind in device.units for device in profile.devices.values())]
    drawn = figure(WIDTH, HEIGHT)
    grid = drawn.subplots(2, len(kinds), squeeze=False, sharex="col")
    for column, kind in enumerate(kinds):
        _times(grid[0][column], profile, kind)
        _memory(grid[1][column], profile, kind)
        grid[1][column].set_xlabel("microbatch size (samples)")
    handles = [
        Line2D([], [], color=_colour(number), marker=MARKERS[number % len(MARKERS)], markersize=5, label=name)
        for number, name in enumerate(profile.devices)
    ]
    handles.append(Line2D([], [], color="#777777", linestyle="-", label="forward"))
    handles.append(Line2D([], [], color="#777777", linestyle=DASHES, label="backward"))
    drawn.legend(handles=handles, loc="outside upper center", ncols=min(8, len(handles)), frameon=False, fontsize=8)
    return drawn


def _colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _times(axes: "Axes", profile: Basis, kind: UnitKind) -> None:
    known = {name: device.units[kind] for name, device in profile.devices.items() if kind in device.units}
    scale, unit = time_unit(max(max(*curve.forward_s, *curve.backward_s) for curve in known.values()))
    for number, name in enumerate(profile.devices):
        if name not in known:
            continue
        curve = known[name]
        for values, style in ((curve.forward_s, "-"), (curve.backward_s, DASHES)):
            axes.plot(
                curve.microbatch,
                [value / scale if value > 0 else float("nan") for value in values],
                color=_colour(number),
                marker=MARKERS[number % len(MARKERS)],
                markevery=_few(len(values)),
                markersize=5,
                linewidth=1.3,
                linestyle=style,
            )
    _logarithmic(axes, max(max(curve.microbatch) for curve in known.values()))
    axes.set_ylabel(f"one microbatch ({unit})")
    tidy(axes, title=kind)


def _memory(axes: "Axes", profile: Basis, kind: UnitKind) -> None:
    known = {name: device.units[kind] for name, device in profile.devices.items() if kind in device.units}
    scale, unit = size_unit(max(max(curve.working_bytes) for curve in known.values()))
    names = list(profile.devices)
    for number, name in enumerate(names):
        if name not in known:
            continue
        curve = known[name]
        axes.plot(
            curve.microbatch,
            [value / scale if value > 0 else float("nan") for value in curve.working_bytes],
            color=_colour(number),
            marker=MARKERS[number % len(MARKERS)],
            markevery=_few(len(curve.microbatch), number / len(names)),
            markersize=5,
            linewidth=WIDEST - (WIDEST - NARROWEST) * number / max(1, len(names) - 1),
        )
    _logarithmic(axes, max(max(curve.microbatch) for curve in known.values()))
    axes.set_ylabel(f"working memory ({unit})")
    tidy(axes)


def _few(num_points: int, offset: float = 0.0) -> tuple[int, int]:
    """First marked point and distance of the marked ones: few enough to leave dashes to be seen."""
    distance = -(-num_points // NUM_MARKERS)
    return int(offset * distance), distance


def _logarithmic(axes: "Axes", largest: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(0.93, 1.08 * largest)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    if high < 30 * low:  # less than a decade and a half: a label a decade is too few
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.grid(visible=True, which="major", color="#EEEEEE", linewidth=0.6)
