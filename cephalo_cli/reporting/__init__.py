"""Artifacts and time lines to eyes: tables, traces and pictures. Nothing heavy is loaded before something is drawn."""

from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Envelope
from cephalo_cli.reporting.compare import Comparison, compare
from cephalo_cli.reporting.describe import describe
from cephalo_cli.reporting.explanation import explanation_tables
from cephalo_cli.reporting.gantt import plot_step
from cephalo_cli.reporting.plots import plot_artifact
from cephalo_cli.reporting.sheet import rendered
from cephalo_cli.reporting.sweep import Sweep
from cephalo_cli.reporting.trace import write_trace

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "Comparison",
    "Sweep",
    "artifact_tables",
    "compare",
    "explanation_tables",
    "plot_artifact",
    "plot_step",
    "write_trace",
]


def artifact_tables(artifact: Envelope) -> list["RenderableType"]:
    """Render one artifact as tables for a terminal of 80 columns or more."""
    return rendered(describe(artifact))
