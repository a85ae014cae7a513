"""Parameters of a unit that are not trained: a flat buffer of their own, gathered with the unit and never reduced.

They have no gradient and no moments, so a rank keeps 4 bytes of each parameter of its shard (float32), or 2 where the
model says that they are stored in 16 bits, and weight decay cannot touch them.
"""

from collections.abc import Sequence

import torch
from torch import nn

from cephalo_cli.executor.flat import FlatLayout, place_parameters
from cephalo_cli.layout import Range
from cephalo_cli.runtime.collectives import Pending, ShardedCollectives

__all__ = ["FrozenPart"]


class FrozenPart:
    """One unit's frozen parameters on one rank: the shard it keeps, and the whole of them while they are needed.

    Args:
        name: The buffer's name in collectives.
        module: The unit's module; its frozen parameters become views of the buffer.
        layout: Where every frozen parameter lies.
        ranges: Each rank's range.
        rank: This rank.
        keeps_all: Whether this rank has the whole buffer at all times.
        dtypes: Compute dtype, and the dtype of what the rank keeps.
        device: Where it lives.
    """

    def __init__(
        self,
        *,
        name: str,
        module: nn.Module,
        layout: FlatLayout,
        ranges: Sequence[Range],
        rank: int,
        keeps_all: bool,
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
    ) -> None:
        compute, stored = dtypes
        self.name, self.layout = name, layout
        self.own = Range(0, layout.num_elements) if keeps_all else ranges[rank]
        self._keeps_all = keeps_all
        self._pending: Pending | None = None
        self.master = torch.zeros(len(self.own), dtype=stored, device=device)
        self._is_alias = keeps_all and compute == stored
        self.full = self.master if self._is_alias else torch.empty(layout.num_elements, dtype=compute, device=device)
        self.whole_bytes = self.full.untyped_storage().nbytes()
        place_parameters(module, layout, self.full, trained=False)
        if not keeps_all:
            self._empty()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring a copy that is always whole up to date with the master weights."""
        if self._keeps_all and not self._is_alias:
            self.full.data.copy_(self.master)

    @torch.no_grad()
    def unshard(self, collectives: ShardedCollectives) -> None:
        """Start gathering the whole."""
        if self._keeps_all:
            return
        self.full.untyped_storage().resize_(self.whole_bytes)
        self.full.data[self.own.start : self.own.stop].copy_(self.master)
        self._pending = collectives.all_gather(self.name, self.full.data)

    def wait_whole(self) -> None:
        """Wait until it is whole."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def reshard(self) -> None:
        """Free the whole."""
        if not self._keeps_all:
            self._empty()

    def _empty(self) -> None:
        self.full.untyped_storage().resize_(0)
