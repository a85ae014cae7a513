from collections.abc import Callable
from typing import Any

import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import Profile, UnitProfile
from cephalo_cli.artifacts.store import dumps
from cephalo_cli.errors import InfeasibleError, TimeLimitError, UsageError
from cephalo_cli.planner import check_plan, make_all_plans, make_plan

Make = Callable[..., Profile]
AMPLE = 10**9


def test_the_fast_device_computes_and_the_roomy_one_stores(simple_profile: Make) -> None:
    plan = make_plan(simple_profile({"fast": (1, 100_000, 1e-3), "slow": (1, AMPLE, 4e-3)}), 10)
    fast, slow = plan.ranks
    assert sum(fast.microbatch_sizes) == 8
    assert slow.state_share > 0.5
    assert plan.solver.status == "optimal"
    assert plan.solver.gap == 0


def test_the_same_inputs_give_the_same_bytes(random_profile: Make) -> None:
    for seed in (1, 2, 3):
        profile = random_profile(seed)
        assert dumps(make_plan(profile, 6)) == dumps(make_plan(profile, 6))


def test_an_optimizer_with_fewer_moments_fits_where_adamw_does_not(simple_profile: Make) -> None:
    roomy = simple_profile({"only": (2, AMPLE, 1e-3)})
    state = roomy.num_parameters * 16
    beside = max(rank.memory.total_bytes - rank.memory.state_bytes for rank in make_plan(roomy, 2).ranks)
    tight = simple_profile({"only": (2, round((beside + 0.3 * state) / 0.9), 1e-3)})
    with pytest.raises(InfeasibleError):
        make_plan(tight, 2)
    plan = make_plan(tight, 2, settings=PlanSettings(optimizer="sgd"))
    check_plan(plan)
    assert plan.settings.optimizer == "sgd"
    assert sum(rank.memory.state_bytes for rank in plan.ranks) == pytest.approx(state / 2, abs=2)


def test_every_other_strategy_is_shown_beside_the_plan(simple_profile: Make) -> None:
    profile = simple_profile({"fast": (2, AMPLE, 1e-3), "slow": (2, AMPLE, 2e-3)})
    plan = make_plan(profile, 12)
    assert [other.strategy for other in plan.alternatives] == [
        "fsdp",
        "compute-balanced",
        "memory-balanced",
        "whale",
        "poplar",
    ]
    assert all(
        other.step_s is not None and other.step_s >= plan.expected.step_s * (1 - 1e-9)
        for other in plan.alternatives
        if other.feasible
    )
    whale = plan.alternatives[3]
    assert (whale.feasible, whale.reason) == (False, "no peak rate known for fast in float32")
    fsdp = make_plan(profile, 12, "fsdp")
    assert fsdp.alternatives[0].strategy == "cephalo"
    assert fsdp.schedule == "microbatch-major"
    assert fsdp.solver.status == "heuristic"


def test_all_plans_are_those_of_the_strategies_that_fit(simple_profile: Make) -> None:
    profile = simple_profile({"fast": (2, AMPLE, 1e-3), "slow": (2, AMPLE, 2e-3)})
    plans = make_all_plans(profile, 12)
    assert list(plans) == ["cephalo", "fsdp", "compute-balanced", "memory-balanced", "poplar"]
    assert dumps(plans["poplar"]) == dumps(make_plan(profile, 12, "poplar"))


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_a_batch_smaller_than_the_ranks_leaves_some_without_samples(simple_profile: Make, batch: int) -> None:
    plan = make_plan(simple_profile({"fast": (4, 200_000, 1e-3), "slow": (4, 200_000, 2e-3)}), batch)
    assert sum(bool(rank.microbatch_sizes) for rank in plan.ranks) <= batch
    assert plan.solver.status == "optimal"


def test_one_rank_is_not_a_special_case(simple_profile: Make) -> None:
    plan = make_plan(simple_profile({"only": (1, AMPLE, 1e-3)}), 7)
    assert plan.ranks[0].state_share == 1
    assert sum(plan.ranks[0].microbatch_sizes) == 7


