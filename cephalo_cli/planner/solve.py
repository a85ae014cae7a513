"""The best layer-major plan of a problem, with its proof.

1. Bound from below what a sample costs each device group at best; divide the batch by it: no plan is faster. A first
   budget is a little above that bound.
2. Bound every option within the budget from both sides (`bounds`), and search the concrete ones (`limit_search`, or
   `team_search` where shares act on compute). Their best plan is the new budget: an option that alone takes longer is
   out.
3. Search the lower bounds for the limits that any better plan needs. Below those all options are alike, which closes
   nearly all of them; where bound and concrete option still differ, `lines` rule out what no better plan
   has, and what is left is listed exactly (`microbatches`).
4. Search what is listed. Nothing is left out, so the result is the optimum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cephalo_cli.costmodel import RankChoice, step_estimate
from cephalo_cli.planner.bounds import Bounds, bound_options
from cephalo_cli.planner.frugal import state_fits
from cephalo_cli.planner.limit_search import LimitSearch
from cephalo_cli.planner.options import Options, Window, without_dominated
from cephalo_cli.planner.place import place_shares
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.reach import least_s, least_stages_s, reaches, stage_floors
from cephalo_cli.planner.search import Effort, Found
from cephalo_cli.planner.settle import Settled, needed_limits, searcher, settle
from cephalo_cli.planner.shares import ROUNDING, ShareLimits
from cephalo_cli.planner.teams import relax, root_teams
from cephalo_cli.planner.tidy import tidy

__all__ = ["LISTING", "Outcome", "Solution", "improve", "placed_solution", "solve"]

LISTING = 2e7
"""Effort of listing after which the best plan so far is taken, unless the search is thorough: about two seconds."""

BELOW_BEST = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
"""Distances to the best plan at which a quick bound is tried."""

BUDGETS = (1.3, 3.0, math.inf)
"""Budgets to try, as multiples of the lower bound."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A plan's decisions with their proof."""

    choices: tuple[RankChoice, ...]
    """One a rank."""
    keep_unsharded: int
    """How many blocks before the last one stay unsharded between their phases."""
    step_s: float
    lower_bound_s: float
    proven: bool
    """Whether the search ended by itself."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Whether a problem holds a plan that is faster than a known one."""

    solution: Solution | None
    """The best such plan; None where there is none, or none was found in time."""
    lower_bound_s: float
    """No plan of the problem is faster than this or the known one."""


def improve(
    problem: Problem,
    known_s: float,
    deadline: float | None = None,
    *,
    effort: Effort | None = None,
    bounded: bool = True,
) -> Outcome:
    """Look for the best layer-major plan that is faster than ``known_s``.

    Args:
        problem: The problem.
        known_s: The step to beat.
        deadline: `time.monotonic` at which to stop with what is known by then.
        effort: How much to do before stopping likewise.
        bounded: Whether to work out a bound where the search was stopped.
    """
    effort = effort or Effort()
    known = Found(rows=(), limits=ShareLimits(known_s, 0.0, 0.0))
    none = Outcome(solution=None, lower_bound_s=known_s)
    window = _window(problem, known_s - problem.least_exposed_s)
    if least_stages_s(problem) > window.budget_s:
        return none
    bounds = _bounds(problem, window)
    if not problem.shares_cost_compute:
        needed = needed_limits(problem, bounds, known, window=window, deadline=deadline)
        if needed is None:
            return none
        window = replace(window, floors_s=needed, flat_s=needed)
    concrete = [without_dominated(bound.concrete, window.flat_s) for bound in bounds]
    search = searcher(problem, concrete, deadline, known, effort)
    search.run()
    if search.best is None:
        raise AssertionError("a search does not lose its plan")
    settled: Settled | None = None
    if not search.timed_out:
        listing = math.inf if effort.left == math.inf else LISTING
        settled = settle(
            problem, bounds, concrete, search.best, window=window, deadline=deadline, effort=effort, listing=listing
        )
    if settled is None or not settled.proven:
        best = search.best if settled is None else settled.found
        lower = least_s(problem) if settled is None else max(least_s(problem), settled.lower_bound_s)
        if bounded:
            lower = max(lower, _quick_bound(problem, bounds, best.limits.step_s, window))
        options = concrete if settled is None else settled.options
        settled = Settled(options=options, found=best, lower_bound_s=lower, proven=False)
    if settled.found is known:
        return Outcome(solution=None, lower_bound_s=known_s if settled.proven else settled.lower_bound_s)
    solution = _solution(problem, settled)
    return Outcome(solution=solution, lower_bound_s=solution.lower_bound_s)


