"""Microbatches and modes as they are given: the step they make under the best shares."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cephalo_cli.costmodel import RankChoice
from cephalo_cli.planner.limit_search import price_rows
from cephalo_cli.planner.options import History, Listing, Options, empty_option, join_options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ShareLimits
from cephalo_cli.planner.sizes import size_costs
from cephalo_cli.planner.solve import Solution, placed_solution
from cephalo_cli.planner.stack import Rows
from cephalo_cli.planner.team_search import TeamSearch

__all__ = ["price", "with_best_shares"]


def price(problem: Problem, choices: Sequence[RankChoice]) -> float | None:
    """The step in seconds; None where the state does not fit beside the choices, whose own shares do not matter."""
    limits = _limits_of(problem, choices)
    return None if limits is None else limits.step_s


def with_best_shares(problem: Problem, choices: Sequence[RankChoice]) -> Solution | None:
    """The best shares for the choices, with nothing proven of other choices; None where the state does not fit."""
    limits = _limits_of(problem, choices)
    if limits is None:
        return None
    bare = [replace(choice, state_share=0.0) for choice in choices]
    return placed_solution(problem, bare, limits, lower_bound_s=limits.step_s, proven=False)


def _limits_of(problem: Problem, choices: Sequence[RankChoice]) -> ShareLimits | None:
    options, rows = _chosen_options(problem, choices)
    if not problem.shares_cost_compute:
        return price_rows(problem, options, rows)
    search = TeamSearch(problem, options)
    search.settle(rows)
    return None if search.best is None else search.best.limits


def _chosen_options(problem: Problem, choices: Sequence[RankChoice]) -> tuple[list[Options], Rows]:
    """Options that are nothing but what ranks have chosen, and every rank's row, group by group."""
    options, rows = [], []
    for group in problem.groups:
        modes = {mode.choice(group.name, (), 0.0): index for index, mode in enumerate(group.modes)}
        bare = {choice: replace(choice, state_share=0.0) for choice in {choices[rank] for rank in group.ranks}}
        mine = [bare[choices[rank]] for rank in group.ranks]
        distinct = list(dict.fromkeys(mine))
        places = {choice: row for row, choice in enumerate(distinct)}
        history, parts = History(), []
        for choice in distinct:
            mode = modes[replace(choice, microbatch_sizes=())]
            sizes = choice.microbatch_sizes
            if not sizes:
                parts.append(empty_option(problem, group, history))
                continue
            costs = size_costs(problem, group, group.modes[mode], max(sizes), trim=False)
            listing = Listing(group=group, family=(mode,), costs=costs, history=history)
            entry = np.zeros(1, dtype=np.int64)
            for size in sorted(sizes):
                entry = history.add(entry.tolist(), size)
            listing.add(np.array([sum(sizes)]), max(sizes), costs.additive[list(sizes)].sum(axis=0)[None], entry)
            parts.append(listing.options(problem))
        options.append(join_options(parts, fitting=False))
        rows.append(tuple(places[choice] for choice in mine))
    return options, tuple(rows)
