"""Plans whose units are updated as soon as their gradients are reduced."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Profile
from cephalo_cli.artifacts.plan import PlanSettings, Strategy
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.errors import ArtifactError, InfeasibleError, UsageError
from cephalo_cli.planner import check_plan, make_plan
from cephalo_cli.planner.variants import with_memory
from cephalo_cli.simulator import simulate
from tests.planner.test_adapters import profile

EARLY = PlanSettings(optimizer_in_backward=True)


@pytest.fixture(scope="module")
def whole() -> Profile:
    return profile("whole")


@pytest.mark.parametrize("strategy", ["cephalo", "compute-balanced", "fsdp", "whale"])
@pytest.mark.parametrize("way", ["whole", "adapters"])
def test_the_account_agrees_with_the_cost_model(way: str, strategy: Strategy) -> None:
    made = profile(way)
    plan, usual = make_plan(made, 12, strategy, EARLY), make_plan(made, 12, strategy)
    check_plan(plan)
    for rank, planned, before in zip(simulate(plan).report.ranks, plan.ranks, usual.ranks, strict=True):
        assert rank.peak_memory_bytes <= planned.memory.total_bytes
        if planned.state_share:
            assert planned.memory.state_bytes / planned.state_share < before.memory.state_bytes / before.state_share
    if strategy == "cephalo":
        assert plan.solver.status == usual.solver.status


@pytest.mark.parametrize("gpus", ["rtx-3090", "rtx-3090:2,rtx-4090"])
def test_a_plan_that_says_otherwise_is_refused(gpus: str) -> None:
    plan = make_plan(profile("whole", gpus=gpus), 12, settings=EARLY)
    late = plan.model_copy(update={"settings": PlanSettings()})
    with pytest.raises(ArtifactError, match=r"ranks\[0\]\.memory\.state_bytes"):
        check_plan(late)


def scarce(whole: Profile) -> Basis:
    """With memory for the state only where gradients are not all there."""
    plan = make_plan(whole, 12)
    kept = {rank.device: rank.memory.reserve_bytes + rank.memory.buffers_bytes for rank in plan.ranks}
    state = sum(rank.memory.state_bytes for rank in plan.ranks)
    changed: Basis = whole
    for name, beside in kept.items():
        now = whole.cluster.device_types[name].memory_bytes or 0
        changed = with_memory(changed, name, round((beside + 0.32 * state) / 0.9) - now)
    return changed


def test_it_fits_where_all_gradients_do_not_and_is_the_repair(whole: Profile) -> None:
    made = scarce(whole)
    with pytest.raises(InfeasibleError) as caught:
        make_plan(made, 3)
    assert caught.value.hint == "--optimizer-in-backward fits"
    plan = make_plan(made, 3, settings=EARLY)
    check_plan(plan)
    assert plan.solver.status == "optimal"


def test_float16_is_refused(whole: Profile) -> None:
    changes: dict[str, Any] = {"dtype": "float16"}
    with pytest.raises(UsageError, match="in float16 a step whose scaled gradient overflows"):
        make_plan(whole.model_copy(update=changes), 3, settings=EARLY)
