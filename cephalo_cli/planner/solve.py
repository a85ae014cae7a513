"""The best layer-major plan of a problem, with its proof.

1. Bound from below what a sample costs each device group at best; divide the batch by it: no plan is faster. A first
   budget is a little above that bound.
2. Bound every option within the budget from both sides (`bounds`), and search the concrete ones (`limits`, or `columns`
   where shares act on compute). Their best plan is the new budget: an option that alone takes longer is out.
3. Search the lower bounds for the limits that any better plan needs. Below those all options are alike, which closes
   nearly all of them; where bound and concrete option still differ, list the options exactly (`microbatches`).
4. Search what is listed. Nothing is left out, so the result is the optimum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cephalo_cli.costmodel import RankChoice, rank_memory, step_estimate
from cephalo_cli.costmodel.compute import stage_s
from cephalo_cli.planner.bounds import Bounds, bound_options, open_samples
from cephalo_cli.planner.columns import ColumnSearch
from cephalo_cli.planner.frugal import state_fits
from cephalo_cli.planner.limits import TOLERANCE, Found, Search, stage_floors
from cephalo_cli.planner.microbatches import list_exactly
from cephalo_cli.planner.options import BELOW, Listing, Options, Window, join_options, without_dominated
from cephalo_cli.planner.problem import KINDS, DeviceGroup, Problem
from cephalo_cli.planner.shares import ROUNDING, ShareLimits, fair_shares
from cephalo_cli.planner.sizes import rates
from cephalo_cli.planner.tidy import tidy

__all__ = ["Solution", "compute_bound_s", "place_shares", "solve"]

Floats = npt.NDArray[np.float64]

BUDGETS = (1.3, 3.0, math.inf)
"""Budgets to try, as multiples of the lower bound."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A plan's decisions with their proof."""

    choices: tuple[RankChoice, ...]
    """One a rank."""
    step_s: float
    lower_bound_s: float
    proven: bool
    """Whether the search ended by itself."""


def solve(problem: Problem, deadline: float | None = None) -> Solution | None:
    """Find the best layer-major plan.

    Args:
        problem: The problem.
        deadline: `time.monotonic` at which to stop with the best plan so far.

    Returns:
        The best plan; None where no plan fits, or none was found in time.
    """
    floors = stage_floors(problem)
    counts = np.array(problem.counts, dtype=np.float64)
    flat = np.zeros(len(KINDS)) if problem.moves else floors
    reaches = [_Reach(rates(problem, group), floors, counts, problem.batch_size) for group in problem.groups]
    ideal = _ideal_s(problem, reaches)
    least_exposed = problem.exposed_floor_s + problem.exposed_slope_s * _least_busiest(problem)
    budgets = [ideal * factor if factor < math.inf else math.inf for factor in BUDGETS]
    while budgets:
        window = Window(floors_s=floors, counts=counts, budget_s=budgets.pop(0), flat_s=flat)
        bounds = [
            bound_options(problem, group, math.floor(reach.within(window.budget_s) * (1.0 + ROUNDING)), window)
            for group, reach in zip(problem.groups, reaches, strict=True)
        ]
        concrete = [without_dominated(bound.concrete, flat) for bound in bounds]
        search = _searcher(problem)(problem, concrete, deadline)
        bound = search.run()
        if search.best is None:
            if search.timed_out or (budgets == [math.inf] and not state_fits(problem)):
                return None
            continue
        spent = search.best.limits.step_s - least_exposed
        if search.timed_out:
            return _solution(problem, concrete, search.best, min(ideal + least_exposed, bound), proven=False)
        if spent <= window.budget_s:
            window = replace(window, budget_s=spent)
            found = _settle(problem, bounds, concrete, search.best, window=window, deadline=deadline)
            if found is None:
                return _solution(problem, concrete, search.best, ideal + least_exposed, proven=False)
            return found
        budgets = [spent * (1.0 + ROUNDING)]
    return None


def _settle(
    problem: Problem,
    bounds: Sequence[Bounds],
    concrete: list[Options],
    best: Found,
    *,
    window: Window,
    deadline: float | None,
) -> Solution | None:
    """Prove the best plan of the concrete options, or find a better one among all; None where time is up before."""
    if not problem.moves:
        relaxed = [without_dominated(bound.relaxed, window.flat_s) for bound in bounds]
        needed = Search(problem, relaxed, deadline, best).needed()
        if needed is None:
            return _solution(problem, concrete, best, best.limits.step_s * (1.0 - TOLERANCE), proven=True)
        window = replace(window, floors_s=needed, flat_s=needed)
    listed = []
    for bound, known in zip(bounds, concrete, strict=True):
        parts = [known]
        for mode, costs in enumerate(bound.costs):
            targets = open_samples(bound, mode, window)
            if len(targets):
                listing = Listing(group=known.group, mode=mode, costs=costs, history=bound.history)
                if not list_exactly(listing, targets, bound.least[mode], window, deadline=deadline):
                    return None
                parts.append(listing.options(problem))
        listed.append(without_dominated(join_options(parts), window.flat_s) if len(parts) > 1 else known)
    if all(now is before for now, before in zip(listed, concrete, strict=True)):
        return _solution(problem, concrete, best, best.limits.step_s * (1.0 - TOLERANCE), proven=True)
    search = _searcher(problem)(problem, listed, deadline, best)
    lower = search.run()
    if search.best is None:
        raise AssertionError("a search does not lose its plan")
    options = concrete if search.best is best else listed
    return _solution(problem, options, search.best, lower, proven=not search.timed_out)


