"""Measures what one device does: forward and backward of every unit kind, the optimizer, copies, and the reserve."""

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
from cephalo_cli.artifacts.profile import HostCopy, UnitKind, UnitProfile
from cephalo_cli.models import DropoutKey, build_unit, initialise_
from cephalo_cli.profiler.measure_timing import Clock, Point, Samples, Sweep, oddities, spread
from cephalo_cli.profiler.memory import UnitMemory
from cephalo_cli.runtime.collectives import scratch_bytes_limit
from cephalo_cli.runtime.device import DeviceClock, MemoryMeter
from cephalo_cli.runtime.emulate import anonymous_bytes
from cephalo_cli.units import model_units

__all__ = ["Curves", "UnitRunner", "host_copy", "measure_units", "optimizer_s_per_parameter", "reserve_bytes"]

Curves = Mapping[UnitKind, Mapping[int, UnitMemory]]
"""Memory of every kind at every microbatch size."""

CPU_MARGIN_BYTES = 32 * 2**20
"""Added to the reserve on CPU: the heap's fragmentation and what matrix products allocate inside."""
ACCELERATOR_MARGIN = 0.03
"""Part of an accelerator's memory added to the reserve: the allocator's fragmentation, kernels' workspaces."""
MOST_FILLED = 0.95
"""Part of a device's memory that a measurement may fill."""
SEED = 0
"""Weights and inputs are random; their values do not matter."""


