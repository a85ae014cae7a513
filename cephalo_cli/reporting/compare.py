"""Several artifacts side by side: predicted against measured, plan against plan, profile against profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report
from cephalo_cli.errors import UsageError
from cephalo_cli.reporting.compare_profiles import profile_sheets
from cephalo_cli.reporting.compare_steps import Side, side, step_sheets
from cephalo_cli.reporting.labels import LONGEST, SHORTEST, labels, legend, name_room, short_names, split_names
from cephalo_cli.reporting.sheet import (
    GAP,
    NARROWEST,
    SHORT_WORD,
    Kind,
    Part,
    Sheet,
    natural_widths,
    plain,
    rendered,
)
from cephalo_cli.reporting.stack import stacked, stacked_room, turned

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Comparison", "compare"]


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
        from rich.text import Text

        overview, *by_rank = self.parts
        if not isinstance(overview, Sheet) or overview.name != "steps":
            sheets = [part for part in self.parts if isinstance(part, Sheet)]
            short = labels(self.names, min(_room(sheet, self.names) for sheet in sheets))
            tables = rendered(
                [part for sheet in sheets for part in _spread(_titled(sheet, self.names, short), self.names)]
            )
        else:
            head = turned(overview, HEADLINES, self.names) if by_rank else ()
            rest = [*head, *(part for part in by_rank if isinstance(part, Sheet))]
            room = min(_file_room(overview), *([stacked_room(rest, self.names)] if rest else [LONGEST]))
            short = labels(self.names, room)
            tables = rendered([_titled(overview, self.names, short)])
            if rest:
                titled = [_titled(sheet, self.names, short) for sheet in rest]
                tables += ["", *stacked("Side by side", titled, self.names)]
        told = legend(self.names, short)
        return [*tables, *([""] if told else []), *map(Text, told)]


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


def _titled(sheet: Sheet, names: Sequence[str], short: Sequence[str]) -> Sheet:
    """A sheet that calls files by their labels."""
    called = dict(zip(names, short, strict=True))
    return replace(
        sheet,
        columns=tuple(replace(column, title=called.get(column.key, column.title)) for column in sheet.columns),
        rows=tuple({**row, "file": called[str(row["file"])]} if "file" in row else row for row in sheet.rows),
    )


def _file_room(overview: Sheet) -> int:
    """Characters that an overview has for the names of files."""
    widths = natural_widths(overview)
    return max(SHORTEST, NARROWEST - 1 - sum(GAP + width for key, width in widths.items() if key != "file"))


def _beside(sheet: Sheet, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Width of what stands beside the files of a sheet, and of each file's numbers."""
    widths = natural_widths(
        replace(sheet, columns=tuple(replace(c, title="") if c.key in names else c for c in sheet.columns))
    )
    beside = sum(GAP + min(width, SHORT_WORD) for key, width in widths.items() if key not in names) + 1 - GAP
    return beside, {name: widths[name] for name in names}


def _room(sheet: Sheet, names: Sequence[str]) -> int:
    return name_room(*_beside(sheet, names))


def _spread(sheet: Sheet, names: Sequence[str]) -> list[Sheet]:
    """A sheet as several, each with as many files as there is room for."""
    parts = split_names(*_beside(sheet, names))
    return [
        replace(
            sheet,
            title=sheet.title if len(parts) == 1 else f"{sheet.title} ({number} of {len(parts)})",
            columns=tuple(column for column in sheet.columns if column.key not in names or column.key in part),
        )
        for number, part in enumerate(parts, start=1)
    ]
