"""Measures the rest of what a plan needs to know of a device: optimizer step, host copies, memory without a model."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import torch

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import HostCopy
from cephalo_cli.profiler.measure_timing import Clock
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.runtime.collectives import scratch_bytes_limit
from cephalo_cli.runtime.device import DeviceClock
from cephalo_cli.runtime.heap import anonymous_bytes, trim_heap
from cephalo_cli.units import model_units

__all__ = ["host_copy", "optimizer_s_per_parameter", "reserve_bytes"]

CPU_MARGIN_BYTES = 24 * 2**20
"""Added to the reserve on CPU: gaps in the heap that long-lived tensors cause; giving them back costs time."""
FEWEST_STEPS = 2
MOST_STEPS = 5
"""Of the optimizer."""
IN_HOST_MEMORY = frozenset({"cpu", "mps"})
"""Devices without a memory of their own."""
ACCELERATOR_MARGIN = 0.03
"""Part of an accelerator's memory added to the reserve: the allocator's fragmentation, kernels' workspaces."""


def optimizer_s_per_parameter(
    model: Model,
    *,
    dtype: DType,
    device: torch.device,
    num_ranks: int,
    most_bytes: int | None,
    clock: Clock,
    stopwatch: Stopwatch,
    compute: Callable[[], AbstractContextManager[None]],
    max_seconds: float,
) -> float:
    """Measure the optimizer step on shards: the gradient's norm, its scaling, and AdamW.

    The shards are those of an equal split, one tensor a unit, as long as they take at most ``most_bytes``. One rank
    alone also clears its gradients, once a step; with more, that is part of what collectives cost. The first step loads
    libraries and allocates the moments: it counts neither as a measurement nor on the stopwatch. After ``max_seconds``
    comes no further one, but for the fewest.
    """
    state_dtype = torch.promote_types(getattr(torch, dtype), torch.float32)
    sizes = [max(1, unit.num_parameters // num_ranks) for unit in model_units(model)]
    while len(sizes) > 1 and most_bytes is not None and 4 * state_dtype.itemsize * sum(sizes) > most_bytes:
        sizes.pop()
    shards = [torch.zeros(size, dtype=state_dtype, device=device) for size in sizes]
    for shard in shards:
        shard.grad = torch.full_like(shard, 1e-3)
    with stopwatch.paused():
        adamw = torch.optim.AdamW(shards, lr=1e-4, fused=True)

    def step_s() -> float:
        start = clock()
        with compute(), torch.no_grad():
            torch.stack([torch.linalg.vector_norm(shard.grad) for shard in shards]).square().sum().item()
            for shard in shards:
                if shard.grad is not None:
                    shard.grad.mul_(0.5)
            adamw.step()
            for shard in shards if num_ranks == 1 else ():
                if shard.grad is not None:
                    shard.grad.zero_()
        return clock() - start

    with stopwatch.paused():
        step_s()
    begin, seconds = stopwatch(), [step_s()]
    while len(seconds) < MOST_STEPS and (len(seconds) < FEWEST_STEPS or stopwatch() - begin < max_seconds):
        seconds.append(step_s())
    return median(seconds) / sum(sizes)


def reserve_bytes(device: torch.device) -> int:
    """Bytes in use without a model, plus a margin; call it when everything has run once and was let go of.

    On CPU: anonymous memory of this process (libraries load parts of themselves at their first use), the reductions'
    scratch and `CPU_MARGIN_BYTES`. On an accelerator: the runtime's context, the scratch and `ACCELERATOR_MARGIN` of
    the memory.
    """
    if device.type == "cpu":
        trim_heap()
        return anonymous_bytes() + scratch_bytes_limit(device) + CPU_MARGIN_BYTES
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info(device)
    context = total - free - torch.accelerator.memory_reserved(device)
    return int(context + scratch_bytes_limit(device) + ACCELERATOR_MARGIN * total)


def host_copy(device: torch.device, num_bytes: int = 64 * 2**20) -> HostCopy | None:
    """Measure copies to and from host memory, pinned and pageable; None where the device works in host memory."""
    if device.type in IN_HOST_MEMORY:
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
