"""The best plan with the whole state on every rank, with its proof.

Shares are no choice there, and ranks meet in the reductions only. With c, p, F and E as in `round_costs`, R rounds and
b_i samples on rank i,

    step = optimizer + AR(last) + max_i G_i(b_i),    G_i(b) = min( E_R(b), min_{k<R} F_k(b) + p(0) )

where ``p(s) = max(moving_i, all reductions but the last - tail_i(s))``: the backward after the head's, of a last
microbatch of s samples, is what reductions hide behind (`costmodel.step`).

1. For R = 1, 2, ... the best split is found exactly (`even_out`), over all modes and microbatch sizes that fit.
2. ``min(E_{>=R}, F_{>=0} + p(0))`` bounds all plans of R rounds or more. Once the best plan is as good, it is proven.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.costmodel.compute import moving_s_per_byte
from cephalo_cli.costmodel.step import collective_times
from cephalo_cli.planner.arrays import Floats, Mask
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.even_out import even_out
from cephalo_cli.planner.groups import DeviceGroup, Mode
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.reach import compute_bound_s
from cephalo_cli.planner.round_costs import AnySizes, OneSize, RoundCosts
from cephalo_cli.planner.shares import ROUNDING
from cephalo_cli.planner.sizes import least_sample_s, size_costs
from cephalo_cli.planner.way import Way
from cephalo_cli.schedule import step_stages

__all__ = ["Replicated", "best_replicated"]

SAME = 1e-12
"""Relative difference of steps that is rounding."""

EFFORT = 2e7
"""Sums of two costs after which the best plan so far is taken, unless the search is thorough: about 0.2 s."""

MOST_CELLS = 4e6
"""Entries of the largest table that is worth having."""


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """What is known of plans with the whole state on every rank."""

    decided: Decided | None
    """The best one that is no slower than a known plan; None where there is none, or none was found."""
    lower_bound_s: float
    """No plan of this kind is faster than this or the known one; infinite where none fits."""


def best_replicated(
    problem: Problem, known_s: float, deadline: float | None = None, *, thorough: bool = False
) -> Replicated:
    """Find the best plan with the whole state on every rank.

    Args:
        problem: Whose groups have the modes that ranks may be in.
        known_s: The step of the best plan known; infinite where there is none.
        deadline: `time.monotonic` at which to stop with the best plan so far.
        thorough: Whether to go on until then, or the proof, however much there is to do.
    """
    if not _state_fits(problem):
        return Replicated(decided=None, lower_bound_s=math.inf)
    parts = _Parts(problem)
    most = [parts.most_samples(group, known_s * (1.0 + ROUNDING)) for group in problem.groups]
    if sum(count.count * samples for count, samples in zip(problem.groups, most, strict=True)) < problem.batch_size:
        return Replicated(decided=None, lower_bound_s=known_s)
    if max(most) ** 2 > MOST_CELLS:
        least_s = compute_bound_s(problem) + parts.fixed_s
        return Replicated(decided=None, lower_bound_s=min(least_s, known_s))
    way = Way(problem, "replicated", 1.0, max(most))
    ranks = [_Ranks(parts, way, group, samples) for group, samples in zip(problem.groups, most, strict=True)]
    search = _Search(problem, parts, ranks, known_s)
    search.run(deadline, math.inf if thorough else EFFORT)
    return Replicated(decided=search.decided(), lower_bound_s=search.lower_bound_s)


def _state_fits(problem: Problem) -> bool:
    """Whether every rank holds the whole state, without samples."""
    step = step_stages("replicated", problem.step.units, 1)
    for group in problem.groups:
        choice = group.modes[0].choice(group.name, (), 1.0)
        memory = rank_memory(problem.basis, problem.settings, choice, step=step, num_ranks=problem.num_ranks)
        if memory.total_bytes > memory.limit_bytes or group.startup_share < 1.0:
            return False
    return True


class _Parts:
    """What a step takes beside the ranks' own compute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.counts = np.array(problem.counts, dtype=np.float64)
        step = step_stages("replicated", problem.step.units, 1)
        times = collective_times(problem.basis, step, [1.0] * problem.num_ranks)
        reduced = [unit for stage in step.stages for unit in stage.reduce]
        last_s = times.reduce_s[reduced[-1]]
        self.hidden_s = math.fsum(times.reduce_s[unit] for unit in reduced[:-1])
        """Reductions but the last."""
        self.hidden_bytes = sum(times.reduce_bytes[unit] for unit in reduced[:-1])
        self.fixed_s = last_s + max(group.optimizer_s for group in problem.groups)
        """What comes after everything else."""

    def moving_s(self, group: DeviceGroup) -> float:
        """Compute that a rank spends on moving the bytes of hidden reductions."""
        choice = group.modes[0].choice(group.name, (), 1.0)
        per_byte = moving_s_per_byte(self.problem.basis, choice, self.problem.num_ranks, "replicated")
        return per_byte * self.hidden_bytes

    def most_samples(self, group: DeviceGroup, step_s: float) -> int:
        """Most samples of a rank within a step, at the least seconds a sample."""
        batch = self.problem.batch_size
        per_sample = float(least_sample_s(self.problem, group) @ self.counts)
        room = step_s - self.fixed_s - self.moving_s(group)
        if room < 0:
            return 0
        return batch if room >= per_sample * batch else math.floor(room / per_sample * (1.0 + ROUNDING))


