"""What a plan gives reason to try, against what a larger search finds."""

import pytest

from cephalo_cli.artifacts import Model, Profile, store
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.catalog import cluster_from_gpus
from cephalo_cli.planner import make_plan
from cephalo_cli.planner.worth_trying import worth_trying
from cephalo_cli.profiler import estimate_profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    model = Model(
        name="small",
        family="gpt",
        num_layers=6,
        hidden_size=512,
        num_heads=8,
        ffn_size=2048,
        vocab_size=1000,
        max_seq_len=512,
        tie_embeddings=True,
    )
    return estimate_profile(cluster_from_gpus("rtx-3090:2,p40"), model, seq_len=512, dtype="float32", max_microbatch=8)


def test_a_network_that_binds_beside_free_memory(profile: Profile) -> None:
    plan = make_plan(profile, 3)
    assert worth_trying(plan) == (
        "--keep-unsharded auto may be faster: backward waits for the network and every rank has free memory"
    )
    asked = make_plan(profile, 3, settings=PlanSettings(keep_unsharded="auto"))
    assert asked.expected.step_s < 0.95 * plan.expected.step_s
    assert worth_trying(asked) is None
    assert worth_trying(make_plan(profile, 3, settings=PlanSettings(keep_unsharded=0))) is None
    assert worth_trying(make_plan(profile, 24)) is None, "compute binds"
    free = min(rank.memory.limit_bytes - rank.memory.total_bytes + rank.memory.reserve_bytes for rank in plan.ranks)
    full = plan.settings.model_copy(update={"reserve_bytes": free + 1})
    assert worth_trying(plan.model_copy(update={"settings": full})) is None, "memory is full"


def test_recomputing_beside_free_memory() -> None:
    profile = store.read("profiles/laptop-mixed.json", Profile)
    plan = make_plan(profile, 32)
    assert worth_trying(plan) == "--recompute blocks may be faster: ranks that recompute have free memory"
    asked = make_plan(profile, 32, settings=PlanSettings(recompute="blocks"))
    assert asked.expected.step_s < 0.99 * plan.expected.step_s
    assert worth_trying(asked) is None


def test_another_strategy_is_left_as_it_is(profile: Profile) -> None:
    assert worth_trying(make_plan(profile, 3, "compute-balanced")) is None
