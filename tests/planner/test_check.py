from collections.abc import Callable
from typing import Any

import pytest

from cephalo_cli.artifacts.plan import Alternative, Plan, PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.errors import ArtifactError, InfeasibleError
from cephalo_cli.planner import check_plan, make_all_plans, make_plan


def with_rank(plan: Plan, index: int, **changes: Any) -> Plan:
    ranks = list(plan.ranks)
    ranks[index] = ranks[index].model_copy(update=changes)
    return plan.model_copy(update={"ranks": tuple(ranks)})


def with_memory(plan: Plan, term: str, by: int) -> Plan:
    memory = plan.ranks[0].memory
    total = memory.total_bytes + (by if term != "limit_bytes" else 0)
    changed = memory.model_copy(update={term: getattr(memory, term) + by, "total_bytes": total})
    return with_rank(plan, 0, memory=changed)


@pytest.fixture
def plan(simple_profile: Callable[..., Profile]) -> Plan:
    profile = simple_profile({"fast": (2, 400_000, 1e-3), "slow": (1, 300_000, 3e-3)})
    return make_plan(profile, 9)


def test_every_plan_of_every_strategy_passes(random_profile: Callable[..., Profile]) -> None:
    seen: set[str] = set()
    for seed in range(60):
        try:
            plans = make_all_plans(random_profile(seed), 5)
        except InfeasibleError:
            continue
        for strategy, plan in plans.items():
            check_plan(plan)
            seen.add(strategy)
    assert seen == {"cephalo", "fsdp", "compute-balanced", "memory-balanced", "poplar"}


def test_a_plan_with_a_wrong_memory_term_is_refused(plan: Plan) -> None:
    for term in ("state_bytes", "buffers_bytes", "working_bytes", "saved_bytes", "reserve_bytes", "limit_bytes"):
        with pytest.raises(ArtifactError, match=rf"ranks\[0\]\.memory\.{term}: found \d+, expected \d+"):
            check_plan(with_memory(plan, term, 1000))


def test_a_plan_over_its_limit_is_refused(plan: Plan) -> None:
    types = {
        name: device.model_copy(update={"memory_bytes": 30_000}) for name, device in plan.cluster.device_types.items()
    }
    small = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"device_types": types})})
    ranks = tuple(
        rank.model_copy(update={"memory": rank.memory.model_copy(update={"limit_bytes": 27_000})})
        for rank in plan.ranks
    )
    with pytest.raises(ArtifactError, match=r"ranks\[0\]\.memory.total_bytes: .* over the limit"):
        check_plan(small.model_copy(update={"ranks": ranks}))


def test_a_rank_that_cannot_start_is_refused(simple_profile: Callable[..., Profile]) -> None:
    plan = make_plan(simple_profile({"fast": (1, 10**6, 1e-3), "slow": (1, 10**6, 9e-3)}), 3)
    assert plan.ranks[1].microbatch_sizes == ()
    types = dict(plan.cluster.device_types)
    types["slow"] = types["slow"].model_copy(update={"memory_bytes": 10_000})
    small = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"device_types": types})})
    state = {"state_bytes": 16 * plan.num_parameters, "total_bytes": 16 * plan.num_parameters}
    busy = plan.ranks[0].memory
    state["total_bytes"] += busy.working_bytes + busy.saved_bytes
    small = with_rank(small, 0, state_share=1.0, memory=busy.model_copy(update=state))
    idle = plan.ranks[1].memory.model_copy(update={"state_bytes": 0, "total_bytes": 0, "limit_bytes": 9_000})
    small = with_rank(small, 1, state_share=0.0, memory=idle)
    with pytest.raises(ArtifactError, match=r"ranks\[1\]\.memory: starting up needs its shard and one whole unit"):
        check_plan(small)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch_size": 10}, "global_batch_size: the ranks have 9 samples, expected 10"),
        ({"settings": PlanSettings(recompute="off")}, r"ranks\[0\]\.recompute: found true, but the settings say off"),
        ({"settings": PlanSettings(offload="on")}, r"ranks\[0\]\.offload: found false, but the settings say on"),
        (
            {"settings": PlanSettings(microbatch_size=5)},
            r"ranks\[0\]\.microbatch_sizes: found .* only size 5 is allowed",
        ),
    ],
)
def test_a_plan_that_breaks_its_own_settings_is_refused(plan: Plan, changes: dict[str, Any], message: str) -> None:
    ranks = tuple(
        rank.model_copy(update={"microbatch_sizes": (*rank.microbatch_sizes[:-1], 1, rank.microbatch_sizes[-1] - 1)})
        if "settings" in changes and changes["settings"].microbatch_size and rank.microbatch_sizes[-1] > 1
        else rank
        for rank in plan.ranks
    )
    with pytest.raises(ArtifactError, match=message):
        check_plan(plan.model_copy(update={"ranks": ranks, **changes}))


