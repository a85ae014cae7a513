"""Conditions under which a comparison fails: what a continuous integration job watches."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from cephalo_cli.artifacts import Envelope, Plan, Profile, Report
from cephalo_cli.artifacts.faults import nearest
from cephalo_cli.errors import UsageError
from cephalo_cli.quantities import format_bytes, format_percent, format_seconds
from cephalo_cli.reporting.compare_profiles import drifts
from cephalo_cli.reporting.compare_steps import Side, side

__all__ = ["Condition", "broken", "parse_condition"]

Watched: TypeAlias = Literal["slower", "memory", "infeasible"]
WATCHED: tuple[Watched, ...] = ("slower", "memory", "infeasible")
_TEXT = re.compile(r"([^:]+)(?::\s*(\d+(?:\.\d+)?)\s*%?)?\s*")
HINT = "write it like slower:5%, memory:5% or infeasible"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something that must not have happened from the first file to the second."""

    watched: Watched
    allowed: float
    """Fraction by which it may have happened all the same; infeasible allows none."""
    text: str
    """As it was written."""


def parse_condition(text: str) -> Condition:
    """Read a condition such as ``slower:5%``.

    Raises:
        UsageError: The text is none.
    """
    match = _TEXT.fullmatch(text.strip())
    name = (match[1] if match else text.partition(":")[0]).strip().lower()
    if match is None or name not in WATCHED or (name == "infeasible" and match[2] is not None):
        raise UsageError(
            f"{text!r} is no condition",
            where="--fail-if",
            hint=(name not in WATCHED and nearest(name, WATCHED)) or HINT,
        )
    return Condition(watched=cast("Watched", name), allowed=float(match[2] or 0) / 100, text=text.strip())


def broken(conditions: Sequence[Condition], artifacts: Sequence[Envelope], names: Sequence[str]) -> list[str]:
    """Say which conditions hold, a sentence each.

    Args:
        conditions: What is watched.
        artifacts: The old and the new plan, report or profile; the new one alone where only ``infeasible`` is watched.
        names: Their files.

    Raises:
        UsageError: A condition cannot be told from these artifacts.
    """
    return [sentence for each in conditions for sentence in _TELLERS[each.watched](each, artifacts, names)]


def _slower(condition: Condition, artifacts: Sequence[Envelope], names: Sequence[str]) -> Iterator[str]:
    _need_two(condition, artifacts)
    if all(isinstance(artifact, Profile) for artifact in artifacts):
        old, new = (cast("Profile", artifact) for artifact in artifacts)
        worst = max(drifts(old, new), key=lambda drift: drift.change, default=None)
        if worst is None:
            raise UsageError("these profiles share no device type, unit and microbatch size", where="--fail-if")
        if worst.change > condition.allowed:
            yield (
                f"{names[1]} is {format_percent(worst.change)} slower than {names[0]} in the {worst.what}: "
                f"{format_seconds(worst.new_s)} instead of {format_seconds(worst.old_s)}"
            )
        return
    old_side, new_side = _sides(condition, artifacts, names)
    if old_side.job[2:] != new_side.job[2:]:
        raise UsageError(
            "the two files have different batches or sequence lengths, so their steps cannot be compared",
            where=f"--fail-if {condition.text}",
            hint="plan both with one --batch-size",
        )
    slower = new_side.step_s / old_side.step_s - 1 if old_side.step_s else 0.0
    if slower > condition.allowed:
        yield (
            f"{names[1]} is {format_percent(slower)} slower than {names[0]}: a step of "
            f"{format_seconds(new_side.step_s)} instead of {format_seconds(old_side.step_s)}"
        )


def _memory(condition: Condition, artifacts: Sequence[Envelope], names: Sequence[str]) -> Iterator[str]:
    _need_two(condition, artifacts)
    old, new = _sides(condition, artifacts, names)
    if [rank.device for rank in old.ranks] != [rank.device for rank in new.ranks]:
        raise UsageError(
            "the two files have different devices, so their memory cannot be compared rank by rank",
            where=f"--fail-if {condition.text}",
        )
    grown = [
        (after.memory_bytes / before.memory_bytes - 1, rank)
        for rank, (before, after) in enumerate(zip(old.ranks, new.ranks, strict=True))
        if before.memory_bytes
    ]
    most, rank = max(grown, default=(0.0, 0))
    if most > condition.allowed:
        yield (
            f"rank {rank} of {names[1]} needs {format_percent(most)} more memory than in {names[0]}: "
            f"{format_bytes(new.ranks[rank].memory_bytes)} instead of {format_bytes(old.ranks[rank].memory_bytes)}"
        )


def _infeasible(condition: Condition, artifacts: Sequence[Envelope], names: Sequence[str]) -> Iterator[str]:
    (new,) = _sides(condition, artifacts[-1:], names[-1:])
    over = [
        (rank.memory_bytes - rank.limit_bytes, number, rank.device)
        for number, rank in enumerate(new.ranks)
        if rank.limit_bytes is not None and rank.memory_bytes > rank.limit_bytes
    ]
    if over:
        most, rank, device = max(over)
        yield f"{names[-1]} does not fit: rank {rank} ({device}) is {format_bytes(most)} over its limit"


_TELLERS: Mapping[Watched, Callable[[Condition, Sequence[Envelope], Sequence[str]], Iterator[str]]] = {
    "slower": _slower,
    "memory": _memory,
    "infeasible": _infeasible,
}


def _need_two(condition: Condition, artifacts: Sequence[Envelope]) -> None:
    if len(artifacts) != 2:
        raise UsageError(
            f"needs two files, the old one and the new one, found {len(artifacts)}",
            where=f"--fail-if {condition.text}",
            hint=f"cephalo show OLD NEW --fail-if {condition.text}",
        )


def _sides(condition: Condition, artifacts: Sequence[Envelope], names: Sequence[str]) -> list[Side]:
    for artifact in artifacts:
        if not isinstance(artifact, Plan | Report):
            raise UsageError(
                f"is for plans and reports, found a {artifact.kind}", where=f"--fail-if {condition.text}", hint=None
            )
    return [side(cast("Plan | Report", artifact), name) for artifact, name in zip(artifacts, names, strict=True)]
