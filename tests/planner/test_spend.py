"""Plans that spend memory on time: some blocks recompute, some stay unsharded."""

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.plan import Plan, PlanSettings
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.errors import ArtifactError, InfeasibleError, UsageError
from cephalo_cli.planner import check_plan, make_plan
from cephalo_cli.planner.problem import make_problem
from cephalo_cli.planner.solve import solve
from tests.planner.profiles import tight
from tests.simulator.plans import make_plan as plan_by_hand

SLACK = 1 + 2e-9
WIDEST = PlanSettings(recompute="blocks", keep_unsharded="auto")
Make = Callable[..., Profile]


def by_hand(**changes: object) -> Plan:
    changes = {"settings": WIDEST} | changes
    return plan_by_hand(["fast", "slow"], [[4, 4], [2]], [0.25, 0.75], **changes)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 7))
def test_never_slower_than_all_or_none_and_no_block_kept(random_profile: Make, seed: int, batch: int) -> None:
    profile = tight(random_profile(seed), seed)
    known = solve(make_problem(profile, PlanSettings(), batch))
    if known is None:
        return
    plan = make_plan(profile, batch, settings=WIDEST)
    assert plan.expected.step_s <= make_plan(profile, batch).expected.step_s * SLACK
    assert plan.expected.step_s <= known.step_s * SLACK


def test_blocks_are_treated_alike_unless_asked(random_profile: Make) -> None:
    """Where the larger search finds plans that recompute some blocks, or keep some whole, the usual one does not."""
    found = 0
    for seed in range(3000, 3024):
        profile = tight(random_profile(seed, moving=True, num_ranks=2 + seed % 2), seed)
        try:
            usual, widest = make_plan(profile, 4), make_plan(profile, 4, settings=WIDEST)
        except InfeasibleError:
            continue
        assert usual.solver.status in ("optimal", "heuristic")
        assert usual.keep_unsharded is None
        assert all(rank.recompute_blocks is None for rank in usual.ranks)
        found += widest.keep_unsharded is not None or any(rank.recompute_blocks is not None for rank in widest.ranks)
    assert found >= 2


@pytest.mark.parametrize("kept", [0, 1])
def test_settings_decide_how_many_blocks_stay_whole(random_profile: Make, kept: int) -> None:
    planned = 0
    for seed in range(12):
        profile = random_profile(seed)
        if profile.model.num_layers > 1:
            try:
                plan = make_plan(profile, 4, settings=PlanSettings(keep_unsharded=kept))
            except InfeasibleError:
                continue
            assert plan.num_kept_unsharded == kept or plan.schedule != "layer-major"
            planned += 1
    assert planned > 3


@pytest.mark.parametrize(("recompute", "blocks"), [("on", True), ("off", False)])
def test_a_forced_recompute_leaves_no_rank_in_between(random_profile: Make, recompute: str, *, blocks: bool) -> None:
    for seed, moving in ((3012, True), (3020, True), (3042, False)):
        profile = tight(random_profile(seed, moving=moving, num_ranks=2 + seed % 2), seed)
        try:
            plan = make_plan(profile, 3, settings=PlanSettings.model_validate({"recompute": recompute}))
        except InfeasibleError:
            continue
        for rank in plan.ranks:
            assert rank.recompute_blocks is None
            assert rank.recompute is blocks or not rank.microbatch_sizes


def test_more_blocks_than_there_are_cannot_stay_whole(simple_profile: Make) -> None:
    profile = simple_profile({"fast": (2, 10**6, 1e-3)})
    with pytest.raises(UsageError, match="3 blocks cannot stay unsharded beside the last one: the model has 3"):
        make_plan(profile, 4, settings=PlanSettings(keep_unsharded=3))


@pytest.mark.parametrize("changes", [{"recompute_blocks": [1, 3]}, {"keep_unsharded": 2}, {"moving": 1e-10}])
def test_a_plan_made_by_hand_is_verified_and_survives_its_file(changes: dict[str, object]) -> None:
    plan = by_hand(**(changes | {"keep_unsharded": 3}))
    check_plan(plan)
    text = store.dumps(plan)
    assert store.dumps(store.loads(text.encode(), where="plan")) == text


def test_what_does_not_follow_is_refused() -> None:
    plan = by_hand(recompute_blocks=[1, 3], keep_unsharded=2)
    for changed, message in (
        (plan.model_copy(update={"keep_unsharded": 1}), r"memory.buffers_bytes"),
        (with_blocks(plan, 2), r"ranks\[0\].memory.saved_bytes"),
        (with_settings(plan, keep_unsharded=1), "keep_unsharded: found 2, but the settings keep 1"),
        (with_settings(plan, keep_unsharded=None), "keep_unsharded: found 2, but the settings keep none"),
        (with_settings(plan, recompute="on"), "recompute_blocks: found 1, but the settings recompute all 4"),
        (with_settings(plan, recompute="auto"), "recompute_blocks: found 1, but the settings recompute all or none"),
    ):
        with pytest.raises(ArtifactError, match=message):
            check_plan(changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recompute_blocks": 5}, r"ranks\[0\].recompute_blocks: found 5, but the model has 4 blocks"),
        ({"recompute_blocks": 0}, r"ranks\[0\].recompute_blocks: found 0, but recompute is true"),
        (
            {"recompute_blocks": 2, "offload": True},
            r"recompute_blocks: found 2, but offload needs all blocks run again",
        ),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    document = by_hand(recompute_blocks=[1, 3]).model_dump(mode="json", exclude_none=True)
    document["ranks"][0] |= changes
    with pytest.raises(ArtifactError, match=message):
        store.loads(json.dumps(document).encode(), where="plan")


def with_blocks(plan: Plan, count: int) -> Plan:
    first = plan.ranks[0].model_copy(update={"recompute_blocks": count})
    return plan.model_copy(update={"ranks": (first, *plan.ranks[1:])})


def with_settings(plan: Plan, **changes: object) -> Plan:
    return plan.model_copy(update={"settings": plan.settings.model_copy(update=changes)})
