"""Which multisets of microbatch sizes are worth considering: exact Pareto lists by dynamic programming.

For one device group and one mode, with tau(s) the additive costs of one microbatch of s samples (`sizes`):

    table_s[b]   undominated cost vectors of multisets that sum to b and use sizes up to s
    exact_s[b] = undominated { x + tau(s) : x in table_s[b - s] }             multisets whose largest size is s
    table_s[b] = undominated ( table_(s-1)[b] + exact_s[b] )

Dropping dominated prefixes is exact, because whatever extends one extends the other. A multiset whose largest size is
s needs ``beside(s) + saved`` bytes beside the state, so every entry of ``exact_s[b]`` is one option; where a larger
size needs no more memory than a smaller one (a table that decreases) it is one even if ``table_(s-1)`` dominates it.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cephalo_cli.costmodel.compute import RankChoice
from cephalo_cli.costmodel.memory import rank_memory
from cephalo_cli.planner.problem import KINDS, DeviceGroup, Problem
from cephalo_cli.planner.sizes import SizeCosts, size_costs

__all__ = ["BELOW", "Options", "Window", "group_options", "undominated"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SAME = 1e-12
"""Relative difference below which two costs are the same: far below the tolerance of the proof."""


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

    def admits(self, seconds: Floats) -> npt.NDArray[np.bool_]:
        """Which rows of seconds by kind are within the budget."""
        within: npt.NDArray[np.bool_] = np.maximum(seconds, self.floors_s) @ self.counts <= self.budget_s
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

    def select(self, rows: npt.NDArray[np.bool_] | Ints) -> "Options":
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
        return RankChoice(
            device=self.group.name,
            microbatch_sizes=self.history.sizes(int(self.entries[row])),
            state_share=share,
            recompute=mode.recompute,
            offload=mode.offload,
        )


def group_options(problem: Problem, group: DeviceGroup, max_samples: int, window: Window) -> Options:
    """List every option of a device group that can be part of a better plan.

    Args:
        problem: The problem.
        group: The device group.
        max_samples: Most samples of one rank.
        window: What is worth keeping.
    """
    history = History()
    parts = [_empty(problem, group, history)]
    parts += [_mode_options(problem, group, mode, max_samples, window, history) for mode in range(len(group.modes))]
    merged = Options(
        group=group,
        samples=np.concatenate([part.samples for part in parts]),
        compute_s=np.concatenate([part.compute_s for part in parts]),
        copy_s=np.concatenate([part.copy_s for part in parts]),
        caps=np.concatenate([part.caps for part in parts]),
        modes=np.concatenate([part.modes for part in parts]),
        entries=np.concatenate([part.entries for part in parts]),
        history=history,
    )
    fitting = merged.select(merged.caps >= 0.0)
    return fitting.select(_undominated_options(fitting))


def undominated(costs: Floats) -> npt.NDArray[np.bool_]:
    """Which rows no other row is as good as in every column; of equal rows one stays. Costs are at least 0."""
    keep = np.ones(len(costs), dtype=bool)
    if len(costs) < 2 or costs.shape[1] == 0:
        keep[1:] = False
        return keep
    slack = costs * (1.0 + SAME)
    order = np.lexsort(costs.T[::-1])
    for position, row in enumerate(order):
        if keep[row]:
            later = order[position + 1 :]
            later = later[keep[later]]
            keep[later[(costs[row] <= slack[later]).all(axis=1)]] = False
    return keep


def _undominated_options(options: Options) -> npt.NDArray[np.bool_]:
    """Pareto filter among options with equally many samples: times against the share that fits."""
    keep = np.zeros(len(options), dtype=bool)
    costs = np.column_stack([options.compute_s, options.copy_s, 1.0 - options.caps])
    costs = costs[:, costs.any(axis=0)]
    order = np.argsort(options.samples, kind="stable")
    starts = np.flatnonzero(np.diff(options.samples[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        keep[rows[undominated(costs[rows])]] = True
    return keep


def _empty(problem: Problem, group: DeviceGroup, history: History) -> Options:
    """The option of no samples; its mode does not matter."""
    mode = group.modes[0]
    choice = RankChoice(
        device=group.name, microbatch_sizes=(), state_share=0.0, recompute=mode.recompute, offload=mode.offload
    )
    memory = rank_memory(problem.basis, problem.settings, choice, step=problem.step, num_ranks=problem.num_ranks)
    zeros = np.zeros((1, len(KINDS)))
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


def _caps(problem: Problem, group: DeviceGroup, beside_bytes: Floats) -> Floats:
    fits = (group.limit_bytes - beside_bytes) / problem.state_bytes * BELOW
    return np.minimum(min(1.0, group.startup_share), fits)


class _Table:
    """``table_s[b]`` of the note, grown size by size."""

    def __init__(self, costs: SizeCosts, max_samples: int, window: Window, history: History) -> None:
        width = costs.additive.shape[1]
        self.costs, self.window, self.history = costs, window, history
        self.vectors = [np.zeros((1 if samples == 0 else 0, width)) for samples in range(max_samples + 1)]
        self.entries = [np.zeros(len(vectors), dtype=np.int64) for vectors in self.vectors]

    def extend(self, samples: int, size: int, *, keep_dominated: bool) -> tuple[Floats, Ints]:
        """Add one microbatch of a size; returns ``exact_s[b]`` and its entries."""
        before = self.vectors[samples - size]
        candidates = before + self.costs.additive[size]
        good = self.window.admits(candidates[:, : len(KINDS)])
        matters = self.costs.matters
        good[good] = undominated(candidates[good][:, matters])
        old = self.vectors[samples]
        worse = np.zeros(len(candidates), dtype=bool)
        if len(old):
            slack = candidates[:, matters] * (1.0 + SAME)
            worse = (old[None, :, matters] <= slack[:, None, :]).all(axis=2).any(axis=1)
        chosen = np.flatnonzero(good if keep_dominated else good & ~worse)
        if not len(chosen):
            return candidates[chosen], chosen
        entries = self.history.add(self.entries[samples - size][chosen].tolist(), size)
        fresh = ~worse[chosen]
        if fresh.any():
            vectors = np.concatenate([old, candidates[chosen[fresh]]])
            together = np.concatenate([self.entries[samples], entries[fresh]])
            keep = undominated(vectors[:, matters])
            self.vectors[samples], self.entries[samples] = vectors[keep], together[keep]
        return candidates[chosen], entries


def _mode_options(
    problem: Problem, group: DeviceGroup, mode: int, max_samples: int, window: Window, history: History
) -> Options:
    costs = size_costs(problem, group, group.modes[mode], max_samples)
    found: list[tuple[int, int, Floats, Ints]] = []
    only = problem.settings.microbatch_size
    if only is None:
        table = _Table(costs, max_samples, window, history)
        for size in range(1, costs.max_size + 1):
            rises = costs.beside_bytes[size] >= costs.beside_bytes[1 : size + 1].max()
            for samples in range(size, max_samples + 1):
                if len(table.vectors[samples - size]):
                    found.append((samples, size, *table.extend(samples, size, keep_dominated=not rises)))
    else:
        for samples in range(1, max_samples + 1):
            whole, rest = divmod(samples, only)
            sizes = [only] * whole + [rest] * (rest > 0)
            if sizes[0] > costs.max_size:
                break
            entry = history.add([0], sizes[-1])
            for size in reversed(sizes[:-1]):
                entry = history.add(entry.tolist(), size)
            vector = costs.additive[sizes].sum(axis=0)[None]
            if window.admits(vector[:, : len(KINDS)])[0]:
                found.append((samples, sizes[0], vector, entry))
    return _as_options(problem, group, mode, costs, found, history)


def _as_options(
    problem: Problem,
    group: DeviceGroup,
    mode: int,
    costs: SizeCosts,
    found: list[tuple[int, int, Floats, Ints]],
    history: History,
) -> Options:
    width = costs.additive.shape[1]
    counts = [len(entries) for _, _, _, entries in found]
    samples = np.repeat(np.array([row[0] for row in found], dtype=np.int64), counts)
    largest = np.repeat(np.array([row[1] for row in found], dtype=np.int64), counts)
    vectors = np.concatenate([np.zeros((0, width)), *(row[2] for row in found)])
    entries = np.concatenate([np.zeros(0, dtype=np.int64), *(row[3] for row in found)])
    beside = costs.beside_bytes[largest] + np.ceil(vectors[:, -2]) + costs.boundary_bytes * samples
    return Options(
        group=group,
        samples=samples,
        compute_s=vectors[:, : len(KINDS)],
        copy_s=costs.copy_s(samples, vectors[:, -1]),
        caps=_caps(problem, group, beside),
        modes=np.full(len(samples), mode, dtype=np.int64),
        entries=entries,
        history=history,
    )