def test_a_table_with_one_point_and_a_table_that_decreases(simple_profile: Make) -> None:
    one = UnitProfile(microbatch=(2,), forward_s=(1e-3,), backward_s=(2e-3,), working_bytes=(100,))
    falls = UnitProfile(
        microbatch=(1, 2, 3), forward_s=(3e-3, 2e-3, 1e-3), backward_s=(3e-3, 2e-3, 1e-3), working_bytes=(300, 200, 100)
    )
    for unit in (one, falls):
        plan = make_plan(simple_profile({"a": (2, AMPLE, 1e-3)}, units={"block": unit}), 9)
        assert plan.solver.status == "optimal"


def test_equal_cards_with_different_limits_differ_in_state_only(simple_profile: Make) -> None:
    profile = simple_profile({"big": (1, 500_000, 1e-3), "small": (1, 100_000, 1e-3)})
    big, small = make_plan(profile, 8).ranks
    assert sum(big.microbatch_sizes) == sum(small.microbatch_sizes) == 4
    assert big.state_share > small.state_share


def test_the_only_microbatch_size_is_kept_but_for_a_last_one(simple_profile: Make) -> None:
    plan = make_plan(
        simple_profile({"a": (1, AMPLE, 1e-3), "b": (1, AMPLE, 2e-3)}), 14, settings=PlanSettings(microbatch_size=4)
    )
    for rank in plan.ranks:
        assert all(size == 4 for size in rank.microbatch_sizes[:-1])
        assert rank.microbatch_sizes[-1] <= 4


def test_no_batch_is_refused(simple_profile: Make) -> None:
    with pytest.raises(UsageError, match="a batch of 0 samples"):
        make_plan(simple_profile({"a": (1, AMPLE, 1e-3)}), 0)


def test_what_a_device_cannot_do_is_refused(simple_profile: Make) -> None:
    profile = simple_profile({"a": (1, AMPLE, 1e-3)})
    with pytest.raises(UsageError, match="does not say what a keeps without recompute"):
        make_plan(profile, 2, settings=PlanSettings(recompute="off"))
    with pytest.raises(UsageError, match="offload needs recompute"):
        make_plan(profile, 2, settings=PlanSettings(recompute="off", offload="on"))
    with pytest.raises(UsageError, match="whale: no peak rate known for a in float32"):
        make_plan(profile, 2, "whale")


def test_too_little_memory_names_state_bytes_and_a_card_that_repairs_it(simple_profile: Make) -> None:
    with pytest.raises(InfeasibleError) as caught:
        make_plan(simple_profile({"a": (1, 100_000, 1e-3), "b": (1, 60_000, 1e-3)}), 1)
    assert "state: the training state of" in caught.value.message
    assert "more than all ranks can hold beside their samples; rank 1 (b) has the least memory" in caught.value.message
    assert caught.value.exit_code == 4


def test_a_card_too_small_for_one_unit_is_named(simple_profile: Make) -> None:
    with pytest.raises(
        InfeasibleError, match=r"rank 1 \(tiny\) is .* over its limit of 4.39 KiB; the term that breaks it is start-up"
    ):
        make_plan(simple_profile({"a": (1, AMPLE, 1e-3), "tiny": (1, 5_000, 1e-3)}), 1)


@pytest.mark.parametrize(
    ("memory_bytes", "settings", "hint"),
    [
        (24, {}, "check memory_bytes of device type tiny: 24 B is less than the reserve of 1.00 KiB alone"),
        (
            24,
            {"reserve_bytes": 10**9},
            "check memory_bytes of device type tiny: 24 B is less than the reserve of 954 MiB alone",
        ),
        (
            100_000,
            {"reserve_bytes": 10**9},
            "give a lower --reserve: 954 MiB is more than the 87.9 KiB that a rank on tiny may use",
        ),
        (
            100_000,
            {"memory_fraction": 0.01},
            "raise --memory-fraction: 0.01 of the 97.7 KiB of tiny is less than the reserve of 1.00 KiB",
        ),
    ],
)
def test_a_reserve_over_the_limit_is_not_repaired_with_cards(
    simple_profile: Make, memory_bytes: int, settings: dict[str, Any], hint: str
) -> None:
    profile = simple_profile({"tiny": (1, memory_bytes, 1e-3), "whole": (1, AMPLE, 1e-3)})
    devices = {name: each.model_copy(update={"reserve_bytes": 1024}) for name, each in profile.devices.items()}
    with pytest.raises(InfeasibleError, match=r"rank 0 \(tiny\) is .* over its limit of .* is reserve") as caught:
        make_plan(profile.model_copy(update={"devices": devices}), 2, settings=PlanSettings(**settings))
    assert caught.value.hint == hint


