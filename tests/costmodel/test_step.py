"""The closed form of a step, against the same sums written out by hand, stage by stage."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from cephalo_cli.artifacts.plan import FsdpOptions, ScheduleName
from cephalo_cli.costmodel.compute import copy_s, moving_s_per_byte, optimizer_s, stage_s
from cephalo_cli.costmodel.step import StageEstimate, StepEstimate, collective_times
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import model_units
from tests.costmodel.bases import TIED_H, B, E, H, backward, basis, choice, estimate, forward, host_copy

EVERY: tuple[ScheduleName, ...] = ("layer-major", "microbatch-major", "replicated")
BANDWIDTHS = [1.0, 30.0, 100.0, 1000.0, 1e9]
"""From all network to all compute: a block's gather takes 688 bytes x w."""


def gather(num_parameters: int, w: float, bandwidth: float, latency: float = 0.0, element: int = 4) -> float:
    return latency + num_parameters * element * w / bandwidth


def reduction(num_parameters: int, w: float, bandwidth: float, latency: float = 0.0) -> float:
    return 2 * latency + num_parameters * 4 * w / (bandwidth / 2)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("latency", [0.0, 0.7])
@pytest.mark.parametrize(
    ("algorithm", "shares", "w"), [("direct", (0.8, 0.2), 0.8), ("ring", (0.4, 0.6), 0.6), ("direct", (0.0, 1.0), 1.0)]
)
def test_layer_major(
    bandwidth: float, latency: float, algorithm: Literal["direct", "ring"], shares: tuple[float, float], w: float
) -> None:
    x, y = [3, 2], [1]
    profile = basis(bandwidth=bandwidth, latency=latency, algorithm=algorithm)

    def down(kind: str) -> float:
        return max(forward("x", kind, x), forward("y", kind, y))

    def up(kind: str) -> float:  # x recomputes, y does not
        again = forward("x", kind, x) if kind == "block" else 0.0
        return max(backward("x", kind, x) + again, backward("y", kind, y))

    both = max(forward("x", "head", x) + backward("x", "head", x), forward("y", "head", y) + backward("y", "head", y))
    ag = {size: gather(size, w, bandwidth, latency) for size in (E, B, H)}
    rs = {size: reduction(size, w, bandwidth, latency) for size in (E, B, H)}
    by_hand = (
        ag[E]
        + max(ag[B], down("embedding"))
        + max(ag[B], down("block"))
        + max(ag[H], down("block"))
        + both  # the last block is kept for the next stage
        + max(ag[B] + rs[H], up("block"))
        + max(rs[B], up("block"))  # the embedding's backward needs no parameters
        + max(rs[B], up("embedding"))
        + rs[E]
        + max(0.01 * shares[0], 0.03 * shares[1]) * 456
    )
    got = estimate(profile, [choice("x", x, shares[0]), choice("y", y, shares[1], recompute=False)])
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)
    assert got.exposed_s == pytest.approx(ag[E] + rs[E], rel=1e-12)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_layer_major_with_tied_embeddings_gathers_the_matrix_for_the_head(bandwidth: float) -> None:
    sizes = [2]
    ag = {size: gather(size, 0.5, bandwidth) for size in (E, B, TIED_H)}
    rs = {size: reduction(size, 0.5, bandwidth) for size in (E, B, TIED_H)}
    f = {kind: forward("y", kind, sizes) for kind in ("embedding", "block", "head")}
    b = {kind: backward("y", kind, sizes) for kind in ("embedding", "block", "head")}
    by_hand = (
        ag[E]
        + max(ag[B], f["embedding"])
        + max(ag[B], f["block"])
        + max(ag[TIED_H] + ag[E], f["block"])
        + f["head"]
        + b["head"]
        + max(ag[B] + rs[TIED_H], b["block"] + f["block"])
        + max(rs[B], b["block"] + f["block"])
        + max(rs[B], b["embedding"])
        + rs[E]
        + 0.03 * 0.5 * (E + 2 * B + TIED_H)
    )
    got = estimate(basis(bandwidth=bandwidth, tied=True), [choice("x", sizes, 0.5), choice("y", sizes, 0.5)])
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_microbatch_major_gathers_in_every_round_and_reduces_in_the_last(bandwidth: float) -> None:
    x, y = [3, 2], [1]  # y sits out the second round

    def stage(kind: str, *ways: Callable[[str, str, list[int]], float]) -> list[float]:
        """Seconds of the slower rank in both rounds."""
        return [
            max(
                sum(way("x", kind, x[turn : turn + 1]) for way in ways),
                sum(way("y", kind, y[turn : turn + 1]) for way in ways),
            )
            for turn in (0, 1)
        ]

    ag = {size: gather(size, 0.5, bandwidth) for size in (E, B, H)}
    rs = {size: reduction(size, 0.5, bandwidth) for size in (E, B, H)}
    fe, fb, be = stage("embedding", forward), stage("block", forward), stage("embedding", backward)
    bb, head = stage("block", backward, forward), stage("head", backward, forward)
    first = max(ag[B], fe[0]) + max(ag[H], fb[0]) + head[0] + bb[0] + max(ag[E], be[0])
    last = max(ag[B], fe[1]) + max(ag[H], fb[1]) + head[1] + max(rs[H], bb[1]) + max(rs[B], be[1])
    by_hand = ag[E] + first + last + rs[E] + 0.03 * 0.5 * (E + B + H)
    profile = basis(bandwidth=bandwidth, num_layers=1)
    got = estimate(profile, [choice("x", x, 0.5), choice("y", y, 0.5)], "microbatch-major")
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("moving", [0.0, 0.004])
def test_replicated(bandwidth: float, moving: float) -> None:
    x, y = [3, 2], [1, 1]
    profile = basis(bandwidth=bandwidth, num_layers=1, collective_compute_s_per_byte=moving)
    kinds = ("embedding", "block", "head")

    def compute(device: str, sizes: list[int]) -> float:
        total = sum(forward(device, kind, sizes) + backward(device, kind, sizes) for kind in kinds)
        return total + forward(device, "block", sizes)

    def tail(device: str, size: int) -> float:  # after the head's gradient is complete, in the last round
        blocks = backward(device, "block", [size]) + forward(device, "block", [size])
        return blocks + backward(device, "embedding", [size])

    ar = {size: reduction(size, 0.5, bandwidth) + gather(size, 0.5, bandwidth) for size in (E, B, H)}
    # an all-reduce sends and receives half the unit, twice
    moved = moving * 2 * (0.5 + 0.5) * 4 * (H + B)
    everything = max(compute("x", x), compute("y", y)) + moved
    ready = max(compute("x", x) - tail("x", 2), compute("y", y) - tail("y", 1))
    by_hand = max(everything + ar[E], ready + ar[H] + ar[B] + ar[E]) + 0.03 * (E + B + H)
    got = estimate(profile, [choice("x", x, 1.0), choice("y", y, 1.0)], "replicated")
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)


