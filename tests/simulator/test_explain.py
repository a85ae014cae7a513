"""The answer in words: each kind of bottleneck, and where a difference from the closed form comes from."""

import re
from typing import Any

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.artifacts.profile import DeviceProfile
from cephalo_cli.simulator import simulate
from cephalo_cli.simulator.explain import closed_form_s
from tests.simulator.plans import make_basis, make_plan

NETWORK = "network.bandwidth_bytes_per_s"
TWO: dict[str, Any] = {"devices": ["fast", "middle"], "sizes": [[4, 4], [4]]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"devices": ["fast"], "sizes": [[4]]}, r"Compute: its only rank computes 9\d\.\d % of the step\."),
        (TWO, r"Compute: all ranks are equally busy and compute 9\d\.\d % of the step\."),
        (
            {"devices": ["fast", "middle"], "sizes": [[2], [4]]},
            r"Compute of rank 1 \(middle on node-b\): 9\d\.\d % of the step, and the other ranks wait for it\.",
        ),
        (
            {"devices": ["fast", "middle", "middle"], "sizes": [[1], [4], [4]]},
            r"Compute of 2 of 3 ranks, such as rank \d \(middle on node-.\): 9\d.* and the other ranks wait for them\.",
        ),
        (
            TWO | {"bandwidth": 1e6},
            r"The network: even rank 1 \(middle on node-b\) waits for it 8\d\.\d % of the step, mostly for gradients\.",
        ),
        (
            TWO | {"offload": True, "host_rate": 1e6},
            r"Copies to and from host memory: rank 0 \(fast on node-a\) waits for them 9\d\.\d % of the step\.",
        ),
    ],
)
def test_the_bottleneck_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    assert re.fullmatch(sentence, simulate(make_plan(**options)).report.bottleneck or "")


@pytest.mark.parametrize("schedule", ["layer-major", "replicated"])
@pytest.mark.parametrize("bandwidth", [1e5, 1e6, 5e6, 1e7, 2e7, 1e8, 1e9])
def test_plan_and_simulation_name_the_same_bottleneck(schedule: ScheduleName, bandwidth: float) -> None:
    plan = make_plan(**TWO, schedule=schedule, bandwidth=bandwidth)
    sentence = simulate(plan).report.bottleneck or ""
    assert plan.expected.bound == ("compute" if sentence.startswith("Compute") else "network")


def test_compute_in_the_shadow_of_a_slower_network_is_no_bottleneck() -> None:
    """Ranks compute most of the step, but faster ones would not shorten it."""
    plan = make_plan(**TWO, bandwidth=5e6)
    report = simulate(plan).report
    assert min(rank.compute_s for rank in report.ranks) > 0.5 * report.step_s
    speeds = [f"devices.{device}.speed=2x" for device in ("fast", "middle")]
    network, devices = (simulate(plan, changes=each).report.step_s for each in ([f"{NETWORK}=2x"], speeds))
    assert network < 0.8 * devices
    assert (report.bottleneck or "").startswith("The network: even rank")


def test_an_optimizer_can_be_the_bottleneck() -> None:
    basis = make_basis(["fast", "middle"])
    slow = {name: each.model_copy(update={"optimizer_s_per_parameter": 1e-5}) for name, each in basis.devices.items()}
    report = simulate(make_plan(**TWO, basis=basis.model_copy(update={"devices": slow}))).report
    words = r"The optimizer: rank 0 \(fast on node-a\) spends 89.2 % of the step in it\."
    assert re.fullmatch(words, report.bottleneck or "")


def test_a_profile_that_takes_no_time_is_said_so() -> None:
    basis = make_basis(["fast"])
    units = {
        kind: unit.model_copy(update={"forward_s": (0.0,) * 4, "backward_s": (0.0,) * 4})
        for kind, unit in basis.devices["fast"].units.items()
    }
    nothing: DeviceProfile = basis.devices["fast"].model_copy(update={"units": units, "optimizer_s_per_parameter": 0.0})
    report = simulate(make_plan(["fast"], [[4]], basis=basis.model_copy(update={"devices": {"fast": nothing}}))).report
    assert (report.step_s, report.samples_per_s) == (0.0, 0.0)
    assert report.bottleneck == "Nothing in the profile takes any time."
    assert report.difference is None


def uneven_plan() -> Plan:
    """Without recompute rank 0 is slower in forward, and rank 1, which recomputes, in backward."""
    return make_plan(["fast", "fast"], [[5], [4]], recompute=[False, True], num_layers=2, network="ideal")


def test_a_difference_is_explained_by_parts_that_add_up() -> None:
    plan = make_plan(**TWO, offload=True, host_rate=2e8)
    run = simulate(plan, stragglers={0: 1.2})
    assert run.report.difference is not None
    off = re.match(r"The step is (\d+\.\d) % (longer|shorter) than the plan expects", run.report.difference)
    assert off is not None
    closed = closed_form_s(plan)
    assert float(off[1]) == pytest.approx(100 * abs(run.report.step_s / closed - 1), abs=0.06)
    parts = re.findall(r"\(([+-])([\d.]+) (ms|us)\)", run.report.difference)
    total = sum(
        (1 if sign == "+" else -1) * float(value) * {"ms": 1e-3, "us": 1e-6}[unit] for sign, value, unit in parts
    )
    assert total == pytest.approx(run.report.step_s - closed, abs=0.02 * closed)


def test_ranks_that_need_not_meet_after_every_stage_are_named() -> None:
    """A rank may be ahead by one stage, which the closed form does not grant it."""
    assert simulate(uneven_plan()).report.difference == (
        "The step is 8.5 % shorter than the plan expects, because of ranks that need not meet after every stage "
        "(-3.80 ms)."
    )


def test_within_two_percent_nothing_needs_explaining() -> None:
    assert simulate(make_plan(**TWO)).report.difference is None


def test_ranks_without_samples_move_bytes_for_less() -> None:
    plan = make_plan(["fast", "slow"], [[2], []], num_layers=2)
    mover = plan.devices["slow"].model_copy(update={"collective_compute_s_per_byte": 1e-6})
    busy, alone = (
        plan.model_copy(
            update={"devices": plan.devices | {"slow": mover.model_copy(update={"collective_alone_part": part})}}
        )
        for part in (None, 0.5)
    )
    assert simulate(alone).report.step_s < 0.9 * simulate(busy).report.step_s
    told = simulate(alone).report.difference
    assert told is not None
    assert "ranks without samples, which move bytes for less (-" in told
