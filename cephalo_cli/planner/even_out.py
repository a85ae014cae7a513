"""A batch split so that the slowest rank is as quick as can be, where nothing else ties the ranks together."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cephalo_cli.planner.arrays import Floats

__all__ = ["EvenedOut", "even_out"]

MOST_WORK = 5e7
"""Words of bit sets that are worth looking at where numbers of samples have gaps."""

Samples = list[list[int]]
"""Samples of the ranks of every group."""


@dataclass(frozen=True, kw_only=True)
class EvenedOut:
    """A split of a batch."""

    least_s: float
    """No split is quicker than this."""
    limit_s: float
    """The slowest rank takes this; infinite where no split was found."""
    samples: tuple[tuple[int, ...], ...]
    """Samples of the ranks of every group, the most first."""


def even_out(costs: Sequence[Floats], counts: Sequence[int], batch_size: int) -> EvenedOut | None:
    """Find the least limit under which ranks can take a batch, by bisection over all costs there are.

    Args:
        costs: For every group, seconds of a rank by samples from 0 on; infinite where it cannot take so many.
        counts: Ranks of every group.
        batch_size: What they take together.

    Returns:
        The split; None where there is none. Its ``least_s`` is below its ``limit_s`` only where the numbers of samples
        that a limit allows have gaps and there is too much to look at.
    """
    limits = np.unique(np.concatenate(costs))
    limits = limits[np.isfinite(limits)]

    def reaches(limit_s: float) -> bool:
        allowed = [np.flatnonzero(cost <= limit_s) for cost in costs]
        if not all(len(samples) for samples in allowed):
            return False
        return sum(int(samples[-1]) * count for samples, count in zip(allowed, counts, strict=True)) >= batch_size

    def splits(limit_s: float) -> bool:
        return _split(costs, counts, batch_size, limit_s) is not None

    least = _first(limits, reaches)
    if least is None:
        return None
    found = _first(limits[least:], splits)
    if found is None:
        lost = sum(counts) * batch_size * batch_size / 64 > MOST_WORK
        return EvenedOut(least_s=float(limits[least]), limit_s=math.inf, samples=()) if lost else None
    limit_s = float(limits[least + found])
    samples = _split(costs, counts, batch_size, limit_s)
    if samples is None:
        raise AssertionError("a split that was found is found again")
    complete = _work(costs, counts, batch_size) <= MOST_WORK
    return EvenedOut(
        least_s=limit_s if complete else float(limits[least]),
        limit_s=limit_s,
        samples=tuple(tuple(sorted(members, reverse=True)) for members in samples),
    )


def _first(limits: Floats, holds: Callable[[float], bool]) -> int | None:
    """Index of the first limit for which something holds that holds from some limit on; None where it never does."""
    if not len(limits) or not holds(float(limits[-1])):
        return None
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(float(limits[middle])) else (middle + 1, high)
    return low


def _split(costs: Sequence[Floats], counts: Sequence[int], batch_size: int, limit_s: float) -> Samples | None:
    """Samples under a limit that add up to the batch; None where there are none, or too much to look at."""
    most = [int(np.argmin(np.append(cost <= limit_s, False))) - 1 for cost in costs]
    if min(most) >= 0 and sum(count * samples for count, samples in zip(counts, most, strict=True)) >= batch_size:
        return _trimmed(costs, [[samples] * count for count, samples in zip(counts, most, strict=True)], batch_size)
    if _work(costs, counts, batch_size) > MOST_WORK:
        return None
    return _exact(costs, counts, batch_size, limit_s)


def _work(costs: Sequence[Floats], counts: Sequence[int], batch_size: int) -> float:
    """Words of bit sets that `_exact` looks at."""
    return sum(len(cost) * count for cost, count in zip(costs, counts, strict=True)) * batch_size / 64


def _trimmed(costs: Sequence[Floats], samples: Samples, batch_size: int) -> Samples:
    """Take what is too much off the ranks that take longest, sample by sample."""
    surplus = sum(map(sum, samples)) - batch_size
    queue = [
        (-float(costs[group][most]), group, rank, most)
        for group, members in enumerate(samples)
        for rank, most in enumerate(members)
        if most
    ]
    heapq.heapify(queue)
    for _ in range(surplus):
        _, group, rank, most = heapq.heappop(queue)
        samples[group][rank] = most - 1
        if most > 1:
            heapq.heappush(queue, (-float(costs[group][most - 1]), group, rank, most - 1))
    return samples


def _exact(costs: Sequence[Floats], counts: Sequence[int], batch_size: int, limit_s: float) -> Samples | None:
    """The same where the numbers that a limit allows have gaps: every sum that ranks can make, as bits of a number."""
    allowed = [np.flatnonzero(cost[: batch_size + 1] <= limit_s).tolist() for cost in costs]
    ranks = [group for group, count in enumerate(counts) for _ in range(count)]
    within = (1 << (batch_size + 1)) - 1
    sums = [1]
    for group in ranks:
        reached = 0
        for samples in allowed[group]:
            reached |= sums[-1] << samples
        sums.append(reached & within)
    if not sums[-1] >> batch_size & 1:
        return None
    found: Samples = [[] for _ in counts]
    left = batch_size
    for group, before in zip(reversed(ranks), reversed(sums[:-1]), strict=True):
        samples = next(
            samples for samples in reversed(allowed[group]) if samples <= left and before >> (left - samples) & 1
        )
        found[group].append(samples)
        left -= samples
    return found
