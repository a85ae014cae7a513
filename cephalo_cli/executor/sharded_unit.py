"""One unit on one rank: the shard it keeps, the whole unit while it is needed, and its gradient.

Note: one storage, emptied and refilled
    The whole unit is one flat buffer in the compute dtype; the module's parameters are views of it. Resharding shrinks
    the buffer's *storage* to nothing, unsharding gives it memory again and fills it in place. So the tensors that
    autograd saved in a forward without recompute are valid once more in the backward, as in PyTorch's FSDP2. Fills go
    through ``.data``, whose version counter is its own: autograd must not think that the weights changed.

Note: gradients
    The full gradient exists from the unit's first backward to the end of its reduction. It is allocated zeroed for
    each use: the allocator hands the same memory out again, and no buffer stays around that only the largest unit
    needs. In float32 and float64 the parameters' ``.grad`` are views of it, so autograd accumulates microbatches in
    place. In lower precision each microbatch's gradients are added to it: the sum is float32 whatever computes.

Note: the shard's gradient
    It is there all the time, or, where each unit is updated as soon as its gradient is reduced, from the start of the
    reduction (on a rank that keeps everything: from the first backward) until the update.

Note: a rank that keeps everything
    One rank alone, or any rank of a replicated plan, needs no second copy: where the dtypes agree the whole unit *is*
    the shard, and the full gradient is the shard's gradient.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from cephalo_cli.artifacts.model import Model
from cephalo_cli.executor.flat import FlatLayout, flat_layout, place_parameters
from cephalo_cli.executor.frozen import FrozenPart
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.layout import Range
from cephalo_cli.models import build_unit, starting_unit
from cephalo_cli.runtime.collectives import Pending, ShardedCollectives
from cephalo_cli.units import Unit, is_frozen

__all__ = ["Dtypes", "ShardedUnit", "dtypes_of"]


class Dtypes:
    """Dtypes in force: compute (parameters as gathered, activations) and state (master, gradient, moments)."""

    def __init__(self, compute: torch.dtype) -> None:
        self.compute = compute
        self.state = torch.promote_types(compute, torch.float32)


def dtypes_of(name: str) -> Dtypes:
    """Dtypes of a plan's ``dtype``."""
    return Dtypes(cast("torch.dtype", getattr(torch, name)))


def _stored_dtype(model: Model, dtypes: Dtypes) -> torch.dtype:
    """Dtype in which parameters are kept that are not trained."""
    return dtypes.state if model.frozen_dtype is None else dtypes_of(model.frozen_dtype).compute


