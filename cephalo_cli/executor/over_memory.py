"""What to say when a rank went over its memory: what was planned, by term, and what was found.

A rank that is killed for its memory cannot speak any more. So ranks tell their peak after set-up, when state exists and
nothing else does, and whenever it has grown; set-up is compared with state and reserve, the rest with the step's terms.
"""

from dataclasses import dataclass, field

from cephalo_cli.artifacts.plan import Memory, Plan
from cephalo_cli.quantities import format_bytes
from cephalo_cli.runtime.memory_limit import MemoryLimitError

__all__ = ["MemoryLog", "MemorySeen", "explain_memory"]

GROWTH = 1.02
"""A peak is told when it is this many times the last one told."""


@dataclass
class MemorySeen:
    """Peaks of one rank."""

    setup_bytes: int = 0
    """Before the first step; 0 when that was never reached."""
    peak_bytes: int = 0
    """At most so far."""
    step: int = 0
    """The step after which that was."""

    def has_grown(self, step: int, peak_bytes: int) -> bool:
        """Note a peak; says whether it is worth telling."""
        if step > 0 and peak_bytes < GROWTH * self.peak_bytes:
            return False
        self.note(step, peak_bytes)
        return True

    def note(self, step: int, peak_bytes: int) -> None:
        """Note a peak; step 0 is set-up."""
        if step == 0:
            self.setup_bytes = peak_bytes
        self.peak_bytes, self.step = peak_bytes, step


@dataclass
class MemoryLog:
    """What ranks have told, by rank."""

    seen: dict[int, MemorySeen] = field(default_factory=dict)

    def note(self, rank: int, step: int, peak_bytes: int) -> None:
        """Note what a rank told."""
        self.seen.setdefault(rank, MemorySeen()).note(step, peak_bytes)


def explain_memory(error: MemoryLimitError, plan: Plan, log: MemoryLog, *, compiles: bool = False) -> None:
    """Add to an error which terms were planned and which were found; a compiler takes memory that no plan counts."""
    if error.rank is None:
        return
    if compiles:
        error.hint = "torch.compile takes memory of its own: leave --compile out, or plan with a larger --reserve"
    planned = plan.ranks[error.rank].memory
    terms = ", ".join(
        f"{name} {format_bytes(getattr(planned, f'{name}_bytes'))}"
        for name in ("state", "buffers", "working", "saved", "reserve")
    )
    found = _found(planned, log.seen.get(error.rank))
    error.message += f"; planned: {terms}, together {format_bytes(planned.total_bytes)}; found: {found}"


def _found(planned: Memory, seen: MemorySeen | None) -> str:
    at_rest = planned.state_bytes + planned.reserve_bytes
    if seen is None:
        return f"it ended while state was made, so state and reserve need more than {format_bytes(at_rest)}"
    setup = f"{format_bytes(seen.setup_bytes)} after set-up (state and reserve: {format_bytes(at_rest)} planned)"
    in_step = planned.total_bytes - at_rest
    first = (
        "before the first step had ended" if seen.step == 0 else f"{format_bytes(seen.peak_bytes)} by step {seen.step}"
    )
    term = "state and reserve" if seen.setup_bytes > at_rest else "buffers, working and saved"
    return f"{setup}, {first} (buffers, working and saved: {format_bytes(in_step)} planned); more than planned: {term}"
