"""What all pictures share: colours that colour-blind eyes tell apart, sizes, and how a figure becomes a file.

Palette: Okabe and Ito, "Color Universal Design" (2008); hatches repeat the difference in black and white print.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import store
from cephalo_cli.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "INK",
    "MANY_ROWS",
    "MARKERS",
    "SERIES",
    "TERMS",
    "check_suffix",
    "figure",
    "picture",
    "rank_axis",
    "save",
    "size_unit",
    "tidy",
    "time_unit",
]

INK = "#333333"
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "forward": "#56B4E9",
        "recompute": "#B3D9F2",
        "backward": "#0072B2",
        "gather": "#E69F00",
        "reduce": "#D55E00",
        "copy in": "#CC79A7",
        "copy out": "#9D4F7F",
        "optimizer": "#009E73",
        "idle": "#EEEEEE",
    }
)
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "state": "#0072B2",
        "buffers": "#56B4E9",
        "working": "#D55E00",
        "saved": "#F0E442",
        "reserve": "#BBBBBB",
    }
)
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".png", ".svg")
DOTS_PER_INCH = 160
MANY_ROWS = 16


def check_suffix(path: str | Path) -> str:
    """Return the format a file name asks for.

    Raises:
        UsageError: It is neither PNG nor SVG.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{str(path)!r} is neither .png nor .svg", hint="give the picture one of these endings")
    return suffix.removeprefix(".")


def figure(width: float, height: float) -> "Figure":
    """Make an empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: "Axes", *, title: str = "") -> None:
    """Take away what carries no information."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=8, length=3)
    axes.xaxis.label.set(color=INK, fontsize=9)
    axes.yaxis.label.set(color=INK, fontsize=9)
    if title:
        axes.set_title(title, loc="left", fontsize=10, color=INK)


def rank_axis(axes: "Axes", labels: Sequence[str]) -> None:
    """Label one row a rank (or group of ranks), the first on top; comes after `tidy`."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_ylabel("rank · device")
    axes.tick_params(axis="y", length=0, labelsize=8 if len(labels) <= MANY_ROWS else 6)


def row_height(num_rows: int) -> float:
    """Inches of one row of bars: lower when there are many."""
    return 0.42 if num_rows <= MANY_ROWS else 0.16


def time_unit(longest_s: float) -> tuple[float, str]:
    """Choose the unit in which a time axis reads best; return its length in seconds and its name."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if longest_s >= 2 * scale:
            return scale, unit
    return 1e-6, "us"


def size_unit(largest_bytes: float) -> tuple[float, str]:
    """Choose the unit in which a memory axis reads best; return its bytes and its name."""
    for scale, unit in ((2.0**30, "GiB"), (2.0**20, "MiB")):
        if largest_bytes >= scale:
            return scale, unit
    return 2.0**10, "KiB"


def picture(drawn: "Figure", kind: str, *, background: str = "white") -> bytes:
    """Return a figure as a ``png`` or ``svg`` file; the same figure gives the same bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "cephalo", "svg.fonttype": "none"}), warnings.catch_warnings():
        # A name in a script that no font here has, or one too long for its axes, is drawn as well as can be.
        warnings.filterwarnings("ignore", message="Glyph .* missing|constrained_layout not applied")
        drawn.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata, facecolor=background)
    return buffer.getvalue()


def save(drawn: "Figure", path: str | Path, *, force: bool = False) -> None:
    """Write a figure in the format of its file name.

    Raises:
        UsageError: The file name is neither PNG nor SVG.
        ArtifactError: The file exists and ``force`` is false, or it cannot be written.
    """
    store.write_bytes(picture(drawn, check_suffix(path)), path, force=force)
