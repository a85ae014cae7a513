"""Tables as plain data, and their rendering: the one place that knows both.

A sheet's cells are SI numbers and words, so that ``--json`` and the table on the screen say the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from cephalo_cli.quantities import (
    format_bytes,
    format_change,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "BAD_MARK",
    "GAP",
    "NARROWEST",
    "SHORT_WORD",
    "Column",
    "Fact",
    "Facts",
    "Kind",
    "Part",
    "Sheet",
    "Value",
    "cell",
    "natural_widths",
    "plain",
    "rank_ranges",
    "rendered",
    "shown",
    "without_empty_columns",
]

Value: TypeAlias = str | int | float | bool | list[int] | list[str] | None
Kind: TypeAlias = Literal[
    "text",
    "ranks",
    "count",
    "seconds",
    "bytes",
    "percent",
    "share",
    "change",
    "ratio",
    "flops",
    "tera",
    "link",
    "loss",
    "digits",
]

SHORT_WORD = 16
"""Words up to this length keep to one line where the numbers beside them leave room."""
SHORTEST_WORD = 6
"""No column of words becomes narrower than this."""
NARROWEST = 80
"""Columns of the narrowest terminal that tables are made for."""
GAP = 2
"""Columns between two columns of a table."""
ABSENT = "-"
_WORDS: tuple[Kind, ...] = ("text", "ranks")
TICK = "✓"
BAD_MARK = "!"
"""Follows a number that does not fit, for eyes and terminals without red; words say it themselves."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a sheet."""

    key: str
    """Name of the cell in ``--json``, with its unit."""
    title: str
    """What stands above it."""
    kind: Kind = "text"
    """How its numbers are written."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Rows of like things."""

    name: str
    """Key of the sheet in ``--json``."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]
    bad: frozenset[tuple[int, str]] = frozenset()
    """Row and column of the cells that do not fit."""
    chosen: frozenset[int] = frozenset()
    """Rows that get a tick."""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of a list of facts."""

    key: str
    """Name in ``--json``, with its unit."""
    label: str
    value: Value
    kind: Kind = "text"
    more: str = ""
    """Words after the value."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What there is to say about one thing."""

    name: str
    title: str
    facts: tuple[Fact, ...]


Part: TypeAlias = Sheet | Facts


def without_empty_columns(sheet: Sheet) -> Sheet:
    """Leave out columns that say nothing in any row."""
    used = tuple(column for column in sheet.columns if any(row.get(column.key) is not None for row in sheet.rows))
    return replace(sheet, columns=used)


def plain(parts: Sequence[Part]) -> dict[str, object]:
    """Turn parts into what ``--json`` prints: facts as an object, a sheet as a list of objects."""
    content: dict[str, object] = {}
    for part in parts:
        if isinstance(part, Facts):
            content[part.name] = {fact.key: fact.value for fact in part.facts}
        else:
            rows = [{column.key: row.get(column.key) for column in part.columns} for row in part.rows]
            content[part.name] = rows
    return content


def shown(value: Value, kind: Kind) -> str:
    """Write one value for people."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and kind == "ranks":
        return rank_ranges([int(rank) for rank in value])
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return value
    return _WRITERS[kind](float(value))


def merged(rows: Iterable[Mapping[str, Value]]) -> list[Mapping[str, Value]]:
    """Put rows that differ in nothing but their ``ranks`` into one."""
    groups: dict[str, dict[str, Value]] = {}
    ranks: dict[str, list[int]] = {}
    for row in rows:
        same = repr(sorted((key, value) for key, value in row.items() if key != "ranks"))
        groups.setdefault(same, dict(row))
        mine = row["ranks"]
        if isinstance(mine, list):
            ranks.setdefault(same, []).extend(int(rank) for rank in mine)
    return [{**row, "ranks": ranks[same]} for same, row in groups.items()]


def rank_ranges(ranks: Sequence[int]) -> str:
    """Write rank numbers in short, such as ``0-3, 8``."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def rendered(parts: Sequence[Part]) -> list["RenderableType"]:
    """Render facts and sheets with rich, 80 columns wide where their words allow it, an empty line between two."""
    tables: list[RenderableType] = []
    for part in parts:
        if tables:
            tables.append("")
        tables.append(_render_facts(part) if isinstance(part, Facts) else _render_sheet(part))
    return tables


