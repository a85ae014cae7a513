from collections.abc import Callable

from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.planner import make_plan

Make = Callable[..., Profile]


def test_ten_thousand_equal_ranks_share_alike(simple_profile: Make) -> None:
    plan = make_plan(simple_profile({"a": (10_000, 100_000, 1e-3)}), 25_000)
    assert plan.solver.status == "optimal"
    assert {sum(rank.microbatch_sizes) for rank in plan.ranks} == {2, 3}


def test_hundreds_of_ranks_with_binding_memory_are_proven(simple_profile: Make) -> None:
    profile = simple_profile({"big": (150, 27_000, 1e-3), "mid": (150, 23_000, 1.7e-3), "small": (150, 21_000, 2.9e-3)})
    plan = make_plan(profile, 1800)
    assert plan.solver.status == "optimal"
    assert plan.solver.gap == 0
