"""Strict JSON: the bytes of a file become plain objects, lists and values, or a refusal that names the place.

Note: refused values keep their place
    A parser's hooks see a value but not where it stands. So a hook that meets something no artifact may contain leaves
    a `_Refused` in its place, and the finished document is searched once for the first of them.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from cephalo_cli.artifacts.faults import FieldPath, field_path
from cephalo_cli.errors import ArtifactError

__all__ = ["MAX_FILE_BYTES", "parse", "refuse_size"]

MAX_FILE_BYTES = 64 * 2**20
MAX_KEYS = 100_000
"""Most keys of one object."""
MAX_INTEGER_DIGITS = 19
"""Enough for every integer below 2^63."""

MARKS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed, expected JSON as it is", "gunzip it first"),
    (b"\x89PNG", "a picture, expected JSON", "give the plan, profile or report it was drawn from"),
    (b"<", "a picture or a page, expected JSON", "give the plan, profile or report it was made from"),
    (b"\xff\xfe", "UTF-16 text, expected UTF-8", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text, expected UTF-8", "save it as UTF-8"),
    (b"PK\x03\x04", "an archive, expected JSON", "unpack it, or give the JSON file beside it"),
    (b"\x93NUMPY", "an array of numbers, expected JSON", "train --data reads token files"),
)
"""How files of other kinds begin, what they are, and what to do."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(raw: bytes, where: str) -> Any:
    """Parse one JSON document.

    Args:
        raw: The bytes of the file; a byte order mark at the start is allowed.
        where: Names the file in errors.

    Raises:
        ArtifactError: Too large, not UTF-8, not JSON, nested too deeply, or with a value no artifact may contain: NaN,
            an infinity, a number too large, a key given twice, half of a surrogate pair.
    """
    if len(raw) > MAX_FILE_BYTES:
        refuse_size(where)
    for mark, found, hint in MARKS:
        if raw.startswith(mark):
            raise ArtifactError(f"is {found}", where=where, hint=hint)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"is not UTF-8 text (byte {error.start})", where=where) from error
    if not text.strip():
        raise ArtifactError("is empty, expected a JSON object", where=where)
    hooks = _Hooks()
    try:
        document = json.loads(
            text,
            parse_constant=hooks.constant,
            parse_int=hooks.integer,
            parse_float=hooks.number,
            object_pairs_hook=hooks.keys,
        )
    except json.JSONDecodeError as error:
        raise ArtifactError(_broken(error, text), where=where) from error
    except RecursionError as error:
        raise ArtifactError("is nested too deeply for an artifact", where=where) from error
    if hooks.refused or _SURROGATE.search(text):
        for path, message in _refusals(document):
            raise ArtifactError(message, where=f"{where}: {field_path(path)}" if path else where)
    return document


def refuse_size(where: str) -> NoReturn:
    """Refuse a file because of its size."""
    raise ArtifactError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB, the most an artifact may have", where=where)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands where the document has something an artifact may not contain."""

    message: str
    key: str | None = None
    """The key inside an object that is to blame."""


class _Hooks:
    """What the parser calls for numbers and objects."""

    def __init__(self) -> None:
        self.refused = False

    def constant(self, name: str) -> object:
        return self._refuse(f"found {name}, expected a finite number")

    def integer(self, text: str) -> object:
        num_digits = len(text.lstrip("-"))
        if num_digits > MAX_INTEGER_DIGITS:
            return self._refuse(
                f"found an integer of {num_digits} digits, expected at most {MAX_INTEGER_DIGITS} digits"
            )
        return int(text)

    def number(self, text: str) -> object:
        value = float(text)
        if math.isinf(value):
            shown = text if len(text) <= 20 else f"{text[:17]}..."
            return self._refuse(f"found {shown}, expected a number that fits a float64")
        return value

    def keys(self, pairs: list[tuple[str, Any]]) -> object:
        if len(pairs) > MAX_KEYS:
            return self._refuse(f"found an object of {len(pairs)} keys, expected at most {MAX_KEYS} keys")
        document = dict(pairs)
        if len(document) != len(pairs):
            twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            return self._refuse("found the same key twice, expected each key once", twice)
        return document

    def _refuse(self, message: str, key: str | None = None) -> _Refused:
        self.refused = True
        return _Refused(message, key)


def _refusals(document: Any) -> Iterator[tuple[FieldPath, str]]:
    """FieldPath and message of each refused value, in the order of the file."""
    pending: list[tuple[FieldPath, Any]] = [((), document)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, _Refused):
            yield (path if value.key is None else (*path, value.key)), value.message
        elif isinstance(value, str) and not _is_text(value):
            yield path, "found half of a surrogate pair, expected text"
        elif isinstance(value, list):
            pending.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
        elif isinstance(value, dict):
            if not all(map(_is_text, value)):
                yield path, "found half of a surrogate pair in a key, expected text"
            pending.extend(((*path, key), value[key]) for key in reversed(value))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _broken(error: json.JSONDecodeError, text: str) -> str:
    """Tell a file that was cut off from one that is not JSON."""
    ends_early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    message = error.msg[0].lower() + error.msg[1:].removesuffix(" starting at")
    return f"is {'cut off' if ends_early else 'not JSON'}: {message} at line {error.lineno}, column {error.colno}"
