"""Measures what moving the bytes of collectives costs a CPU device, whose cores compute and copy.

Note: a rehearsal
    Moving takes CPU time of its own: a place is allocated, the rank's own part is copied there, the rest is sent and
    received, gradients are cleared and added up. And it makes compute slower: weights that have just arrived are not in
    the core's cache, and cores share the way to memory. So blocks are rehearsed as training runs them, forward on the
    way down, forward and backward on the way up, the next one gathered and the last one reduced meanwhile; and then
    again without collectives. What the process took longer, in CPU seconds of all its threads, is the cost of the bytes
    that `handled_fraction` counts. Samples are few and short: more compute would only bring more noise. Embedding and
    head move without compute; with them come the small sums over ranks that every step has. What starting a collective
    costs is spread over the bytes of this model's units.

Note: a rank that is busy
    Who has nothing to compute moves a byte for less: nothing is pushed out of the cache, and a thread that waits for
    bytes is woken once for many of them; with one CPU a rank, a busy one spent 1.6 times as much. The busiest rank
    decides about the step. So the device types rehearse in turns: in its turn a type's ranks have so many samples that
    computing takes as long as the collectives do alone, and the others only move.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.profiler.measure_timing import largest_of_ranks
from cephalo_cli.profiler.rehearsal import Rehearsal
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.runtime.process import ProcessContext

__all__ = ["Moving", "measure_moving"]

MOST_TOKENS = 64
"""Of each sample that is computed beside the collectives."""
FEWEST_REHEARSALS = 2
MOST_REHEARSALS = 25
"""In each turn, with and without collectives."""


@dataclass(frozen=True, kw_only=True)
class Moving:
    """What collectives cost this rank's CPU."""

    cpu_s_per_byte: float = 0.0
    """CPU seconds for a byte it handles."""
    issue_part: float = 0.0
    """Part of them that the computing thread spends on issuing collectives."""
    slowing_s_per_byte: float = 0.0
    """Seconds on the wall for a byte by which compute took longer."""
    alone_part: float | None = None
    """Part of the CPU seconds that is left when this rank computes nothing; None where all ranks rehearse at once."""

    def stall_part(self, speed: float) -> float:
        """Part that is neither issuing nor slows compute, on a device of so many CPUs."""
        if self.cpu_s_per_byte == 0:
            return 0.0
        return max(0.0, 1.0 - self.issue_part - min(1.0, self.slowing_s_per_byte * speed / self.cpu_s_per_byte))


def measure_moving(
    context: ProcessContext,
    model: Model,
    seq_len: int,
    dtype: DType,
    shares: Sequence[float],
    *,
    stopwatch: Stopwatch,
    most_elements: int,
    most_bytes: int | None,
    max_seconds: float,
) -> Moving:
    """Measure CPU seconds for a byte that this process handles in collectives; a collective over all ranks.

    Args:
        context: This rank; its device is a CPU.
        model: The model, whose blocks are rehearsed.
        seq_len: Tokens of one sample.
        dtype: Compute dtype; gradients are reduced in at least float32.
        shares: State shares to rehearse with.
        most_elements: Embedding and head are not taken to be larger.
        most_bytes: What the shards of blocks may take on this rank, beside two whole blocks; None for no limit.
        stopwatch: What the time limit is measured with; it stands still while the rehearsal is built.
        max_seconds: Where on the stopwatch the time of all but the fewest rehearsals ends; the rank with least counts.
    """
    with stopwatch.paused():
        rehearsal = Rehearsal(
            context, model, min(seq_len, MOST_TOKENS), dtype, shares, most_elements=most_elements, most_bytes=most_bytes
        )
    rehearsal.warm_up(context)
    types = list(dict.fromkeys(place.device for place in context.cluster.ranks))
    found = {}
    for turn, name in enumerate(types):
        left_s = max_seconds - largest_of_ranks(context, stopwatch())
        found[name] = _rehearse(rehearsal, context, name, left_s / (len(types) - turn))
    rehearsal.close()
    mine = found[context.place.device]
    of_model = model.num_layers / rehearsal.num_blocks
    moved_s = max(0.0, median(mine.blocks_s))
    ends_s = median(mine.ends_s)
    step_s = moved_s * of_model + ends_s
    others = [median(each.blocks_s) for name, each in found.items() if name != context.place.device]
    alone_s = median(others) * of_model + ends_s if others else step_s
    return Moving(
        cpu_s_per_byte=step_s / rehearsal.handled_bytes,
        issue_part=min(1.0, median(mine.issue_s) / moved_s) if moved_s > 0 else 0.0,
        slowing_s_per_byte=max(0.0, median(mine.slower_s)) * of_model / rehearsal.handled_bytes,
        alone_part=min(1.0, alone_s / step_s) if others and step_s > 0 else None,
    )


@dataclass
class _Found:
    """What rehearsals of one turn took this rank, a value each."""

    blocks_s: list[float] = field(default_factory=list)
    """CPU seconds more with collectives than without."""
    issue_s: list[float] = field(default_factory=list)
    """CPU seconds of the computing thread for issuing."""
    slower_s: list[float] = field(default_factory=list)
    """Seconds on the wall that compute took longer with collectives."""
    ends_s: list[float] = field(default_factory=list)
    """CPU seconds for embedding and head."""


def _rehearse(rehearsal: Rehearsal, context: ProcessContext, busy: str, max_seconds: float) -> _Found:
    """Rehearse while the ranks of one device type are busy, as long as there is time; all ranks decide alike."""
    begin = time.perf_counter()
    rehearsal.choose_samples(is_busy=context.place.device == busy)
    chosen = time.perf_counter()
    found = _Found()
    while len(found.ends_s) < MOST_REHEARSALS:
        with_moves, slow_s = rehearsal.run_blocks(moves=True), rehearsal.compute_s
        found.issue_s.append(rehearsal.issue_s)
        found.blocks_s.append(with_moves - rehearsal.run_blocks(moves=False))
        found.slower_s.append(slow_s - rehearsal.compute_s)
        found.ends_s.append(rehearsal.run_ends())
        now = time.perf_counter()
        expected = largest_of_ranks(context, now - begin + (now - chosen) / len(found.ends_s))
        if len(found.ends_s) >= FEWEST_REHEARSALS and expected > max_seconds:
            break
    return found
