"""Gathers and reductions of flat buffers over unequal shards, the same code for every backend.

Note: the direct algorithm
    In a gather every rank sends its shard straight to every other rank; in a reduction every rank sends each owner
    that owner's part of its gradient, and the owner adds what arrives. Both are pairs of point-to-point transfers of
    contiguous ranges, so nothing is padded or packed. On Gloo this is also the fastest way we measured (torch 2.13):

    ==========================================  ========  =========
    12.6 MB over 4 ranks, even shards           ms        CPU ms
    ==========================================  ========  =========
    gather, direct                              8         4
    one ``broadcast`` an owner                  8         4
    ``all_to_all`` of own sizes                 22        6
    padded ``all_gather``                       25        7
    reduction, direct                           16        5
    ``all_reduce`` of the whole                 18        8
    padded ``reduce_scatter``                   43        12
    ==========================================  ========  =========

    With shares of 1 to 4 tenths: gather 7, broadcasts 8, ``all_to_all`` 10, reduction 8 ms. With 2 ranks the order is
    the same; with 0.8 MB direct, broadcasts and ``all_to_all`` are alike (1 to 4 ms) and the padded ones slower. So
    on Gloo there is one way, and nothing to choose.

Note: in flight together
    A gather and a reduction run at the same time, and several gathers may. Transfers between two ranks in one process
    group arrive in the order in which they were started, on Gloo and NCCL alike, and every rank starts the same
    collectives in the same order; so one process group for gathers and one for reductions keeps everything apart.
    Tags would do it on Gloo only.

Note: reductions make progress alone
    A reduction runs in rounds. In a round an owner receives one piece of its range from every other rank into scratch
    memory and adds the pieces in rank order; the next round's transfers are started before. The scratch is allocated
    once and has a fixed size, however large units become. On CPU the rounds run in a thread of their own, which sleeps
    while bytes travel; on accelerators they are queued on a stream of their own. Because the order of summation is
    that of the ranks, whoever owns an element, the sum does not depend on the state shares, to the last bit.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from cephalo_cli.layout import Range
from cephalo_cli.runtime.buffers import BufferLayout, check_agreement, check_partition, check_tensor
from cephalo_cli.runtime.peers import PeerLostError, is_peer_loss

__all__ = [
    "CPU_SCRATCH_BYTES",
    "BufferLayout",
    "CollectiveRecord",
    "Pending",
    "ShardedCollectives",
    "scratch_bytes_limit",
]

CPU_SCRATCH_BYTES = 16 * 2**20
"""Scratch of reductions in host memory; larger pieces are no faster, smaller ones cost latency."""
ACCELERATOR_SCRATCH_BYTES = 256 * 2**20
"""Scratch of reductions on an accelerator, whose links want larger pieces."""
NUM_SLOTS = 2
"""Rounds whose pieces are in scratch at once: one arriving, one being added."""


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """What an observer is told when a collective starts."""

    kind: Literal["all_gather", "reduce_scatter", "all_reduce"]
    name: str
    """The buffer's name."""
    received_bytes: int
    """Bytes this rank receives from others."""


class Pending(Protocol):
    """A collective in flight. Until `wait` returns, its tensors must be neither read, written nor freed."""

    def wait(self) -> None:
        """Return when the result may be used (on an accelerator: by work queued from now on).

        Raises:
            PeerLostError: A transfer failed.
        """


def scratch_bytes_limit(device: torch.device) -> int:
    """Most bytes of scratch that reductions keep on a device."""
    return CPU_SCRATCH_BYTES if device.type == "cpu" else ACCELERATOR_SCRATCH_BYTES