class _Ranks:
    """Ranks of one device group: costs G by samples, and the microbatches behind them."""

    def __init__(self, parts: _Parts, way: Way, group: DeviceGroup, most: int) -> None:
        self.group, self.most = group, most
        moving_s, only = parts.moving_s(group), way.problem.settings.microbatch_size
        self.none_s = max(moving_s, parts.hidden_s)
        """p(0)."""
        self.modes: list[_InMode] = []
        self.closed = True
        """Whether all sizes below one that fits do."""
        backward = np.array([kind.phase == "backward" for kind in way.problem.kinds])
        for mode in group.modes:
            table = way.sizes(group, mode)
            one, more = (table.by_size(rounds)[: most + 1] for rounds in (1, 2))
            if any(not (one & ~other.one).any() and not (more & ~other.more).any() for other in self.modes):
                continue
            costs = size_costs(way.problem, group, mode, way.most, trim=False)
            tail = costs.seconds[: most + 1] @ (parts.counts * backward)
            seconds, penalty = table.seconds[: most + 1], np.maximum(moving_s, parts.hidden_s - tail)
            penalty[0] = self.none_s
            in_one = np.where(one, seconds + penalty, np.inf)
            in_one[(most if only is None else only) + 1 :] = np.inf
            costs_in_rounds = (
                AnySizes(seconds, penalty, more) if only is None else OneSize(seconds, penalty, more, only)
            )
            self.closed &= only is not None or not (np.diff(more.astype(int)) > 0).any()
            self.modes.append(_InMode(mode=mode, one=one, more=more, in_one=in_one, in_rounds=costs_in_rounds))

    def costs(self, rounds: int) -> Floats:
        """G by samples for a step of so many rounds."""
        if rounds == 1:
            return np.asarray(np.min([known.in_one for known in self.modes], axis=0))
        tables = []
        for known in self.modes:
            fewer = [known.in_rounds.exactly(count) for count in range(1, rounds)]
            tables += [known.in_rounds.ending(rounds), np.min(fewer, axis=0) + self.none_s]
        least = np.min(tables, axis=0)
        least[0] = self.none_s if any(known.more[0] for known in self.modes) else np.inf
        return np.asarray(least)

    def least(self, rounds: int) -> Floats:
        """A bound on G for all steps of so many rounds or more."""
        tables = []
        for known in self.modes:
            tables += [known.in_rounds.at_least(0)[0] + self.none_s, known.in_rounds.at_least(rounds)[1]]
        return np.asarray(np.min(tables, axis=0))

    @property
    def effort(self) -> int:
        """What one more round takes to look at."""
        return sum(4 * known.in_rounds.effort for known in self.modes)

    def choice(self, samples: int, rounds: int, limit_s: float) -> RankChoice:
        """What a rank of so many samples does within a limit: in the fastest mode, in as few microbatches as can be."""
        for known in self.modes:
            if not samples and (known.one if rounds == 1 else known.more)[0]:
                return known.mode.choice(self.group.name, (), 1.0)
            if rounds == 1 and known.in_one[samples] <= limit_s:
                return known.mode.choice(self.group.name, (samples,), 1.0)
            for count in range(1, rounds + 1 if rounds > 1 else 1):
                sizes = known.in_rounds.sizes(samples, count, limit_s, ends=count == rounds)
                if sizes is not None:
                    return known.mode.choice(self.group.name, sizes, 1.0)
        raise AssertionError("what a rank can do within a limit is found again")


