"""Flat buffers as all ranks see them: how they are cut, in which dtypes they travel, and the checks before they do."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from cephalo_cli.errors import TrainingError
from cephalo_cli.layout import Range

__all__ = ["BufferLayout", "check_agreement", "check_partition", "check_tensor"]


@dataclass(frozen=True, kw_only=True)
class BufferLayout:
    """One flat buffer: how it is cut, and the dtypes in which it travels."""

    ranges: tuple[Range, ...]
    """Each rank's range, in rank order; together they are the whole buffer."""
    gather_dtype: torch.dtype
    """Dtype of gathered parameters."""
    reduce_dtype: torch.dtype | None = torch.float32
    """Dtype of summed gradients; None for a frozen buffer, which has none."""

    @property
    def num_elements(self) -> int:
        """Elements of the whole buffer."""
        return self.ranges[-1].stop


Agreed = tuple[int, Mapping[str, BufferLayout]]
"""Scratch bytes and layouts."""


def check_tensor(what: str, tensor: torch.Tensor, length: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a tensor that is not a whole, contiguous buffer of the layout."""
    if tensor.shape != (length,) or tensor.dtype != dtype or tensor.device.type != device.type:
        found = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
        raise ValueError(f"{what} is {found}, expected ({length},) {dtype} on {device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{what} is not contiguous")


def check_partition(name: str, layout: BufferLayout, world_size: int) -> None:
    """Refuse ranges that are not a partition of the buffer, one a rank."""
    if len(layout.ranges) != world_size:
        raise ValueError(f"{name}: {len(layout.ranges)} ranges for {world_size} ranks")
    end = 0
    for part in layout.ranges:
        if part.start != end or part.stop < part.start:
            raise ValueError(f"{name}: range {part.start}:{part.stop} does not continue at element {end}")
        end = part.stop


def check_agreement(group: dist.ProcessGroup, mine: Agreed) -> None:
    """Compare scratch size and layouts with the group's first rank, on every rank.

    Sizes that disagree are not an error to the backends: they hang, or give wrong numbers.

    Raises:
        TrainingError: A rank holds something else; every rank gets the same error.
    """
    first = [mine]
    dist.broadcast_object_list(first, group_src=0, group=group)
    verdicts: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(verdicts, _first_difference(first[0], mine), group=group)
    for rank, verdict in enumerate(verdicts):
        if verdict is not None:
            raise TrainingError(f"rank {rank} and rank 0 disagree about {verdict}")


def _first_difference(theirs: Agreed, mine: Agreed) -> str | None:
    if theirs[0] != mine[0]:
        return "the size of the scratch memory"
    for name in {**theirs[1], **mine[1]}:
        if theirs[1].get(name) != mine[1].get(name):
            return f"buffer {name!r}: {theirs[1].get(name)} and {mine[1].get(name)}"
    return None
