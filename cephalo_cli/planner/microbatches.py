"""Exact Pareto lists of the options that still matter, by dynamic programming.

For one device group and one family of modes, with tau(s) the additive costs of one microbatch of s samples (`sizes`):

    table_s[b]   undominated cost vectors of multisets that sum to b and use sizes up to s
    exact_s[b] = undominated { x + tau(s) : x in table_s[b - s] }             multisets whose largest size is s
    table_s[b] = undominated ( table_(s-1)[b] + exact_s[b] )

Dropping dominated prefixes is exact, because whatever extends one extends the other. A multiset whose largest size is
s needs ``beside(s) + saved`` bytes beside the state, so every entry of ``exact_s[b]`` is one option; where a larger
size needs no more memory than a smaller one (a table that decreases) it is one even if ``table_(s-1)`` dominates it.

Such lists grow quickly, so they are only made for the samples b that `bounds` leaves open, and only from prefixes that
can still reach one of them within the window.
"""

import time
from collections.abc import Sequence

import numpy as np

from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.lines import Line
from cephalo_cli.planner.options import SAME, Listing, Window, undominated
from cephalo_cli.planner.search import Effort
from cephalo_cli.planner.sizes import MICROBATCHES, SizeCosts

__all__ = ["list_exactly"]

CALL, ENTRY = 600, 30
"""Effort of extending a list, and of every entry that is extended."""


def list_exactly(
    listing: Listing,
    targets: Ints,
    least: Floats,
    window: Window,
    lines: Sequence[Line] = (),
    *,
    deadline: float | None = None,
    effort: Effort | None = None,
) -> bool:
    """Add every undominated option with one of the target numbers of samples that the window admits.

    Args:
        listing: Where to add them.
        targets: Samples to list, increasing.
        least: Lower bounds of the additive costs by samples, shape (samples + 1, columns).
        window: What is worth keeping.
        lines: What an option must obey to be so.
        deadline: `time.monotonic` after which to stop.
        effort: How much to do before stopping likewise.

    Returns:
        Whether the list is complete.
    """
    costs, most = listing.costs, int(targets[-1])
    effort = effort or Effort()
    table = _Table(listing, targets, least, window, lines)
    wanted = set(targets.tolist())
    for size in range(1, min(costs.max_size, most) + 1):
        if not table.may_use(size):
            continue
        rises = costs.beside_bytes[size] >= costs.beside_bytes[1 : size + 1].max()
        for samples in range(size, most + 1):
            if len(table.vectors[samples - size]):
                effort.spend(CALL + ENTRY * len(table.vectors[samples - size]))
                if effort.left < 0 or (deadline is not None and time.monotonic() > deadline):
                    return False
                vectors, entries = table.extend(samples, size, keep_dominated=not rises)
                if samples in wanted and len(entries):
                    listing.add(np.full(len(entries), samples, dtype=np.int64), size, vectors, entries)
    return True


class _Table:
    """``table_s[b]`` of the note, grown size by size."""

    def __init__(self, listing: Listing, targets: Ints, least: Floats, window: Window, lines: Sequence[Line]) -> None:
        self.listing, self.window, self.targets, self.lines = listing, window, targets, lines
        self.kinds = listing.costs.num_kinds
        self.rest = least[:, : self.kinds]
        self.matters = _matters(listing.costs, int(targets[-1]), window)
        width = listing.costs.additive.shape[1]
        self.vectors = [np.zeros((1 if samples == 0 else 0, width)) for samples in range(int(targets[-1]) + 1)]
        self.entries = [np.zeros(len(vectors), dtype=np.int64) for vectors in self.vectors]

    def may_use(self, size: int) -> bool:
        """Whether an option of some target may have a microbatch of a size."""
        targets = self.targets[self.targets >= size]
        one = self.listing.costs.additive[size : size + 1]
        return bool(self._open(size, one, targets).any())

    def _open(self, samples: int, done: Floats, targets: Ints) -> Mask:
        """Which prefixes may become an option of which target, shape (prefixes, targets)."""
        reached = done[:, None, : self.kinds] + self.rest[targets - samples][None]
        found = np.asarray(self.window.admits(reached))
        for line in self.lines:
            found &= line.open(samples, done, targets)
        return found

    def extend(self, samples: int, size: int, *, keep_dominated: bool) -> tuple[Floats, Ints]:
        """Add one microbatch of a size; returns ``exact_s[b]`` and its entries."""
        # Only what the rest of some target can still complete within the window is kept.
        candidates = self.vectors[samples - size] + self.listing.costs.additive[size]
        targets = self.targets[self.targets >= samples]
        good = np.asarray(self._open(samples, candidates, targets).any(axis=1))
        good[good] = undominated(candidates[good][:, self.matters])
        old = self.vectors[samples]
        worse = np.zeros(len(candidates), dtype=bool)
        if len(old) and good.any():
            slack = candidates[good][:, self.matters] * (1.0 + SAME)
            worse[good] = (old[None, :, self.matters] <= slack[:, None, :]).all(axis=2).any(axis=1)
        # Where this size needs less memory, what the table dominates is an option still, but no prefix worth keeping.
        chosen = np.flatnonzero(good if keep_dominated else good & ~worse)
        if not len(chosen):
            return candidates[chosen], chosen
        entries = self.listing.history.add(self.entries[samples - size][chosen].tolist(), size)
        fresh = ~worse[chosen]
        if fresh.any():
            added = candidates[chosen[fresh]]
            slack = old[:, self.matters] * (1.0 + SAME)
            stays = ~(added[None, :, self.matters] <= slack[:, None, :]).all(axis=2).any(axis=1)
            self.vectors[samples] = np.concatenate([old[stays], added])
            self.entries[samples] = np.concatenate([self.entries[samples][stays], entries[fresh]])
        return candidates[chosen], entries


def _matters(costs: SizeCosts, most: int, window: Window) -> Mask:
    """Columns that can tell options apart: not the kinds whose slowest multiset stays below the floor."""
    sizes = np.arange(1, len(costs.additive))
    slowest = (costs.seconds[1:] / sizes[:, None]).max(axis=0, initial=0.0) * most
    matters = costs.matters.copy()
    matters[: costs.num_kinds] &= slowest > window.flat_s
    if matters[MICROBATCHES]:
        samples = np.arange(most + 1)
        copies = costs.copy_s(samples, samples.astype(np.float64))
        quickest = (costs.seconds[1:] / sizes[:, None]).min(axis=0, initial=np.inf)
        matters[MICROBATCHES] = bool((copies > np.maximum(window.flat_s, np.outer(samples, quickest))).any())
    return matters
