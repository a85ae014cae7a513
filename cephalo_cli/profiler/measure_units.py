"""Measures forward and backward of every unit kind on one device, and the memory they take."""

import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median

import torch

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind, UnitProfile
from cephalo_cli.profiler.measure_timing import Clock, Point, Samples, Sweep, oddities, spread
from cephalo_cli.profiler.memory import UnitMemory
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.profiler.unit_runner import UnitRunner, UnitWorkload
from cephalo_cli.runtime.device import MemoryMeter, cache_bytes
from cephalo_cli.runtime.heap import anonymous_bytes, trim_heap
from cephalo_cli.units import model_units

__all__ = ["Curves", "measure_units", "num_copies"]

Curves = Mapping[UnitKind, Mapping[int, UnitMemory]]
"""Memory of every kind at every microbatch size."""

MOST_FILLED = 0.95
"""Part of a device's memory that a measurement may fill."""
CPU_HEAP_FACTOR = 2.0
"""What a CPU process is taken to hold for a tensor's byte before it was measured, see `_Peaks` (seen: up to 1.8)."""
SEED = 0
"""Of the places of inputs."""
LARGEST_PADDING_BYTES = 2**16
"""Inputs lie elsewhere in every pass: in one place short work took up to 20 % longer, a whole profile long."""
COPIES_PART = 0.05
"""Of a device's memory that copies of one unit may take, see `num_copies`."""


