"""Bounds on options, quickly: from below every cost on its own, from above one concrete multiset.

For one device group and family of modes, with all sizes up to s allowed:

    relaxed_s[b]  = for every cost separately the least sum over multisets of b samples: no option is better
    concrete_s[b] = the multiset with the least weighted sum of seconds: an option

Both are unbounded knapsacks and vectorise over b. Where they agree, as with smooth curves, nothing is left to list;
`open_samples` tells for which samples they do not, within a window.
"""

from dataclasses import dataclass

import numpy as np

from cephalo_cli.planner.apportion import uniform_sizes
from cephalo_cli.planner.arrays import Floats, Ints
from cephalo_cli.planner.groups import DeviceGroup
from cephalo_cli.planner.options import SAME, History, Listing, Options, Window, empty_option, join_options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.sizes import SizeCosts, family_costs

__all__ = ["Bounds", "bound_options", "open_samples"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Options of one device group from both sides."""

    relaxed: Options
    """Not options but bounds: no multiset is known for them."""
    concrete: Options
    costs: tuple[SizeCosts, ...]
    """By family of modes."""
    least: tuple[Floats, ...]
    """Additive costs no multiset is below, by family: shape (samples + 1, columns)."""
    history: History


def bound_options(problem: Problem, group: DeviceGroup, max_samples: int, window: Window) -> Bounds:
    """Bound the options of a device group that the window admits."""
    history = History()
    empty = empty_option(problem, group, history)
    relaxed, concrete, tables, least = [empty], [empty], [], []
    for family in group.families:
        costs = family_costs(problem, group, family, max_samples)
        below = Listing(group=group, family=family, costs=costs, history=history)
        above = Listing(group=group, family=family, costs=costs, history=history)
        only = problem.settings.microbatch_size
        if only is None:
            least.append(_knapsacks(below, above, max_samples, window))
        else:
            _list_uniform(below, max_samples, only, window)
            above = below
            least.append(np.zeros((max_samples + 1, costs.additive.shape[1])))
        relaxed.append(below.options(problem))
        concrete.append(above.options(problem))
        tables.append(costs)
    return Bounds(
        relaxed=join_options(relaxed),
        concrete=join_options(concrete),
        costs=tuple(tables),
        least=tuple(least),
        history=history,
    )


def open_samples(bounds: Bounds, family: tuple[int, ...], window: Window) -> Ints:
    """Samples for which some option of a family of modes may beat every concrete one, in a plan within the window."""
    relaxed, concrete = bounds.relaxed, bounds.concrete
    rows = np.flatnonzero(np.isin(relaxed.modes, family) & (relaxed.samples > 0))
    times = relaxed.above(window.flat_s)[rows]
    inside = window.admits(relaxed.times_s[rows])
    rows, times = rows[inside], times[inside]
    known = concrete.above(window.flat_s)
    found = []
    for samples in np.unique(relaxed.samples[rows]):
        mine = relaxed.samples[rows] == samples
        rivals = concrete.samples == samples
        quick = (known[rivals][None] <= times[mine][:, None] * (1.0 + SAME)).all(axis=2)
        roomy = concrete.caps[rivals][None] >= relaxed.caps[rows[mine]][:, None] - SAME
        if not (quick & roomy).any(axis=1).all():
            found.append(int(samples))
    return np.array(found, dtype=np.int64)


def _knapsacks(below: Listing, above: Listing, most: int, window: Window) -> Floats:
    """Both knapsacks, size by size; lists what each size improves. Returns the final relaxed costs."""
    costs = below.costs
    tau, weights = costs.additive, window.counts
    load = tau[:, : costs.num_kinds] @ weights
    relaxed = np.full((most + 1, tau.shape[1]), np.inf)
    relaxed[0] = 0.0
    vectors = np.zeros_like(relaxed)
    loads = np.full(most + 1, np.inf)
    loads[0] = 0.0
    entries = np.zeros(most + 1, dtype=np.int64)
    for size in range(1, min(costs.max_size, most) + 1):
        old, old_loads = relaxed.copy(), loads.copy()
        # Numbers of samples in runs as long as the size: a run only needs the one before, which may have used the size.
        for start in range(size, most + 1, size):
            stop = min(start + size, most + 1)
            now, before = slice(start, stop), slice(start - size, stop - size)
            np.minimum(relaxed[now], relaxed[before] + tau[size], out=relaxed[now])
            offered = loads[before] + load[size]
            better = np.flatnonzero(offered < loads[now] * (1.0 - SAME))
            if len(better):
                loads[start + better] = offered[better]
                vectors[start + better] = vectors[start - size + better] + tau[size]
                entries[start + better] = above.history.add(entries[start - size + better].tolist(), size)
        # What a size does not make quicker is listed where it makes it roomier: its working memory is less.
        rises = costs.beside_bytes[size] >= costs.beside_bytes[1 : size + 1].max()
        improved = (relaxed < old * (1.0 - SAME))[:, costs.matters].any(axis=1)
        improved |= np.isfinite(relaxed[:, 0]) & (np.isinf(old[:, 0]) | (not rises))
        improved[:size] = False
        rows = np.flatnonzero(improved)
        rows = rows[window.admits(relaxed[rows][:, : costs.num_kinds])]
        below.add(rows, size, relaxed[rows], np.zeros(len(rows), dtype=np.int64))
        rows = np.flatnonzero(loads < old_loads)
        rows = rows[window.admits(vectors[rows][:, : costs.num_kinds])]
        above.add(rows, size, vectors[rows], entries[rows])
    return relaxed


def _list_uniform(listing: Listing, most: int, only: int, window: Window) -> None:
    """The one multiset that a fixed microbatch size leaves for every number of samples."""
    costs = listing.costs
    for samples in range(1, most + 1):
        sizes = uniform_sizes(samples, only)
        if sizes[0] > costs.max_size:
            break
        entry = np.zeros(1, dtype=np.int64)
        for size in reversed(sizes):
            entry = listing.history.add(entry.tolist(), size)
        vector = costs.additive[list(sizes)].sum(axis=0)[None]
        if window.admits(vector[:, : costs.num_kinds])[0]:
            listing.add(np.array([samples]), sizes[0], vector, entry)
