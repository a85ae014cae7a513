from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

import pytest

from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.profiler.measure_timing import (
    FEWEST_PASSES,
    MOST_PASSES,
    Point,
    Sweep,
    microbatch_sizes,
    oddities,
    spread,
)
from cephalo_cli.profiler.stopwatch import Stopwatch


@dataclass
class FakeDevice:
    """Work is queued at once and done when the clock waits for it; the first work of all takes longer."""

    now_s: float = 0.0
    queued_s: float = 0.0
    warm_up_s: float = 0.0
    memory: int = 1000
    runs: dict[Point, int] = field(default_factory=dict)

    def launch(self, seconds: float) -> None:
        self.queued_s += seconds + self.warm_up_s
        self.warm_up_s = 0.0

    def waiting_clock(self) -> float:
        self.now_s += self.queued_s
        self.queued_s = 0.0
        return self.now_s

    def careless_clock(self) -> float:
        return self.now_s


@dataclass
class FakeWork:
    device: FakeDevice
    point: Point
    seconds: Callable[[Point], float]

    def forward(self) -> None:
        if self.point.microbatch > self.device.memory:
            raise MemoryError
        self.device.runs[self.point] = self.device.runs.get(self.point, 0) + 1
        self.device.launch(self.seconds(self.point))

    def backward(self) -> None:
        self.device.launch(2 * self.seconds(self.point))

    def close(self) -> None:
        pass


def sweep_of(
    device: FakeDevice, seconds: Callable[[Point], float] = lambda point: 0.05 * point.microbatch, **clock: object
) -> Sweep:
    return Sweep(
        lambda point: FakeWork(device, point, seconds),
        device.careless_clock if clock.get("careless") else device.waiting_clock,
        is_out_of_memory=lambda error: isinstance(error, MemoryError),
        stopwatch=Stopwatch(device.waiting_clock),
    )


def points(kind: UnitKind, *sizes: int) -> list[Point]:
    return [Point(size, kind) for size in sizes]


def test_waits_for_the_device_and_leaves_the_warm_up_out() -> None:
    device = FakeDevice(warm_up_s=2.0)
    (samples,) = sweep_of(device).run(points("block", 1), max_seconds=60).values()
    assert samples.forward_s == pytest.approx([0.05] * MOST_PASSES)
    assert samples.backward_s == pytest.approx([0.10] * MOST_PASSES)
    (careless,) = sweep_of(FakeDevice(), careless=True).run(points("block", 1), max_seconds=60).values()
    assert max(careless.forward_s) == 0.0


def test_short_work_is_repeated_until_it_can_be_timed() -> None:
    device = FakeDevice()
    sweep = sweep_of(device, lambda point: 0.001 * point.microbatch)
    measured = sweep.run(points("embedding", 1, 8), max_seconds=60)
    assert measured[Point(1, "embedding")].forward_s == pytest.approx([0.001] * MOST_PASSES)
    warm_ups = {1: 2, 8: 1}
    for point in measured:
        per_pass = (device.runs[point] - warm_ups[point.microbatch]) / MOST_PASSES
        assert per_pass * 0.003 * point.microbatch >= 0.05


def test_a_disturbance_spoils_one_repeat_of_each_point() -> None:
    device = FakeDevice()
    number = iter(range(10_000))

    def seconds(point: Point) -> float:
        return 0.05 * point.microbatch * (10 if 40 <= next(number) < 50 else 1)

    measured = sweep_of(device, seconds).run(points("block", 1, 2, 3), max_seconds=100)
    for samples in measured.values():
        assert 1 <= sum(value > 0.4 for value in samples.forward_s) < len(samples.forward_s) / 2


def test_memory_ends_a_series_cleanly() -> None:
    sweep = sweep_of(FakeDevice(memory=4))
    measured = sweep.run([*points("block", 1, 2, 4, 8, 16), *points("head", 1, 2)], max_seconds=1000)
    assert [point.microbatch for point in measured if point.kind == "block"] == [1, 2, 4]
    assert [point.microbatch for point in measured if point.kind == "head"] == [1, 2]
    assert sweep.flags == {"embedding": [], "block": ["ended before microbatch 8: out of memory"], "head": []}