def test_wrong_shares_are_refused(plan: Plan) -> None:
    with pytest.raises(ArtifactError, match="ranks: state shares sum to"):
        check_plan(with_rank(plan, 0, state_share=plan.ranks[0].state_share / 2))


def test_replicated_state_is_whole_on_every_rank(plan: Plan) -> None:
    with pytest.raises(
        ArtifactError, match=r"ranks\[0\]\.state_share: found 0\.\d+, expected 1: the state is replicated"
    ):
        check_plan(plan.model_copy(update={"schedule": "replicated"}))


@pytest.mark.parametrize("name", ["forward_s", "backward_s", "optimizer_s"])
def test_wrong_times_of_a_rank_are_refused(plan: Plan, name: str) -> None:
    expected = plan.ranks[1].expected.model_copy(update={name: 123.0})
    with pytest.raises(ArtifactError, match=rf"ranks\[1\]\.expected\.{name}: found 123"):
        check_plan(with_rank(plan, 1, expected=expected))


@pytest.mark.parametrize("name", ["step_s", "samples_per_s", "tokens_per_s"])
def test_wrong_times_of_the_step_are_refused(plan: Plan, name: str) -> None:
    expected = plan.expected.model_copy(update={name: getattr(plan.expected, name) * 1.001})
    with pytest.raises(ArtifactError, match=rf"expected\.{name}: found"):
        check_plan(plan.model_copy(update={"expected": expected}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower_bound_s": 99.0}, "solver.lower_bound_s: 99 is above the step"),
        ({"gap": 0.5}, "solver.gap: found 0.5, expected"),
        ({"lower_bound_s": 0.0, "gap": 1.0}, "solver.status: says optimal, but the gap is 1"),
    ],
)
def test_a_wrong_proof_is_refused(plan: Plan, changes: dict[str, float], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        check_plan(plan.model_copy(update={"solver": plan.solver.model_copy(update=changes)}))


def test_alternatives_must_make_sense(plan: Plan) -> None:
    def refused(alternative: Alternative, message: str) -> None:
        with pytest.raises(ArtifactError, match=message):
            check_plan(plan.model_copy(update={"alternatives": (alternative,)}))

    refused(Alternative(strategy="cephalo", feasible=True, step_s=9.0), "alternatives.0..strategy: cephalo is already")
    refused(Alternative(strategy="fsdp", feasible=True, reason="why", step_s=9.0), "alternatives.0..reason: a reason")
    refused(Alternative(strategy="fsdp", feasible=False), "alternatives.0..reason: a reason")
    refused(Alternative(strategy="fsdp", feasible=True), "alternatives.0.: says feasible, but has no step time")
    refused(
        Alternative(strategy="fsdp", feasible=True, step_s=1e-9, samples_per_s=9e9),
        "fsdp is faster than a plan that says it is optimal",
    )
    refused(
        Alternative(strategy="fsdp", feasible=True, step_s=9.0, samples_per_s=2.0),
        r"alternatives.0..samples_per_s: found 2 .* expected 1",
    )


def test_a_bound_that_is_no_word_of_ours_is_refused(plan: Plan) -> None:
    expected = plan.expected.model_copy(update={"bound": "magic"})
    with pytest.raises(ArtifactError, match=r"expected\.bound: found .magic., expected"):
        check_plan(plan.model_copy(update={"expected": expected}))


def test_the_parameters_are_those_of_the_model_unless_imported(plan: Plan) -> None:
    devices = {name: device.model_copy(update={"method": "estimated"}) for name, device in plan.devices.items()}
    count = plan.num_parameters + 1
    with pytest.raises(ArtifactError, match=f"num_parameters: found {count}, expected {plan.num_parameters}, the"):
        check_plan(plan.model_copy(update={"num_parameters": count, "devices": devices}))
    with pytest.raises(ArtifactError, match=r"ranks\[0\]"):
        check_plan(plan.model_copy(update={"num_parameters": 2 * count}))
