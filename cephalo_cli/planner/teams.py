"""A bound where shares act on compute: one linear program over teams of equal ranks.

Symbols as in `problem`. A team is N equal ranks that choose among a set of options. With z_x the number of them that
take option x, and S their shares together, every plan satisfies

    N T_g >= sum_x z_x t_gx + moving_g * (h0 N + h1 S)        S <= sum_x z_x M_x           sum_x z_x = N
    T_g >= floor_g + slope_g w      (n - 1) S <= N w (direct)     S >= N (1 - w)             N O >= rho S
    sum z_x b_x = B                 sum S = 1

so the least ``exposed(w) + sum_g n_g T_g + O`` is a bound, and exact where every team has one option.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.network import Network
from cephalo_cli.planner.options import Options
from cephalo_cli.planner.problem import Problem

__all__ = ["Relaxed", "Team", "relax", "root_teams"]


@dataclass(frozen=True, slots=True)
class Team:
    """Equal ranks that choose among the same options."""

    group: int
    """Index of their device group."""
    count: int
    """How many ranks (N)."""
    rows: tuple[int, ...]
    """Options of the group they choose among."""


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """Optimum of a node's linear program."""

    bound_s: float
    """No plan of the node is faster."""
    weights: tuple[Floats, ...]
    """z of each team."""
    shares: tuple[float, ...]
    """S / N of each team."""
    penalties_s: tuple[Floats, ...]
    """By how much the bound rises at least if one rank takes an option (its reduced cost)."""


def root_teams(problem: Problem, options: Sequence[Options]) -> tuple[Team, ...]:
    """The node that holds every plan: equal devices are one team."""
    return tuple(
        Team(index, group.count, tuple(range(len(listed))))
        for index, (group, listed) in enumerate(zip(problem.groups, options, strict=True))
    )


def relax(problem: Problem, options: Sequence[Options], teams: Sequence[Team], *, scale_s: float) -> Relaxed | None:
    """Solve the linear program of a node; None where it has no solution: the state does not fit.

    Args:
        problem: The problem; shares act on compute through its network.
        options: Options of every device group.
        teams: The node.
        scale_s: Unit of time inside the program, so that its numbers are near 1.
    """
    if problem.network is None:
        raise AssertionError("shares act on compute only through a network")
    program = _Program(problem, options, teams, scale_s)
    for index in range(len(teams)):
        program.add_team(index, problem.network)
    solved = program.solve()
    if solved is None:
        return None
    value, variables, reduced = solved
    starts, num_options = program.starts, program.starts[-1]
    return Relaxed(
        bound_s=value * scale_s + problem.exposed.floor_s,
        weights=tuple(variables[start:stop] for start, stop in itertools.pairwise(starts)),
        shares=tuple(float(variables[num_options + index]) / team.count for index, team in enumerate(teams)),
        penalties_s=tuple(reduced[start:stop] * scale_s for start, stop in itertools.pairwise(starts)),
    )


class _Program:
    """Rows over the variables z (by team and option), S (by team), T (by stage class), w and O."""

    def __init__(self, problem: Problem, options: Sequence[Options], teams: Sequence[Team], scale_s: float) -> None:
        self.problem, self.options, self.teams, self.scale_s = problem, options, teams, scale_s
        self.starts = [0, *itertools.accumulate(len(team.rows) for team in teams)]
        self.first_stage = self.starts[-1] + len(teams)
        self.busiest = self.first_stage + len(problem.stages)
        self.optimizer = self.busiest + 1
        self.rows: list[Floats] = []
        self.limits: list[float] = []

    def add(self, limit: float, *parts: tuple[int | slice, float | Floats]) -> None:
        """Add ``sum of parts <= limit``."""
        row = np.zeros(self.optimizer + 1)
        for where, value in parts:
            row[where] = value
        self.rows.append(row)
        self.limits.append(limit)

    def add_team(self, index: int, network: Network) -> None:
        """Add what one team's options and share demand."""
        team = self.teams[index]
        options, group, count = self.options[team.group], self.problem.groups[team.group], float(team.count)
        mine, share = slice(self.starts[index], self.starts[index + 1]), self.starts[-1] + index
        rows = list(team.rows)
        constant, slope = network.handled
        self.add(0.0, (mine, -options.caps[rows]), (share, 1.0))
        if network.direct:
            self.add(0.0, (share, network.num_ranks - 1.0), (self.busiest, -count))
        self.add(-count, (share, -1.0), (self.busiest, -count))
        if group.optimizer_s > 0:
            self.add(0.0, (share, group.optimizer_s / self.scale_s), (self.optimizer, -count))
        copies = bool(options.copy_s[rows].any())
        for position, stage in enumerate(self.problem.stages):
            moving = group.moving_s_per_byte * stage.moved_bytes / self.scale_s
            seconds = options.compute_s[rows, stage.kind] / self.scale_s
            limit_s = (self.first_stage + position, -count)
            if moving > 0 or seconds.any():
                self.add(-moving * constant * count, (mine, seconds), (share, moving * slope), limit_s)
            if copies:
                self.add(0.0, (mine, options.copy_s[rows, stage.kind] / self.scale_s), limit_s)

    def solve(self) -> tuple[float, Floats, Floats] | None:
        """Add what holds for all teams together and solve."""
        problem, teams = self.problem, self.teams
        for position, stage in enumerate(problem.stages):
            slope = (self.busiest, stage.slope_s / self.scale_s)
            self.add(-stage.floor_s / self.scale_s, slope, (self.first_stage + position, -1.0))
        equal = np.zeros((len(teams) + 2, self.optimizer + 1))
        for index, team in enumerate(teams):
            mine = slice(self.starts[index], self.starts[index + 1])
            equal[index, mine] = 1.0
            equal[-2, mine] = self.options[team.group].samples[list(team.rows)]
        equal[-1, self.starts[-1] : self.first_stage] = 1.0
        totals = np.array([*(team.count for team in teams), problem.batch_size, 1.0], dtype=np.float64)
        cost = np.zeros(self.optimizer + 1)
        cost[self.first_stage : self.busiest] = [stage.count for stage in problem.stages]
        cost[self.busiest], cost[self.optimizer] = problem.exposed.slope_s / self.scale_s, 1.0
        solved = linprog(
            cost,
            A_ub=np.array(self.rows),
            b_ub=np.array(self.limits),
            A_eq=equal,
            b_eq=totals,
            bounds=(0, None),
            method="highs",
        )
        if solved.x is None or solved.fun is None:
            return None
        return float(solved.fun), np.asarray(solved.x), np.maximum(0.0, np.asarray(solved.lower.marginals))
