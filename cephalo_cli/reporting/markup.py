"""Tables, facts and figures as pieces of a web page. Names from files are escaped; pictures take the page's colours."""

import html
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from cephalo_cli.reporting.canvas import picture
from cephalo_cli.reporting.sheet import BAD_MARK, TICK, Column, Facts, Part, Sheet, Value, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["escaped", "figure_of", "part_of"]

_INKS: Mapping[str, str] = MappingProxyType(
    {
        "#333333": "var(--ink)",
        "#000000": "var(--strong)",
        "#777777": "var(--quiet)",
        "#999999": "var(--rule)",
        "#dddddd": "var(--faint)",
        "#eeeeee": "var(--faint)",
        "#ffffff": "var(--paper)",
    }
)
"""The pictures' own greys by what the page calls them, so that they are legible on dark paper too."""


def escaped(text: str) -> str:
    """Write any text as it is: what a file calls itself is never markup."""
    return html.escape(text, quote=True)


def part_of(part: Part) -> str:
    """Write facts as a list and a sheet as a table, under a heading."""
    body = _facts(part) if isinstance(part, Facts) else _table(part)
    return f"<h3>{escaped(part.title)}</h3>\n{body}"


def figure_of(drawn: "Figure", caption: str, *, number: int) -> str:
    """Write a figure as SVG inside the page.

    Args:
        drawn: What to show.
        caption: What it shows.
        number: Of the figure in the page: the names inside it begin with it, as they must differ between figures.
    """
    text = picture(drawn, "svg", background="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1f{number}-", text)
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: _INKS.get(match[0].lower(), match[0]), text)
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{escaped(caption)}">', text
    )
    return f'<figure><div class="scroll">{text}</div><figcaption>{escaped(caption)}</figcaption></figure>'


def _facts(part: Facts) -> str:
    pairs = ((fact.label.strip(), f"{shown(fact.value, fact.kind)} {fact.more}".rstrip()) for fact in part.facts)
    return f"<dl>{''.join(f'<dt>{escaped(label)}</dt><dd>{escaped(value)}</dd>' for label, value in pairs)}</dl>"


def _table(part: Sheet) -> str:
    heads = [_head(column) for column in part.columns]
    if part.chosen:
        heads.insert(0, "<th></th>")
    rows = [_row(part, number, row) for number, row in enumerate(part.rows)]
    body = "\n".join([f"<tr>{''.join(heads)}</tr>", *rows]) if rows else ""
    notes = "".join(f'<p class="note">{escaped(note)}</p>' for note in part.notes)
    return f'<div class="scroll"><table>{body}</table></div>{notes}' if rows else notes


def _head(column: Column) -> str:
    return f"<th{_class(column)}>{escaped(column.title)}</th>"


def _class(column: Column, *more: str) -> str:
    names = [*([] if column.kind in ("text", "ranks") else ["number"]), *more]
    return f' class="{" ".join(names)}"' if names else ""


def _row(part: Sheet, number: int, row: Mapping[str, Value]) -> str:
    cells: Sequence[str] = [_cell(part, number, column, row.get(column.key)) for column in part.columns]
    is_chosen = number in part.chosen
    tick = [f'<td class="tick">{TICK if is_chosen else ""}</td>'] if part.chosen else []
    start = '<tr class="chosen">' if is_chosen else "<tr>"
    return f"{start}{''.join([*tick, *cells])}</tr>"


def _cell(part: Sheet, number: int, column: Column, value: Value) -> str:
    words = shown(value, column.kind)
    if value is None or (number, column.key) not in part.bad:
        return f"<td{_class(column)}>{escaped(words)}</td>"
    mark = "" if column.kind in ("text", "ranks") else f" {BAD_MARK}"
    return f"<td{_class(column, 'bad')}>{escaped(words)}{mark}</td>"
