"""Several sheets with the same columns as one table: a section each, so that a comparison is read at one glance."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from cephalo_cli.reporting.labels import name_room, split_names
from cephalo_cli.reporting.sheet import BAD_MARK, GAP, Column, Kind, Sheet, Value, cell, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["stacked", "stacked_room", "turned"]

SHORT_WORD = 12
"""Words up to this length are never cut: less than in other tables, as every file has a column of numbers here."""

_WORDS = ("ranks", "device")


def turned(sheet: Sheet, lines: Mapping[str, tuple[str, Kind]], names: Sequence[str]) -> tuple[Sheet, ...]:
    """Turn a sheet with one row a file into sheets of one row, with a column a file.

    Args:
        sheet: Its ``file`` column names the files.
        lines: Title and kind by the key of each column that becomes a sheet.
        names: The files, in the order of their rows; further rows are left out.
    """
    rows = sheet.rows[: len(names)]
    return tuple(
        Sheet(
            name=key,
            title=title,
            columns=tuple(Column(key=name, title=name, kind=kind) for name in names),
            rows=({name: row[key] for name, row in zip(names, rows, strict=True)},),
            bad=frozenset((0, names[row]) for row, column in sheet.bad if column == key and row < len(names)),
        )
        for key, (title, kind) in lines.items()
    )


def stacked(title: str, sheets: Sequence[Sheet], names: Sequence[str]) -> list["RenderableType"]:
    """Render sheets below each other in one table; a column appears where any sheet has it.

    Where files have more columns than fit beside each other, there are several tables, each with some of the files.

    Args:
        title: What stands above.
        sheets: Some columns are those of files, by their names.
        names: The files.
    """
    columns = _columns(sheets)
    widths = {key: _least_width(sheets, key) for key in columns}
    parts = split_names(*_widths(sheets, names))
    tables: list[RenderableType] = []
    for number, part in enumerate(parts, start=1):
        here = {key: column for key, column in columns.items() if key not in names or key in part}
        head = title if len(parts) == 1 else f"{title} ({number} of {len(parts)})"
        tables += ["", _table(head, sheets, here, widths)]
    return tables[1:]


def stacked_room(sheets: Sequence[Sheet], names: Sequence[str]) -> int:
    """Most characters of a file's label in `stacked` tables of these sheets."""
    return name_room(*_widths(sheets, names))


def _widths(sheets: Sequence[Sheet], names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Width of all that stands beside the files, and of each file's numbers."""
    widths = {key: _least_width(sheets, key) for key in _columns(sheets)}
    beside = (
        1
        + max((len(sheet.title) for sheet in sheets), default=0)
        + sum(GAP + width for key, width in widths.items() if key not in names)
    )
    return beside, {name: widths[name] for name in names if name in widths}


def _columns(sheets: Sequence[Sheet]) -> dict[str, Column]:
    """All columns in the order in which they stand."""
    columns: dict[str, Column] = {}
    for key in ("ranks", "device"):
        columns |= {column.key: column for sheet in sheets for column in sheet.columns if column.key == key}
    last = ("change", "limit_bytes")
    columns |= {c.key: c for sheet in sheets for c in sheet.columns if c.key not in (*last, *columns)}
    columns |= {column.key: column for sheet in sheets for column in sheet.columns if column.key in last}
    return columns


def _least_width(sheets: Sequence[Sheet], key: str) -> int:
    written = [shown(row.get(key), kind) for sheet in sheets for kind, row in _rows_with(sheet, key)]
    longest = max(map(len, written), default=0)
    if key in _WORDS:
        return min(longest, SHORT_WORD)
    return longest + (len(f" {BAD_MARK}") if any(key == bad for sheet in sheets for _, bad in sheet.bad) else 0)


def _table(
    title: str, sheets: Sequence[Sheet], columns: Mapping[str, Column], widths: Mapping[str, int]
) -> "RenderableType":
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in columns.values():
        justify: Literal["left", "right"] = "left" if column.key in _WORDS else "right"
        table.add_column(column.title, justify=justify, overflow="fold", min_width=widths[column.key])
    marked = {key for sheet in sheets for _, key in sheet.bad}
    for sheet in sheets:
        kinds = {column.key: column.kind for column in sheet.columns}
        for number, row in enumerate(sheet.rows):
            cells = [
                cell(row.get(key), kinds[key], bad=(number, key) in sheet.bad, beside_bad=key in marked)
                if key in kinds
                else ""
                for key in columns
            ]
            table.add_row(sheet.title if number == 0 else "", *cells)
    return Group(Text(title, style="bold"), table)


def _rows_with(sheet: Sheet, key: str) -> list[tuple[Kind, Mapping[str, Value]]]:
    """Rows of a sheet that has a column, with the column's kind."""
    return [(column.kind, row) for column in sheet.columns if column.key == key for row in sheet.rows]
