"""Plans of models that are trained in part: frozen parameters cost their weights, and no gradient anywhere."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Model, Plan, Profile
from cephalo_cli.artifacts.model import Lora
from cephalo_cli.artifacts.plan import Strategy
from cephalo_cli.catalog import cluster_from_gpus
from cephalo_cli.costmodel.memory import buffers_bytes, state_bytes
from cephalo_cli.costmodel.step import collective_times
from cephalo_cli.planner import check_plan, make_plan
from cephalo_cli.profiler import estimate_profile
from cephalo_cli.schedule import plan_stages, step_stages
from cephalo_cli.simulator import simulate
from cephalo_cli.units import model_units, num_frozen_parameters, num_parameters

LORA = Lora(rank=4, targets=("attention.*", "mlp.up"))
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "frozen": {"frozen": ("embedding.*", "block.*.mlp.*")},
    "adapters": {"lora": LORA},
    "adapters, base in 16 bits": {"lora": LORA, "frozen_dtype": "bfloat16"},
}


def profile(way: str, family: str = "llama", gpus: str = "rtx-3090:2,rtx-4090") -> Profile:
    model = Model(
        name="small",
        family=family,  # type: ignore[arg-type]  # one of the four
        num_layers=3,
        hidden_size=256,
        num_heads=4,
        ffn_size=512,
        vocab_size=1000,
        max_seq_len=128,
        **WAYS[way],
    )
    return estimate_profile(cluster_from_gpus(gpus), model, seq_len=128, dtype="bfloat16", max_microbatch=8)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {way: make_plan(profile(way), 12) for way in WAYS}


@pytest.mark.parametrize("strategy", ["compute-balanced", "memory-balanced", "fsdp", "whale"])
@pytest.mark.parametrize("way", WAYS)
def test_the_account_agrees_with_the_cost_model(way: str, strategy: Strategy) -> None:
    """`check_plan` counts every byte and second again, with code of its own; a simulated peak is never above."""
    plan = make_plan(profile(way), 12, strategy)
    check_plan(plan)
    run = simulate(plan)
    for rank, planned in zip(run.report.ranks, plan.ranks, strict=True):
        assert rank.peak_memory_bytes <= planned.memory.total_bytes


def test_what_a_rank_holds(plans: dict[str, Plan]) -> None:
    sizes = {}
    for way, plan in plans.items():
        frozen = num_frozen_parameters(plan.model)
        trained = num_parameters(plan.model) - frozen
        stored = 2 if plan.model.frozen_dtype else 4
        sizes[way] = state_bytes(plan)
        assert sizes[way] == 16 * trained + stored * frozen
        step = plan_stages(plan)
        gradients = [4 * unit.num_trained for unit in step.units]
        assert list(collective_times(plan, step, [1 / 3] * 3).reduce_bytes) == gradients
    assert sizes["whole"] > sizes["frozen"] > sizes["adapters"] > sizes["adapters, base in 16 bits"]


def test_buffers_hold_gradients_of_what_is_trained(plans: dict[str, Plan]) -> None:
    """All of it is whole in bfloat16, and only the adapters have a gradient, in float32."""
    step = step_stages("layer-major", model_units(plans["adapters"].model))
    size = {unit.name: unit.num_parameters for unit in step.units}
    assert size["head"] < size["block.1"]
    two_blocks = 2 * 2 * size["block.1"] + 2 * 4 * step.units[1].num_trained
    assert buffers_bytes(step, num_ranks=3, dtype="bfloat16") == two_blocks
    alone = {way: buffers_bytes(plan_stages(plan), num_ranks=1, dtype="bfloat16") for way, plan in plans.items()}
    assert alone["whole"] == 2 * num_parameters(plans["whole"].model)
    model = plans["adapters, base in 16 bits"].model
    kept = buffers_bytes(plan_stages(plans["adapters"]), num_ranks=1, dtype="bfloat16", frozen_dtype="bfloat16")
    assert kept == 2 * (num_parameters(model) - num_frozen_parameters(model))


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_frozen_weights_take_no_time_for_their_gradient(family: str) -> None:
    whole, adapters = (profile(way, family).devices["rtx-3090"].units["block"] for way in ("whole", "adapters"))
    assert adapters.backward_s[-1] < whole.backward_s[-1]
    assert adapters.forward_s[-1] >= whole.forward_s[-1]
    assert adapters.saved_bytes is not None
    assert whole.saved_bytes is not None
    assert adapters.saved_bytes[-1] < 1.1 * whole.saved_bytes[-1]


def test_units_that_differ_only_in_what_is_frozen_are_priced_apart() -> None:
    """Blocks of one size, but one of them reduces nothing."""
    made = profile("whole")
    model = made.model.model_copy(update={"frozen": ("block.1.*",)})
    changed = made.model_copy(update={"model": model, "num_frozen_parameters": num_frozen_parameters(model)})
    plan = make_plan(changed, 12)
    check_plan(plan)
    reduced = collective_times(plan, plan_stages(plan), [1 / 3] * 3).reduce_s
    assert [second > 0 for second in reduced] == [unit.num_trained > 0 for unit in model_units(model)]
