"""The planner against enumeration.

Once for ranks that recompute all blocks or none, and once with every number of recomputed blocks on every rank, and
every number of blocks that stay unsharded.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.costmodel import rank_memory
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.solve import solve
from cephalo_cli.planner.spend import best_plan
from tests.planner.enumeration import brute_force
from tests.planner.profiles import tight


def compare(profile: Profile, batch: int) -> bool:
    settings = PlanSettings(memory_fraction=0.9)
    wanted = brute_force(profile, settings, batch)
    found = solve(make_problem(profile, settings, batch))
    if wanted is None or found is None:
        assert wanted is None
        assert found is None
        return False
    assert found.proven
    assert found.step_s == pytest.approx(wanted, rel=2e-9)
    assert found.lower_bound_s <= found.step_s <= found.lower_bound_s * (1 + 2e-9)
    return True


@pytest.mark.parametrize("chunk", range(16))
@pytest.mark.parametrize("moving", [False, True])
def test_equals_brute_force(chunk: int, random_profile: Callable[..., Profile], *, moving: bool) -> None:
    feasible = 0
    for seed in range(100 * chunk, 100 * chunk + 12):
        profile = random_profile(seed, moving=moving)
        batch = 3 + seed % 10 if len(profile.cluster.ranks) < 4 else 2 + seed % 5
        feasible += compare(profile, batch)
    assert feasible >= 3


def compare_all(profile: Profile, batch: int) -> Counter[str]:
    """Hold the best plan of all against enumeration over every K; count what it makes use of."""
    settings = PlanSettings(recompute="blocks", keep_unsharded="auto")
    wanted: float | None = None
    for keep in range(profile.model.num_layers):
        wanted = brute_force(profile, settings, batch, keep, wanted)
    found = best_plan(make_problem(profile, settings, batch))
    if wanted is None or found is None:
        assert wanted is None
        assert found is None
        return Counter()
    assert found.step_s == pytest.approx(wanted, rel=3e-9)
    assert found.lower_bound_s <= found.step_s
    assert found.proven
    some = any(choice.recompute_blocks is not None for choice in found.choices)
    return Counter(feasible=1, some_blocks=some, kept=found.keep_unsharded > 0)


@pytest.mark.parametrize("chunk", range(4))
@pytest.mark.parametrize("moving", [False, True])
def test_memory_for_time_equals_brute_force(
    chunk: int, random_profile: Callable[..., Profile], *, moving: bool
) -> None:
    used = Counter[str]()
    for seed in range(3000 + 12 * chunk, 3012 + 12 * chunk):
        profile = random_profile(seed, moving=moving, num_ranks=2 + seed % 2)
        used += compare_all(profile if seed % 2 else tight(profile, seed), 2 + seed % 5)
    assert used["feasible"] >= 3
    assert used["kept"] >= (1 if moving else 0)


@pytest.mark.parametrize(("seed", "moving"), [(3012, True), (3020, True), (3042, False)])
def test_some_blocks_recompute_where_that_is_best(
    seed: int, random_profile: Callable[..., Profile], *, moving: bool
) -> None:
    profile = tight(random_profile(seed, moving=moving, num_ranks=2 + seed % 2), seed)
    assert compare_all(profile, 2 + seed % 5)["some_blocks"]


def test_the_random_instances_reach_every_corner(random_profile: Callable[..., Profile]) -> None:
    corners = Counter[str]()
    for seed in range(0, 1600, 10):
        profile = random_profile(seed, moving=seed % 20 == 0)
        problem = make_problem(profile, PlanSettings(), 4)
        solution = solve(problem)
        if solution is None:
            corners["infeasible"] += 1
            continue
        corners["direct"] += problem.network is not None and problem.network.direct
        corners["ring"] += problem.network is not None and not problem.network.direct
        corners["ideal"] += problem.network is None
        corners["moving"] += problem.shares_cost_compute
        corners["no samples"] += any(not choice.microbatch_sizes for choice in solution.choices)
        corners["no state"] += any(choice.state_share == 0 for choice in solution.choices)
        corners["no recompute"] += any(not choice.recompute for choice in solution.choices)
        corners["offload"] += any(choice.offload for choice in solution.choices)
        for choice in solution.choices:
            memory = rank_memory(profile, problem.settings, choice, step=problem.step, num_ranks=problem.num_ranks)
            corners["full memory"] += memory.total_bytes > 0.999 * memory.limit_bytes
    missing = [name for name in CORNERS if corners[name] < 3]
    assert not missing, corners


CORNERS = (
    "infeasible",
    "direct",
    "ring",
    "ideal",
    "moving",
    "no samples",
    "no state",
    "no recompute",
    "offload",
    "full memory",
)
