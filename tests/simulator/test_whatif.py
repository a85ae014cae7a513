"""What-if: changes have the effect they imply, and none is silently without effect."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.store import read
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.simulator import simulate, sweep
from cephalo_cli.simulator.whatif import with_changes
from tests.simulator.plans import make_plan

CHANGEABLE = (
    "what can be changed, where the plan has it: network.bandwidth_bytes_per_s, nodes.NAME.link.latency_s, "
    "device_types.TYPE.memory_bytes, devices.TYPE.speed, settings.memory_fraction, and of microbatch-major plans "
    "fsdp.keeps_gathered and fsdp.reduces_every_microbatch"
)
SPEED_HINT = "devices.fast.speed=2x makes its compute twice as fast"
FORM_HINT = "write it like network.bandwidth_bytes_per_s=2x, or 48GiB for sizes"
SLOW_NETWORK: dict[str, Any] = {"bandwidth": 1e7, "host_rate": 1e8}


def plan(**more: Any) -> Plan:
    return make_plan(["fast", "middle"], [[3, 3, 1], [2]], **(SLOW_NETWORK | more))


def test_nothing_changed_is_the_plan_itself() -> None:
    made = plan()
    assert with_changes(made, []) is made


def test_factors_of_one_change_no_number() -> None:
    made = plan()
    same = with_changes(made, ["network.latency_s=1x", "devices.fast.speed=1x", "network.bandwidth_bytes_per_s=1x"])
    assert same.ranks == made.ranks
    assert same.expected == made.expected
    assert simulate(same).report.step_s == simulate(made).report.step_s


def test_twice_the_bandwidth_halves_every_collective_but_for_its_latency() -> None:
    made = make_plan(["fast", "middle"], [[3, 3, 1], [2]], bandwidth=1e7)
    links = ["network.bandwidth_bytes_per_s=2x", "nodes.node-a.link.bandwidth_bytes_per_s=2x"]
    changed = with_changes(made, [links[0]])
    assert not isinstance(made.network, str)
    assert not isinstance(changed.network, str)
    assert changed.network.all_gather.bandwidth_bytes_per_s == 2e7
    assert changed.network.reduce_scatter.bandwidth_bytes_per_s == 2e7
    assert changed.network.all_gather.latency_s == made.network.all_gather.latency_s
    assert changed.expected.step_s < made.expected.step_s
    assert simulate(made, changes=links[:1]).report.step_s == pytest.approx(changed.expected.step_s, rel=0.02)


def test_a_faster_device_type_computes_in_less_time_and_its_peak_grows_with_it() -> None:
    made = plan(peak_flops=20e9)
    report = simulate(made).report
    faster = simulate(made, changes=["devices.fast.speed=4x"]).report
    assert faster.ranks[0].compute_s == pytest.approx(report.ranks[0].compute_s / 4)
    assert faster.ranks[1].compute_s == pytest.approx(report.ranks[1].compute_s)
    assert (faster.hardware_flops_utilization or 1) < 1
    assert faster.changes == ("devices.fast.speed=4x",)


def test_a_larger_memory_makes_a_plan_fit() -> None:
    made = plan(settings=PlanSettings(memory_fraction=0.9), memory_bytes=8 * 2**20)
    assert len(simulate(made).shortfalls) == 2
    roomy = simulate(made, changes=["device_types.fast.memory_bytes=1GiB", "device_types.middle.memory_bytes=16MiB"])
    assert roomy.shortfalls == ()
    assert roomy.report.ranks[0].memory is not None
    assert roomy.report.ranks[0].memory.limit_bytes == int(0.9 * 2**30)


def test_limits_follow_settings() -> None:
    changed = with_changes(plan(), ["settings.memory_fraction=0.5", "settings.reserve_bytes=1MiB"])
    assert changed.ranks[0].memory.limit_bytes == 2**29
    assert changed.ranks[0].memory.reserve_bytes == 2**20


def test_host_copies_follow_the_host_link() -> None:
    made = plan(offload=True, host_rate=1e7)
    link = made.cluster.network
    types = {name: kind.model_copy(update={"host_link": link}) for name, kind in made.cluster.device_types.items()}
    made = made.model_copy(update={"cluster": made.cluster.model_copy(update={"device_types": types})})
    changed = with_changes(made, ["device_types.fast.host_link.bandwidth_bytes_per_s=2x"])
    copies = changed.devices["fast"].host_copy
    assert copies is not None
    assert copies.to_device_bytes_per_s == 2e7
    assert changed.devices["middle"].host_copy == made.devices["middle"].host_copy


def test_emulated_speed_scales_compute() -> None:
    made = plan()
    kinds = {name: kind.model_copy(update={"emulated_speed": 0.5}) for name, kind in made.cluster.device_types.items()}
    made = made.model_copy(update={"cluster": made.cluster.model_copy(update={"device_types": kinds})})
    changed = with_changes(made, ["device_types.middle.emulated_speed=1"])
    assert changed.ranks[1].expected.forward_s == pytest.approx(made.ranks[1].expected.forward_s / 2)


def test_what_a_changed_plan_expects_is_not_called_proven() -> None:
    changed = with_changes(plan(), ["devices.fast.speed=2x"])
    assert changed.solver.status == "heuristic"
    assert changed.alternatives == ()


def test_a_sweep_is_one_run_a_value() -> None:
    runs = sweep(plan(), "network.bandwidth_bytes_per_s=1x, 2x, 1GB", changes=["devices.fast.speed=2x"])
    assert [change for change, _ in runs] == [
        "network.bandwidth_bytes_per_s=1x",
        "network.bandwidth_bytes_per_s=2x",
        "network.bandwidth_bytes_per_s=1GB",
    ]
    steps = [run.report.step_s for _, run in runs]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 3
    assert runs[0][1].report.changes == ("devices.fast.speed=2x", "network.bandwidth_bytes_per_s=1x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "network.bandwidth",
            f"'network.bandwidth' is not PATH=VALUE ({FORM_HINT})",
        ),
        (
            "network.bandwith_bytes_per_s=2x",
            "the plan has no value 'network.bandwith_bytes_per_s' (did you mean 'network.bandwidth_bytes_per_s'?)",
        ),
        (
            "device_types.fats.memory_bytes=1GiB",
            "the plan has no value 'device_types.fats.memory_bytes' (did you mean 'device_types.fast.memory_bytes'?)",
        ),
        (
            "nodes.node-aa.link.latency_s=2x",
            "the plan has no value 'nodes.node-aa.link.latency_s' (did you mean 'nodes.node-a.link.latency_s'?)",
        ),
        (
            "device_types.fast.price_per_hour=2x",
            f"the plan has no value 'device_types.fast.price_per_hour' ({CHANGEABLE})",
        ),
        (
            "device_types.fast.peak_flops.float32=2x",
            f"device_types.fast.peak_flops.float32 does not enter a simulation ({SPEED_HINT})",
        ),
        (
            "device_types.fast.backend=cuda",
            f"device_types.fast.backend is not a number ({CHANGEABLE})",
        ),
        (
            "devices.fats.speed=2x",
            "devices.fats.speed does not enter a simulation (the plan uses fast, middle)",
        ),
        ("devices.fast.speed=0", "devices.fast.speed must be above 0 (such as 2x)"),
        ("devices.fast.speed=quick", "'quick' is not a number (write a number, or a factor like 2x)"),
        (
            "network.latency_s=0.5x,1x",
            "'0.5x,1x' is not a number (write a number, or a factor like 2x)",
        ),
        (
            "device_types.fast.memory_bytes=12 apples",
            "'12 apples' is not a size (write it like 24GiB, 24GB or 1500000000)",
        ),
        (
            "settings.reserve_bytes=2x",
            "settings.reserve_bytes has no value to multiply (give a number)",
        ),
        (
            "global_batch_size=2x",
            f"global_batch_size does not enter a simulation ({CHANGEABLE})",
        ),
    ],
)
def test_changes_that_make_no_sense_are_refused(change: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        with_changes(plan(peak_flops=20e9), [change])
    assert str(refusal.value) == message


def test_a_link_that_is_not_the_slowest_is_refused() -> None:
    made = make_plan(["fast"] * 4, [[1]] * 4)
    with pytest.raises(UsageError) as refusal:
        with_changes(made, ["nodes[0].link.bandwidth_bytes_per_s=8x"])
    assert str(refusal.value) == (
        "collectives wait for other links, so these do not enter a simulation (change "
        "nodes.node-a.link.bandwidth_bytes_per_s and nodes.node-b.link.bandwidth_bytes_per_s and "
        "network.bandwidth_bytes_per_s)"
    )


def test_a_network_that_one_node_does_not_use_is_refused_with_the_link_it_uses() -> None:
    made = read("plans/laptop-mixed.json", Plan)
    with pytest.raises(UsageError, match=r"\(change nodes\.laptop\.link\.bandwidth_bytes_per_s\)"):
        with_changes(made, ["network.bandwidth_bytes_per_s=2x"])
    assert with_changes(made, ["nodes.laptop.link.bandwidth_bytes_per_s=2x"]).expected.step_s < made.expected.step_s


def test_links_of_an_ideal_network_are_refused() -> None:
    made = plan(network="ideal")
    with pytest.raises(UsageError, match="the plan's network is ideal, so its links do not enter a simulation"):
        with_changes(made, ["nodes.node-a.link.latency_s=2x"])


def test_values_out_of_range_are_refused_with_their_path() -> None:
    with pytest.raises(ArtifactError) as refusal:
        with_changes(plan(), ["settings.memory_fraction=1.5"])
    assert str(refusal.value) == "the changed plan: settings.memory_fraction: found 1.5, expected a number of at most 1"


@pytest.mark.parametrize("text", ["network.latency_s=1x,,2x", "network.latency_s=1x,"])
def test_a_sweep_with_a_missing_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        sweep(plan(), text)
    assert str(refusal.value) == f"a value is missing in {text!r} (write it like network.latency_s=1x,2x,4x)"


def test_fsdp_that_keeps_its_units_gathers_half_as_often_and_holds_them_all() -> None:
    made = make_plan(["fast", "middle"], [[2, 2], [2]], schedule="microbatch-major", strategy="fsdp")
    full, kept = simulate(made), simulate(made, changes=["fsdp.keeps_gathered=true"])
    often = simulate(made, changes=["fsdp.keeps_gathered=true", "fsdp.reduces_every_microbatch=true"])
    gathers = [sum(each.is_gather for each in run.setting.collectives) for run in (full, kept, often)]
    reductions = [sum(not each.is_gather for each in run.setting.collectives) for run in (full, kept, often)]
    units = len(full.setting.step.units)
    # in each of two rounds a unit is gathered once, and fully sharded again on the way back, where it was freed
    assert gathers == [2 * (units + units - 3), 2 * units, 2 * units]
    assert reductions == [units, units, 2 * units]
    buffers = [(run.report.ranks[0].memory or pytest.fail("no memory")).buffers_bytes for run in (full, kept)]
    assert buffers[1] > buffers[0]


@pytest.mark.parametrize(
    ("schedule", "change", "message"),
    [
        (
            "layer-major",
            "fsdp.keeps_gathered=true",
            "fsdp.keeps_gathered does not enter a simulation of schedule layer-major (plan with --strategy fsdp)",
        ),
        ("microbatch-major", "fsdp.keeps_gathered=1", "fsdp.keeps_gathered is '1', expected true, false"),
        (
            "microbatch-major",
            "fsdp.reduce_dtype=int8",
            "fsdp.reduce_dtype is 'int8', expected float32, bfloat16, float16, float64",
        ),
    ],
)
def test_variants_that_make_no_sense_are_refused(schedule: Any, change: str, message: str) -> None:
    made = make_plan(["fast"] * 2, [[2], [2]], schedule=schedule)
    with pytest.raises(UsageError) as refusal:
        simulate(made, changes=[change])
    assert str(refusal.value) == message
