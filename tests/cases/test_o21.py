"""O21: timing without waiting for the device, cold start included."""

from statistics import median

from cephalo_cli.profiler.measure_timing import Point
from tests.profiler.test_measure_timing import FakeDevice, sweep_of


def test_o21_work_that_returns_at_once_is_timed_to_its_end_and_the_cold_start_left_out() -> None:
    """O21: an operation returns at once and takes 50 ms; the first call takes 2 s: 50 ms are reported, with repeats."""
    device = FakeDevice(warm_up_s=1.95)
    samples = sweep_of(device, lambda _: 0.05).run([Point(1, "block")], 60.0)[Point(1, "block")]
    assert abs(median(samples.forward_s) - 0.05) < 1e-9
    assert max(samples.forward_s) < 0.06
    assert len(samples.forward_s) >= 3


def test_o21_a_clock_that_does_not_wait_would_see_nothing() -> None:
    """O21: the same work under a clock that does not wait for the device: what this tool must not report."""
    samples = sweep_of(FakeDevice(), lambda _: 0.05, careless=True).run([Point(1, "block")], 60.0)
    assert median(samples[Point(1, "block")].forward_s) < 0.05
