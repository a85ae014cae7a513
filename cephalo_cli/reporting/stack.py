"""Several sheets with the same columns as one table: a section each, so that a comparison is read at one glance."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cephalo_cli.reporting.sheet import Column, Kind, Sheet, Value, cell, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["stacked", "turned"]

SHORT_WORD = 12
"""Words up to this length are never cut: less than in other tables, as every file has a column of numbers here."""


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


def stacked(title: str, sheets: Sequence[Sheet]) -> "RenderableType":
    """Render sheets below each other in one table; a column appears where any sheet has it."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns: dict[str, Column] = {}
    for key in ("ranks", "device"):
        columns |= {column.key: column for sheet in sheets for column in sheet.columns if column.key == key}
    last = ("change", "limit_bytes")
    columns |= {c.key: c for sheet in sheets for c in sheet.columns if c.key not in (*last, *columns)}
    columns |= {column.key: column for sheet in sheets for column in sheet.columns if column.key in last}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in columns.values():
        words = column.key in ("ranks", "device")
        written = [shown(row.get(column.key), kind) for sheet in sheets for kind, row in _rows_with(sheet, column.key)]
        longest = max(map(len, written), default=0)
        least = min(longest, SHORT_WORD) if words else longest
        table.add_column(column.title, justify="left" if words else "right", overflow="fold", min_width=least)
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
