"""Several artifacts side by side: predicted against measured, plan against plan, profile against profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report
from cephalo_cli.errors import UsageError
from cephalo_cli.reporting.compare_profiles import profile_sheets
from cephalo_cli.reporting.compare_steps import Side, side, step_sheets
from cephalo_cli.reporting.sheet import Kind, Part, Sheet, plain, rendered
from cephalo_cli.reporting.stack import stacked, turned

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Comparison", "compare", "short_names"]


HEADLINES: Mapping[str, tuple[str, Kind]] = {
    "step_s": ("step", "seconds"),
    "step_ratio": ("", "ratio"),
    "samples_per_s": ("samples/s", "count"),
}
"""What the table by rank begins with."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Artifacts side by side."""

    parts: tuple[Part, ...]
    """What there is to compare, as plain data."""
    names: tuple[str, ...]
    """The files, by the names their columns have."""

    @property
    def rows(self) -> dict[str, object]:
        """What ``--json`` prints: lists of objects by the name of their table."""
        return plain(self.parts)

    def tables(self) -> list["RenderableType"]:
        """What people see: profiles table by table; steps as an overview and one table of everything by rank."""
        overview, *by_rank = self.parts
        if not isinstance(overview, Sheet) or overview.name != "steps" or not by_rank:
            return rendered(self.parts)
        head = turned(overview, HEADLINES, self.names)
        rest = [part for part in by_rank if isinstance(part, Sheet)]
        return [*rendered([overview]), "", *stacked("Side by side", [*head, *rest], self.names)]


def compare(artifacts: Sequence[Envelope], names: Sequence[str]) -> Comparison:
    """Lay artifacts side by side: profiles with profiles, plans and reports with plans and reports.

    Args:
        artifacts: At least two.
        names: The files they came from.

    Raises:
        UsageError: Kinds that have nothing to compare, or plans and reports of different jobs.
    """
    short = short_names(names)
    profiles = [artifact for artifact in artifacts if isinstance(artifact, Profile)]
    if len(profiles) == len(artifacts):
        return Comparison(parts=tuple(profile_sheets(profiles, short)), names=tuple(short))
    sides: list[Side] = []
    for artifact, name in zip(artifacts, short, strict=True):
        if not isinstance(artifact, Plan | Report):
            kinds = ", ".join(sorted({each.kind for each in artifacts}))
            raise UsageError(
                f"there is nothing to compare between these kinds: {kinds}",
                hint="compare plans and reports with each other, or profiles with profiles",
            )
        sides.append(side(artifact, name))
    return Comparison(parts=tuple(step_sheets(sides)), names=tuple(short))


def short_names(names: Sequence[str]) -> list[str]:
    """File names without folders and endings; where that makes some equal those are given in full, or numbered."""
    stems = [PurePath(name).name.removesuffix(".json") for name in names]
    return [
        stem
        if stems.count(stem) == 1
        else name
        if names.count(name) == 1
        else f"{stem}#{names[: place + 1].count(name)}"
        for place, (stem, name) in enumerate(zip(stems, names, strict=True))
    ]
