"""Options of a device group: what one rank may run, what it costs, and how much state fits beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cephalo_cli.costmodel.compute import RankChoice
from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.groups import DeviceGroup
from cephalo_cli.planner.kinds import BLOCK_FORWARD
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.sizes import KEPT, KEPT_A_BLOCK, MICROBATCHES, SizeCosts

__all__ = [
    "BELOW",
    "SAME",
    "History",
    "Listing",
    "Options",
    "Window",
    "empty_option",
    "join_options",
    "undominated",
    "without_dominated",
]


SAME = 1e-12
"""Relative difference below which two costs are the same: far below the tolerance of the proof."""

BLOCK = 128
"""Rows compared with each other at once."""

BELOW = 1.0 - 1e-15
"""Keeps a share that fills a memory from being rounded up by a byte."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which options can be part of a plan that is better than the best one known."""

    floors_s: Floats
    """Least seconds of a stage by kind, whatever the option."""
    counts: Floats
    """How often each kind occurs."""
    budget_s: float
    """``sum_k count_k * max(floor_k, t_k)`` may not be larger."""
    flat_s: Floats
    """Seconds of a stage by kind below which all options are alike."""

    def admits(self, seconds: Floats) -> Mask:
        """Which rows (last axis: kinds) are within the budget."""
        within: Mask = np.maximum(seconds, self.floors_s) @ self.counts <= self.budget_s
        return within


@dataclass
class History:
    """How every multiset came about: the one it extends and the size it adds; entry 0 is the empty multiset."""

    extends: list[int] = field(default_factory=lambda: [0])
    adds: list[int] = field(default_factory=lambda: [0])

    def add(self, extends: list[int], size: int) -> Ints:
        """Record multisets that extend others by one microbatch; returns their entries."""
        first = len(self.extends)
        self.extends += extends
        self.adds += [size] * len(extends)
        return np.arange(first, len(self.extends))

    def sizes(self, entry: int) -> tuple[int, ...]:
        """Sizes of a multiset, largest first."""
        found = []
        while entry:
            found.append(self.adds[entry])
            entry = self.extends[entry]
        return tuple(sorted(found, reverse=True))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one device group, one a row."""

    group: DeviceGroup
    samples: Ints
    compute_s: Floats
    """Seconds of one stage by kind, shape (options, kinds)."""
    copy_s: Floats
    """Seconds of host copies of one stage by kind."""
    caps: Floats
    """Largest state share that fits beside it."""
    modes: Ints
    """Index into the group's modes."""
    entries: Ints
    """Its multiset in `history`."""
    history: History

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def times_s(self) -> Floats:
        """The longer of compute and copies, by kind."""
        return np.maximum(self.compute_s, self.copy_s)

    def above(self, flat_s: Floats) -> Floats:
        """Compute and copies by kind where they are above what makes no difference."""
        return np.column_stack([np.maximum(self.compute_s, flat_s), np.maximum(self.copy_s, flat_s)])

    def select(self, rows: Mask | Ints) -> "Options":
        """Keep some rows."""
        return Options(
            group=self.group,
            samples=self.samples[rows],
            compute_s=self.compute_s[rows],
            copy_s=self.copy_s[rows],
            caps=self.caps[rows],
            modes=self.modes[rows],
            entries=self.entries[rows],
            history=self.history,
        )

    def choice(self, row: int, share: float) -> RankChoice:
        """Decision of a rank that takes an option and a share."""
        mode = self.group.modes[int(self.modes[row])]
        return mode.choice(self.group.name, self.history.sizes(int(self.entries[row])), share)


def join_options(parts: Sequence[Options], *, fitting: bool = True) -> Options:
    """All options of the parts, or only those that fit; all share one history."""
    merged = Options(
        group=parts[0].group,
        samples=np.concatenate([part.samples for part in parts]),
        compute_s=np.concatenate([part.compute_s for part in parts]),
        copy_s=np.concatenate([part.copy_s for part in parts]),
        caps=np.concatenate([part.caps for part in parts]),
        modes=np.concatenate([part.modes for part in parts]),
        entries=np.concatenate([part.entries for part in parts]),
        history=parts[0].history,
    )
    return merged.select(merged.caps >= 0.0) if fitting else merged