def _render_facts(part: Facts) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for fact in part.facts:
        words = shown(fact.value, fact.kind)
        table.add_row(fact.label, Text(f"{words} {fact.more}".rstrip()))
    return Group(Text(part.title, style="bold"), table)


def _render_sheet(part: Sheet) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    return Group(Text(part.title, style="bold"), *([_Fitted(part)] if part.rows else []), *map(Text, part.notes))


@dataclass(frozen=True)
class _Fitted:
    """A sheet's table, as wide as where it is printed."""

    part: Sheet

    def __rich_console__(self, _: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        part = self.part
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        if part.chosen:
            table.add_column("", no_wrap=True)
        widths = _widths(part, options.max_width)
        for column in part.columns:
            words = column.kind in _WORDS
            table.add_column(
                column.title,
                justify="left" if words else "right",
                no_wrap=not words,
                overflow="fold",
                width=widths[column.key],
            )
        marked = {key for _, key in part.bad}
        for number, row in enumerate(part.rows):
            cells = [
                cell(
                    row.get(column.key),
                    column.kind,
                    bad=(number, column.key) in part.bad,
                    beside_bad=column.key in marked,
                )
                for column in part.columns
            ]
            if part.chosen:
                cells.insert(0, Text(TICK if number in part.chosen else "", style="green"))
            table.add_row(*cells)
        yield table


def natural_widths(part: Sheet) -> dict[str, int]:
    """Width that each column of a sheet would take, its title included."""
    marked = {key for _, key in part.bad}
    natural: dict[str, int] = {}
    for column in part.columns:
        longest = max((len(shown(row.get(column.key), column.kind)) for row in part.rows), default=0)
        mark = len(f" {BAD_MARK}") if column.key in marked and column.kind not in _WORDS else 0
        natural[column.key] = max(longest + mark, len(column.title))
    return natural


def _widths(part: Sheet, most: int) -> dict[str, int]:
    """Width of each column, so that all are at most so wide together and no number is cut.

    Words give way: the longest until they are short, then those that take several lines anyway.
    """
    natural = natural_widths(part)
    widths = dict(natural)
    words = [column.key for column in part.columns if column.kind in _WORDS]
    room = most + 1 - GAP * len(part.columns) - (len(TICK) + GAP if part.chosen else 0)

    def gives_way(key: str) -> tuple[bool, bool, bool, int]:
        width = widths[key]
        return width > SHORT_WORD, width > SHORTEST_WORD, width < natural[key], width

    while words and sum(widths.values()) > room:
        next_one = max(words, key=gives_way)
        if widths[next_one] <= SHORTEST_WORD:
            break
        widths[next_one] -= 1
    return widths


def cell(value: Value, kind: Kind, *, bad: bool, beside_bad: bool) -> "Text":
    """Render one value; numbers above or below a marked one stay in line with it."""
    from rich.text import Text

    words, marks = shown(value, kind), kind not in _WORDS
    if bad and value is not None:
        return Text(f"{words} {BAD_MARK}" if marks else words, style="bold red")
    return Text(words + " " * len(f" {BAD_MARK}") if marks and beside_bad else words)


_WRITERS: Mapping[Kind, Callable[[float], str]] = {
    "text": lambda value: f"{value:g}",
    "ranks": lambda value: f"{value:g}",
    "count": format_count,
    "seconds": format_seconds,
    "bytes": format_bytes,
    "percent": format_percent,
    "share": format_share,
    "change": format_change,
    "ratio": lambda value: f"{value:.2f}x",
    "tera": lambda value: format(value / 1e12, ".0f" if value >= 99.95e12 else ".1f" if value >= 1e12 else ".3g"),
    "flops": lambda value: format_rate(value, "FLOP"),
    "link": lambda value: format_rate(value, "B"),
    "loss": lambda value: f"{value:.4f}",
    "digits": lambda value: f"{value:.3g}",
}
