"""What-if: changes have the effect they imply, and none is silently without effect."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.cluster import Link
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.store import read
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.simulator import simulate, sweep
from cephalo_cli.simulator.changeable import changeable
from cephalo_cli.simulator.whatif import with_changes
from tests.simulator.plans import make_plan

THIS_PLAN_HAS = (
    "this plan has network.{bandwidth_bytes_per_s, latency_s};"
    " network.{all_gather, reduce_scatter}.{bandwidth_bytes_per_s, latency_s};"
    " device_types.{fast, middle}.memory_bytes;"
    " devices.{fast, middle}.{speed, optimizer_s_per_parameter, collective_compute_s_per_byte, reserve_bytes,"
    " host_copy.to_device_bytes_per_s, host_copy.to_host_bytes_per_s, host_copy.latency_s};"
    " settings.{memory_fraction, reserve_bytes}"
)
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
            (
                "--set: 'network.bandwidth' is not PATH=VALUE"
                " (write it like devices.TYPE.speed=2x, or device_types.TYPE.memory_bytes=48GiB)"
            ),
        ),
        (
            "network.bandwith_bytes_per_s=2x",
            (
                "--set network.bandwith_bytes_per_s: the plan has no such value"
                " (did you mean 'network.bandwidth_bytes_per_s'?)"
            ),
        ),
        (
            "device_types.fats.memory_bytes=1GiB",
            (
                "--set device_types.fats.memory_bytes: the plan has no such value"
                " (did you mean 'device_types.fast.memory_bytes'?)"
            ),
        ),
        (
            "nodes.node-aa.link.latency_s=2x",
            "--set nodes.node-aa.link.latency_s: the plan has no such value (did you mean 'network.latency_s'?)",
        ),
        (
            "nodes.node-a.link.latency_s=2x",
            (
                "--set nodes.node-a.link.latency_s: does not enter a simulation"
                " (change network.latency_s: collectives wait for it)"
            ),
        ),
        (
            "device_types.fast.price_per_hour=2x",
            f"--set device_types.fast.price_per_hour: the plan has no such value ({THIS_PLAN_HAS})",
        ),
        (
            "device_types.fast.peak_flops.float32=2x",
            (
                "--set device_types.fast.peak_flops.float32: does not enter a simulation"
                " (devices.fast.speed=2x makes its compute twice as fast)"
            ),
        ),
        (
            "device_types.fast.backend=cuda",
            f"--set device_types.fast.backend: is not a number ({THIS_PLAN_HAS})",
        ),
        (
            "devices.fats.speed=2x",
            "--set devices.fats.speed: does not enter a simulation (the plan uses fast, middle)",
        ),
        ("devices.fast.speed=0", "--set devices.fast.speed: must be above 0 (such as 2x)"),
        (
            "devices.fast.speed=quick",
            "--set devices.fast.speed: 'quick' is not a number (write a number, or a factor like 2x)",
        ),
        (
            "network.latency_s=0.5x,1x",
            "--set network.latency_s: '0.5x,1x' is not a number (write a number, or a factor like 2x)",
        ),
        (
            "device_types.fast.memory_bytes=12 apples",
            "--set device_types.fast.memory_bytes: '12 apples' is not a size (write it like 24GiB, 24GB or 1500000000)",
        ),
        (
            "device_types.fast.memory_bytes=48",
            "--set device_types.fast.memory_bytes: '48' is 48 bytes (did you mean 48GiB or 48MiB?)",
        ),
        (
            "network.bandwidth_bytes_per_s=48 furlongs",
            (
                "--set network.bandwidth_bytes_per_s: '48 furlongs' is not a bandwidth"
                " (write it like 48GB/s, 10Gbit/s or 48000000000)"
            ),
        ),
        (
            "settings.reserve_bytes=2x",
            "--set settings.reserve_bytes: has no value to multiply (give a number)",
        ),
        (
            "global_batch_size=2x",
            f"--set global_batch_size: does not enter a simulation ({THIS_PLAN_HAS})",
        ),
    ],
)
def test_changes_that_make_no_sense_are_refused(change: str, message: str) -> None:
    assert refusal_of(plan(peak_flops=20e9), change) == message


def refusal_of(made: Plan, change: str) -> str:
    with pytest.raises(UsageError) as refusal:
        with_changes(made, [change])
    return str(refusal.value)


def test_a_link_that_is_not_the_slowest_is_refused() -> None:
    made = make_plan(["fast"] * 4, [[1]] * 4)
    assert refusal_of(made, "nodes[0].link.bandwidth_bytes_per_s=8x") == (
        "--set: these links do not enter a simulation (change nodes.node-a.link.bandwidth_bytes_per_s and "
        "nodes.node-b.link.bandwidth_bytes_per_s and network.bandwidth_bytes_per_s: collectives wait for them)"
    )


def test_a_network_that_one_node_does_not_use_is_refused_with_the_link_it_uses() -> None:
    made = read("plans/laptop-mixed.json", Plan)
    assert refusal_of(made, "network.bandwidth_bytes_per_s=2x") == (
        "--set network.bandwidth_bytes_per_s: does not enter a simulation"
        " (change nodes.laptop.link.bandwidth_bytes_per_s: collectives wait for it)"
    )
    for misspelt in ("network.bandwidth", "nodes.laptop.link.bandwith", "network.bandwith_bytes_per_s"):
        assert refusal_of(made, f"{misspelt}=2x") == (
            f"--set {misspelt}: the plan has no such value (did you mean 'nodes.laptop.link.bandwidth_bytes_per_s'?)"
        )
    assert with_changes(made, ["nodes.laptop.link.bandwidth_bytes_per_s=2x"]).expected.step_s < made.expected.step_s


def test_a_plan_without_links_says_why_and_what_works() -> None:
    measured = plan()
    unlinked = measured.model_copy(update={"cluster": measured.cluster.model_copy(update={"network": "ideal"})})
    assert refusal_of(unlinked, "network.bandwidth_bytes_per_s=2x") == (
        "--set network.bandwidth_bytes_per_s: the plan has no such value (its cluster names no links; what can be"
        " changed are the times of its collectives: network.all_gather.bandwidth_bytes_per_s and"
        " network.reduce_scatter.bandwidth_bytes_per_s)"
    )
    faster = [f"network.{name}.bandwidth_bytes_per_s=2x" for name in ("all_gather", "reduce_scatter")]
    assert with_changes(unlinked, faster).expected.step_s < measured.expected.step_s
    alone = make_plan(["fast"], [[2, 2]])
    assert refusal_of(alone, "network.bandwidth_bytes_per_s=2x").endswith("(one rank has no collectives)")
    assert refusal_of(alone, "network.all_gather.latency_s=2x").endswith("(one rank has no collectives)")


def test_links_of_an_ideal_network_are_refused() -> None:
    assert refusal_of(plan(network="ideal"), "nodes.node-a.link.latency_s=2x") == (
        "--set nodes.node-a.link.latency_s: does not enter a simulation"
        " (its network is ideal: collectives take no time)"
    )


@pytest.mark.parametrize(
    "made",
    [
        read("plans/laptop-mixed.json", Plan),
        read("plans/home-lab.json", Plan),
        make_plan(["fast"], [[2]]),
        make_plan(["fast"] * 4, [[1]] * 4),
        make_plan(["fast", "middle"], [[1], [1]], network="ideal"),
        make_plan(["fast", "middle"], [[2, 2], [2]], schedule="microbatch-major", strategy="fsdp"),
    ],
    ids=["laptop-mixed", "home-lab", "one rank", "two nodes", "ideal network", "fsdp"],
)
def test_every_path_that_a_plan_is_said_to_have_is_taken(made: Plan) -> None:
    words = {"fsdp.reduce_dtype": "float32", "fsdp.keeps_gathered": "true", "fsdp.reduces_every_microbatch": "true"}
    sizes = {"settings.reserve_bytes": "2MiB"}
    places = changeable(made)
    assert "settings" in places
    for place, keys in places.items():
        for key in keys:
            path = f"{place}.{key}"
            with_changes(made, [f"{path}={(words | sizes).get(path, '1x')}"])


@pytest.mark.parametrize("bandwidth", ["10GB/s", "10 gb/s", "80Gbit/s", "10GB", "10000000000"])
def test_bandwidths_are_read_as_they_are_printed(bandwidth: str) -> None:
    changed = with_changes(plan(), [f"network.bandwidth_bytes_per_s={bandwidth}"])
    assert changed.cluster.network == Link(bandwidth_bytes_per_s=1e10, latency_s=changed.cluster.network.latency_s)  # type: ignore[union-attr]


def test_values_out_of_range_are_refused_with_their_path() -> None:
    with pytest.raises(ArtifactError) as refusal:
        with_changes(plan(), ["settings.memory_fraction=1.5"])
    assert str(refusal.value) == "the changed plan: settings.memory_fraction: found 1.5, expected a number of at most 1"


@pytest.mark.parametrize("text", ["network.latency_s=1x,,2x", "network.latency_s=1x,"])
def test_a_sweep_with_a_missing_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        sweep(plan(), text)
    assert str(refusal.value) == (
        "--sweep network.latency_s: a value is missing (write it like network.latency_s=1x,2x,4x)"
    )


def test_a_value_in_a_sweep_is_refused_in_its_name() -> None:
    for changes, option in (((), "--sweep"), (("network.latency_s=fast",), "--set")):
        with pytest.raises(UsageError) as refusal:
            sweep(plan(), "network.latency_s=1x,fast", changes=changes)
        assert str(refusal.value).startswith(f"{option} network.latency_s: 'fast' is not a number")


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
            (
                "--set fsdp.keeps_gathered: does not enter a simulation of schedule layer-major"
                " (plan with --strategy fsdp)"
            ),
        ),
        ("microbatch-major", "fsdp.keeps_gathered=1", "--set fsdp.keeps_gathered: found '1', expected true, false"),
        (
            "microbatch-major",
            "fsdp.reduce_dtype=int8",
            "--set fsdp.reduce_dtype: found 'int8', expected float32, bfloat16, float16, float64",
        ),
    ],
)
def test_variants_that_make_no_sense_are_refused(schedule: Any, change: str, message: str) -> None:
    made = make_plan(["fast"] * 2, [[2], [2]], schedule=schedule)
    with pytest.raises(UsageError) as refusal:
        simulate(made, changes=[change])
    assert str(refusal.value) == message
