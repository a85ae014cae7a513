"""Which picture an artifact gets."""

from collections.abc import Sequence
from pathlib import Path

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report, store
from cephalo_cli.errors import UsageError
from cephalo_cli.reporting.canvas import check_suffix, save
from cephalo_cli.reporting.chart_plan import draw_plan
from cephalo_cli.reporting.chart_profile import draw_profile
from cephalo_cli.reporting.chart_steps import draw_report, draw_sides
from cephalo_cli.reporting.compare_steps import side
from cephalo_cli.reporting.labels import IN_A_PICTURE, labels, short_names

__all__ = ["plot_artifact"]


def plot_artifact(
    artifacts: Sequence[Envelope], path: str | Path, *, names: Sequence[str] = (), force: bool = False
) -> None:
    """Draw one plan, profile or report, or several plans and reports against each other, as PNG or SVG.

    Args:
        artifacts: What to draw.
        path: The file; its ending names the format.
        names: What to call several artifacts; their source and strategy when left out.
        force: Whether an existing file may be overwritten.

    Raises:
        UsageError: The ending is another, or there is no picture of these artifacts.
        ArtifactError: The file exists and ``force`` is false, or it cannot be written.
    """
    check_suffix(path)
    store.check_writable(path, force=force)
    first = artifacts[0]
    if len(artifacts) > 1:
        compared = [artifact for artifact in artifacts if isinstance(artifact, Plan | Report)]
        if len(compared) < len(artifacts):
            raise UsageError("only plans and reports are drawn together", hint="draw one artifact at a time")
        called = [*labels(short_names(names), IN_A_PICTURE), *("" for _ in compared[len(names) :])]
        drawn = draw_sides([side(each, name) for each, name in zip(compared, called, strict=True)])
    elif isinstance(first, Plan):
        drawn = draw_plan(first)
    elif isinstance(first, Profile):
        drawn = draw_profile(first)
    elif isinstance(first, Report):
        drawn = draw_report(first)
    else:
        raise UsageError(f"there is no picture of a {first.kind}", hint="draw a profile, a plan or a report")
    save(drawn, path, force=force)
