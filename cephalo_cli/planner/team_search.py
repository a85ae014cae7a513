"""The exact search where shares act on compute (collectives on the computing cores): branch and bound over options.

A node splits the ranks into *teams*: equal ranks that choose among a set of options (`teams` bounds a node). Where
every team uses one option the bound is the best plan of these options, exactly. Otherwise a team's options are cut in
two, by samples first, and its ranks are shared out between the two parts in every way. Options whose reduced cost lifts
the bound to the best plan known are left out below a node.
"""

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.limit_search import LimitSearch
from cephalo_cli.planner.search import Found, Search
from cephalo_cli.planner.shares import ShareLimits
from cephalo_cli.planner.teams import Relaxed, Team, relax, root_teams

__all__ = ["TeamSearch"]


MAX_NODES = 20_000
"""Nodes after which the best plan is taken as if time were up, with its gap."""

PROGRAM, LINE = 10_000, 100
"""Effort of a linear program, and of each of its options."""

TOLERANCE = 1e-9
"""Relative distance between the best plan and what is proven: the accuracy of the linear programs."""

USED = 1e-7
"""From this fraction of a team's ranks on a linear program is said to use an option."""

HELD = 1e-8
"""How far the shares of a plan may miss 1; more is a failure of the linear program."""


@dataclass(eq=False)
class TeamSearch(Search):
    """Branch and bound over options with a linear program a node."""

    tolerance = TOLERANCE

    def __post_init__(self) -> None:
        problem = self.problem
        self.stage_kinds = np.array([stage.kind for stage in problem.stages])
        self.moved = np.array([stage.moved_bytes for stage in problem.stages], dtype=np.float64)
        self.num_nodes = 0
        self.nodes: list[tuple[float, int, tuple[Team, ...], Relaxed]] = []
        """Open nodes as a heap: bound, number, teams, and what is known of them."""

    def run(self) -> float:
        """Search to the end or until stopped; returns the proven lower bound in seconds (`best` holds the plan)."""
        if self.best is None:
            self._start()
        self._push(root_teams(self.problem, self.options))
        while self.nodes:
            bound, _, teams, relaxed = heapq.heappop(self.nodes)
            if bound >= self.target:
                break
            if self.must_stop() or self.num_nodes > MAX_NODES:
                self.timed_out = True
                return bound
            for child in self._branch(teams, relaxed):
                self._push(child)
        return self.target

    def settle(self, rows: tuple[tuple[int, ...], ...]) -> None:
        """Find the best shares for one option a rank."""
        self._price(_teams_of(rows))

    def _scale_s(self) -> float:
        """Unit of time in which the linear programs are well scaled."""
        return self.best.limits.step_s if self.best is not None and self.best.limits.step_s > 0 else 1.0

    def _start(self) -> None:
        """A first plan: the best one if shares did not act on compute."""
        search = LimitSearch(self.problem, self.options, self.deadline)
        search.run()
        if search.best is not None:
            self._price(_teams_of(search.best.rows))

    def _push(self, teams: tuple[Team, ...]) -> None:
        """Bound a node, price a plan that its bound suggests, and keep it open if it may hold a better one."""
        relaxed = relax(self.problem, self.options, teams, scale_s=self._scale_s())
        self.num_nodes += 1
        self.effort.spend(PROGRAM + LINE * sum(len(team.rows) for team in teams))
        if relaxed is None or relaxed.bound_s >= self.target:
            return
        used = [
            np.flatnonzero(weights > USED * team.count) for team, weights in zip(teams, relaxed.weights, strict=True)
        ]
        single = tuple(
            Team(team.group, team.count, (team.rows[int(rows[0])],)) for team, rows in zip(teams, used, strict=True)
        )
        if all(len(rows) == 1 for rows in used):
            self._record(single, relaxed.shares)
            if all(len(team.rows) == 1 for team in teams):
                return
        else:
            self._price(self._rounded(teams, relaxed))
        if relaxed.bound_s < self.target:
            heapq.heappush(self.nodes, (relaxed.bound_s, self.num_nodes, *self._narrowed(teams, relaxed)))

    def _narrowed(self, teams: tuple[Team, ...], relaxed: Relaxed) -> tuple[tuple[Team, ...], Relaxed]:
        """Leave out options that alone would lift the bound to the target."""
        kept = [
            np.flatnonzero((relaxed.bound_s + penalties < self.target) | (weights > 0))
            for penalties, weights in zip(relaxed.penalties_s, relaxed.weights, strict=True)
        ]
        narrowed = tuple(
            replace(team, rows=tuple(np.array(team.rows)[rows].tolist()))
            for team, rows in zip(teams, kept, strict=True)
        )
        weights = tuple(weights[rows] for weights, rows in zip(relaxed.weights, kept, strict=True))
        return narrowed, replace(relaxed, weights=weights)

    def _price(self, teams: tuple[Team, ...] | None) -> None:
        """Price teams of one option each."""
        if teams is None:
            return
        relaxed = relax(self.problem, self.options, teams, scale_s=self._scale_s())
        if relaxed is not None:
            self._record(teams, relaxed.shares)

    def _record(self, teams: tuple[Team, ...], shares: tuple[float, ...]) -> None:
        """Price a plan by its shares, not by the linear program, and keep it if it is the best."""
        problem, network = self.problem, self.problem.network
        if network is None:
            raise AssertionError("shares act on compute only through a network")
        held = [
            min(max(share, 0.0), float(self.options[team.group].caps[team.rows[0]]))
            for team, share in zip(teams, shares, strict=True)
        ]
        total = math.fsum(team.count * share for team, share in zip(teams, held, strict=True))
        if abs(total - 1.0) > HELD:
            return
        most, least = max(held), min(held)
        busiest = max(1.0 - least, (network.num_ranks - 1.0) * most if network.direct else 0.0)
        optimizer = max(problem.groups[team.group].optimizer_s * share for team, share in zip(teams, held, strict=True))
        stages = np.array([stage.floor_s + stage.slope_s * busiest for stage in problem.stages])
        for team, share in zip(teams, held, strict=True):
            options, row = self.options[team.group], team.rows[0]
            constant, slope = network.handled
            moving = problem.groups[team.group].moving_s_per_byte * (constant + slope * share) * self.moved
            stages = np.maximum(stages, options.compute_s[row][self.stage_kinds] + moving)
            stages = np.maximum(stages, options.copy_s[row][self.stage_kinds])
        counts = np.array([stage.count for stage in problem.stages])
        step = problem.exposed.floor_s + problem.exposed.slope_s * busiest + float(counts @ stages) + optimizer
        if self.best is None or step < self.best.limits.step_s:
            rows: list[list[int]] = [[] for _ in problem.groups]
            for team in teams:
                rows[team.group] += [team.rows[0]] * team.count
            limits = ShareLimits(step, busiest, optimizer, tuple(stages.tolist()))
            self.best = Found(rows=tuple(tuple(row) for row in rows), limits=limits)

    def _rounded(self, teams: tuple[Team, ...], relaxed: Relaxed) -> tuple[Team, ...] | None:
        """Whole samples near the relaxed ones by largest remainders, then the quickest option that holds the share."""
        wanted: list[tuple[float, int]] = []
        for index, (team, weights) in enumerate(zip(teams, relaxed.weights, strict=True)):
            average = float(weights @ self.options[team.group].samples[list(team.rows)]) / team.count
            wanted += [(average, index)] * team.count
        whole = [math.floor(average + TOLERANCE) for average, _ in wanted]
        missing = self.problem.batch_size - sum(whole)
        order = sorted(range(len(wanted)), key=lambda rank: (whole[rank] - wanted[rank][0], rank))
        for rank in order[: max(0, missing)]:
            whole[rank] += 1
        counted: dict[tuple[int, int], int] = {}
        for (_, index), samples in zip(wanted, whole, strict=True):
            counted[index, samples] = counted.get((index, samples), 0) + 1
        chosen = []
        counts = np.array(self.problem.counts)
        for (index, samples), count in counted.items():
            team, share = teams[index], relaxed.shares[index]
            options = self.options[team.group]
            rows = [row for row in team.rows if options.samples[row] == samples]
            if not rows:
                return None
            row = min(rows, key=lambda row: (options.caps[row] < share, float(options.compute_s[row] @ counts)))
            chosen.append(Team(team.group, count, (row,)))
        return tuple(chosen)

    def _branch(self, teams: tuple[Team, ...], relaxed: Relaxed) -> list[tuple[Team, ...]]:
        """Cut the options of the team whose options differ most in weight, and share out its ranks."""
        counts = np.array(self.problem.counts)
        spreads = []
        for team, weights in zip(teams, relaxed.weights, strict=True):
            used = [row for row, weight in zip(team.rows, weights, strict=True) if weight > USED * team.count]
            loads = self.options[team.group].compute_s[used] @ counts
            spreads.append((float(np.ptp(loads)) if len(used) > 1 else -1.0, len(used)))
        index = max(range(len(teams)), key=lambda index: spreads[index])
        team, weights = teams[index], relaxed.weights[index]
        low, high = self._cut(team, weights)
        rest = teams[:index] + teams[index + 1 :]
        children = []
        for count in range(team.count + 1):
            parts = (Team(team.group, count, low), Team(team.group, team.count - count, high))
            children.append(rest + tuple(part for part in parts if part.count))
        return children

    def _cut(self, team: Team, weights: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Two sets of options: few and many samples, or with equal samples the first used one and the others."""
        samples = self.options[team.group].samples[list(team.rows)]
        used = np.flatnonzero(weights > USED * team.count)
        if np.ptp(samples[used]) > 0:
            average = float(weights[used] @ samples[used]) / float(weights[used].sum())
            few = samples <= min(math.floor(average), int(samples[used].max()) - 1)
        else:
            few = np.arange(len(samples)) == used[0]
        rows = np.array(team.rows)
        return tuple(rows[few].tolist()), tuple(rows[~few].tolist())


def _teams_of(chosen: tuple[tuple[int, ...], ...]) -> tuple[Team, ...]:
    teams = []
    for group, rows in enumerate(chosen):
        used, counts = np.unique(np.array(rows), return_counts=True)
        teams += [Team(group, int(count), (int(row),)) for row, count in zip(used, counts, strict=True)]
    return tuple(teams)