def test_reductions_that_outlast_backward_by_little_do_not_bind_a_step() -> None:
    """A replicated step is bound by compute as long as ranks compute most of it before the first gradient is complete.

    Of ten rounds only the last has reductions beside it, and these end a little later than its backward.
    """
    sizes = [1] * 10
    choices = [choice("x", sizes, 1.0), choice("y", sizes, 1.0)]

    def at(bandwidth: float) -> StepEstimate:
        return estimate(basis(bandwidth=bandwidth), choices, "replicated")

    got = at(10.0)
    (stage,) = got.stages
    assert stage.network_end_s > stage.compute_s
    assert got.step_s == pytest.approx(stage.network_end_s + got.exposed_s + got.optimizer_s)
    assert got.step_s / at(20.0).step_s < 1.15
    assert got.bound == "compute"
    assert at(0.1).bound == "network"


@pytest.mark.parametrize(
    ("network", "compute", "copy", "ready", "divided"),
    [
        (0.0, 5.0, 0.0, 0.0, (5.0, 0.0, 0.0)),
        (6.0, 4.0, 0.0, 0.0, (2.0, 4.0, 0.0)),
        (6.0, 4.0, 3.0, 0.0, (1.5, 3.5, 1.0)),
        (3.0, 5.0, 0.0, 4.0, (4.5, 2.5, 0.0)),
        (0.5, 5.0, 0.0, 4.0, (4.75, 0.25, 0.0)),
    ],
)
def test_a_stage_is_divided_among_what_runs_side_by_side(
    network: float, compute: float, copy: float, ready: float, divided: tuple[float, ...]
) -> None:
    stage = StageEstimate(network_s=network, compute_s=compute, copy_s=copy, ready_s=ready)
    assert tuple(stage.divided().values()) == pytest.approx(divided)
    assert sum(divided) == stage.seconds


