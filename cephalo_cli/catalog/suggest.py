"""What a name that the catalog lacks may have meant: an entry of the same words and numbers, or a slip of the keyboard.

Names of devices and models differ in numbers that mean something: ``llama-13b`` is no misspelt ``llama-1b``, and
``mi250x`` looks like ``m2-max`` only to a program that counts letters. So numbers must agree, or differ by one slip
among several digits.
"""

import difflib
import re
from collections.abc import Mapping, Sequence

from cephalo_cli.artifacts.faults import one_of

__all__ = ["suggestion"]

MOST = 3
"""Names suggested at once."""
ALIKE = 0.7
"""Likeness of two names, and of the words in them, from which one may be the other misspelt."""
SLIP = 0.8
"""Likeness of two numbers from which one is the other with a digit too many, too few or wrong."""
SLIP_DIGITS = 3
"""Digits that a number has at least before one of them may be wrong: shorter ones mean something else at once."""
_TOKEN = re.compile(r"\d+(?:\.\d+)?[a-z]*|[a-z]+")
"""A word, or a number with its unit: ``1b`` and ``80gb`` are one thing each."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def suggestion(name: str, names: Mapping[str, str], *, kind: str) -> str:
    """Say what to do about a name that nothing has.

    1. Entries whose names have all its words and numbers in order, the shortest first: ``llama-1b`` is
       ``llama-3.2-1b``.
    2. Else a name that looks like it, with the same numbers but for one slip: ``lamma-7b``, ``rtx-3900``, ``rtx-309``.
    3. Else the search that lists names which begin as a part of it does.
    4. Else the list of all.

    Args:
        name: What was asked for, in the catalog's spelling.
        names: What there is, aliases included, with the ids of their entries.
        kind: ``devices`` or ``models``, as ``cephalo catalog`` lists them.
    """
    name = name[:100].rpartition("/")[2]
    wanted = _tokens(name)
    holding = [other for other in names if wanted and _holds(_tokens(other), wanted)]
    if holding:
        holding.sort(key=lambda other: (len(_tokens(other)), other != names[other], len(other), other))
        best = {names[other]: other for other in reversed(holding)}
        return f"did you mean {one_of(list(reversed(best.values()))[:MOST])}?"
    for other in difflib.get_close_matches(name, names, n=len(names), cutoff=ALIKE):
        if _words_agree(wanted, _tokens(other)) and _numbers_agree(wanted, _tokens(other)):
            return f"did you mean {other!r}?"
    for part in (*name.split("-"), *wanted):
        if len(part) > 2 and any(piece.startswith(part) for other in names for piece in other.split("-")):
            return f"cephalo catalog {kind} {part} lists names like it"
    return f"cephalo catalog {kind} lists them"


def _tokens(name: str) -> list[str]:
    return _TOKEN.findall(name)


def _holds(tokens: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the wanted tokens are among these, in their order."""
    rest = iter(tokens)
    return all(any(_is(token, one) for one in rest) for token in wanted)


def _is(wanted: str, token: str) -> bool:
    """Whether a token is the wanted one, or that number with a unit behind it."""
    return token == wanted or (_NUMBER.fullmatch(wanted) is not None and _number(token) == wanted)


def _words_agree(wanted: Sequence[str], tokens: Sequence[str]) -> bool:
    ours, theirs = ("".join(token for token in each if token[0].isalpha()) for each in (wanted, tokens))
    return difflib.SequenceMatcher(None, ours, theirs).ratio() >= ALIKE


def _numbers_agree(wanted: Sequence[str], tokens: Sequence[str]) -> bool:
    ours = [token for token in wanted if _NUMBER.match(token)]
    return all(any(_is(one, other) or _is_slip(one, other) for other in tokens) for one in ours)


def _is_slip(one: str, other: str) -> bool:
    """Whether two numbers of several digits differ by one slip; what stands behind them must agree."""
    (ours, our_unit), (theirs, their_unit) = ((_number(token), _unit(token)) for token in (one, other))
    if our_unit != their_unit or len(ours) < SLIP_DIGITS:
        return False
    return sorted(ours) == sorted(theirs) or difflib.SequenceMatcher(None, ours, theirs).ratio() >= SLIP


def _number(token: str) -> str:
    match = _NUMBER.match(token)
    return match[0] if match else ""


def _unit(token: str) -> str:
    return token.removeprefix(_number(token))
