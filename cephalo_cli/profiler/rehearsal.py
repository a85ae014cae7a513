"""Blocks gathered, computed and reduced as in a step, for measuring what moving bytes costs. See `measure_moving`."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.costmodel.network import handled_fraction
from cephalo_cli.layout import shard_ranges
from cephalo_cli.profiler.measure_timing import largest_of_ranks
from cephalo_cli.profiler.unit_runner import UnitRunner
from cephalo_cli.runtime.collectives import BufferLayout, Pending, ShardedCollectives
from cephalo_cli.runtime.heap import HeapRoom, peak_anonymous_bytes
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import model_units

__all__ = ["Rehearsal"]

ENDS: tuple[UnitKind, ...] = ("embedding", "head")
MOST_BLOCKS = 4
MOST_SAMPLES = 16
"""Of a rank whose turn it is."""
MOST_OF_MEMORY = 0.9
"""A rank takes no further sample with which it would occupy more of its device's memory."""


class Rehearsal:
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
        self._num_tokens = num_tokens
        self._samples: list[tuple[tuple[Any, ...], torch.Tensor]] = []
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
        self._most_bytes = int(MOST_OF_MEMORY * (context.device_type.memory_bytes or sys.maxsize))
        self._room = HeapRoom(self._most_bytes)
        self._most_growth_bytes = 0
        self._moves_s = 0.0
        self.issue_s = 0.0
        """CPU seconds of the computing thread for issuing in the last run."""
        self.compute_s = 0.0
        """Seconds on the wall in compute in the last run."""

    def warm_up(self, context: ProcessContext) -> None:
        """Move everything some times, and see how long that takes while nobody computes."""
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            self.run_blocks(moves=True)
            taken.append(largest_of_ranks(context, time.perf_counter() - start))
        self._moves_s = min(taken) / self.num_blocks
        self.run_ends()

    def choose_samples(self, *, is_busy: bool) -> None:
        """Give this rank no samples, or as many as it computes in the time of the collectives alone."""
        self._samples = []
        self._most_growth_bytes = 0
        for num_samples in range(1, MOST_SAMPLES + 1 if is_busy else 1):
            before = peak_anonymous_bytes()
            self._samples = [runner.inputs(num_samples, self._num_tokens) for runner in self._runners]
            self._compute_alone()
            peak = peak_anonymous_bytes()
            self._most_growth_bytes = max(self._most_growth_bytes, peak - before)
            if peak + (peak - before) > self._most_bytes:
                break
            if min(self._compute_alone(), self._compute_alone()) > self._moves_s:
                break

    def _compute_alone(self) -> float:
        """Compute forward and backward of one block; gives the seconds on the wall."""
        self.compute_s = 0.0
        self._forward(0)
        self._backward(0, moves=False)
        return self.compute_s

    def run_blocks(self, *, moves: bool) -> float:
        """Go down and up through the blocks once; gives the CPU seconds of this process."""
        self._room.make(self._most_growth_bytes)
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
            self._backward(position % 2, moves=moves)
            if reducing is not None:
                reducing.wait()
            if moves:
                issued = time.thread_time()
                grad = self._runners[position % 2].flat_grad
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
        whole = self._runners[position % 2].flat
        _place_anew(whole)
        pending = self._gather("block", whole, self._shards["block"][block])
        self.issue_s += time.thread_time() - start
        return pending

    @torch.no_grad()
    def _gather(self, kind: UnitKind, whole: torch.Tensor, shard: torch.Tensor) -> Pending:
        own = self._own[kind]
        whole[own.start : own.stop].copy_(shard)
        return self._moves.all_gather(kind, whole)

    @torch.no_grad()
    def _forward(self, index: int) -> None:
        if not self._samples:
            return
        start = time.perf_counter()
        with self._compute():
            self._runners[index].module(*self._samples[index][0])
        self.compute_s += time.perf_counter() - start

    def _backward(self, index: int, *, moves: bool) -> None:
        """Run forward and backward; a gradient that is to be reduced is cleared first, also where nothing is added."""
        runner = self._runners[index]
        start = time.perf_counter()
        with self._compute():
            if moves:
                _place_anew(runner.flat_grad)
                runner.flat_grad.zero_()
            if not self._samples:
                return
            arguments, gradient = self._samples[index]
            torch.autograd.backward((runner.module(*arguments),), (gradient,))
            runner.fold_gradients()
            arguments[0].grad = None
        self.compute_s += time.perf_counter() - start


def _place_anew(tensor: torch.Tensor) -> None:
    """Give a tensor's storage back and take memory for it again, as between two uses of a unit."""
    storage = tensor.untyped_storage()
    num_bytes = storage.nbytes()
    storage.resize_(0)
    storage.resize_(num_bytes)


def _grad(kind: UnitKind) -> str:
    """Name of the buffer that holds the gradient of what is trained in a unit."""
    return f"{kind} gradient"
