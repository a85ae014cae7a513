"""Whole samples: in proportion to weights, and in equal microbatches."""

import math
from collections.abc import Sequence

__all__ = ["largest_remainder", "uniform_sizes"]


def uniform_sizes(samples: int, size: int) -> tuple[int, ...]:
    """Equal microbatches and a smaller last one."""
    whole, rest = divmod(samples, size)
    return (size,) * whole + ((rest,) if rest else ())


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Split a whole number in proportion to weights; what rounding leaves goes to the largest remainders."""
    scale = total / math.fsum(weights)
    parts = [math.floor(weight * scale) for weight in weights]
    order = sorted(range(len(parts)), key=lambda index: (parts[index] - weights[index] * scale, index))
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts
