"""One or a few ranks with ample memory and a large batch: lists of microbatches are closed before they grow."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile, UnitProfile
from cephalo_cli.planner import make_plan
from cephalo_cli.planner.bounds import bound_options
from cephalo_cli.planner.limit_search import LimitSearch
from cephalo_cli.planner.lines import draw_lines, least_beside_stages_s
from cephalo_cli.planner.options import Window, without_dominated
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.reach import stage_floors
from cephalo_cli.planner.replicated import best_replicated
from cephalo_cli.planner.solve import solve
from tests.planner.enumeration import brute_force

Make = Callable[..., Profile]
AMPLE = 10**9


def noisy(simple_profile: Make, devices: dict[str, int], seed: int = 3, bend: float = 0.0) -> Profile:
    """Devices with an overhead a microbatch and noise, other noise in forward than in backward.

    With a bend a sample is quickest in a small microbatch, though large ones fit.
    """
    rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
    points = tuple(range(1, 17))
    profile = simple_profile({name: (count, AMPLE, 1e-3) for name, count in devices.items()})
    made = {}
    for index, (name, device) in enumerate(profile.devices.items()):
        forward, backward = (
            tuple(
                scale * (1.0 + 0.3 * index) * (2.0 + size + bend * size * size) * rng.uniform(0.97, 1.03)
                for size in points
            )
            for scale in (1e-3, 2e-3)
        )
        block = UnitProfile(
            microbatch=points,
            forward_s=forward,
            backward_s=backward,
            working_bytes=tuple(AMPLE // 40 * size for size in points),
        )
        made[name] = device.model_copy(update={"units": {"block": block}})
    return profile.model_copy(update={"devices": made})


@pytest.mark.parametrize("devices", [{"a": 1}, {"a": 2}, {"a": 1, "b": 1}], ids=["one", "two equal", "two kinds"])
def test_few_ranks_with_ample_memory_are_proven_with_little_effort(
    simple_profile: Make, devices: dict[str, int]
) -> None:
    problem = make_problem(noisy(simple_profile, devices), PlanSettings(), 512)
    found = solve(problem, listing=5e6)
    assert found is not None
    assert found.proven
    assert found.lower_bound_s == pytest.approx(found.step_s, rel=2e-9)


def test_a_search_that_is_stopped_has_the_bound_of_all_ranks_together(simple_profile: Make) -> None:
    problem = make_problem(noisy(simple_profile, {"a": 1, "b": 1}), PlanSettings(), 509)
    stopped, whole = solve(problem, listing=0.0), solve(problem)
    assert stopped is not None
    assert whole is not None
    assert not stopped.proven
    assert stopped.lower_bound_s <= whole.step_s <= stopped.step_s
    assert stopped.lower_bound_s >= 0.99 * whole.step_s


def test_lines_leave_the_best_plan_open(random_profile: Make) -> None:
    drawn = 0
    for seed in range(400, 440):
        profile = random_profile(seed, moving=False, num_ranks=2)
        wanted_s = brute_force(profile, PlanSettings(), 6)
        if wanted_s is None:
            continue
        problem = make_problem(profile, PlanSettings(), 6)
        floors = stage_floors(problem)
        window = Window(
            floors_s=floors, counts=np.array(problem.counts, dtype=np.float64), budget_s=math.inf, flat_s=floors
        )
        bounds = [bound_options(problem, group, 6, window) for group in problem.groups]
        beside_s = least_beside_stages_s(problem, bounds)
        closed = Window(
            floors_s=floors,
            counts=window.counts,
            budget_s=wanted_s * (1 + 1e-9) - beside_s,
            flat_s=floors,
        )
        lines = draw_lines(problem, bounds, closed)
        assert beside_s + lines.bound_s <= wanted_s * (1 + 1e-9)
        drawn += 1
        options = [without_dominated(bound.concrete, floors) for bound in bounds]
        search = LimitSearch(problem, options)
        search.run()
        if search.best is None or search.best.limits.step_s > wanted_s * (1 + 1e-9):
            continue
        for group, (listed, rows) in enumerate(zip(options, search.best.rows, strict=True)):
            for row in rows:
                modes = int(listed.modes[row])
                family = next(at for at, each in enumerate(listed.group.families) if modes in each)
                if listed.samples[row]:
                    assert len(lines.open_targets(group, family, listed.samples[[row]]))
    assert drawn >= 10


@pytest.mark.parametrize("devices", [{"a": 1}, {"a": 2}], ids=["one", "two"])
def test_replicated_plans_of_many_rounds_are_proven(simple_profile: Make, devices: dict[str, int]) -> None:
    problem = make_problem(noisy(simple_profile, devices, bend=0.2), PlanSettings(), 1024)
    found = best_replicated(problem, math.inf)
    assert found.decided is not None
    assert found.decided.step.num_rounds > 100
    assert found.lower_bound_s == pytest.approx(found.decided.estimate.step_s, rel=1e-9)


def test_a_plan_of_one_rank_is_proven_without_a_time_limit(simple_profile: Make) -> None:
    plan = make_plan(noisy(simple_profile, {"a": 1}, bend=0.2), 1024)
    assert (plan.solver.status, plan.solver.gap) == ("optimal", 0.0)
