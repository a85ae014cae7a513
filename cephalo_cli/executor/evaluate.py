"""The loss on data that is not trained on: a forward through the units, layer by layer, that keeps nothing.

Every rank gathers each unit once, whatever its microbatches, so no rank can wait for one whose data ran dry.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from cephalo_cli.executor.data import Microbatch
from cephalo_cli.executor.sharded_unit import ShardedUnit
from cephalo_cli.runtime.collectives import ShardedCollectives

__all__ = ["sum_losses"]


@torch.no_grad()
def sum_losses(
    units: Sequence[ShardedUnit],
    collectives: ShardedCollectives,
    batch: Sequence[Microbatch],
    *,
    offload: bool,
    throttle: Callable[[], AbstractContextManager[None]],
) -> float:
    """Sum the token losses of this rank's microbatches, without dropout.

    Args:
        units: All units of the model.
        collectives: Gathers them; every rank calls this at the same time.
        batch: This rank's microbatches, on its device.
        offload: Whether what passes between units waits in host memory, as it does in training.
        throttle: Surrounds every piece of compute (emulated devices).
    """
    boundaries: list[torch.Tensor | None] = [None] * len(batch)
    total = 0.0
    for unit in units:
        borrowed = () if unit.unit.borrows is None else (units[unit.unit.borrows],)
        for needed in (unit, *borrowed):
            needed.unshard(collectives)
        for needed in (unit, *borrowed):
            needed.wait_whole()
        tied = tuple(owner.parameters["matrix"] for owner in borrowed)
        for index, microbatch in enumerate(batch):
            with throttle():
                x_BTD = boundaries[index]
                below = () if x_BTD is None else (x_BTD.to(microbatch.targets.device),)
                output = unit.module(*below, microbatch, *tied)
                if unit.unit.kind == "head":
                    total += float(output)
                else:
                    boundaries[index] = output.cpu() if offload else output
        for needed in (unit, *borrowed):
            needed.reshard()
    return total
