"""What part of the peaks a step used."""

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.costmodel.flops import forward_flops
from cephalo_cli.executor.pace import model_flops_utilization
from tests.executor.plans import SEQ_LEN, make_model, make_plan

MODEL = make_model()
PLAN = make_plan(MODEL, [[2], [1]])


def with_peak(peak: float) -> Plan:
    types = {
        name: device.model_copy(update={"peak_flops": {"float32": peak}})
        for name, device in PLAN.cluster.device_types.items()
    }
    return PLAN.model_copy(update={"cluster": PLAN.cluster.model_copy(update={"device_types": types})})


def test_operations_of_the_step_over_what_all_ranks_could_do() -> None:
    one_sample = 3 * forward_flops(MODEL, "block", SEQ_LEN) + forward_flops(MODEL, "head", SEQ_LEN)
    needed = 3 * 3 * one_sample  # backward takes twice forward; 3 samples
    found = model_flops_utilization(with_peak(1e9), "float32", num_samples=3, step_s=0.5)
    assert found == pytest.approx(needed / (2 * 1e9 * 0.5))


def test_it_is_not_known_without_a_peak_or_beyond_it() -> None:
    assert model_flops_utilization(PLAN, "float32", num_samples=3, step_s=0.5) is None
    assert model_flops_utilization(with_peak(1e9), "bfloat16", num_samples=3, step_s=0.5) is None
    assert model_flops_utilization(with_peak(1.0), "float32", num_samples=3, step_s=0.5) is None
