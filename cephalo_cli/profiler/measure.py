"""Measures a cluster with one model: every rank its own device, all ranks together the network.

All ranks measure at the same time. On emulated devices, which share a host, that is deliberate: they will also train
at the same time and get in each other's way in the same manner; a rank that is done goes on computing until all are.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from cephalo_cli import __version__
from cephalo_cli.artifacts import Cluster, Model, Profile
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.profile import DeviceProfile, NetworkProfile, UnitKind
from cephalo_cli.errors import UsageError
from cephalo_cli.profiler.attention import Attention, attention_by, kernels_here
from cephalo_cli.profiler.measure_device import host_copy, optimizer_s_per_parameter, reserve_bytes
from cephalo_cli.profiler.measure_moving import Moving
from cephalo_cli.profiler.measure_network import Measured, measure_network
from cephalo_cli.profiler.measure_timing import compute_clock, largest_of_ranks, microbatch_sizes
from cephalo_cli.profiler.measure_units import Curves, measure_units
from cephalo_cli.profiler.memory import UnitMemory, memory_curve
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.profiler.unit_runner import UnitRunner
from cephalo_cli.runtime.device import device_identity
from cephalo_cli.runtime.heap import trim_heap
from cephalo_cli.runtime.launch import RankEnvironment, run_ranks
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import num_frozen_parameters, num_parameters

__all__ = ["measure_rank", "profile_cluster"]

KINDS: tuple[UnitKind, ...] = ("embedding", "block", "head")
NETWORK_PART = 0.3
"""Part of the time limit for collectives, and what forward and backward leave over."""
OPTIMIZER_PART = 0.05
"""Part of the time limit for the optimizer; forward and backward have what it leaves over."""
OVERRUN = 1.1
"""Measuring that takes more than this times the time limit says so."""
SMALL_PART = 8
"""Optimizer and collectives are measured on buffers that take at most one part in this of a device's memory."""


def profile_cluster(
    cluster: Cluster,
    model: Model,
    seq_len: int,
    dtype: DType,
    *,
    max_microbatch: int = 8,
    max_seconds: float = 60.0,
    progress: Callable[[float, str], None] | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
    external: RankEnvironment | None = None,
    use_cgroups: bool = True,
) -> Profile | None:
    """Measure every device type of a cluster, and its network.

    Args:
        cluster: The cluster, catalog facts filled in. Its ranks are started here, unless an outer launcher did.
        model: The model.
        seq_len: Tokens of one sample.
        dtype: Compute dtype.
        max_microbatch: Largest microbatch size to measure; memory or time may end a series before.
        max_seconds: Time limit for measuring; all device types are measured at once. Starting processes, loading
            libraries, building units and finding their memory on fake tensors come on top.
        progress: Told the fraction done, and what is being done.
        on_notice: Told in one sentence when the fewest measurements took longer than the time limit.
        external: The outer launcher, if any; then this process measures its own rank.
        use_cgroups: As in `run_ranks`.

    Returns:
        The profile; None in the other ranks of an outer launcher.

    Raises:
        UsageError: The model cannot be run, or the cluster cannot be started here.
        TrainingError: A rank was lost.
    """
    if max_microbatch < 1:
        raise UsageError(f"--max-microbatch is at least 1, found {max_microbatch}")
    curves = _curves(model, seq_len, dtype, microbatch_sizes(max_microbatch), "fused")
    arguments = {
        "curves": {kind: {size: asdict(memory) for size, memory in curve.items()} for kind, curve in curves.items()},
        "model": model.model_dump_json(exclude_none=True),
        "seq_len": seq_len,
        "dtype": dtype,
        "max_seconds": max_seconds,
    }
    fractions = [0.0] * len(cluster.ranks)

    def on_event(rank: int, event: Any) -> None:
        if "notice" in event:
            on_notice(event["notice"])
            return
        fractions[rank] = event["fraction"]
        if progress is not None:
            progress(min(fractions) if external is None else fractions[rank], event["text"])

    result = run_ranks(
        f"{__name__}:measure_rank",
        arguments,
        cluster,
        external=external,
        on_event=on_event,
        use_cgroups=use_cgroups,
    )
    if result is None:
        return None
    return Profile(
        created_by=f"cephalo {__version__}",
        cluster=cluster,
        model=model,
        seq_len=model.tokens_per_sample(seq_len),
        dtype=dtype,
        num_parameters=num_parameters(model),
        num_frozen_parameters=num_frozen_parameters(model),
        devices={name: DeviceProfile.model_validate_json(text) for name, text in result["devices"].items()},
        network="ideal" if result["network"] is None else NetworkProfile.model_validate_json(result["network"]),
    )