def test_the_repair_is_a_smaller_batch_that_fits(simple_profile: Make) -> None:
    settings = PlanSettings(offload="off")
    profile = simple_profile({"a": (1, 500_000, 1e-3), "b": (1, 70_000, 1e-3)})
    with pytest.raises(InfeasibleError) as caught:
        make_plan(profile, 400, settings=settings)
    assert caught.value.hint == "--offload auto fits"
    assert make_plan(profile, 400).solver.status == "optimal"


def test_the_repair_is_a_smaller_batch_where_nothing_cheaper_helps(simple_profile: Make) -> None:
    settings = PlanSettings(offload="off", microbatch_size=1)
    profile = simple_profile({"a": (1, 500_000, 1e-3), "b": (1, 70_000, 1e-3)})
    backends = {
        name: device.model_copy(update={"backend": "cpu"}) for name, device in profile.cluster.device_types.items()
    }
    cluster = profile.cluster.model_copy(update={"device_types": backends})
    with pytest.raises(InfeasibleError) as caught:
        make_plan(profile.model_copy(update={"cluster": cluster}), 400, settings=settings)
    hint = caught.value.hint or ""
    batch = int(hint.removeprefix("--batch-size ").removesuffix(" fits"))
    assert sum(sum(rank.microbatch_sizes) for rank in make_plan(profile, batch, settings=settings).ranks) == batch
    with pytest.raises(InfeasibleError):
        make_plan(profile, batch + 1, settings=settings)


def test_the_bound_of_a_plan_cut_short_holds(random_profile: Make) -> None:
    for seed in range(20):
        profile = random_profile(seed)
        try:
            best = make_plan(profile, 7)
            early = make_plan(profile, 7, time_limit_s=0.003)
        except (InfeasibleError, TimeLimitError):
            continue
        assert early.solver.lower_bound_s <= best.expected.step_s * (1 + 1e-9)
        assert early.expected.step_s >= best.expected.step_s * (1 - 1e-9)


def test_a_time_limit_of_nothing_says_so(random_profile: Make) -> None:
    profile = random_profile(0, moving=False)
    try:
        plan = make_plan(profile, 6, time_limit_s=0.0)
    except TimeLimitError as error:
        assert error.exit_code == 5  # noqa: PT017 - either answer is right
    else:
        assert plan.solver.lower_bound_s <= plan.expected.step_s


def test_a_memory_of_nothing_is_infeasible(simple_profile: Make) -> None:
    profile = simple_profile({"whole": (1, AMPLE, 1e-3), "tiny": (1, 1, 1e-3)})
    with pytest.raises(
        InfeasibleError, match=r"rank 1 \(tiny\) is .* KiB \(\d+ bytes\) over its limit of 0 B; the term .* is start-up"
    ):
        make_plan(profile, 8)
    with pytest.raises(InfeasibleError, match=r"rank 0 \(whole\) is .* over its limit"):
        make_plan(profile, 8, settings=PlanSettings(memory_fraction=1e-12))


def test_what_is_proven_within_the_tolerance_has_no_gap(random_profile: Make) -> None:
    proven = 0
    for seed in range(20):
        try:
            plan = make_plan(random_profile(seed), 5)
        except InfeasibleError:
            continue
        if plan.solver.status == "optimal":
            assert plan.solver.gap == 0.0
            assert plan.solver.lower_bound_s == plan.expected.step_s
            proven += 1
    assert proven >= 5