def _quick_bound(problem: Problem, bounds: Sequence[Bounds], best_s: float, window: Window) -> float:
    """A bound on all plans from the options' bounds, without branching: nothing is found below the first of these."""
    relaxed = [without_dominated(bound.relaxed, window.flat_s) for bound in bounds]
    if problem.shares_cost_compute:
        solved = relax(problem, relaxed, root_teams(problem, relaxed), scale_s=best_s)
        return best_s if solved is None else min(best_s, solved.bound_s)
    near, far = 0.0, 1.0
    for below in BELOW_BEST:
        if _none_below(problem, relaxed, best_s * (1.0 - below)):
            far = below
            break
        near = below
    for _ in range(2):
        middle = (near + far) / 2
        near, far = (near, middle) if _none_below(problem, relaxed, best_s * (1.0 - middle)) else (middle, far)
    return best_s * (1.0 - far)


def _none_below(problem: Problem, relaxed: Sequence[Options], step_s: float) -> bool:
    """Whether not even the options' bounds make a plan below a step, as far as one look tells."""
    target = Found(rows=(), limits=ShareLimits(step_s, 0.0, 0.0))
    return LimitSearch(problem, relaxed, best=target).needed() is None


def solve(problem: Problem, deadline: float | None = None, *, listing: float = math.inf) -> Solution | None:
    """Find the best layer-major plan.

    Args:
        problem: The problem.
        deadline: `time.monotonic` at which to stop with the best plan so far.
        listing: How much (`search.Effort`) to list for the proof once a good plan is known.

    Returns:
        The best plan; None where no plan fits, or none was found in time.
    """
    least = least_s(problem)
    budgets = [least_stages_s(problem) * factor if factor < math.inf else math.inf for factor in BUDGETS]
    while budgets:
        window = _window(problem, budgets.pop(0))
        bounds = _bounds(problem, window)
        concrete = [without_dominated(bound.concrete, window.flat_s) for bound in bounds]
        search = searcher(problem, concrete, deadline, None)
        bound = search.run()
        if search.best is None:
            if search.timed_out or (budgets == [math.inf] and not state_fits(problem)):
                return None
            continue
        spent = search.best.limits.step_s - problem.least_exposed_s
        if search.timed_out:
            stopped = Settled(options=concrete, found=search.best, lower_bound_s=min(least, bound), proven=False)
            return _solution(problem, stopped)
        if spent <= window.budget_s:
            settled = settle(problem, bounds, concrete, search.best, window=window, deadline=deadline, listing=listing)
            if not settled.proven:
                settled = replace(settled, lower_bound_s=max(least, settled.lower_bound_s))
            return _solution(problem, settled)
        budgets = [spent * (1.0 + ROUNDING)]
    return None


def _window(problem: Problem, budget_s: float) -> Window:
    """What can be part of a plan whose stages take no longer than a budget."""
    floors = stage_floors(problem)
    return Window(
        floors_s=floors,
        counts=np.array(problem.counts, dtype=np.float64),
        budget_s=budget_s,
        flat_s=np.zeros(len(problem.kinds)) if problem.shares_cost_compute else floors,
    )


def _bounds(problem: Problem, window: Window) -> list[Bounds]:
    """Options of every group within a window, from both sides."""
    groups = reaches(problem, window.floors_s, window.counts)
    return [
        bound_options(problem, group, math.floor(reach.within(window.budget_s) * (1.0 + ROUNDING)), window)
        for group, reach in zip(problem.groups, groups, strict=True)
    ]


def _solution(problem: Problem, settled: Settled) -> Solution:
    options, found = settled.options, settled.found
    if not problem.shares_cost_compute:
        found = tidy(problem, options, found)
    by_rank: dict[int, RankChoice] = {}
    for group, listed, rows in zip(problem.groups, options, found.rows, strict=True):
        ordered = np.array(rows)[np.lexsort((np.array(rows), -listed.samples[list(rows)]))].tolist()
        by_rank |= {rank: listed.choice(row, 0.0) for rank, row in zip(group.ranks, ordered, strict=True)}
    choices = [by_rank[rank] for rank in range(problem.num_ranks)]
    lower_s = min(settled.lower_bound_s, found.limits.step_s)
    return placed_solution(problem, choices, found.limits, lower_bound_s=lower_s, proven=settled.proven)


def placed_solution(
    problem: Problem, choices: Sequence[RankChoice], limits: ShareLimits, *, lower_bound_s: float, proven: bool
) -> Solution:
    """Give choices without shares the fairest ones within limits, and price them by the cost model."""
    placed = place_shares(problem, choices, limits)
    step_s = step_estimate(problem.basis, placed, problem.step).step_s
    return Solution(
        choices=placed,
        keep_unsharded=problem.space.keep_unsharded,
        step_s=step_s,
        lower_bound_s=min(lower_bound_s, step_s),
        proven=proven,
    )