class _Peaks:
    """The most memory each point took, as the device's allocator or the process sees it.

    Note: a process holds more than what lives
        Operators need workspace that is no tensor, and the C library keeps much of what was freed, in pieces that do
        not always fit what is needed next. So a CPU process holds more than its tensors take. The warm-up goes from
        small sizes to large ones, each on a trimmed heap, as training gives gaps back before memory runs out, and shows
        by what factor for the unit that takes most; the largest factor stands for all sizes and units. Passes that are
        timed must not trim: memory that comes back from the system costs time.
    """

    def __init__(self, device: torch.device) -> None:
        self._bytes: dict[Point, int] = {}
        self._device = device
        self._meter = MemoryMeter(device)
        self._is_watching = True
        self._base = 0
        self._size = 0

    def start(self, point: Point) -> Callable[[], None]:
        """Begin with a point, before its inputs are made; gives what to call at its end."""
        if not self._is_watching:
            return lambda: None
        base = self._base_of(point.microbatch)
        self._meter.reset()

        def close() -> None:
            self._bytes[point] = max(self._bytes.get(point, 0), self._meter.peak_bytes() - base)

        return close

    def _base_of(self, size: int) -> int:
        """Bytes that count for no point of this size; on CPU those that a trimmed heap leaves before the first."""
        if self._device.type != "cpu":
            return torch.accelerator.memory_allocated(self._device)
        if size > self._size:
            self._size = size
            trim_heap()
            self._base = anonymous_bytes()
        return self._base

    def stop(self) -> None:
        """Look no longer."""
        self._is_watching = False

    def measured(self, kind: UnitKind, size: int) -> int | None:
        """What the device's allocator counted; None on CPU."""
        return None if self._device.type == "cpu" else self._bytes[Point(size, kind)]

    def working(self, kind: UnitKind, size: int, curves: Curves) -> int:
        """Bytes that a unit takes: at least what lives in it."""
        lives = curves[kind][size].working_bytes
        if self._device.type != "cpu":
            return max(lives, self._bytes[Point(size, kind)])
        return math.ceil(lives * max(1.0, self._heap_factor(curves)))

    def _heap_factor(self, curves: Curves) -> float:
        """What the process held over what lived, for the unit that takes most.

        The smaller half of the sizes is left out: there, constant parts weigh too much.
        """
        sizes = sorted({point.microbatch for point in self._bytes})
        factors = []
        for size in sizes[len(sizes) // 2 :]:
            kind = max(curves, key=lambda kind: curves[kind][size].working_bytes)
            factors.append(self._bytes.get(Point(size, kind), 0) / max(1, curves[kind][size].working_bytes))
        return max(factors, default=1.0)


def measure_units(
    model: Model,
    *,
    seq_len: int,
    dtype: DType,
    device: torch.device,
    capacity_bytes: int | None,
    curves: Curves,
    clock: Clock,
    stopwatch: Stopwatch,
    compute: Callable[[], AbstractContextManager[None]],
    max_seconds: float,
    on_pass: Callable[[float], None],
) -> dict[UnitKind, UnitProfile]:
    """Measure forward and backward of every unit kind against microbatch size.

    Args:
        model: The model.
        seq_len: Tokens of one sample.
        dtype: Compute dtype.
        device: Where to measure.
        capacity_bytes: The device's memory; sizes that would fill it are left out.
        curves: Memory of every kind at the sizes to measure.
        clock: The device's clock.
        stopwatch: What the time limit is measured with; it stands still while the units are built.
        compute: Surrounds every piece of compute (emulated devices).
        max_seconds: Time limit.
        on_pass: Told the fraction done.
    """
    torch_dtype: torch.dtype = getattr(torch, dtype)
    with stopwatch.paused():
        runners = {kind: UnitRunner(model, kind, torch_dtype, device) for kind in curves}
        turns = _turns(runners, model, torch_dtype, device, capacity_bytes)
        gc.collect()
        gc.freeze()  # every trim of the heap looks for garbage: not again among all that the libraries have made
    peaks = _Peaks(device)
    places = random.Random(SEED)  # noqa: S311 - no secret

    def make(point: Point) -> UnitWorkload:
        close = peaks.start(point)
        padding = torch.empty(places.randrange(1, LARGEST_PADDING_BYTES), dtype=torch.uint8, device=device)
        arguments, gradient = runners[point.kind].inputs(point.microbatch, seq_len)
        del padding
        return UnitWorkload(turns[point.kind], arguments, gradient, compute, close)

    sweep = Sweep(
        make, clock, is_out_of_memory=_is_out_of_memory, stopwatch=stopwatch, after_warm_up=peaks.stop, on_pass=on_pass
    )
    occupied = anonymous_bytes() if device.type == "cpu" else torch.accelerator.memory_allocated(device)
    factor = CPU_HEAP_FACTOR if device.type == "cpu" else 1.0
    points: list[Point] = []
    for kind, curve in curves.items():
        fitting = [
            size for size in sorted(curve) if _fits(occupied + factor * curve[size].working_bytes, capacity_bytes)
        ]
        points += [Point(size, kind) for size in fitting or [min(curve)]]
        if len(fitting) < len(curve):
            sweep.flags[kind].append(f"ended before microbatch {sorted(curve)[len(fitting)]}: it would fill the memory")
    wall, device_s = time.perf_counter(), clock()
    samples = sweep.run(points, max_seconds)
    gc.unfreeze()
    wall, device_s = time.perf_counter() - wall, clock() - device_s
    if wall > 1.15 * device_s:
        sweep.flags["block"].append(f"the host was busy: the wall clock ran {wall / device_s:.2f} times the device's")
    return {kind: _unit_profile(kind, samples, curves, sweep.flags[kind], peaks) for kind in curves}


def _turns(
    runners: Mapping[UnitKind, UnitRunner],
    model: Model,
    dtype: torch.dtype,
    device: torch.device,
    capacity_bytes: int | None,
) -> dict[UnitKind, Iterator[UnitRunner]]:
    """Every unit kind's copies, in turn without end."""
    model_bytes = dtype.itemsize * sum(unit.num_parameters + unit.num_trained for unit in model_units(model))
    turns: dict[UnitKind, Iterator[UnitRunner]] = {}
    for kind, runner in runners.items():
        copies = num_copies(
            own_bytes=runner.num_bytes,
            model_bytes=model_bytes,
            cache_bytes=cache_bytes(device),
            spare_bytes=model_bytes if capacity_bytes is None else int(COPIES_PART * capacity_bytes),
        )
        more = (UnitRunner(model, kind, dtype, device) for _ in range(copies - 1))
        turns[kind] = itertools.cycle([runner, *more])
    return turns


def num_copies(*, own_bytes: int, model_bytes: int, cache_bytes: int, spare_bytes: int) -> int:
    """How many of a unit are run in turn, so that each is pushed out of the device's cache as in a step.

    A unit that runs again and again finds its weights and gradients in the cache; in a step they come from memory, but
    for a model that fits in the cache as a whole. For a block of 14 MB and 64 tokens that is a tenth of its time.

    Args:
        own_bytes: Weights and gradients of the unit.
        model_bytes: Those of the whole model.
        cache_bytes: Size of the cache.
        spare_bytes: Memory that further copies may take.
    """
    between_bytes = min(cache_bytes, model_bytes - own_bytes, spare_bytes)
    return 1 + max(0, between_bytes // max(1, own_bytes))


def _unit_profile(
    kind: UnitKind, samples: Mapping[Point, Samples], curves: Curves, flags: Sequence[str], peaks: _Peaks
) -> UnitProfile:
    points = sorted(point for point in samples if point.kind == kind)
    sizes = [point.microbatch for point in points]
    forward = [samples[point].forward_s for point in points]
    backward = [samples[point].backward_s for point in points]
    measured = [peak for size in sizes if (peak := peaks.measured(kind, size)) is not None]
    return UnitProfile(
        microbatch=tuple(sizes),
        forward_s=tuple(map(median, forward)),
        backward_s=tuple(map(median, backward)),
        working_bytes=tuple(peaks.working(kind, size, curves) for size in sizes),
        saved_bytes=tuple(curves[kind][size].saved_bytes for size in sizes),
        forward_spread=tuple(map(spread, forward)),
        backward_spread=tuple(map(spread, backward)),
        measured_peak_bytes=tuple(measured) or None,
        flags=(*flags, *oddities(sizes, {"forward": forward, "backward": backward})),
    )


def _fits(num_bytes: float, capacity_bytes: int | None) -> bool:
    return capacity_bytes is None or num_bytes <= MOST_FILLED * capacity_bytes


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator: " in str(error)
