import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.optimize import linprog

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.planner.problem import Problem, make_problem
from cephalo_cli.planner.shares import Holder, best_limits, fair_shares


def by_linear_program(problem: Problem, kinds_s: Sequence[float], holders: Sequence[Holder]) -> float | None:
    count, stages = len(holders), len(problem.stages)
    busiest, optimizer = count + stages, count + stages + 1
    rows, limits = [], []

    def add(limit: float, entries: dict[int, float]) -> None:
        rows.append([entries.get(column, 0.0) for column in range(optimizer + 1)])
        limits.append(limit)

    for index, holder in enumerate(holders):
        add(0.0, {index: holder.optimizer_s, optimizer: -1.0})
        if problem.network is not None:
            add(-1.0, {index: -1.0, busiest: -1.0})
            if problem.network.direct:
                add(0.0, {index: problem.network.num_ranks - 1.0, busiest: -1.0})
    for index, stage in enumerate(problem.stages):
        add(-stage.floor_s, {busiest: stage.slope_s, count + index: -1.0})
        add(-kinds_s[stage.kind], {count + index: -1.0})
    unit = 1e-3
    scale = np.array([1.0] * count + [unit] * stages + [1.0, unit])
    cost = np.array([0.0] * count + [stage.count for stage in problem.stages] + [problem.exposed.slope_s, 1.0])
    equal = np.array([[holder.count for holder in holders] + [0] * (stages + 2)], dtype=float)
    bounds = [(0.0, holder.cap) for holder in holders] + [(0.0, None)] * (stages + 2)
    solved = linprog(
        cost * scale / unit,
        A_ub=np.array(rows) * scale,
        b_ub=limits,
        A_eq=equal,
        b_eq=[1.0],
        bounds=bounds,
        options={"primal_feasibility_tolerance": 1e-10},
    )
    return None if solved.fun is None else float(solved.fun) * unit + problem.exposed.floor_s


@pytest.mark.parametrize("chunk", range(10))
def test_best_limits_equal_a_linear_program(chunk: int, random_profile: Callable[..., Profile]) -> None:
    for seed in range(40 * chunk, 40 * chunk + 40):
        rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
        problem = make_problem(random_profile(seed, moving=False), PlanSettings(), 4)
        holders = [
            Holder(
                1,
                min(1.0, rng.choice([0.1, 0.3, 0.5, 1.0]) * rng.uniform(0.5, 1.5)),
                group.optimizer_s * rng.choice([0, 1, 3]),
            )
            for group in problem.groups
            for _ in group.ranks
        ]
        kinds_s = [rng.uniform(0, 3e-3) for _ in range(5)]
        found, wanted = best_limits(problem, kinds_s, holders), by_linear_program(problem, kinds_s, holders)
        assert (found is None) == (wanted is None)
        if found is not None:
            assert found.step_s == pytest.approx(wanted, rel=1e-9)


def test_fair_shares_sum_to_one_inside_their_bounds() -> None:
    shares = fair_shares([0.0, 0.1, 0.0], [0.9, 0.9, 0.2], [0.5, 0.05, 0.9], [1.0, 1.0, 2.0])
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-15)
    assert shares == pytest.approx([0.625, 0.175, 0.2])


def test_less_than_an_element_is_no_share() -> None:
    shares = fair_shares([2e-14, 0.0, 0.0], [1.0, 0.5, 0.5 - 2e-14], [0.0, 0.6, 0.9], [1.0, 1.0, 1.0])
    assert shares[0] == 0.0
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-15)
    assert shares[1:] == pytest.approx([0.5, 0.5], abs=1e-12)
    full = fair_shares([2e-14, 0.0, 0.0], [1.0, 0.5, 0.5 - 2e-14], [1.0, 0.5, 0.5 - 2e-14], [1.0, 1.0, 1.0])
    assert full[1] <= 0.5
    assert full[2] <= 0.5 - 2e-14


def test_fair_shares_fill_unbounded_memories_to_the_same_fraction() -> None:
    free, sizes = [0.5, 1.0, 2.0], [1.0, 1.5, 2.5]
    shares = fair_shares([0.0] * 3, [1.0] * 3, free, sizes)
    empty = [(room - share) / size for room, share, size in zip(free, shares, sizes, strict=True)]
    assert empty == pytest.approx([empty[0]] * 3)
