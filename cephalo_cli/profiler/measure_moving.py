"""Measures what moving the bytes of collectives costs a CPU device, whose cores compute and copy.

Note: a rehearsal
    Moving takes CPU time of its own: a place is allocated, the rank's own part is copied there, the rest is sent and
    received, gradients are cleared and added up. And it makes compute slower: weights that have just arrived are not in
    the core's cache, and cores share the way to memory. So blocks are rehearsed as training runs them, forward on the
    way down, forward and backward on the way up, the next one gathered and the last one reduced meanwhile; and then
    again without collectives. What the process took longer, in CPU seconds of all its threads, is the cost of the bytes
    that `handled_fraction` counts. Samples are few and short: more compute would only bring more noise. Embedding and
    head move without compute; with them come the small sums over ranks that every step has. What starting a collective
    costs is spread over the bytes of this model's units.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.network import handled_fraction
from cephalo_cli.layout import shard_ranges
from cephalo_cli.profiler.measure_timing import largest_of_ranks
from cephalo_cli.profiler.measure_units import UnitRunner
from cephalo_cli.runtime.collectives import BufferLayout, Pending, ShardedCollectives
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import model_units

__all__ = ["Moving", "measure_moving"]

ENDS: tuple[UnitKind, ...] = ("embedding", "head")
MOST_BLOCKS = 4
MOST_TOKENS = 64
"""Of the one sample that is computed beside the collectives."""
FEWEST_REHEARSALS = 3
MOST_REHEARSALS = 25
"""With and without collectives each; another one before them warms up."""


@dataclass(frozen=True, kw_only=True)
class Moving:
    """What collectives cost this rank's CPU."""

    cpu_s_per_byte: float = 0.0
    """CPU seconds for a byte it handles."""
    issue_part: float = 0.0
    """Part of them that the computing thread spends on issuing collectives."""
    slowing_s_per_byte: float = 0.0
    """Seconds on the wall for a byte by which compute took longer."""

    def stall_part(self, speed: float) -> float:
        """Part that is neither issuing nor slows compute, on a device of so many CPUs."""
        if self.cpu_s_per_byte == 0:
            return 0.0
        return max(0.0, 1.0 - self.issue_part - min(1.0, self.slowing_s_per_byte * speed / self.cpu_s_per_byte))


def measure_moving(
    context: ProcessContext,
    model: Model,
    seq_len: int,
    dtype: DType,
    shares: Sequence[float],
    *,
    most_elements: int,
    most_bytes: int | None,
    max_seconds: float,
) -> Moving:
    """Measure CPU seconds for a byte that this process handles in collectives; a collective over all ranks.

    Args:
        context: This rank; its device is a CPU.
        model: The model, whose blocks are rehearsed.
        seq_len: Tokens of one sample.
        dtype: Compute dtype; gradients are reduced in at least float32.
        shares: State shares to rehearse with.
        most_elements: Embedding and head are not taken to be larger.
        most_bytes: What the shards of blocks may take on this rank, beside two whole blocks; None for no limit.
        max_seconds: Time limit for all but the fewest rehearsals.
    """
    rehearsal = _Rehearsal(
        context, model, min(seq_len, MOST_TOKENS), dtype, shares, most_elements=most_elements, most_bytes=most_bytes
    )
    for moves in (True, False):
        rehearsal.run_blocks(moves=moves)
    rehearsal.run_ends()
    begin = time.perf_counter()
    blocks_s: list[float] = []
    issue_s: list[float] = []
    slower_s: list[float] = []
    ends_s: list[float] = []
    while len(ends_s) < MOST_REHEARSALS:
        with_moves = rehearsal.run_blocks(moves=True)
        issue_s.append(rehearsal.issue_s)
        slow_s = rehearsal.compute_s
        without = rehearsal.run_blocks(moves=False)
        slower_s.append(slow_s - rehearsal.compute_s)
        blocks_s.append(with_moves - without)
        ends_s.append(rehearsal.run_ends())
        spent = time.perf_counter() - begin
        if len(ends_s) >= FEWEST_REHEARSALS and largest_of_ranks(context, spent + spent / len(ends_s)) > max_seconds:
            break
    rehearsal.close()
    moved_s = max(0.0, median(blocks_s))
    step_s = moved_s * model.num_layers / rehearsal.num_blocks + median(ends_s)
    return Moving(
        cpu_s_per_byte=step_s / rehearsal.handled_bytes,
        issue_part=min(1.0, median(issue_s) / moved_s) if moved_s > 0 else 0.0,
        slowing_s_per_byte=max(0.0, median(slower_s))
        * model.num_layers
        / rehearsal.num_blocks
        / rehearsal.handled_bytes,
    )


