"""A profile as a picture: seconds and memory of every unit against microbatch size, a curve for each device type."""

from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Profile
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.reporting.canvas import MARKERS, SERIES, figure, size_unit, tidy, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_profile"]

WIDTH, HEIGHT = 10.0, 6.0
KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")


def draw_profile(profile: Profile) -> "Figure":
    """Draw forward (full line) and backward (dashed) above, working memory below."""
    kinds = [kind for kind in KINDS if any(kind in device.units for device in profile.devices.values())]
    drawn = figure(WIDTH, HEIGHT)
    grid = drawn.subplots(2, len(kinds), squeeze=False, sharex="col")
    for column, kind in enumerate(kinds):
        _times(grid[0][column], profile, kind)
        _memory(grid[1][column], profile, kind)
        grid[1][column].set_xlabel("microbatch size (samples)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper center", ncols=min(6, len(labels)), frameon=False, fontsize=8)
    return drawn


def _times(axes: "Axes", profile: Profile, kind: UnitKind) -> None:
    known = {name: device.units[kind] for name, device in profile.devices.items() if kind in device.units}
    scale, unit = time_unit(max(max(*curve.forward_s, *curve.backward_s) for curve in known.values()))
    for number, (name, curve) in enumerate(known.items()):
        colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
        for phase, values, style in (("forward", curve.forward_s, "-"), ("backward", curve.backward_s, "--")):
            axes.plot(
                curve.microbatch,
                [value / scale for value in values],
                color=colour,
                marker=marker,
                markersize=3.5,
                linewidth=1.2,
                linestyle=style,
                label=f"{name}, {phase}",
            )
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.set_ylabel(f"one microbatch ({unit})")
    tidy(axes, title=kind)


def _memory(axes: "Axes", profile: Profile, kind: UnitKind) -> None:
    known = {name: device.units[kind] for name, device in profile.devices.items() if kind in device.units}
    scale, unit = size_unit(max(max(curve.working_bytes) for curve in known.values()))
    for number, curve in enumerate(known.values()):
        axes.plot(
            curve.microbatch,
            [value / scale for value in curve.working_bytes],
            color=SERIES[number % len(SERIES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=3.5,
            linewidth=1.2,
        )
    axes.set_ylim(0, None)
    axes.set_ylabel(f"working memory ({unit})")
    tidy(axes)
