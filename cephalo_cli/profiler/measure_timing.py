"""From clock readings to numbers that can be trusted: repeats, medians, spreads, and a word about what looked odd.

Note: how a series is measured
    Every point (one unit at one microbatch size) is measured once in each of several passes over all points, so that
    a disturbance of some seconds spoils one repeat of many points instead of all repeats of one. The first pass warms
    up and is not counted. In a pass, short work is run several times, on inputs in several places, and the readings
    are averaged: where tensors lie makes work of some microseconds up to a third slower, and a step meets all places.
    Where time is short, there are fewer of these runs before there are fewer sizes: a curve needs its points.
    The clock waits for the device at every reading, so a forward's time ends when its result is there.

Note: the clock of an emulated device
    A device emulated by a quota of less than one CPU computes for some milliseconds and then sleeps. Its wall clock
    is a staircase, but over many periods it advances by ``cpu seconds / speed`` (see `cephalo_cli.runtime.cgroup`), so
    CPU time divided by the speed is the device's clock without the stairs. The sweep compares it with the wall clock as
    a whole and says so if they differ.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.runtime.device import DeviceClock
from cephalo_cli.runtime.process import ProcessContext

__all__ = [
    "Clock",
    "Point",
    "Samples",
    "Sweep",
    "Workload",
    "compute_clock",
    "largest_of_ranks",
    "microbatch_sizes",
    "oddities",
    "spread",
]

Clock = Callable[[], float]
"""Seconds; a reading waits until the device has finished."""

SHORTEST_S = 0.05
"""Work is repeated within one measurement until it lasts this long, where there is time."""
LEAST_SHORTEST_S = SHORTEST_S / 4
"""The same where there is little time; where there is less, sizes are left out."""
MOST_REPEATS = 2000
"""Within one measurement."""
MOST_PLACES = 5
"""Within one measurement: so often is the work made anew."""
MOST_PASSES = 15
FEWEST_PASSES = 3
"""Passes that count; the warm-up comes before."""
NOISY_SPREAD = 0.1
"""A spread above this is reported."""
DECREASE = 0.05
"""A larger microbatch that is faster by more than this is reported."""


class Workload(Protocol):
    """One unit at one microbatch size, ready to run."""

    def forward(self) -> None:
        """Run the forward pass, keeping what backward needs."""

    def backward(self) -> None:
        """Run the backward pass of the last forward, and let go of what it kept."""

    def close(self) -> None:
        """Take note of the memory it took."""


@dataclass(frozen=True, order=True)
class Point:
    """What is measured: one unit kind at one microbatch size."""

    microbatch: int
    kind: UnitKind


@dataclass
class Samples:
    """Seconds of one point, a value a pass."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)


def compute_clock(context: ProcessContext) -> Clock:
    """Give the clock of a rank's device, see the note."""
    speed = context.device_type.emulated_speed
    if speed is not None and speed <= 1:
        return lambda: time.process_time() / speed
    return DeviceClock(context.device)


def largest_of_ranks(context: ProcessContext, value: float) -> float:
    """The largest of all ranks' values, the same on every rank."""
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, dist.ReduceOp.MAX, context.process_group)
    return float(shared.item())