class ShardedUnit:
    """A unit's module, its shard, and the whole of it while it is needed.

    Args:
        unit: Which unit.
        model: The model.
        ranges: Each rank's range of the flat buffer.
        rank: This rank.
        replicated: Whether every rank keeps everything (``ranges`` only cut the reduction's work).
        dtypes: Compute and state dtype.
        device: Where everything lives.
        frozen_ranges: Each rank's range of the frozen parameters' flat buffer, where there are any.
        keeps_gradient: Whether the shard's gradient is there all the time.
    """

    def __init__(
        self,
        *,
        unit: Unit,
        model: Model,
        ranges: Sequence[Range],
        rank: int,
        replicated: bool,
        dtypes: Dtypes,
        device: torch.device,
        frozen_ranges: Sequence[Range] = (),
        keeps_gradient: bool = True,
    ) -> None:
        self.unit = unit
        self._model = model
        with torch.device("meta"):
            self.module: nn.Module = build_unit(model, unit.kind, unit.index)
        self.layout: FlatLayout = flat_layout(self.module, self._is_trained)
        size = self.layout.num_elements
        if size != unit.num_parameters - unit.num_frozen:
            raise AssertionError(f"{unit.name} has {size} parameters, not {unit.num_parameters - unit.num_frozen}")
        self.own = Range(0, size) if replicated else ranges[rank]
        self._replicated = replicated
        self._keeps_all = replicated or len(ranges) == 1
        self._dtypes = dtypes
        self._pending: Pending | None = None
        self.master = torch.zeros(len(self.own), dtype=dtypes.state, device=device)
        self._keeps_gradient = keeps_gradient
        self._grad = torch.zeros_like(self.master) if keeps_gradient else None
        self.full_grad: torch.Tensor | None = None
        self._is_alias = len(self.own) == size and dtypes.compute == dtypes.state
        self._full = self.master if self._is_alias else torch.empty(size, dtype=dtypes.compute, device=device)
        self._num_bytes = self._full.untyped_storage().nbytes()
        place_parameters(self.module, self.layout, self._full)
        self.frozen: FrozenPart | None = None
        if unit.num_frozen:
            self.frozen = FrozenPart(
                name=f"{unit.name}.frozen",
                module=self.module,
                layout=flat_layout(self.module, lambda name: not self._is_trained(name)),
                ranges=frozen_ranges,
                rank=rank,
                keeps_all=self._keeps_all,
                dtypes=(dtypes.compute, _stored_dtype(model, dtypes)),
                device=device,
            )
        self.parameters = dict(self.module.named_parameters())
        if not self._keeps_all:
            self._empty()

    @property
    def grad(self) -> torch.Tensor:
        """The shard's gradient, made when it is not there."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.master)
        return self._grad

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole unit, as gathered."""
        return self._num_bytes + (0 if self.frozen is None else self.frozen.whole_bytes)

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the whole gradient takes when it is made; where it is the shard's, that may be there already."""
        is_there = self._keeps_all and self._grad is not None
        return 0 if is_there else self.layout.num_elements * self.master.itemsize

    @torch.no_grad()
    def initialise(self, seed: int, pretrained: Pretrained | None = None) -> None:
        """Fill the shard, parameter by parameter; the unit is never whole here.

        Args:
            seed: What starting weights are drawn from.
            pretrained: Where weights are read instead; what it does not have, adapters, is drawn.
        """
        parts = [(self.layout, self.own, self.master)]
        if self.frozen is not None:
            parts.append((self.frozen.layout, self.frozen.own, self.frozen.master))
        values_of: Callable[[str, Sequence[int]], torch.Tensor] | None = None
        for layout, own, master in parts:
            for slot in layout.slots:
                start, stop = max(slot.start, own.start), min(slot.stop, own.stop)
                if start < stop and pretrained is not None and pretrained.has(self.unit.name, slot.name):
                    piece = master[start - own.start : stop - own.start]
                    pretrained.fill(self.unit.name, slot.name, start - slot.start, piece)
                elif start < stop:
                    values_of = values_of or starting_unit(self._model, self.unit.index, seed)
                    values = values_of(slot.name, slot.shape).flatten()
                    piece = values if len(values) == 1 else values[start - slot.start : stop - slot.start]
                    master[start - own.start : stop - own.start] = piece.to(master.device)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring a copy that is always whole up to date with the master weights."""
        if self._keeps_all and not self._is_alias:
            self._full.data.copy_(self.master)
        if self.frozen is not None:
            self.frozen.refresh()

    @torch.no_grad()
    def unshard(self, collectives: ShardedCollectives) -> None:
        """Start gathering the whole unit."""
        if self._keeps_all:
            return
        if not self._is_alias:
            self._full.untyped_storage().resize_(self._num_bytes)
            self._full.data[self.own.start : self.own.stop].copy_(self.master)
        self._pending = collectives.all_gather(self.unit.name, self._full.data)
        if self.frozen is not None:
            self.frozen.unshard(collectives)

    def wait_whole(self) -> bool:
        """Wait until the unit is whole; False when there was nothing to wait for."""
        if self._pending is None:
            return False
        self._pending.wait()
        self._pending = None
        if self.frozen is not None:
            self.frozen.wait_whole()
        return True

    def reshard(self) -> None:
        """Free the whole unit."""
        self.wait_whole()
        if not self._keeps_all:
            self._empty()
            if self.frozen is not None:
                self.frozen.reshard()

    def hold_gradient(self) -> None:
        """Make the full gradient, all zeros, unless it exists."""
        if self.full_grad is not None:
            return
        if self._keeps_all:
            self.full_grad = self.grad.zero_()
        else:
            self.full_grad = torch.zeros(self.layout.num_elements, dtype=self.master.dtype, device=self.master.device)
        if self._dtypes.compute == self._dtypes.state:
            for slot in self.layout.slots:
                self.parameters[slot.name].grad = slot.view(self.full_grad)

    @torch.no_grad()
    def fold_gradient(self) -> None:
        """Add what one microbatch left in low precision to the full gradient."""
        if self._dtypes.compute == self._dtypes.state or self.full_grad is None:
            return
        for slot in self.layout.slots:
            parameter = self.parameters[slot.name]
            if parameter.grad is not None:
                slot.view(self.full_grad).add_(parameter.grad)
                parameter.grad = None

    def reduce(self, collectives: ShardedCollectives) -> Pending | None:
        """Start summing the gradient over ranks into ``grad``; None when this rank is alone.

        A rank that ran nothing takes part with zeros. The full gradient must be let go of after waiting, with
        `release_gradient`.
        """
        self.hold_gradient()
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.full_grad is None:
            raise AssertionError("a held gradient exists")
        if collectives.world_size == 1:
            return None
        if self._replicated:
            return collectives.all_reduce(self.unit.name, self.full_grad)
        return collectives.reduce_scatter(self.unit.name, self.full_grad, self.grad)

    def release_gradient(self) -> None:
        """Free the full gradient."""
        self.full_grad = None

    def release_shard_gradient(self) -> None:
        """Free the shard's gradient, unless it is there all the time."""
        if not self._keeps_gradient:
            self._grad = None

    def _is_trained(self, name: str) -> bool:
        return not is_frozen(self._model, f"{self.unit.name}.{name}")

    def _empty(self) -> None:
        if not self._is_alias:
            self._full.untyped_storage().resize_(0)
