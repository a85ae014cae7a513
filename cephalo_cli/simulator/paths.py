"""Finding a value in a document by a path that people type, such as ``nodes.node-a.link.latency_s``."""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cephalo_cli.errors import UsageError

__all__ = ["Place", "find"]

OPTIONAL = frozenset({"reserve_bytes"})
"""Values that may be absent and still be set."""
_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a value is."""

    holder: dict[str, Any]
    key: str
    path: str
    """The full path from the document's root, with numbers for the places in lists."""


@dataclass(frozen=True, kw_only=True)
class _Miss:
    depth: int
    """How many keys led somewhere."""
    known: tuple[str, ...]
    """What could have stood where the wrong key stands."""


def find(document: dict[str, Any], path: str, *, inside: Sequence[str], hint: Callable[[str | None], str]) -> Place:
    """Find a value from the document's root, or else from one of the objects in it.

    Args:
        document: Nested objects and lists.
        path: Keys joined by dots; a place in a list is a number, ``[number]`` or the name of what stands there.
        inside: Keys of the root whose objects a path may start from.
        hint: Says what to do instead, given the path with its first wrong key corrected, if anything resembles it.

    Raises:
        UsageError: There is no such value.
    """
    keys = _INDEX.sub(r".\1", path).split(".")
    misses: list[_Miss] = []
    for start in ("", *inside):
        found = _walk(document[start] if start else document, keys, [start] if start else [])
        if isinstance(found, Place):
            return found
        misses.append(found)
    furthest = max(misses, key=lambda miss: miss.depth)
    known = [key for miss in misses if miss.depth == furthest.depth for key in miss.known]
    near = difflib.get_close_matches(keys[furthest.depth], known, n=1, cutoff=0.5)
    corrected = ".".join([*keys[: furthest.depth], *near, *keys[furthest.depth + 1 :]])
    raise UsageError("the plan has no such value", hint=hint(corrected if near else None))


def _walk(node: Any, keys: Sequence[str], full: list[str]) -> Place | _Miss:
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(node, list):
            names = [
                str(child.get("name", number)) if isinstance(child, dict) else str(number)
                for number, child in enumerate(node)
            ]
            index = names.index(key) if key in names else int(key) if key.isdecimal() else len(node)
            if last or index >= len(node):
                return _Miss(depth=depth, known=tuple(names))
            full = [*full, str(index)]
            node = node[index]
            continue
        if not isinstance(node, dict) or (key not in node and not (last and key in OPTIONAL)):
            return _Miss(depth=depth, known=tuple(node) if isinstance(node, dict) else ())
        full = [*full, key]
        if last:
            return Place(holder=node, key=key, path=".".join(full))
        node = node[key]
    raise AssertionError("a path has at least one key")