class ShardedCollectives:
    """Gathers and reductions of named flat buffers over one process group.

    Every rank must start the same collectives in the same order. One rank takes the same calls and moves nothing.

    Args:
        process_group: The ranks that share the buffers; its order is that of the ranges. Making the object is itself a
            collective over the group.
        device: Where the buffers live.
        layouts: Every buffer by name, equal on all ranks.
        timeout: How long a transfer may wait for the other side.
        observer: Called with each collective when it starts.
        scratch_bytes: Size of the scratch memory of reductions; `scratch_bytes_limit` when absent. Equal on all ranks.

    Raises:
        ValueError: A layout's ranges do not partition its buffer.
        TrainingError: Ranks disagree about the layouts.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        device: torch.device,
        layouts: Mapping[str, BufferLayout],
        *,
        timeout: timedelta = timedelta(minutes=10),
        observer: Callable[[CollectiveRecord], None] | None = None,
        scratch_bytes: int | None = None,
    ) -> None:
        self.rank = dist.get_rank(process_group)
        self.world_size = dist.get_world_size(process_group)
        self._device = device
        self._layouts = dict(layouts)
        self._observer = observer
        self._scratch_bytes = scratch_bytes or scratch_bytes_limit(device)
        for name, layout in layouts.items():
            check_partition(name, layout, self.world_size)
        check_agreement(process_group, (self._scratch_bytes, self._layouts))
        ranks = dist.get_process_group_ranks(process_group)
        self._gathers = dist.new_group(ranks, timeout=timeout)
        self._reductions = dist.new_group(ranks, timeout=timeout)
        self._scratch = self._allocate_scratch()
        self._thread = ThreadPoolExecutor(1, "cephalo-reduce") if device.type == "cpu" else None
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    def all_gather(self, name: str, full: torch.Tensor) -> Pending:
        """Start gathering a buffer in place.

        Args:
            name: The buffer.
            full: The whole buffer, [N] in the layout's gather dtype; this rank's range is filled in already.

        Raises:
            ValueError: ``full`` does not have the layout's length, dtype or device.
        """
        layout = self._layouts[name]
        check_tensor(f"{name}: gathered buffer", full, layout.num_elements, layout.gather_dtype, self._device)
        own = layout.ranges[self.rank]
        self._observe("all_gather", name, (len(full) - len(own)) * full.element_size())
        transfers = []
        for source, target in self._peers():
            transfers += self._receive(_part(full, layout.ranges[source]), source, self._gathers)
            transfers += self._send(_part(full, own), target, self._gathers)
        return _Transfers(_start(transfers))

    def reduce_scatter(self, name: str, full_grad: torch.Tensor, out_shard: torch.Tensor) -> Pending:
        """Start summing a gradient over ranks into their shards.

        Args:
            name: The buffer.
            full_grad: This rank's gradient of the whole buffer, [N] in the layout's reduce dtype.
            out_shard: Overwritten with the sum over this rank's range, [len(range)], same dtype.

        Raises:
            ValueError: A tensor does not have the layout's length, dtype or device, or the buffer is frozen.
        """
        layout = self._layouts[name]
        if layout.reduce_dtype is None:
            raise ValueError(f"{name}: a frozen buffer has no gradient")
        own = layout.ranges[self.rank]
        check_tensor(f"{name}: gradient", full_grad, layout.num_elements, layout.reduce_dtype, self._device)
        check_tensor(f"{name}: gradient shard", out_shard, len(own), layout.reduce_dtype, self._device)
        self._observe("reduce_scatter", name, (self.world_size - 1) * len(own) * full_grad.element_size())
        return self._in_background(functools.partial(self._reduce, layout, full_grad, out_shard))

    def all_reduce(self, name: str, full_grad: torch.Tensor) -> Pending:
        """Start summing a gradient over ranks into every rank, in place (replicated state).

        Args:
            name: The buffer; its ranges do not matter.
            full_grad: This rank's gradient of the whole buffer, [N] in the layout's reduce dtype.

        Raises:
            ValueError: The gradient does not have the layout's length, dtype or device, or the buffer is frozen.
        """
        layout = self._layouts[name]
        if layout.reduce_dtype is None:
            raise ValueError(f"{name}: a frozen buffer has no gradient")
        check_tensor(f"{name}: gradient", full_grad, layout.num_elements, layout.reduce_dtype, self._device)
        moved = 2 * (self.world_size - 1) * len(full_grad) // self.world_size
        self._observe("all_reduce", name, moved * full_grad.element_size())
        return self._in_background(functools.partial(dist.all_reduce, full_grad, group=self._reductions))

    @property
    def backend(self) -> str:
        """What carries the bytes: gloo, nccl, ..."""
        by_device = (part.split(":") for part in dist.get_backend_config(self._gathers).split(","))
        return dict(by_device)[self._device.type]

    def close(self) -> None:
        """End the reduction thread; collectives in flight are finished first."""
        if self._thread is not None:
            self._thread.shutdown()

    def _observe(self, kind: Literal["all_gather", "reduce_scatter", "all_reduce"], name: str, num_bytes: int) -> None:
        if self._observer is not None:
            self._observer(CollectiveRecord(kind=kind, name=name, received_bytes=num_bytes))

    def _peers(self) -> Iterator[tuple[int, int]]:
        """Where to receive from and where to send to, shifted by rank so that no rank is everyone's first target."""
        for shift in range(1, self.world_size):
            yield (self.rank - shift) % self.world_size, (self.rank + shift) % self.world_size

    def _receive(self, tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> list[dist.P2POp]:
        return [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer)] if len(tensor) else []

    def _send(self, tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> list[dist.P2POp]:
        return [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer)] if len(tensor) else []

    def _in_background(self, work: Callable[[], object]) -> Pending:
        if self._thread is not None:
            return _Background(self._thread.submit(work))
        if self._stream is None:
            raise AssertionError("an accelerator has a stream")
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            work()
            return _Queued(self._stream.record_event())

    def _allocate_scratch(self) -> torch.Tensor:
        """Scratch bytes, no more than the largest reduction of this rank can fill."""
        most = 0
        for layout in self._layouts.values():
            if layout.reduce_dtype is not None:
                own = len(layout.ranges[self.rank])
                rounds = min(NUM_SLOTS, -(-own // self._piece(layout.reduce_dtype)))
                most = max(most, rounds * min(own, self._piece(layout.reduce_dtype)) * layout.reduce_dtype.itemsize)
        return torch.empty(most * (self.world_size - 1), dtype=torch.uint8, device=self._device)

    def _piece(self, dtype: torch.dtype) -> int:
        """Elements of one rank's range that travel in one round."""
        num_others = max(1, self.world_size - 1)
        return max(1, self._scratch_bytes // (NUM_SLOTS * num_others * dtype.itemsize))

    @torch.no_grad()
    def _reduce(self, layout: BufferLayout, full_grad: torch.Tensor, out_shard: torch.Tensor) -> None:
        piece = self._piece(full_grad.dtype)
        num_rounds = -(-max(len(part) for part in layout.ranges) // piece)
        own = layout.ranges[self.rank]
        slot_length = min(piece, len(own)) * (self.world_size - 1)
        scratch = self._scratch[: len(self._scratch) // full_grad.itemsize * full_grad.itemsize].view(full_grad.dtype)

        def start(round_: int) -> tuple[Pending, list[torch.Tensor]]:
            """Start a round's transfers; also give this rank's piece of every rank's gradient, in rank order."""
            mine = _nth_piece(own, round_, piece)
            slot = scratch[(round_ % NUM_SLOTS) * slot_length :]
            terms = [slot[:0]] * self.world_size
            terms[self.rank] = _part(full_grad, mine)
            transfers = []
            for position, (source, target) in enumerate(self._peers()):
                terms[source] = slot[position * len(mine) : (position + 1) * len(mine)]
                transfers += self._receive(terms[source], source, self._reductions)
                theirs = _nth_piece(layout.ranges[target], round_, piece)
                transfers += self._send(_part(full_grad, theirs), target, self._reductions)
            return _Transfers(_start(transfers)), terms

        arriving = start(0) if num_rounds else None
        for round_ in range(num_rounds):
            if arriving is None:
                raise AssertionError("a round was waited for before it was started")
            transfers, terms = arriving
            arriving = start(round_ + 1) if round_ + 1 < num_rounds else None
            transfers.wait()
            if len(terms[0]):
                total = out_shard[round_ * piece : round_ * piece + len(terms[0])]
                summed = terms[0]
                for term in terms[1:]:
                    summed = torch.add(summed, term, out=total)
                if self.world_size == 1:
                    total.copy_(summed)


class _Transfers:
    """Point-to-point transfers that have been started."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        with _peer_errors():
            for work in self._works:
                work.wait()


class _Background:
    """Work in the reduction thread."""

    def __init__(self, future: Future[object]) -> None:
        self._future = future

    def wait(self) -> None:
        with _peer_errors():
            self._future.result()


class _Queued:
    """Work queued on the reduction stream."""

    def __init__(self, done: torch.Event) -> None:
        self._done = done

    def wait(self) -> None:
        torch.accelerator.current_stream().wait_event(self._done)


def _start(transfers: list[dist.P2POp]) -> Sequence[dist.Work]:
    with _peer_errors():
        return dist.batch_isend_irecv(transfers) if transfers else ()


@contextlib.contextmanager
def _peer_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_peer_loss(error):
            raise
        raise PeerLostError(f"a transfer between ranks failed: {error}") from error


def _part(flat: torch.Tensor, part: Range) -> torch.Tensor:
    return flat[part.start : part.stop]


def _nth_piece(part: Range, index: int, length: int) -> Range:
    """Piece ``index`` of a range cut into pieces of ``length``; empty beyond its end."""
    start = min(part.start + index * length, part.stop)
    return Range(start, min(start + length, part.stop))