@dataclass(frozen=True, kw_only=True)
class _InMode:
    """Ranks of one device group in one mode."""

    mode: Mode
    one: Mask
    """Which microbatches fit in a step of one round, by size from 0 on."""
    more: Mask
    """The same for more rounds."""
    in_one: Floats
    """Costs by samples in a step of one round."""
    in_rounds: RoundCosts
    """Costs in more."""


@dataclass(frozen=True, kw_only=True)
class _Best:
    limit_s: float
    rounds: int
    samples: tuple[tuple[int, ...], ...]


class _Search:
    """The search over rounds."""

    def __init__(self, problem: Problem, parts: _Parts, ranks: Sequence[_Ranks], known_s: float) -> None:
        self.problem, self.parts, self.ranks = problem, parts, ranks
        self.counts = [group.count for group in problem.groups]
        self.known_s = known_s
        self.best: _Best | None = None
        self.lower_bound_s = known_s

    def run(self, deadline: float | None, effort: float) -> None:
        """Take rounds one after the other until more cannot be better."""
        target_s = (self.known_s - self.parts.fixed_s) * (1.0 + ROUNDING)
        left_s = self._limit_s([known.least(1) for known in self.ranks])
        least_s = math.inf if all(known.closed for known in self.ranks) else left_s
        most = max(known.most for known in self.ranks)
        for rounds in range(1, most + 1):
            if left_s >= target_s * (1.0 - SAME) and rounds > 1:
                break
            found = even_out([known.costs(rounds) for known in self.ranks], self.counts, self.problem.batch_size)
            if found is not None:
                least_s = min(least_s, found.least_s)
                if found.limit_s < target_s:
                    self.best = _Best(limit_s=found.limit_s, rounds=rounds, samples=found.samples)
                    target_s = found.limit_s
            if rounds == most:
                left_s = math.inf
                break
            left_s = self._limit_s([known.least(rounds + 1) for known in self.ranks])
            effort -= sum(known.effort for known in self.ranks)
            if effort < 0 or (deadline is not None and time.monotonic() > deadline):
                break
        self.lower_bound_s = min(self.known_s, self.parts.fixed_s + min(least_s, left_s))

    def _limit_s(self, costs: Sequence[Floats]) -> float:
        """What the slowest rank takes at least."""
        found = even_out(costs, self.counts, self.problem.batch_size)
        return math.inf if found is None else found.least_s

    def decided(self) -> Decided | None:
        """The best plan."""
        best = self.best
        if best is None:
            return None
        by_rank: dict[int, RankChoice] = {}
        for known, members in zip(self.ranks, best.samples, strict=True):
            made = {samples: known.choice(samples, best.rounds, best.limit_s) for samples in set(members)}
            by_rank |= {rank: made[samples] for rank, samples in zip(known.group.ranks, members, strict=True)}
        return Decided(
            basis=self.problem.basis,
            settings=self.problem.settings,
            strategy="cephalo",
            schedule="replicated",
            choices=tuple(by_rank[rank] for rank in range(self.problem.num_ranks)),
        )
