"""What the columns of a comparison are called: short, different from each other, and in a table of 80 columns."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from cephalo_cli.reporting.sheet import GAP, NARROWEST

__all__ = ["IN_A_PICTURE", "LONGEST", "SHORTEST", "labels", "legend", "name_room", "short_names", "split_names"]

SHORTEST = 8
"""Labels are given this much room, whatever they leave to the rest of a table."""
LONGEST = 32
"""No label is longer than this, whatever room there is."""
IN_A_PICTURE = 24
"""Most characters beside a bar."""
CUT = "…"


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


def labels(names: Sequence[str], most: int) -> list[str]:
    """Write short names in at most so many characters each, all of them different.

    Of a path the last parts that no other one ends in; of what is still too long the middle or, where that would make
    some equal, the beginning that all share; at last they are numbered.
    """
    ends = _ends(names)
    short = [_without_middle(end, most) for end in ends]
    if len(set(short)) < len(short):
        alike = [len(set(characters)) == 1 for characters in zip(*ends, strict=False)]
        shared = alike.index(False) if False in alike else len(alike)
        short = [end if len(end) <= most else f"{CUT}{end[shared:]}" for end in ends]
    if len(set(short)) < len(short) or max(map(len, short), default=0) > most:
        tags = [f"#{number}" for number in range(1, len(ends) + 1)]
        short = [_without_middle(end, most - len(tag)) + tag for end, tag in zip(ends, tags, strict=True)]
    return short


def legend(names: Sequence[str], short: Sequence[str]) -> list[str]:
    """Say of every label that is not the end of its name what it stands for."""
    return [
        f"{label}: {name}"
        for end, name, label in zip(_ends(names), names, short, strict=True)
        if label not in (end, name)
    ]


def split_names(beside: int, widths: Mapping[str, int]) -> list[list[str]]:
    """Divide files among tables, each with as many columns as there is room for.

    Args:
        beside: Width of the other columns, the gaps around all of them included.
        widths: Width of the numbers of each file.
    """
    tables: list[list[str]] = [[]]
    for name in widths:
        if tables[-1] and beside + sum(GAP + max(SHORTEST, widths[each]) for each in (*tables[-1], name)) > NARROWEST:
            tables.append([])
        tables[-1].append(name)
    return tables


def name_room(beside: int, widths: Mapping[str, int]) -> int:
    """Most characters of a label with which no table of `split_names` becomes too wide."""
    return max(
        most
        for most in range(SHORTEST, LONGEST + 1)
        if most == SHORTEST
        or all(
            beside + sum(GAP + max(most, widths[name]) for name in table) <= NARROWEST
            for table in split_names(beside, widths)
        )
    )


def _ends(names: Sequence[str]) -> list[str]:
    """Of every path so many of its last parts that it is the only one that ends in them."""
    parts = [PurePath(name.removesuffix(".json")).parts for name in names]
    ends = []
    for mine in parts:
        count = 1
        while count < len(mine) and sum(other[-count:] == mine[-count:] for other in parts) > 1:
            count += 1
        ends.append(str(PurePath(*mine[-count:])))
    return ends


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = (most - len(CUT)) // 2
    return text[:head] + CUT + text[head + len(CUT) + len(text) - most :]