def microbatch_sizes(largest: int) -> list[int]:
    """Sizes to measure: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and the largest; between them curves are nearly straight."""
    sizes, size = {1, largest}, 2
    while size <= largest:
        sizes |= {size, size + size // 2} if size + size // 2 <= largest else {size}
        size *= 2
    return sorted(sizes)


class Sweep:
    """Measures points in passes within a time limit.

    Args:
        make: Gives a point's work, with its inputs elsewhere each time; may raise what `is_out_of_memory` recognises,
            as may the work.
        clock: The device's clock.
        is_out_of_memory: Whether an error means that the device has no memory left.
        stopwatch: What the time limit is measured with; it stands still during the very first calls, which may load
            libraries or compile kernels.
        after_warm_up: Called between the warm-up and the first pass that counts.
        on_pass: Told the fraction done.
    """

    def __init__(
        self,
        make: Callable[[Point], Workload],
        clock: Clock,
        *,
        is_out_of_memory: Callable[[Exception], bool],
        stopwatch: Stopwatch | None = None,
        after_warm_up: Callable[[], None] = lambda: None,
        on_pass: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.flags: dict[UnitKind, list[str]] = {"embedding": [], "block": [], "head": []}
        self._make = make
        self._clock = clock
        self._is_out_of_memory = is_out_of_memory
        self._stopwatch = stopwatch or Stopwatch()
        self._after_warm_up = after_warm_up
        self._on_pass = on_pass
        self._counts: dict[Point, int] = {}
        self._costs: dict[Point, _Cost] = {}

    def run(self, points: Sequence[Point], max_seconds: float) -> dict[Point, Samples]:
        """Measure as many points as memory and time allow, the smallest sizes at least.

        Returns:
            `FEWEST_PASSES` to `MOST_PASSES` repeats of every point that was measured.
        """
        end = self._stopwatch() + max_seconds
        left = self._affordable(self._warm_up(sorted(points), end), end - self._stopwatch())
        samples = {point: Samples() for point in left}
        self._after_warm_up()
        for number in range(MOST_PASSES):
            start = self._stopwatch()
            for point in list(samples):
                if point in samples:
                    self._sample(point, samples)
            now = self._stopwatch()
            self._on_pass(min(1.0, 1 - max(0.0, end - now) / max_seconds))
            if number + 1 >= FEWEST_PASSES and now + (now - start) > end:
                break
        return samples

    def _sample(self, point: Point, samples: dict[Point, Samples]) -> None:
        """Measure a point once more; memory that has run out since the warm-up ends its series here."""
        try:
            forward_s, backward_s = self._time(point, self._counts[point])
        except Exception as error:
            if not self._is_out_of_memory(error) or point.microbatch == 1:
                raise
            for other in [each for each in samples if each.kind == point.kind and each >= point]:
                del samples[other]
            self._say_ended(point, "out of memory")
            return
        samples[point].forward_s.append(forward_s)
        samples[point].backward_s.append(backward_s)

    def _warm_up(self, points: Sequence[Point], end: float) -> list[Point]:
        """Run every point once, smallest first; leave out what does not fit in memory or would take too long."""
        done: list[Point] = []
        largest: dict[UnitKind, Point] = {}
        ended: set[UnitKind] = set()
        for point in points:
            if point.kind in ended:
                continue
            before = largest.get(point.kind)
            if before is not None and not self._has_time(point, before, end):
                ended.add(point.kind)
                self._say_ended(point, "the time limit came first")
                continue
            try:
                if before is None:
                    # The very first call may load libraries or compile kernels: it says nothing about the next.
                    with self._stopwatch.paused():
                        self._time(point, count=1)
                start = self._clock()
                run_s = sum(self._time(point, count=1))
            except Exception as error:
                if not self._is_out_of_memory(error):
                    raise
                ended.add(point.kind)
                self._say_ended(point, "out of memory")
                continue
            self._costs[point] = _Cost(run_s=run_s, make_s=self._clock() - start - run_s)
            largest[point.kind] = point
            done.append(point)
        return done

    def _has_time(self, point: Point, before: Point, end: float) -> bool:
        """Whether a point can be warmed up, and it and those before then be measured with one run a pass."""
        expected_s = self._costs[before].pass_s(1) * point.microbatch / before.microbatch
        passes_s = FEWEST_PASSES * (expected_s + sum(cost.pass_s(1) for cost in self._costs.values()))
        return self._stopwatch() + expected_s + passes_s <= end

    def _affordable(self, points: list[Point], seconds: float) -> list[Point]:
        """Run short work less often, then leave out the largest sizes, until the fewest passes fit in the time."""
        left, shortest_s = list(points), SHORTEST_S
        while True:
            self._counts = {point: self._costs[point].count(shortest_s) for point in left}
            if FEWEST_PASSES * sum(self._costs[point].pass_s(self._counts[point]) for point in left) <= seconds:
                return left
            if shortest_s > LEAST_SHORTEST_S:
                shortest_s /= 2
                continue
            if left[-1].microbatch == left[0].microbatch:
                return left
            self._say_ended(left.pop(), "the time limit came first")

    def _time(self, point: Point, count: int) -> tuple[float, float]:
        """Mean seconds of forward and of backward over ``count`` runs."""
        forward_s, backward_s = 0.0, 0.0
        num_places = min(count, MOST_PLACES)
        for place in range(num_places):
            work = self._make(point)
            for _ in range(place, count, num_places):
                start = self._clock()
                work.forward()
                middle = self._clock()
                work.backward()
                forward_s += middle - start
                backward_s += self._clock() - middle
            work.close()
            del work  # its inputs make room for the next
        return forward_s / count, backward_s / count

    def _say_ended(self, point: Point, why: str) -> None:
        """Say where a series ends; what was said before was about a larger size."""
        others = [flag for flag in self.flags[point.kind] if not flag.startswith("ended before")]
        self.flags[point.kind] = [*others, f"ended before microbatch {point.microbatch}: {why}"]


@dataclass(frozen=True)
class _Cost:
    """What a point takes on the device's clock, as its warm-up showed."""

    run_s: float
    """One run, forward and backward."""
    make_s: float
    """Making its inputs in one place."""

    def count(self, shortest_s: float) -> int:
        """Runs of a pass."""
        return min(MOST_REPEATS, math.ceil(shortest_s / max(self.run_s, 1e-9)))

    def pass_s(self, count: int) -> float:
        """Seconds of a pass of so many runs."""
        return self.run_s * count + self.make_s * min(count, MOST_PLACES)


def spread(values: Sequence[float]) -> float:
    """Interquartile range divided by the median; 0 for a single value or a median of 0."""
    middle = statistics.median(values)
    if len(values) < 2 or middle == 0:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def oddities(
    sizes: Sequence[int], series: Mapping[Literal["forward", "backward"], Sequence[Sequence[float]]]
) -> list[str]:
    """Say which of a unit's series are noisy, and where a larger microbatch takes less time."""
    found = []
    for name, repeats in series.items():
        spreads = [spread(values) for values in repeats]
        worst = max(range(len(sizes)), key=lambda index: spreads[index])
        if spreads[worst] > NOISY_SPREAD:
            found.append(f"noisy: {name} spread {spreads[worst]:.0%} at microbatch {sizes[worst]}")
        medians = [statistics.median(values) for values in repeats]
        for (smaller, before), (larger, after) in pairwise(zip(sizes, medians, strict=True)):
            if after < before * (1 - DECREASE):
                found.append(f"decreasing: {name} takes less time at microbatch {larger} than at {smaller}")
    return found
