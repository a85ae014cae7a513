"""What the ranks of the tests run."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from cephalo_cli.errors import CephaloError, InfeasibleError
from cephalo_cli.layout import Range, shard_ranges
from cephalo_cli.runtime.buffers import BufferLayout
from cephalo_cli.runtime.collectives import CollectiveRecord, ShardedCollectives
from cephalo_cli.runtime.process import ProcessContext

LAYOUTS = {
    f"{name}-{dtype}".replace("torch.", ""): BufferLayout(
        ranges=ranges,
        gather_dtype=dtype,
        reduce_dtype=torch.float64 if dtype == torch.float64 else torch.float32,
    )
    for dtype in (torch.bfloat16, torch.float32, torch.float64)
    for name, ranges in {
        "5-2": (Range(0, 5), Range(5, 7), Range(7, 7)),
        "7-0": (Range(0, 0), Range(0, 7), Range(7, 7)),
        "4-3-0": (Range(0, 4), Range(4, 7), Range(7, 7)),
        "nothing": (Range(0, 0),) * 3,
        "many-rounds": shard_ranges(10_001, [0.5, 0.2, 0.3]),
    }.items()
}
SMALL_SCRATCH_BYTES = 4096


def gather_objects(context: ProcessContext, mine: Any) -> list[Any]:
    everyone: list[Any] = [None] * context.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def collectives(context: ProcessContext, _: object) -> list[list[str]]:
    """Start a gather and a reduction of every layout, then wait for all; return what went wrong on each rank."""
    records: list[CollectiveRecord] = []
    moves = ShardedCollectives(
        context.process_group, context.device, LAYOUTS, observer=records.append, scratch_bytes=SMALL_SCRATCH_BYTES
    )
    random = torch.Generator().manual_seed(1)
    flights = []
    for name, layout in LAYOUTS.items():
        own = layout.ranges[context.rank]
        whole = torch.randn(layout.num_elements, generator=random).to(layout.gather_dtype)
        full = torch.full_like(whole, float("nan"))
        full[own.start : own.stop] = whole[own.start : own.stop]
        grads = [torch.randn(layout.num_elements, generator=random).to(layout.reduce_dtype) for _ in range(3)]
        summed = torch.empty(len(own), dtype=layout.reduce_dtype)
        waits = [moves.all_gather(name, full), moves.reduce_scatter(name, grads[context.rank], summed)]
        flights.append((name, own, waits, full, whole, grads, summed))
    wrong = []
    for name, own, waits, full, whole, grads, summed in flights:
        for wait in waits:
            wait.wait()
        expected = (grads[0] + grads[1] + grads[2])[own.start : own.stop]
        if not torch.equal(full, whole):
            wrong.append(f"{name}: gather(shard(x)) is not x")
        if not torch.equal(summed, expected):
            wrong.append(f"{name}: wrong sum")
    replicated = torch.full((7,), float(context.rank))
    moves.all_reduce("5-2-float32", replicated).wait()
    if replicated.tolist() != [3.0] * 7:
        wrong.append("wrong all-reduce")
    received = [record.received_bytes for record in records if record.name == "5-2-float32"]
    own_bytes = 4 * len(LAYOUTS["5-2-float32"].ranges[context.rank])
    if received != [28 - own_bytes, 2 * own_bytes, 2 * 2 * 7 // 3 * 4]:
        wrong.append(f"observed {received}")
    moves.close()
    return gather_objects(context, wrong)


def disagreement(context: ProcessContext, _: object) -> list[str]:
    """Give ranks layouts that differ in one range; return each rank's error."""
    cut = 5 if context.rank == 1 else 4
    layout = BufferLayout(ranges=(Range(0, cut), Range(cut, 7)), gather_dtype=torch.float32)
    try:
        ShardedCollectives(context.process_group, context.device, {"block": layout})
    except CephaloError as error:
        return gather_objects(context, error.message)
    return gather_objects(context, "accepted")


def describe(context: ProcessContext, arguments: Any) -> list[Any]:
    """Return what every rank was given."""
    context.emit({"hello": context.rank})
    with context.compute():
        held = torch.ones(arguments.get("num_elements", 1))
    mine = [context.rank, context.place.device, context.emulation, torch.get_num_threads(), len(held) > 0]
    return gather_objects(context, mine)


def affinity(context: ProcessContext, _: object) -> list[list[int]]:
    """Return the CPUs every rank may use."""
    return gather_objects(context, sorted(os.sched_getaffinity(0)))


def fail(context: ProcessContext, how: str) -> None:
    """Have rank 1 fail while rank 0 waits for it."""
    total = torch.ones(1)
    dist.all_reduce(total)
    if context.rank == 1:
        if how == "own error":
            raise InfeasibleError("rank 1 does not fit", hint="give it more")
        if how == "bug":
            raise ZeroDivisionError("a bug")
        if how == "exit":
            os._exit(9)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "memory":
            hoard = [torch.ones(10_000_000) for _ in range(100)]
            total += hoard[-1][0]
    if how == "stuck":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if context.rank == 1:
            os._exit(9)
        time.sleep(60)
    dist.all_reduce(total)


def ignore_signals(context: ProcessContext, _: object) -> None:
    """Say which process this is, then wait, whatever comes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    context.emit(os.getpid())
    time.sleep(300)


def wait_for_signal(context: ProcessContext, _: object) -> None:
    """Say which process this is, then wait."""
    context.emit(os.getpid())
    time.sleep(60)
