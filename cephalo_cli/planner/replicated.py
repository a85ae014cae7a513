"""The best plan with the whole state on every rank, with its proof.

Shares are no choice there, and ranks meet in the reductions only. With c, p, F and E as in `round_costs`, R rounds and
b_i samples on rank i,

    step = optimizer + AR(last) + max_i G_i(b_i),    G_i(b) = min( E_R(b), min_{k<R} F_k(b) + p(0) )

where ``p(s) = max(moving_i, all reductions but the last - tail_i(s))``: the backward after the head's, of a last
microbatch of s samples, is what reductions hide behind (`costmodel.step`).

1. For R = 1, 2, ... the best split is found exactly (`even_out`), over all modes and microbatch sizes that fit.
2. ``min(E_{>=R}, F_{>=0} + p(0))`` bounds all plans of R rounds or more. Once the best plan is as good, it is proven.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.even_out import even_out
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.reach import compute_bound_s
from cephalo_cli.planner.replicated_ranks import Parts, Ranks
from cephalo_cli.planner.shares import ROUNDING
from cephalo_cli.planner.way import Way
from cephalo_cli.schedule import step_stages

__all__ = ["Replicated", "best_replicated"]

SAME = 1e-12
"""Relative difference of steps that is rounding."""

EFFORT = 2e7
"""Sums of two costs after which the best plan so far is taken, unless the search is thorough: about 0.2 s."""

FEW_SIZES = (4, 16)
"""Numbers of sizes of microbatches of which first plans are made."""

MOST_PASSES = 4
"""How often to search with what was found before."""

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
    parts = Parts(problem)
    most = [parts.most_samples(group, known_s * (1.0 + ROUNDING)) for group in problem.groups]
    if sum(count.count * samples for count, samples in zip(problem.groups, most, strict=True)) < problem.batch_size:
        return Replicated(decided=None, lower_bound_s=known_s)
    if max(most) ** 2 > MOST_CELLS:
        least_s = compute_bound_s(problem) + parts.fixed_s
        return Replicated(decided=None, lower_bound_s=min(least_s, known_s))
    way = Way(problem, "replicated", 1.0, max(most))
    best: Decided | None = None
    lower_s, effort = 0.0, math.inf if thorough else EFFORT
    # A better plan leaves less to look at, so those of few sizes are looked for first; what one search leaves open, the
    # next one may close.
    passes: list[int | None] = [*(few for few in FEW_SIZES if max(most) > 2 * few), *[None] * MOST_PASSES]
    for few in passes:
        limit_s = (known_s - parts.fixed_s) * (1.0 + ROUNDING)
        ranks = [
            Ranks(parts, way, group, samples, limit_s) for group, samples in zip(problem.groups, most, strict=True)
        ]
        total = sum(known.group.count * known.most for known in ranks)
        if total < problem.batch_size:
            return Replicated(decided=best, lower_bound_s=known_s)
        for known in ranks:
            known.narrow(max(0, problem.batch_size - total + known.most), few)
        search = _Search(problem, parts, ranks, known_s)
        search.run(deadline, effort)
        found = search.decided()
        if few is not None:
            best = best if found is None else found
            known_s = known_s if found is None else min(known_s, found.estimate.step_s)
            continue
        lower_s = max(lower_s, search.lower_bound_s)
        if found is None:
            break
        best, closed = found, lower_s >= found.estimate.step_s * (1.0 - SAME)
        if closed or found.estimate.step_s >= known_s * (1.0 - SAME):
            break
        known_s = found.estimate.step_s
    return Replicated(decided=best, lower_bound_s=min(lower_s, known_s))


def _state_fits(problem: Problem) -> bool:
    """Whether every rank holds the whole state, without samples."""
    step = step_stages("replicated", problem.step.units, 1)
    for group in problem.groups:
        choice = group.modes[0].choice(group.name, (), 1.0)
        memory = rank_memory(problem.basis, problem.settings, choice, step=step, num_ranks=problem.num_ranks)
        if memory.total_bytes > memory.limit_bytes or group.startup_share < 1.0:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Best:
    limit_s: float
    rounds: int
    samples: tuple[tuple[int, ...], ...]


class _Search:
    """The search over rounds."""

    def __init__(self, problem: Problem, parts: Parts, ranks: Sequence[Ranks], known_s: float) -> None:
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
        first = max(2, *(known.rounds[0] for known in self.ranks))
        last = max(known.rounds[1] for known in self.ranks)
        for before, rounds in itertools.pairwise([0, 1, *range(first, last + 1)]):
            if left_s >= target_s * (1.0 - SAME) and rounds > 1:
                break
            found = even_out([known.costs(rounds) for known in self.ranks], self.counts, self.problem.batch_size)
            if found is not None:
                least_s = min(least_s, found.least_s)
                if found.limit_s < target_s:
                    self.best = _Best(limit_s=found.limit_s, rounds=rounds, samples=found.samples)
                    target_s = found.limit_s
            after = max(first, rounds + 1)
            if after > last:
                left_s = math.inf
                break
            left_s = self._limit_s([known.least(after) for known in self.ranks])
            effort -= (after - before) * sum(known.effort for known in self.ranks)
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
