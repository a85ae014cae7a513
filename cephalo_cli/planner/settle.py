"""The proof of a layer-major plan: what may still beat it is listed exactly and searched, steps 3 and 4 of `solve`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.bounds import Bounds, open_samples
from cephalo_cli.planner.limit_search import TOLERANCE, LimitSearch
from cephalo_cli.planner.lines import Lines, draw_lines, least_beside_stages_s
from cephalo_cli.planner.microbatches import list_exactly
from cephalo_cli.planner.options import Listing, Options, Window, join_options, without_dominated
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.search import Effort, Found, Search
from cephalo_cli.planner.team_search import TeamSearch

__all__ = ["Settled", "needed_limits", "searcher", "settle"]


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The best plan of some options, and what is proven of it."""

    options: Sequence[Options]
    found: Found
    lower_bound_s: float
    proven: bool


def needed_limits(
    problem: Problem, bounds: Sequence[Bounds], best: Found, *, window: Window, deadline: float | None
) -> Floats | None:
    """Limits by kind that every plan better than the best one needs; None where there is no such plan."""
    relaxed = [without_dominated(bound.relaxed, window.flat_s) for bound in bounds]
    return LimitSearch(problem, relaxed, deadline, best).needed()


def settle(
    problem: Problem,
    bounds: Sequence[Bounds],
    concrete: list[Options],
    best: Found,
    *,
    window: Window,
    deadline: float | None,
    effort: Effort | None = None,
    listing: float = math.inf,
) -> Settled:
    """Prove the best plan of the concrete options, or find a better one among all.

    Args:
        problem: The problem.
        bounds: Its options from both sides.
        concrete: Those that are known, by device group.
        best: The best plan of these, or one to beat.
        window: What bounds and concrete options are within.
        deadline: `time.monotonic` at which to stop with what is known by then.
        effort: How much to search before stopping likewise.
        listing: How much to list before that.
    """
    best_s = best.limits.step_s
    beside_s = least_beside_stages_s(problem, bounds)
    window = replace(window, budget_s=best_s * (1.0 - TOLERANCE) - beside_s)
    proven = Settled(options=concrete, found=best, lower_bound_s=best_s * (1.0 - TOLERANCE), proven=True)
    if not problem.shares_cost_compute:
        least = needed_limits(problem, bounds, best, window=window, deadline=deadline)
        if least is None:
            return proven
        window = replace(window, floors_s=least, flat_s=least)
    listed, lines = _listed(problem, bounds, concrete, window, deadline=deadline, effort=Effort(listing))
    if listed is None:
        bound_s = beside_s + (0.0 if lines is None else lines.bound_s)
        return Settled(options=concrete, found=best, lower_bound_s=min(best_s, bound_s), proven=False)
    if all(now is before for now, before in zip(listed, concrete, strict=True)):
        return proven
    search = searcher(problem, listed, deadline, best, effort)
    lower = search.run()
    if search.best is None:
        raise AssertionError("a search does not lose its plan")
    if search.timed_out and lines is not None:
        lower = max(lower, min(search.best.limits.step_s, beside_s + lines.bound_s))
    options = concrete if search.best is best else listed
    return Settled(options=options, found=search.best, lower_bound_s=lower, proven=not search.timed_out)


def _listed(
    problem: Problem,
    bounds: Sequence[Bounds],
    concrete: list[Options],
    window: Window,
    *,
    deadline: float | None,
    effort: Effort,
) -> tuple[list[Options] | None, Lines | None]:
    """Concrete options with all that may be part of a better plan; None where there was too much to do.

    Also the lines that close most of them, where any had to be drawn.
    """
    lines: Lines | None = None
    listed = []
    for group, (bound, known) in enumerate(zip(bounds, concrete, strict=True)):
        parts = [known]
        for family, modes in enumerate(known.group.families):
            targets = open_samples(bound, modes, window)
            if len(targets):
                lines = lines or draw_lines(problem, bounds, window)
                targets = lines.open_targets(group, family, targets)
            if lines is not None and len(targets):
                listing = Listing(group=known.group, family=modes, costs=bound.costs[family], history=bound.history)
                obeyed = lines.of[group][family]
                least = bound.least[family]
                if not list_exactly(listing, targets, least, window, obeyed, deadline=deadline, effort=effort):
                    return None, lines
                parts.append(listing.options(problem))
        listed.append(without_dominated(join_options(parts), window.flat_s) if len(parts) > 1 else known)
    return listed, lines


def searcher(
    problem: Problem,
    options: Sequence[Options],
    deadline: float | None,
    best: Found | None,
    effort: Effort | None = None,
) -> Search:
    """The exact search for a problem."""
    kind = TeamSearch if problem.shares_cost_compute else LimitSearch
    return kind(problem, options, deadline, best, effort or Effort())
