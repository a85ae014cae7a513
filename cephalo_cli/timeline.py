"""What happened when: spans of a step on lanes, simulated or measured, in one form for traces and pictures.

The simulator and the executor produce these values, reporting draws them; none of the three knows the others.

Note: flows
    A collective or copy has a number, the same on every rank that takes part (its position in the sequence of the step
    works). Whatever waited for it names that number in ``waited_for``; a trace draws an arrow from one to the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

__all__ = ["LANES", "LANE_OF", "Event", "Lane", "MemorySample", "Timeline", "event_name"]

Lane = Literal["compute", "gather", "reduce", "copy in", "copy out", "optimizer"]

LANES: tuple[Lane, ...] = ("compute", "gather", "reduce", "copy in", "copy out", "optimizer")
"""All lanes, in the order in which they are drawn."""

LANE_OF: Mapping[str, Lane] = MappingProxyType(
    {
        "FORWARD": "compute",
        "RECOMPUTE": "compute",
        "BACKWARD": "compute",
        "UNSHARD": "gather",
        "REDUCE_GRAD": "reduce",
        "ALL_REDUCE": "reduce",
        "FETCH": "copy in",
        "OFFLOAD": "copy out",
        "OPTIMIZER_STEP": "optimizer",
    }
)
"""The lane of each kind of schedule record (by its name, such as ``FORWARD``); RESHARD takes no time."""

_VERBS: Mapping[str, str] = MappingProxyType(
    {"UNSHARD": "gather", "REDUCE_GRAD": "reduce", "ALL_REDUCE": "all-reduce", "OPTIMIZER_STEP": "optimizer"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One span on one lane of one rank."""

    rank: int
    """Number of the rank."""
    lane: Lane
    """What was busy."""
    name: str
    """What people read, see `event_name`."""
    start_s: float
    """Seconds from the start of the time line."""
    end_s: float
    """Seconds from the start of the time line; at least ``start_s``."""
    args: Mapping[str, str | int | float] = field(default_factory=dict)
    """More about it, such as ``{"bytes": 1024}``."""
    flow: int | None = None
    """Number of this collective or copy, for others to wait for."""
    waited_for: tuple[int, ...] = ()
    """Flows this event could not start without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySample:
    """Memory of one rank from one moment until its next sample."""

    rank: int
    """Number of the rank."""
    time_s: float
    """Seconds from the start of the time line."""
    bytes_by_term: Mapping[str, int]
    """Bytes of each term: state, buffers, working, saved, reserve."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All ranks over a stretch of time."""

    rank_names: tuple[str, ...]
    """What to call each rank, such as ``rank 2 · p40 · node-a``."""
    duration_s: float
    """Length of the time line in seconds."""
    events: tuple[Event, ...]
    """Every span; those of one lane of one rank never overlap."""
    memory: tuple[MemorySample, ...] = ()
    """Memory over time, in order of time within each rank."""
    limit_bytes: tuple[int, ...] = ()
    """What each rank may use; empty where it is not known."""


def event_name(op: str, unit: str | None = None, microbatch: int | None = None) -> str:
    """Name an event after its schedule record, such as ``forward block.3 #1`` or ``gather block.4``.

    Args:
        op: Name of the record's kind, such as ``FORWARD``.
        unit: Name of the unit, if it concerns one.
        microbatch: Index of the microbatch, if it concerns one.
    """
    words = [_VERBS.get(op, op.lower())]
    if unit is not None:
        words.append(unit)
    if microbatch is not None:
        words.append(f"#{microbatch}")
    return " ".join(words)