def test_compute_is_named_where_the_network_takes_hardly_more() -> None:
    """Where both take the same, a network twice as fast gains as little as devices twice as fast."""

    def bound(network_s: float) -> str:
        stage = StageEstimate(network_s=network_s, compute_s=1.0, copy_s=0.0)
        return StepEstimate(step_s=stage.seconds, ranks=(), exposed_s=0.0, stages=(stage,), optimizer_s=0.0).bound

    assert [bound(seconds) for seconds in (0.9, 1.0, 1.04, 1.06, 2.0)] == [*["compute"] * 3, *["network"] * 2]


@pytest.mark.parametrize("name", EVERY)
def test_one_rank_alone_computes_and_nothing_else(name: ScheduleName) -> None:
    kinds = ("embedding", "block", "block", "head")
    sizes = [3, 3, 1]
    by_hand = sum(forward("x", kind, sizes) + backward("x", kind, sizes) for kind in kinds)
    by_hand += 2 * forward("x", "block", sizes) + 0.01 * 456
    got = estimate(basis(1, bandwidth=1.0, latency=9.0), [choice("x", sizes, 1.0)], name)
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)
    assert got.bound == "compute"


@pytest.mark.parametrize("name", EVERY)
def test_an_ideal_network_costs_nothing(name: ScheduleName) -> None:
    choices = [choice("x", [2], 0.5), choice("y", [2], 0.5)]
    fast = basis(bandwidth=1e30, latency=0.0)
    ideal = basis(is_ideal=True, collective_compute_s_per_byte=1.0)
    assert estimate(ideal, choices, name).step_s == pytest.approx(estimate(fast, choices, name).step_s, rel=1e-12)


def test_gathers_move_the_compute_dtype_and_reductions_the_accumulation_dtype() -> None:
    choices = [choice("x", [], 0.5), choice("y", [], 0.5)]
    got = estimate(basis(dtype="bfloat16", bandwidth=10.0, num_layers=1), choices)
    ag = sum(gather(size, 0.5, 10.0, element=2) for size in (E, B, H))
    rs = sum(reduction(size, 0.5, 10.0) for size in (E, B, H))
    assert got.step_s == pytest.approx(ag + rs + 0.03 * 0.5 * (E + B + H), rel=1e-12)
    assert got.bound == "network"


def test_a_schedule_with_a_reduction_dtype_of_its_own_reduces_in_it() -> None:
    profile = basis(dtype="bfloat16")
    step = step_stages("microbatch-major", model_units(profile.model), 2, FsdpOptions(reduce_dtype="bfloat16"))
    times = collective_times(profile, step, [0.5, 0.5])
    assert times.reduce_bytes == times.gather_bytes == tuple(2 * size for size in (E, B, B, H))
    # half of each unit crosses, at 1000 bytes a second gathered and 500 reduced
    assert times.reduce_s == pytest.approx([size * 2 * 0.5 / 500 for size in (E, B, B, H)])


def test_cpu_ranks_move_what_they_send_and_receive_on_their_own_cores() -> None:
    # three ranks, direct: a rank with share s sends 2 s, receives 1 - s and puts its own s in its place
    choices = [choice("x", [1], 0.5), choice("y", [1], 0.3), choice("x", [], 0.2)]
    profile = basis(3, num_layers=1, bandwidth=1e9, collective_compute_s_per_byte=0.001)
    moved = {"x": 0.001 * 2.0, "y": 0.001 * 1.6}
    f = {each: {kind: forward(each, kind, [1]) for kind in ("embedding", "block", "head")} for each in "xy"}
    b = {each: {kind: backward(each, kind, [1]) for kind in ("embedding", "block", "head")} for each in "xy"}

    def slowest(compute: dict[str, float], num_bytes: int) -> float:
        return max(compute[each] + moved[each] * num_bytes for each in "xy")

    by_hand = (
        slowest({each: f[each]["embedding"] for each in "xy"}, 4 * B)
        + slowest({each: f[each]["block"] for each in "xy"}, 4 * H)
        + slowest({each: f[each]["head"] + b[each]["head"] for each in "xy"}, 0)
        + slowest({each: b[each]["block"] + f[each]["block"] for each in "xy"}, 4 * H)
        + slowest({each: b[each]["embedding"] for each in "xy"}, 4 * B)
        + max(0.01 * 0.5, 0.03 * 0.3) * (E + B + H)
    )
    assert estimate(profile, choices).step_s == pytest.approx(by_hand, rel=1e-6)


