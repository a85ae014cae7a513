"""Small things that ranks tell one another: numbers to add up, values to compare, decisions of rank 0.

A call that fails here almost always failed because another rank ended; that rank's own error is the one to look at.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from cephalo_cli.runtime.peers import PeerLostError

__all__ = ["broadcast_value", "gather_values", "reaching_peers", "sum_over_ranks"]

T = TypeVar("T")


@contextlib.contextmanager
def reaching_peers() -> Iterator[None]:
    """Run collectives of torch's own.

    Raises:
        PeerLostError: One failed.
    """
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"another rank cannot be reached: {error}") from error


def sum_over_ranks(values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum a few numbers over all ranks, in float64 and through the host: any device will do."""
    total = values.detach().to("cpu", torch.float64)
    if dist.get_world_size(group) > 1:
        with reaching_peers():
            dist.all_reduce(total, group=group)
    return total


def gather_values(value: T, group: dist.ProcessGroup) -> list[T]:
    """Give every rank every rank's value, in rank order."""
    values = [value] * dist.get_world_size(group)
    with reaching_peers():
        dist.all_gather_object(values, value, group=group)
    return values


def broadcast_value(value: T, group: dist.ProcessGroup) -> T:
    """Give every rank the value of rank 0."""
    values = [value]
    with reaching_peers():
        dist.broadcast_object_list(values, group_src=0, group=group)
    return values[0]
