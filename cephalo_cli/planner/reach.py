"""Bounds on the step before any option is listed: how many samples a budget buys, and what a batch takes at least."""

from collections.abc import Sequence

import numpy as np

from cephalo_cli.planner.arrays import Floats
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ROUNDING
from cephalo_cli.planner.sizes import least_sample_s

__all__ = ["Reach", "compute_bound_s", "least_s", "least_stages_s", "reaches", "stage_floors"]


class Reach:
    """How many samples one rank of a group can take within a budget, at the least seconds a sample.

    ``sum_k counts_k * max(floors_k, sample_k * b)`` is linear between the points where a kind leaves its floor.

    Args:
        sample_s: Least seconds of a stage for one sample, by kind.
        floors_s: Least seconds of a stage whatever the samples, by kind.
        counts: How often each kind occurs.
        batch_size: No rank takes more.
    """

    def __init__(self, sample_s: Floats, floors_s: Floats, counts: Floats, batch_size: int) -> None:
        takes_time = sample_s > 0
        kinks = np.minimum(floors_s[takes_time] / sample_s[takes_time], batch_size)
        self.samples = np.unique(np.concatenate([[0.0, batch_size], kinks]))
        self.seconds = np.maximum(np.outer(self.samples, sample_s), floors_s) @ counts

    def within(self, budget_s: float) -> float:
        """Samples within a budget, up to the whole batch."""
        if budget_s < self.seconds[0]:
            return 0.0
        return float(np.interp(budget_s, self.seconds * (1.0 - ROUNDING), self.samples))


def _ideal_s(problem: Problem, reach_of: Sequence[Reach]) -> float:
    """Least time of all stages if samples could be split in any way."""

    def enough(budget_s: float) -> bool:
        reached = sum(
            group.count * reach.within(budget_s) for group, reach in zip(problem.groups, reach_of, strict=True)
        )
        return reached >= problem.batch_size

    low, high = 0.0, max(float(reach.seconds[-1]) for reach in reach_of)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_s(problem: Problem) -> float:
    """No plan of the problem is faster than this: samples split in any way, shares even."""
    return problem.least_exposed_s + least_stages_s(problem)


def least_stages_s(problem: Problem) -> float:
    """The same without what of the network is exposed, and so the least budget for stages."""
    counts = np.array(problem.counts, dtype=np.float64)
    return _ideal_s(problem, reaches(problem, stage_floors(problem), counts))


def compute_bound_s(problem: Problem) -> float:
    """No plan under any schedule is faster than this: samples split in any way, nothing but compute counted."""
    counts = np.array(problem.counts, dtype=np.float64)
    return _ideal_s(problem, reaches(problem, np.zeros(len(problem.kinds)), counts))


def stage_floors(problem: Problem) -> Floats:
    """Least time of a stage by kind, set by the network under equal shares."""
    floors = np.full(len(problem.kinds), np.inf)
    for stage in problem.stages:
        floors[stage.kind] = min(floors[stage.kind], stage.floor_s + stage.slope_s * problem.least_busiest)
    return floors


def reaches(problem: Problem, floors: Floats, counts: Floats) -> list[Reach]:
    """Reach of one rank of every group."""
    return [Reach(least_sample_s(problem, group), floors, counts, problem.batch_size) for group in problem.groups]