def test_memory_that_runs_out_after_the_warm_up_ends_a_series_too() -> None:
    device = FakeDevice()

    def seconds(point: Point) -> float:
        if device.runs.get(Point(4, "block"), 0) > 1:
            device.memory = 3
        return 0.05 * point.microbatch

    sweep = sweep_of(device, seconds)
    measured = sweep.run([*points("block", 1, 2, 4, 8), *points("head", 1, 2)], max_seconds=1000)
    assert [point.microbatch for point in measured if point.kind == "block"] == [1, 2]
    assert {len(samples.forward_s) for samples in measured.values()} == {MOST_PASSES}
    assert sweep.flags["block"] == ["ended before microbatch 4: out of memory"]


def test_other_errors_are_not_swallowed() -> None:
    def broken(_: Point) -> FakeWork:
        raise ZeroDivisionError

    sweep = Sweep(broken, lambda: 0.0, is_out_of_memory=lambda error: isinstance(error, MemoryError))
    with pytest.raises(ZeroDivisionError):
        sweep.run(points("block", 1), max_seconds=1)


@pytest.mark.parametrize("max_seconds", [1.0, 4.0, 20.0, 60.0])
def test_time_ends_a_series_with_enough_repeats_of_what_is_left(max_seconds: float) -> None:
    device = FakeDevice()
    sweep = sweep_of(device)
    measured = sweep.run(points("block", 1, 2, 4, 8, 16, 32), max_seconds)
    assert Point(1, "block") in measured
    assert all(FEWEST_PASSES <= len(samples.forward_s) <= MOST_PASSES for samples in measured.values())
    if len(measured) < 6:
        first_missing = [1, 2, 4, 8, 16, 32][len(measured)]
        assert sweep.flags["block"] == [f"ended before microbatch {first_missing}: the time limit came first"]
    assert device.now_s <= max_seconds * 1.3 or len(measured) == 1


def test_loading_at_the_first_calls_takes_nothing_from_the_time_limit() -> None:
    for warm_up_s in (0.0, 50.0):
        measured = sweep_of(FakeDevice(warm_up_s=warm_up_s)).run(points("block", 1, 2, 4), max_seconds=10)
        assert [len(samples.forward_s) for samples in measured.values()] == [8, 8, 8]


def test_little_time_means_fewer_repeats_before_fewer_sizes() -> None:
    sizes = (1, 2, 3, 4, 6, 8)
    whole = 0.003 * sum(sizes)  # one run of each
    for max_seconds, repeats in ((60.0, 17), (4.5 * whole + 3 * 0.0125 * len(sizes), 5)):
        device = FakeDevice()
        measured = sweep_of(device, lambda point: 0.001 * point.microbatch).run(points("block", *sizes), max_seconds)
        assert [point.microbatch for point in measured] == list(sizes)
        num_passes = len(measured[Point(1, "block")].forward_s)
        assert device.runs[Point(1, "block")] == 2 + num_passes * repeats
        assert device.now_s <= max_seconds + 0.003  # the very first call


def test_a_series_that_memory_and_time_end_names_the_nearer_end() -> None:
    device = FakeDevice(memory=8)
    sweep = sweep_of(device)
    sweep.flags["block"].append("ended before microbatch 12: it would fill the memory")
    measured = sweep.run(points("block", 1, 2, 4, 8), max_seconds=6)
    assert [point.microbatch for point in measured] == [1, 2, 4]
    assert sweep.flags["block"] == ["ended before microbatch 8: the time limit came first"]


def test_sizes_are_dense_where_curves_bend() -> None:
    assert microbatch_sizes(1) == [1]
    assert microbatch_sizes(5) == [1, 2, 3, 4, 5]
    assert microbatch_sizes(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([3.0]) == 0.0
    assert spread([0.0, 0.0]) == 0.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def test_noisy_and_decreasing_series_are_named() -> None:
    steady = [[1.0] * 5, [2.0] * 5, [3.0] * 5]
    wave = cycle([0.7, 1.0, 1.3, 1.0])
    noisy = [[1.0] * 5, [2 * next(wave) for _ in range(8)], [3.0] * 5]
    falling = [[1.0] * 5, [2.0] * 5, [1.5] * 5]
    assert oddities([1, 2, 4], {"forward": steady, "backward": steady}) == []
    assert oddities([1, 2, 4], {"forward": noisy, "backward": falling}) == [
        "noisy: forward spread 15% at microbatch 2",
        "decreasing: backward takes less time at microbatch 4 than at 2",
    ]