def test_moving_follows_algorithm_share_and_schedule() -> None:
    def moving(algorithm: Literal["direct", "ring"], share: float, name: ScheduleName) -> float:
        profile = basis(3, algorithm=algorithm, collective_compute_s_per_byte=2.0)
        return moving_s_per_byte(profile, choice("x", [], share), 3, name)

    assert moving("direct", 0.25, "layer-major") == pytest.approx(2 * (0.75 + 0.25 + 2 * 0.25))
    assert moving("ring", 0.25, "microbatch-major") == pytest.approx(2 * (0.75 + 0.75))
    assert moving("direct", 1.0, "replicated") == pytest.approx(2 * 2 * (2 / 3 + 2 / 3))
    assert moving("ring", 1.0, "replicated") == pytest.approx(2 * 2 * (2 / 3 + 2 / 3))


@pytest.mark.parametrize(
    ("kind", "phase", "to_device", "to_host"),
    [
        ("embedding", "forward", 0, 1),  # output out
        ("block", "forward", 1, 1),  # input in, output out
        ("head", "forward-backward", 1, 1),  # input in, its gradient out
        ("block", "backward", 2, 1),  # input and output gradient in, input gradient out
        ("embedding", "backward", 1, 0),  # output gradient in
    ],
)
def test_copies_of_a_stage(kind: Any, phase: Any, to_device: int, to_host: int) -> None:
    profile = basis(host_copy=host_copy())
    sizes = [3, 1]
    # a second a sample to the device, two to the host, a quarter a copy
    by_hand = max(to_device * (4 * 1.0 + 2 * 0.25), to_host * (4 * 2.0 + 2 * 0.25))
    device = profile.devices["x"]
    assert copy_s(profile, device, kind, phase, sizes, offload=True) == pytest.approx(by_hand, rel=1e-12)
    assert copy_s(profile, device, kind, phase, sizes, offload=False) == 0.0
    assert copy_s(profile, device, kind, phase, [], offload=True) == 0.0
    assert copy_s(profile, basis().devices["x"], kind, phase, sizes, offload=True) == 0.0


def test_copies_bound_a_stage_when_they_take_longest() -> None:
    profile = basis(1, num_layers=1, host_copy=host_copy().model_copy(update={"to_host_bytes_per_s": 9.6}))
    got = estimate(profile, [choice("x", [2], 1.0, offload=True)])
    out = 0.25 + 2 * 10.0  # two samples out take longer than any stage computes
    head = forward("x", "head", [2]) + backward("x", "head", [2])
    up = backward("x", "block", [2]) + forward("x", "block", [2])
    by_hand = out + out + max(out, head) + max(out, up) + backward("x", "embedding", [2]) + 0.01 * (E + B + H)
    assert got.step_s == pytest.approx(by_hand, rel=1e-12)


def test_curves_are_read_between_and_beyond_their_points() -> None:
    device = basis().devices["x"]
    for sizes in ([3], [5, 9], [1, 2, 4, 100]):
        assert stage_s(device, "block", "forward", sizes, recompute=True) == pytest.approx(forward("x", "block", sizes))
        assert stage_s(device, "head", "forward-backward", sizes, recompute=True) == pytest.approx(
            forward("x", "head", sizes) + backward("x", "head", sizes)
        )


def test_a_unit_without_curves_costs_nothing() -> None:
    device = basis().devices["x"]
    imported = device.model_copy(update={"units": {"block": device.units["block"]}})
    assert stage_s(imported, "head", "forward-backward", [1], recompute=True) == 0.0
    assert stage_s(imported, "block", "forward", [1], recompute=True) == forward("x", "block", [1])


def test_the_optimizer_steps_trained_parameters_of_its_share() -> None:
    assert optimizer_s(basis(frozen=56), choice("y", [], 0.5)) == pytest.approx(0.03 * 0.5 * 400)


@pytest.mark.parametrize("name", EVERY)
def test_what_each_rank_computes(name: ScheduleName) -> None:
    choices = [choice("x", [2, 1], 0.5), choice("y", [], 0.5)]
    x, y = estimate(basis(), choices, name).ranks
    kinds = ("embedding", "block", "block", "head")
    assert x.forward_s == pytest.approx(sum(forward("x", kind, [2, 1]) for kind in kinds))
    again = 2 * forward("x", "block", [2, 1])
    assert x.backward_s == pytest.approx(sum(backward("x", kind, [2, 1]) for kind in kinds) + again)
    assert (y.forward_s, y.backward_s) == (0.0, 0.0)
