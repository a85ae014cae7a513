"""FLOPs utilisation: never above 100 %, and refused by name where a profile would make it so."""

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.costmodel.flops import forward_flops
from cephalo_cli.errors import ArtifactError
from cephalo_cli.simulator import simulate
from cephalo_cli.simulator.utilisation import flops_utilization
from tests.simulator.plans import make_plan


def busy_plan(*, recompute: bool) -> Plan:
    return make_plan(["fast", "middle"], [[4, 4], [4]], peak_flops=20e9, recompute=recompute)


def test_utilisation_by_hand() -> None:
    plan = busy_plan(recompute=True)
    report = simulate(plan).report
    blocks = 4 * forward_flops(plan.model, "block", 128)
    whole = blocks + forward_flops(plan.model, "head", 128)
    could = (20e9 + 10e9) * report.step_s
    assert report.model_flops_utilization == pytest.approx(3 * 12 * whole / could)
    assert report.hardware_flops_utilization == pytest.approx((3 * 12 * whole + 12 * blocks) / could)
    assert 0.1 < (report.model_flops_utilization or 0) < (report.hardware_flops_utilization or 0) < 1
    without = simulate(busy_plan(recompute=False)).report
    assert without.model_flops_utilization == without.hardware_flops_utilization


def test_frozen_parameters_need_no_weight_gradient() -> None:
    plan = busy_plan(recompute=False)
    frozen = plan.model_copy(update={"num_frozen_parameters": plan.num_parameters})
    one, other = flops_utilization(plan, 1.0), flops_utilization(frozen, 1.0)
    assert one is not None
    assert other is not None
    assert other[0] == pytest.approx(one[0] * 2 / 3)


def test_unknown_peaks_give_no_utilisation() -> None:
    assert simulate(make_plan(["fast"], [[4]])).report.model_flops_utilization is None


def test_a_unit_faster_than_its_device_is_refused_by_name() -> None:
    plan = make_plan(["fast", "middle"], [[4], [4]], peak_flops=10e9)
    needs = forward_flops(plan.model, "block", 128) / 10e9
    with pytest.raises(ArtifactError) as refusal:
        simulate(plan)
    assert str(refusal.value) == (
        f"plan: devices.fast.units.block.forward_s[0], microbatch 1: runs at {100 * needs / 1.1e-3:.1f} % "
        "of its device's peak (check the seconds, and peak_flops.float32 of the cluster's device type)"
    )


def test_a_curve_that_goes_on_too_fast_beyond_its_last_point_is_refused() -> None:
    """Flat at the end: the profile is possible at every point, but not at the size the plan asks for."""
    plan = make_plan(["fast"], [[16]], peak_flops=14e9)
    block = plan.devices["fast"].units["block"]
    flat = block.model_copy(
        update={"microbatch": (1, 2, 8), "forward_s": (9e-3, 9e-3, 9e-3), "backward_s": (0.018, 0.018, 0.018)}
    )
    flat = flat.model_copy(update={"working_bytes": block.working_bytes[:3], "saved_bytes": None})
    units = plan.devices["fast"].units | {"block": flat}
    devices = {"fast": plan.devices["fast"].model_copy(update={"units": units})}
    with pytest.raises(ArtifactError, match=r"devices\.fast\.units\.block\.forward_s, microbatch 16: runs at 1\d\d\."):
        simulate(plan.model_copy(update={"devices": devices}))