class UnitRunner:
    """One unit's module on flat buffers, as training has it.

    The module's parameters are views of one buffer in the compute dtype. Gradients accumulate in one buffer in the
    state dtype (at least float32): in place where the dtypes agree, else by an addition after every microbatch.
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
        size = sum(shape.numel() for shape in shapes.values())
        flat = torch.empty(size, dtype=self._dtype, device=self._device)
        state_dtype = torch.promote_types(self._dtype, torch.float32)
        flat_grad = torch.zeros(size, dtype=state_dtype, device=self._device)
        start = 0
        for name, shape in shapes.items():
            stop = start + shape.numel()
            owner, _, leaf = name.rpartition(".")
            parameter = nn.Parameter(flat[start:stop].view(shape))
            self.module.get_submodule(owner).register_parameter(leaf, parameter)
            self._grads.append((parameter, flat_grad[start:stop].view(shape)))
            start = stop
        initialise_(self.module, self._model, 0, SEED)
        if self.tied is not None:
            self.tied.normal_(std=0.02)
            self._grads.append((self.tied, torch.zeros_like(self.tied, dtype=state_dtype)))
        for parameter, grad in self._grads:
            if grad.dtype == parameter.dtype:
                parameter.grad = grad

    def inputs(self, microbatch: int, seq_len: int) -> tuple[tuple[Any, ...], torch.Tensor]:
        """What the unit is called with, and the gradient of its output."""
        model, device = self._model, self._device
        tokens = model.tokens_per_sample(seq_len)
        ids_BT = torch.randint(0, model.vocab_size or 1, (microbatch, tokens), device=device)
        key = DropoutKey(seed=SEED, step=0, unit=0, samples=tuple(range(microbatch))) if model.dropout else None
        shape = (microbatch, tokens, model.hidden_size)
        if self.kind == "embedding":
            return (ids_BT, key), torch.randn(shape, dtype=self._dtype, device=device)
        x_BTD = torch.randn(shape, dtype=self._dtype, device=device).requires_grad_()
        if self.kind == "block":
            return (x_BTD, key), torch.randn(shape, dtype=self._dtype, device=device)
        loss_dtype = torch.promote_types(self._dtype, torch.float32)
        scale = torch.full((), 1.0 / (microbatch * tokens), dtype=loss_dtype, device=device)
        return (x_BTD, ids_BT) if self.tied is None else (x_BTD, ids_BT, self.tied), scale

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
            torch.autograd.backward((self.output,), (self.gradient,))
            self.runner.fold_gradients()
            self.output = self.arguments[0].grad = None


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
    meter = MemoryMeter(device)
    peaks: dict[Point, int] = {}

    def make(point: Point) -> UnitWorkload:
        runner = runners[point.kind]
        arguments, gradient = runner.inputs(point.microbatch, seq_len)
        work = UnitWorkload(runner, arguments, gradient, compute)
        if device.type != "cpu" and point not in peaks:
            before = torch.accelerator.memory_allocated(device) - gradient.nbytes - arguments[0].nbytes
            meter.reset()
            work.forward()
            work.backward()
            peaks[point] = max(0, meter.peak_bytes() - before)
        return work

    sweep = Sweep(make, clock, is_out_of_memory=_is_out_of_memory, on_pass=on_pass)
    occupied = anonymous_bytes() if device.type == "cpu" else torch.accelerator.memory_allocated(device)
    points = []
    for kind, curve in curves.items():
        fitting = [size for size in sorted(curve) if _fits(occupied + curve[size].working_bytes, capacity_bytes)]
        points += [Point(size, kind) for size in fitting or [min(curve)]]
        if len(fitting) < len(curve):
            sweep.flags[kind].append(f"ended before microbatch {sorted(curve)[len(fitting)]}: it would fill the memory")
    wall, device_s = time.perf_counter(), clock()
    samples = sweep.run(points, max_seconds)
    wall, device_s = time.perf_counter() - wall, clock() - device_s
    if wall > 1.15 * device_s:
        sweep.flags["block"].append(f"the host was busy: the wall clock ran {wall / device_s:.2f} times the device's")
    return {kind: _unit_profile(kind, samples, curves[kind], sweep.flags[kind], peaks or None) for kind in curves}


def optimizer_s_per_parameter(
    model: Model,
    *,
    dtype: DType,
    device: torch.device,
    num_ranks: int,
    most_bytes: int | None,
    clock: Clock,
    compute: Callable[[], AbstractContextManager[None]],
) -> float:
    """Measure the optimizer step on shards: the gradient's norm, its scaling, and AdamW.

    The shards are those of an equal split, one tensor a unit, as long as they take at most ``most_bytes``.
    """
    state_dtype = torch.promote_types(getattr(torch, dtype), torch.float32)
    sizes = [max(1, unit.num_parameters // num_ranks) for unit in model_units(model)]
    while len(sizes) > 1 and most_bytes is not None and 4 * state_dtype.itemsize * sum(sizes) > most_bytes:
        sizes.pop()
    shards = [torch.zeros(size, dtype=state_dtype, device=device) for size in sizes]
    for shard in shards:
        shard.grad = torch.full_like(shard, 1e-3)
    adamw = torch.optim.AdamW(shards, lr=1e-4, fused=True)
    seconds = []
    for _ in range(6):
        start = clock()
        with compute(), torch.no_grad():
            torch.stack([torch.linalg.vector_norm(shard.grad) for shard in shards]).square().sum().item()
            for shard in shards:
                if shard.grad is not None:
                    shard.grad.mul_(0.5)
            adamw.step()
        seconds.append(clock() - start)
    return median(seconds[1:]) / sum(sizes)


def reserve_bytes(device: torch.device) -> int:
    """Bytes in use before there is a model, plus a margin; call it when the process group is there.

    On CPU: anonymous memory of this process, the reductions' scratch and `CPU_MARGIN_BYTES`. On an accelerator: the
    runtime's context, the scratch and `ACCELERATOR_MARGIN` of the memory.
    """
    if device.type == "cpu":
        return anonymous_bytes() + scratch_bytes_limit(device) + CPU_MARGIN_BYTES
    torch.zeros(1, device=device)
    free, total = torch.accelerator.get_memory_info(device)
    context = total - free - torch.accelerator.memory_reserved(device)
    return int(context + scratch_bytes_limit(device) + ACCELERATOR_MARGIN * total)


def host_copy(device: torch.device, num_bytes: int = 64 * 2**20) -> HostCopy | None:
    """Measure copies to and from host memory, pinned and pageable; None on CPU, where there is nothing to copy."""
    if device.type == "cpu":
        return None
    clock = DeviceClock(device)

    def seconds(size: int, *, pinned: bool, to_device: bool) -> float:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        here = torch.empty(size, dtype=torch.uint8, device=device)
        taken = []
        for _ in range(6):
            start = clock()
            (here if to_device else host).copy_(host if to_device else here, non_blocking=True)
            taken.append(clock() - start)
        return median(taken[1:])

    latency = min(seconds(1, pinned=True, to_device=True), seconds(1, pinned=True, to_device=False))

    def rate(*, pinned: bool, to_device: bool) -> float:
        return num_bytes / max(seconds(num_bytes, pinned=pinned, to_device=to_device) - latency, 1e-9)

    return HostCopy(
        to_device_bytes_per_s=rate(pinned=True, to_device=True),
        to_host_bytes_per_s=rate(pinned=True, to_device=False),
        pageable_to_device_bytes_per_s=rate(pinned=False, to_device=True),
        pageable_to_host_bytes_per_s=rate(pinned=False, to_device=False),
        latency_s=latency,
    )


def _unit_profile(
    kind: UnitKind,
    samples: Mapping[Point, Samples],
    curve: Mapping[int, UnitMemory],
    flags: Sequence[str],
    peaks: Mapping[Point, int] | None,
) -> UnitProfile:
    points = sorted(point for point in samples if point.kind == kind)
    sizes = [point.microbatch for point in points]
    forward = [samples[point].forward_s for point in points]
    backward = [samples[point].backward_s for point in points]
    return UnitProfile(
        microbatch=tuple(sizes),
        forward_s=tuple(map(median, forward)),
        backward_s=tuple(map(median, backward)),
        working_bytes=tuple(curve[size].working_bytes for size in sizes),
        saved_bytes=tuple(curve[size].saved_bytes for size in sizes),
        forward_spread=tuple(map(spread, forward)),
        backward_spread=tuple(map(spread, backward)),
        measured_peak_bytes=None if peaks is None else tuple(peaks[point] for point in points),
        flags=(*flags, *oddities(sizes, {"forward": forward, "backward": backward})),
    )


def _fits(num_bytes: int, capacity_bytes: int | None) -> bool:
    return capacity_bytes is None or num_bytes <= MOST_FILLED * capacity_bytes


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator: " in str(error)
