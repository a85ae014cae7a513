"""State shares to exact element ranges: which part of a unit's flat buffer each rank stores.

Every buffer (trainable or frozen parameters of one unit, flattened and concatenated) is cut into one contiguous range a
rank, in rank order, so that gathers and reductions need no packing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Range", "shard_ranges"]


@dataclass(frozen=True, slots=True)
class Range:
    """Elements ``start`` (included) to ``stop`` (excluded) of a flat buffer."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def shard_ranges(num_elements: int, shares: Sequence[float]) -> tuple[Range, ...]:
    """Cut a flat buffer of ``num_elements`` into one range a rank.

    Rank i ends at element ``round(num_elements * (share_0 + ... + share_i))``. The ranges partition the buffer exactly,
    and a rank with share 0 stores nothing, whatever the rounding of the sums.

    Args:
        num_elements: Length of the buffer.
        shares: Fraction of each rank; they sum to 1.

    Raises:
        ValueError: A share is negative or not finite, or none is positive.
    """
    total = math.fsum(shares)
    if any(share < 0 for share in shares) or not 0 < total < math.inf:
        raise ValueError(f"shares must be at least 0 and sum to 1, found {list(shares)}")
    last_owner = max(rank for rank, share in enumerate(shares) if share > 0)
    ranges: list[Range] = []
    start, below = 0, 0.0
    for rank, share in enumerate(shares):
        below += share
        stop = num_elements
        if rank != last_owner:
            stop = min(max(start, math.floor(num_elements * (below / total) + 0.5)), num_elements)
        ranges.append(Range(start, stop))
        start = stop
    return tuple(ranges)