def measure_rank(context: ProcessContext, arguments: Any) -> Any:
    """Measure this rank's device and take part in the collectives; rank 0 returns everyone's numbers as JSON texts."""
    model = Model.model_validate_json(arguments["model"])
    dtype: DType = arguments["dtype"]
    seq_len, max_seconds = arguments["seq_len"], arguments["max_seconds"]
    capacity = context.device_type.memory_bytes
    small = None if capacity is None else max(1, capacity // SMALL_PART)
    clock = compute_clock(context)
    curves = _sent_curves(arguments["curves"])
    attention = attention_by(kernels_here(context.device), model, dtype, model.tokens_per_sample(seq_len))
    if attention == "plain":
        curves = _curves(model, seq_len, dtype, list(curves["block"]), "plain")

    def told(text: str, begin: float, part: float) -> Callable[[float], None]:
        return lambda done: context.emit({"fraction": begin + part * done, "text": text})

    stopwatch = Stopwatch()
    units_part = 1 - NETWORK_PART if context.world_size > 1 else 1.0
    told("optimizer", 0.0, 0.0)(0.0)
    optimizer = optimizer_s_per_parameter(
        model,
        dtype=dtype,
        device=context.device,
        num_ranks=context.world_size,
        most_bytes=small,
        clock=clock,
        stopwatch=stopwatch,
        compute=context.compute,
        max_seconds=OPTIMIZER_PART * max_seconds,
    )
    units = measure_units(
        model,
        seq_len=seq_len,
        dtype=dtype,
        device=context.device,
        capacity_bytes=capacity,
        curves=curves,
        clock=clock,
        stopwatch=stopwatch,
        compute=context.compute,
        max_seconds=units_part * max_seconds - stopwatch(),
        on_pass=told("forward and backward", 0.0, units_part),
    )
    block = units["block"]
    units["block"] = block.model_copy(update={"flags": (*block.flags, f"{attention} attention")})
    reserve = reserve_bytes(context.device)
    if context.device.type == "cpu":
        trim_heap()  # the sweep ended near the device's memory: what it left in the heap is room for the collectives
    with stopwatch.paused():
        _compute_until_all_are_done(context, model, seq_len, dtype)
    told("collectives", 1 - NETWORK_PART, 0.0)(1.0)
    network = None
    if context.world_size > 1:
        network = measure_network(
            context, model, seq_len, dtype, stopwatch=stopwatch, most_bytes=small, max_seconds=max_seconds
        )
    speed = context.device_type.emulated_speed or torch.get_num_threads()
    moving = Moving() if network is None else network.moving
    device = DeviceProfile(
        method="measured",
        units=units,
        optimizer_s_per_parameter=optimizer,
        collective_compute_s_per_byte=moving.cpu_s_per_byte / speed,
        collective_issue_part=None if network is None else moving.issue_part,
        collective_stall_part=None if network is None else moving.stall_part(speed),
        collective_alone_part=moving.alone_part,
        host_copy=host_copy(context.device),
        reserve_bytes=reserve,
        emulation=context.emulation,
        identity=device_identity(context.device, context.device_type),
    )
    _say_overrun(context, stopwatch, max_seconds)
    told("done", 1.0, 0.0)(1.0)
    return _collected(context, device, network)


def _curves(model: Model, seq_len: int, dtype: DType, sizes: Sequence[int], attention: Attention) -> Curves:
    """Every unit's memory at every size."""
    return {
        kind: dict(
            zip(
                sizes,
                memory_curve(model, seq_len=seq_len, dtype=dtype, kind=kind, microbatches=sizes, attention=attention),
                strict=True,
            )
        )
        for kind in KINDS
    }


def _sent_curves(content: Any) -> Curves:
    """Curves that came as JSON, where keys are texts."""
    return {
        kind: {int(size): UnitMemory(**memory) for size, memory in curve.items()} for kind, curve in content.items()
    }


def _compute_until_all_are_done(context: ProcessContext, model: Model, seq_len: int, dtype: DType) -> None:
    """Wait for the other ranks; an emulated device keeps computing meanwhile, as it will while others train."""
    everyone_is_here = dist.barrier(context.process_group, async_op=True)
    if everyone_is_here is None:
        raise AssertionError("an asynchronous barrier can be waited for")
    if context.emulation is not None:
        runner = UnitRunner(model, "block", getattr(torch, dtype), context.device)
        arguments, gradient = runner.inputs(1, seq_len)
        while not everyone_is_here.is_completed():
            with context.compute():
                torch.autograd.backward((runner.module(*arguments),), (gradient,))
    everyone_is_here.wait()


def _say_overrun(context: ProcessContext, stopwatch: Stopwatch, max_seconds: float) -> None:
    """Say it on rank 0 when measuring took longer than it should on some rank."""
    spent_s = largest_of_ranks(context, stopwatch())
    if context.rank == 0 and spent_s > OVERRUN * max_seconds:
        context.emit(
            {"notice": f"measuring took {spent_s:.1f} s: even the fewest repeats need more than {max_seconds:g} s"}
        )


def _collected(context: ProcessContext, device: DeviceProfile, network: Measured | None) -> Any:
    """On rank 0: the profile of each device type's first rank, and the network, as JSON texts."""
    mine = device.model_dump_json(exclude_none=True)
    everyones: list[Any] = [None] * context.world_size
    dist.all_gather_object(everyones, mine, context.process_group)
    devices: dict[str, str] = {}
    for place, text in zip(context.cluster.ranks, everyones, strict=True):
        devices.setdefault(place.device, text)
    return {
        "devices": devices,
        "network": None if network is None else network.network().model_dump_json(exclude_none=True),
    }
