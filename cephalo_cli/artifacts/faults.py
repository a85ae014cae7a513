"""How a fault in a document is put into words: where it stands, what stands there, what may have been meant."""

import difflib
import json
import re
from collections.abc import Iterable

__all__ = ["FieldPath", "MisfitError", "field_path", "nearest", "one_of", "shown"]

FieldPath = tuple[int | str, ...]
"""Keys and indices from the outermost object to a value."""


class MisfitError(ValueError):
    """Values that are each sound do not fit together.

    Args:
        message: What was found and what was expected.
        at: FieldPath of the value to blame, from the object whose rule is broken.
    """

    def __init__(self, message: str, *, at: FieldPath = ()) -> None:
        super().__init__(message)
        self.at = at


def field_path(path: FieldPath) -> str:
    """Write a path as people do: ``ranks[2].state_share``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w-]{1,80}", part, re.ASCII):
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Suggest the known name that looks most like ``name``."""
    close = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None


def one_of(names: Iterable[str]) -> str:
    """List choices in words: ``'a', 'b' or 'c'``."""
    *others, last = (repr(name) for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """Show a value on one line of bounded length; objects and lists by what they are."""
    if isinstance(value, dict | list) and value:
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[:100] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