class _Rehearsal:
    """Some blocks over one set of shares, of which two are whole at a time, and the embedding and the head."""

    def __init__(
        self,
        context: ProcessContext,
        model: Model,
        num_tokens: int,
        dtype: DType,
        shares: Sequence[float],
        *,
        most_elements: int,
        most_bytes: int | None,
    ) -> None:
        compute: torch.dtype = getattr(torch, dtype)
        state = torch.promote_types(compute, torch.float32)
        self._group, self._compute = context.process_group, context.compute
        self._runners = [UnitRunner(model, "block", compute, context.device) for _ in range(2)]
        self._samples = [runner.inputs(1, num_tokens) for runner in self._runners]
        sizes: dict[str, int] = {"block": len(self._runners[0].flat), _grad("block"): len(self._runners[0].flat_grad)}
        for unit in model_units(model):
            if unit.kind != "block":
                sizes[unit.kind] = min(unit.num_parameters, most_elements)
                sizes[_grad(unit.kind)] = min(unit.num_trained, most_elements)
        self._layouts = {
            name: BufferLayout(ranges=shard_ranges(size, shares), gather_dtype=compute, reduce_dtype=state)
            for name, size in sizes.items()
        }
        self._own = {name: layout.ranges[context.rank] for name, layout in self._layouts.items()}
        self._moves = ShardedCollectives(context.process_group, context.device, self._layouts)
        num_blocks = min(MOST_BLOCKS, model.num_layers)
        shard_bytes = (len(self._own["block"]) + len(self._own[_grad("block")])) * state.itemsize
        if most_bytes is not None and shard_bytes:
            num_blocks = max(1, min(num_blocks, most_bytes // shard_bytes))
        self.num_blocks = -int(largest_of_ranks(context, -float(num_blocks)))
        blocks = range(self.num_blocks)
        self._shards = {
            name: [torch.zeros(len(own), dtype=state) for _ in (blocks if name in ("block", _grad("block")) else (0,))]
            for name, own in self._own.items()
        }
        num_bytes = model.num_layers * (2 * sizes["block"] * compute.itemsize + sizes[_grad("block")] * state.itemsize)
        num_bytes += sum(sizes[kind] * compute.itemsize + sizes[_grad(kind)] * state.itemsize for kind in ENDS)
        self.handled_bytes = num_bytes * handled_fraction("direct", context.world_size, shares[context.rank])
        """Bytes this rank handles in a step of the whole model."""
        self.issue_s = 0.0
        """CPU seconds of the computing thread for issuing in the last run."""
        self.compute_s = 0.0
        """Seconds on the wall in compute in the last run."""

    def run_blocks(self, *, moves: bool) -> float:
        """Go down and up through the blocks once; gives the CPU seconds of this process."""
        dist.barrier(self._group)
        start = time.process_time()
        self.issue_s = self.compute_s = 0.0
        order = [*range(self.num_blocks), *reversed(range(self.num_blocks))]
        gathering = self._gather_block(order[0], 0) if moves else None
        reducing: Pending | None = None
        for position, block in enumerate(order):
            arriving, gathering = gathering, None
            if moves and position + 1 < len(order):
                gathering = self._gather_block(order[position + 1], position + 1)
            if arriving is not None:
                arriving.wait()
            if position < self.num_blocks:
                self._forward(position % 2)
                continue
            grad = self._runners[position % 2].flat_grad
            if moves:
                grad.zero_()
            self._backward(position % 2)
            if reducing is not None:
                reducing.wait()
            if moves:
                issued = time.thread_time()
                reducing = self._moves.reduce_scatter(_grad("block"), grad, self._shards[_grad("block")][block])
                self.issue_s += time.thread_time() - issued
        if reducing is not None:
            reducing.wait()
        return time.process_time() - start

    def run_ends(self) -> float:
        """Gather and reduce what is no block, and sum a few numbers twice; gives the CPU seconds of this process."""
        dist.barrier(self._group)
        start = time.process_time()
        for kind in ENDS:
            layout = self._layouts[kind]
            whole = torch.empty(layout.num_elements, dtype=layout.gather_dtype)
            self._gather(kind, whole, self._shards[kind][0]).wait()
            name = _grad(kind)
            whole_grad = torch.zeros(self._layouts[name].num_elements, dtype=layout.reduce_dtype)
            self._moves.reduce_scatter(name, whole_grad, self._shards[name][0]).wait()
            dist.all_reduce(torch.zeros(3, dtype=torch.float64), group=self._group)
        return time.process_time() - start

    def close(self) -> None:
        """End the reduction thread."""
        self._moves.close()

    def _gather_block(self, block: int, position: int) -> Pending:
        start = time.thread_time()
        pending = self._gather("block", self._runners[position % 2].flat, self._shards["block"][block])
        self.issue_s += time.thread_time() - start
        return pending

    @torch.no_grad()
    def _gather(self, kind: UnitKind, whole: torch.Tensor, shard: torch.Tensor) -> Pending:
        own = self._own[kind]
        whole[own.start : own.stop].copy_(shard)
        return self._moves.all_gather(kind, whole)

    @torch.no_grad()
    def _forward(self, index: int) -> None:
        start = time.perf_counter()
        with self._compute():
            self._runners[index].module(*self._samples[index][0])
        self.compute_s += time.perf_counter() - start

    def _backward(self, index: int) -> None:
        runner, (arguments, gradient) = self._runners[index], self._samples[index]
        start = time.perf_counter()
        with self._compute():
            torch.autograd.backward((runner.module(*arguments),), (gradient,))
            runner.fold_gradients()
            arguments[0].grad = None
        self.compute_s += time.perf_counter() - start


def _grad(kind: UnitKind) -> str:
    """Name of the buffer that holds the gradient of what is trained in a unit."""
    return f"{kind} gradient"