def _searcher(problem: Problem) -> type[Search] | type[ColumnSearch]:
    return ColumnSearch if problem.moves else Search


def _least_busiest(problem: Problem) -> float:
    return 0.0 if problem.network is None else problem.network.least_busiest


def _solution(
    problem: Problem, options: Sequence[Options], found: Found, lower_bound_s: float, *, proven: bool
) -> Solution:
    if not problem.moves:
        found = tidy(problem, options, found)
    by_rank: dict[int, RankChoice] = {}
    for group, listed, rows in zip(problem.groups, options, found.rows, strict=True):
        ordered = np.array(rows)[np.lexsort((np.array(rows), -listed.samples[list(rows)]))].tolist()
        by_rank |= {rank: listed.choice(row, 0.0) for rank, row in zip(group.ranks, ordered, strict=True)}
    choices = place_shares(problem, [by_rank[rank] for rank in range(problem.num_ranks)], found.limits)
    step_s = step_estimate(problem.basis, choices, problem.step).step_s
    return Solution(choices=choices, step_s=step_s, lower_bound_s=min(lower_bound_s, step_s), proven=proven)


def place_shares(problem: Problem, choices: Sequence[RankChoice], limits: ShareLimits) -> tuple[RankChoice, ...]:
    """Give every rank its share: as the limits allow, memories filled evenly."""
    lows, highs, free, sizes = [], [], [], []
    groups = {group.name: group for group in problem.groups}
    cache: dict[RankChoice, tuple[float, float, float, float]] = {}
    for choice in choices:
        if choice not in cache:
            cache[choice] = _share_bounds(problem, groups[choice.device], choice, limits)
        low, high, room, size = cache[choice]
        lows.append(low)
        highs.append(high)
        free.append(room)
        sizes.append(size)
    shares = fair_shares(lows, highs, free, sizes)
    return tuple(replace(choice, state_share=share) for choice, share in zip(choices, shares, strict=True))


def _share_bounds(
    problem: Problem, group: DeviceGroup, choice: RankChoice, limits: ShareLimits
) -> tuple[float, float, float, float]:
    """Least and largest share, the share that would fill the memory, and the memory limit in shares."""
    memory = rank_memory(problem.basis, problem.settings, choice, step=problem.step, num_ranks=problem.num_ranks)
    free = (memory.limit_bytes - memory.total_bytes) / problem.state_bytes * BELOW
    low, high = 0.0, min(1.0, free, group.startup_share)
    network = problem.network
    if network is not None:
        low = max(0.0, 1.0 - limits.busiest)
        if network.direct:
            high = min(high, limits.busiest / (network.num_ranks - 1))
    if group.optimizer_s > 0:
        high = min(high, limits.optimizer_s / group.optimizer_s)
    if network is not None and group.moving_s_per_byte > 0:
        constant, slope = network.handled
        for stage, seconds in zip(problem.stages, limits.stages_s, strict=True):
            kind, phase = KINDS[stage.kind]
            own = stage_s(group.device, kind, phase, choice.microbatch_sizes, recompute=choice.recompute)
            if stage.moved_bytes and slope:
                reach = ((seconds - own) / (group.moving_s_per_byte * stage.moved_bytes) - constant) / slope
                low, high = (low, min(high, reach)) if slope > 0 else (max(low, reach), high)
    high = max(0.0, high)  # a rank that sets a stage's limit reaches it up to rounding
    return min(low, high), high, free, memory.limit_bytes / problem.state_bytes


class _Reach:
    """How many samples one rank of a group can take within a budget, at the least seconds a sample.

    ``sum_k counts_k * max(floors_k, speed_k * b)`` is linear between the points where a kind leaves its floor.
    """

    def __init__(self, speed: Floats, floors: Floats, counts: Floats, batch_size: int) -> None:
        moving = speed > 0
        kinks = np.minimum(floors[moving] / speed[moving], batch_size)
        self.samples = np.unique(np.concatenate([[0.0, batch_size], kinks]))
        self.seconds = np.maximum(np.outer(self.samples, speed), floors) @ counts

    def within(self, budget_s: float) -> float:
        """Samples within a budget, up to the whole batch."""
        if budget_s < self.seconds[0]:
            return 0.0
        return float(np.interp(budget_s, self.seconds * (1.0 - ROUNDING), self.samples))


def _ideal_s(problem: Problem, reaches: Sequence[_Reach]) -> float:
    """Least time of all stages if samples could be split in any way: the first budget."""

    def enough(budget_s: float) -> bool:
        reached = sum(
            group.count * reach.within(budget_s) for group, reach in zip(problem.groups, reaches, strict=True)
        )
        return reached >= problem.batch_size

    low, high = 0.0, max(float(reach.seconds[-1]) for reach in reaches)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def compute_bound_s(problem: Problem) -> float:
    """No plan under any schedule is faster than this: samples split in any way, nothing but compute counted."""
    counts = np.array(problem.counts, dtype=np.float64)
    floors = np.zeros(len(KINDS))
    return _ideal_s(
        problem, [_Reach(rates(problem, group), floors, counts, problem.batch_size) for group in problem.groups]
    )