def without_dominated(options: Options, flat_s: Floats) -> Options:
    """Leave out options that need no less time (above the floors) and no less memory than another of equal samples."""
    keep = np.zeros(len(options), dtype=bool)
    times = options.above(flat_s)
    costs = np.column_stack([times - times.min(axis=0, initial=np.inf), 1.0 - options.caps])
    costs = costs[:, costs.any(axis=0)]
    order = np.lexsort((-options.caps, options.samples))
    starts = np.flatnonzero(np.diff(options.samples[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        keep[rows[undominated(costs[rows])]] = True
    return options.select(keep)


def undominated(costs: Floats) -> Mask:
    """Which rows no other row is as good as in every column; of equal rows one stays.

    Args:
        costs: Shape (rows, columns), at least 0; less is better.
    """
    count = len(costs)
    keep = np.ones(count, dtype=bool)
    if count < 2 or costs.shape[1] == 0:
        keep[1:] = False
        return keep
    order = np.lexsort(costs.T[::-1])
    ordered = costs[order]
    slack = ordered * (1.0 + SAME)
    for start in range(0, count, BLOCK):
        # Sorted, a row is only ever beaten by one before it; blocks bound the memory of comparing all with all.
        rows = np.arange(start, min(start + BLOCK, count))
        before = np.flatnonzero(keep[order[:start]])
        if len(before):
            beaten = (ordered[before][:, None] <= slack[rows][None]).all(axis=2).any(axis=0)
            keep[order[rows[beaten]]] = False
            rows = rows[~beaten]
        worse = np.asarray((ordered[rows][:, None] <= slack[rows][None]).all(axis=2))
        np.fill_diagonal(worse, val=False)
        worse &= np.arange(len(rows))[:, None] < np.arange(len(rows))[None]
        keep[order[rows[worse.any(axis=0)]]] = False
    return keep


def empty_option(problem: Problem, group: DeviceGroup, history: History) -> Options:
    """The option of no samples; its mode does not matter."""
    memory = problem.memory(group.modes[0].choice(group.name, (), 0.0))
    zeros = np.zeros((1, len(problem.kinds)))
    nothing = np.zeros(1, dtype=np.int64)
    return Options(
        group=group,
        samples=nothing,
        compute_s=zeros,
        copy_s=zeros,
        caps=_caps(problem, group, np.array([float(memory.total_bytes)])),
        modes=nothing,
        entries=nothing,
        history=history,
    )


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Options of a family of modes as they are found: vectors of additive costs with their largest size."""

    group: DeviceGroup
    family: tuple[int, ...]
    """Indices of its modes, see `sizes.family_costs`."""
    costs: SizeCosts
    history: History
    samples: list[Ints] = field(default_factory=list)
    """Samples of every option, one array an `add`; so are the following."""
    largest: list[int] = field(default_factory=list)
    """Largest size of all options of the `add`."""
    vectors: list[Floats] = field(default_factory=list)
    """Sums of additive costs, shape (options, columns)."""
    entries: list[Ints] = field(default_factory=list)
    """Multisets in `history`."""

    def add(self, samples: Ints, largest: int, vectors: Floats, entries: Ints) -> None:
        """Add options with one largest size."""
        self.samples.append(samples)
        self.largest.append(largest)
        self.vectors.append(vectors)
        self.entries.append(entries)

    def options(self, problem: Problem) -> Options:
        """All of them in every mode of the family, with their copies and the shares that fit."""
        parts = [self._in_mode(problem, mode) for mode in self.family]
        return parts[0] if len(parts) == 1 else join_options(parts)

    def _in_mode(self, problem: Problem, mode: int) -> Options:
        """The same multisets in one mode of the family: its costs follow as `sizes.family_costs` says."""
        counts = [len(samples) for samples in self.samples]
        samples = np.concatenate([np.zeros(0, dtype=np.int64), *self.samples])
        largest = np.repeat(np.array(self.largest, dtype=np.int64), counts)
        vectors = np.concatenate([np.zeros((0, self.costs.additive.shape[1])), *self.vectors])
        compute_s, kept, boundary = vectors[:, : self.costs.num_kinds], vectors[:, KEPT], self.costs.boundary_bytes
        if len(self.family) > 1:
            count, most = (self.group.modes[each].recompute_blocks or 0 for each in (mode, self.family[-1]))
            kept = kept + (most - count) * vectors[:, KEPT_A_BLOCK]
            boundary = boundary // (most + 1) * (count + 1)
            again = np.array([kind.part_again(count) for kind in problem.kinds])
            compute_s = compute_s + again * compute_s[:, [BLOCK_FORWARD]]
        beside = self.costs.beside_bytes[largest] + np.ceil(kept) + boundary * samples
        return Options(
            group=self.group,
            samples=samples,
            compute_s=compute_s,
            copy_s=self.costs.copy_s(samples, vectors[:, MICROBATCHES]),
            caps=_caps(problem, self.group, beside),
            modes=np.full(len(samples), mode, dtype=np.int64),
            entries=np.concatenate([np.zeros(0, dtype=np.int64), *self.entries]),
            history=self.history,
        )


def _caps(problem: Problem, group: DeviceGroup, beside_bytes: Floats) -> Floats:
    fits = (group.limit_bytes - beside_bytes) / problem.state_bytes * BELOW
    return np.minimum(min(1.0, group.startup_share), fits)
