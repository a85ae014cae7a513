"""Measures forward and backward of every unit kind on one device, and the memory they take."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind, UnitProfile
from cephalo_cli.models import DropoutKey, build_unit, initialise_
from cephalo_cli.profiler.inputs import random_batch
from cephalo_cli.profiler.measure_timing import Clock, Point, Samples, Sweep, oddities, spread
from cephalo_cli.profiler.memory import UnitMemory
from cephalo_cli.runtime.device import MemoryMeter
from cephalo_cli.runtime.heap import anonymous_bytes, trim_heap
from cephalo_cli.units import trained_sizes, unit_of_kind

__all__ = ["Curves", "UnitRunner", "UnitWorkload", "measure_units"]

Curves = Mapping[UnitKind, Mapping[int, UnitMemory]]
"""Memory of every kind at every microbatch size."""

MOST_FILLED = 0.95
"""Part of a device's memory that a measurement may fill."""
CPU_HEAP_FACTOR = 2.0
"""What a CPU process is taken to hold for a tensor's byte before it was measured, see `_Peaks` (seen: up to 1.8)."""
SEED = 0
"""Weights and inputs are random; their values do not matter."""
LARGEST_PADDING_BYTES = 2**16
"""Inputs lie elsewhere in every pass: in one place short work took up to 20 % longer, a whole profile long."""


class UnitRunner:
    """One unit's module on flat buffers, as training has it.

    The module's parameters are views of one buffer in the compute dtype. Gradients of those that are trained accumulate
    in one buffer in the state dtype (at least float32): in place where the dtypes agree, else by an addition after
    every microbatch.
    """

    def __init__(self, model: Model, kind: UnitKind, dtype: torch.dtype, device: torch.device) -> None:
        self.kind = kind
        self._model = model
        self._device = device
        self._dtype = dtype
        with torch.device("meta"):
            self.module = build_unit(model, kind)
        self.tied: nn.Parameter | None = None
        if kind == "head" and model.tie_embeddings:
            self.tied = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size, device=device, dtype=dtype))
        self._grads: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._place()

    @torch.no_grad()
    def _place(self) -> None:
        shapes = {name: parameter.shape for name, parameter in self.module.named_parameters()}
        trained = trained_sizes(self._model, self.kind)
        size = sum(shape.numel() for shape in shapes.values())
        self.flat = flat = torch.empty(size, dtype=self._dtype, device=self._device)
        state_dtype = torch.promote_types(self._dtype, torch.float32)
        self.flat_grad = torch.zeros(sum(trained.values()), dtype=state_dtype, device=self._device)
        start = grad_start = 0
        for name, shape in shapes.items():
            stop = start + shape.numel()
            owner, _, leaf = name.rpartition(".")
            parameter = nn.Parameter(flat[start:stop].view(shape), requires_grad=name in trained)
            self.module.get_submodule(owner).register_parameter(leaf, parameter)
            if name in trained:
                grad_stop = grad_start + shape.numel()
                self._grads.append((parameter, self.flat_grad[grad_start:grad_stop].view(shape)))
                grad_start = grad_stop
            start = stop
        initialise_(self.module, self._model, unit_of_kind(self._model, self.kind), SEED)
        if self.tied is not None:
            self.tied.normal_(std=0.02)
            self.tied.requires_grad_("matrix" in trained_sizes(self._model, "embedding"))
            if self.tied.requires_grad:
                self._grads.append((self.tied, torch.zeros_like(self.tied, dtype=state_dtype)))
        for parameter, grad in self._grads:
            if grad.dtype == parameter.dtype:
                parameter.grad = grad

    def inputs(self, microbatch: int, seq_len: int) -> tuple[tuple[Any, ...], torch.Tensor]:
        """What the unit is called with, and the gradient of its output."""
        model, device = self._model, self._device
        batch = random_batch(model, microbatch, seq_len, device)
        key = DropoutKey(seed=SEED, step=0, unit=0, samples=batch.samples) if model.dropout else None
        shape = (microbatch, model.tokens_per_sample(seq_len), model.hidden_size)
        if self.kind == "embedding":
            return (batch, key), torch.randn(shape, dtype=self._dtype, device=device)
        x_BTD = torch.randn(shape, dtype=self._dtype, device=device).requires_grad_()
        if self.kind == "block":
            return (x_BTD, batch, key), torch.randn(shape, dtype=self._dtype, device=device)
        loss_dtype = torch.promote_types(self._dtype, torch.float32)
        scale = torch.full((), 1.0 / batch.targets.numel(), dtype=loss_dtype, device=device)
        return (x_BTD, batch) if self.tied is None else (x_BTD, batch, self.tied), scale

    def gradients(self) -> list[torch.Tensor]:
        """Where gradients accumulate."""
        return [grad for _, grad in self._grads]

    @torch.no_grad()
    def fold_gradients(self) -> None:
        """Add what a backward left in the compute dtype to the gradients."""
        for parameter, grad in self._grads:
            if parameter.grad is not grad and parameter.grad is not None:
                grad.add_(parameter.grad)
                parameter.grad = None


@dataclass
class UnitWorkload:
    """A unit and what it is called with."""

    runner: UnitRunner
    arguments: tuple[Any, ...]
    gradient: torch.Tensor
    compute: Callable[[], AbstractContextManager[None]]

    on_close: Callable[[], None]
    output: torch.Tensor | None = None

    def forward(self) -> None:
        """Run the forward pass, keeping what backward needs."""
        with self.compute():
            self.output = self.runner.module(*self.arguments)

    def backward(self) -> None:
        """Run the backward pass of the last forward and add to the gradients."""
        if self.output is None:
            raise AssertionError("a backward follows a forward")
        with self.compute():
            if self.output.requires_grad:  # that of a frozen embedding does not
                torch.autograd.backward((self.output,), (self.gradient,))
            self.runner.fold_gradients()
            self.output = None
            if isinstance(self.arguments[0], torch.Tensor):
                self.arguments[0].grad = None

    def close(self) -> None:
        """Take note of the memory it took."""
        self.on_close()


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
        compute: Surrounds every piece of compute (emulated devices).
        max_seconds: Time limit on the wall clock.
        on_pass: Told the fraction done.
    """
    torch_dtype: torch.dtype = getattr(torch, dtype)
    runners = {kind: UnitRunner(model, kind, torch_dtype, device) for kind in curves}
    peaks = _Peaks(device)
    places = random.Random(SEED)  # noqa: S311 - no secret

    def make(point: Point) -> UnitWorkload:
        close = peaks.start(point)
        runner = runners[point.kind]
        padding = torch.empty(places.randrange(1, LARGEST_PADDING_BYTES), dtype=torch.uint8, device=device)
        arguments, gradient = runner.inputs(point.microbatch, seq_len)
        del padding
        return UnitWorkload(runner, arguments, gradient, compute, close)

    sweep = Sweep(make, clock, is_out_of_memory=_is_out_of_memory, after_warm_up=peaks.stop, on_pass=on_pass)
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
    wall, device_s = time.perf_counter() - wall, clock() - device_s
    if wall > 1.15 * device_s:
        sweep.flags["block"].append(f"the host was busy: the wall clock ran {wall / device_s:.2f} times the device's")
    return {kind: _unit_profile(kind, samples, curves, sweep.flags[kind], peaks) for kind in curves}


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
