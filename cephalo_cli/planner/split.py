"""Whether the state fits beside a split of the batch: a (max, +) convolution over ranks, decided by duality first.

    S = max { sum_i value_d(i)(b_i) : sum_i b_i = B },   d(i) the group of rank i, N_d ranks in group d

where ``value_d(b)`` is the largest share a rank of group d can hold beside b samples, minus infinity where it cannot
take b. `find_split` answers whether S reaches what is needed, and with which split:

1. For any price m of a sample, ``D(m) = sum_d N_d max_b (value_d(b) - m b) + m B`` is at least S. The best price is
   found exactly, by intersecting supporting lines. If D falls short, so does S.
2. At the best price some ranks may take fewer or more samples at the same worth. Filling up from the fewer, with one
   rank in between, gives a whole split: if that reaches what is needed, it is the answer.
3. Otherwise only a value within ``D - needed`` of its group's best worth can be part of an answer. What these leave is
   convolved exactly, equal ranks by doubling, dropping sums whose worth has fallen too far behind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cephalo_cli.planner.arrays import Floats, Ints

__all__ = ["find_split", "largest_sum", "stacked"]


NEVER = -np.inf
"""Value of samples that a rank cannot take."""

ROUNDING = 1e-14
"""Slack for the rounding of sums of shares."""

CHUNK = 1 << 20
"""Sums formed at once in a convolution."""


@dataclass(frozen=True)
class _Line:
    """A choice of samples for every group."""

    samples: Ints
    """Of one rank, by group."""
    value: float
    """Summed over all ranks."""
    total: int
    """Samples of all ranks."""


def find_split(values: Floats, counts: Ints, total: int, needed: float) -> list[list[int]] | None:
    """Find a split of ``total`` samples whose values sum to ``needed`` or more.

    Args:
        values: Value of b samples on one rank, shape (groups, largest b + 1), minus infinity where impossible.
        counts: Ranks of every group.
        total: Samples to split.
        needed: What the values must sum to.

    Returns:
        The samples of every rank, group by group; None if there is no such split.
    """
    lines = _best_price(values, counts, total)
    if lines is None:
        return None
    price, more, fewer = lines
    if math.isnan(price):
        forced = _fill_up(values, counts, total, fewer, more)
        return forced[1] if forced is not None and forced[0] >= needed else None
    worth = values - price * np.arange(values.shape[1])
    best = worth.max(axis=1)
    bound = float(counts @ best) + price * total
    if bound < needed - ROUNDING:
        return None
    whole = _fill_up(values, counts, total, fewer, more)
    if whole is not None and whole[0] >= needed:
        return whole[1]
    slack = bound - needed + ROUNDING
    found = _convolved(worth - best[:, None], counts, total, -slack)
    return None if found is None else found[1]


def largest_sum(values: Floats, counts: Ints, total: int) -> tuple[float, list[list[int]]] | None:
    """The largest sum of values of any split, and its split; None where no split exists. Arguments as `find_split`."""
    return _convolved(values, counts, total, NEVER)


def _best_price(values: Floats, counts: Ints, total: int) -> tuple[float, Ints, Ints] | None:
    """The price that minimises D, and two choices of samples it makes equally good: at least B in all, at most B."""
    width = values.shape[1]
    finite = np.isfinite(values)
    if not finite.any(axis=1).all():
        return None
    index = np.arange(width)
    groups = np.arange(len(values))

    def line(samples: Ints) -> _Line:
        return _Line(samples, float(counts @ values[groups, samples]), int(counts @ samples))

    more = line(width - 1 - np.argmax(finite[:, ::-1], axis=1))
    fewer = line(np.argmax(finite, axis=1))
    if more.total < total or fewer.total > total:
        return None
    for end in (more, fewer):
        if end.total == total:  # the only split there is
            return math.nan, end.samples, end.samples
    while more.total > fewer.total:
        price = (more.value - fewer.value) / (more.total - fewer.total)
        choice = line(np.argmax(values - price * index, axis=1))
        level = fewer.value - price * fewer.total
        if choice.value - price * choice.total <= level + ROUNDING * max(1.0, abs(level)):
            return price, more.samples, fewer.samples
        if choice.total == total:
            return price, choice.samples, choice.samples
        if choice.total > total:
            more = choice
        else:
            fewer = choice
    raise AssertionError("a split of the whole batch was passed by")


def _fill_up(values: Floats, counts: Ints, total: int, fewer: Ints, more: Ints) -> tuple[float, list[list[int]]] | None:
    """Raise ranks from fewer to more samples until the batch is split; the last one as far as needed."""
    missing = total - int(counts @ fewer)
    splits: list[list[int]] = []
    worth = 0.0
    for group, (low, high, count) in enumerate(zip(fewer.tolist(), more.tolist(), counts.tolist(), strict=True)):
        step = high - low
        raised = min(count, missing // step) if step > 0 else 0
        missing -= raised * step
        mine = [high] * raised + [low] * (count - raised)
        if 0 < missing < step and raised < count and np.isfinite(values[group, low + missing]):
            mine[raised] = low + missing
            missing = 0
        worth += float(values[group, mine].sum())
        splits.append(mine)
    return (worth, splits) if missing == 0 else None


@dataclass(frozen=True)
class _Part:
    """Best sum of ``count`` ranks by samples ``offset + index``, with the halves it was made from."""

    values: Floats
    offset: int
    count: int
    halves: tuple["_Part", "_Part"] | None = None

    def trace(self, total: int, found: list[int]) -> None:
        """Append the samples of every rank whose sum is ``total``."""
        if self.halves is None:
            found.append(total)
            return
        left, right = self.halves
        low = max(left.offset, total - right.offset - len(right.values) + 1)
        high = min(left.offset + len(left.values) - 1, total - right.offset)
        ours = left.values[low - left.offset : high - left.offset + 1]
        theirs = right.values[total - high - right.offset : total - low - right.offset + 1][::-1]
        cut = low + int(np.argmax(ours + theirs))
        left.trace(cut, found)
        right.trace(total - cut, found)


def _trimmed(values: Floats, offset: int, count: int, least: float, halves: tuple[_Part, _Part] | None = None) -> _Part:
    """Leave out sums below ``least``, and the ends where none is left."""
    kept = np.where(values >= least, values, NEVER)
    alive = np.flatnonzero(kept > NEVER)
    if not len(alive):
        return _Part(kept[:0], offset, count, halves)
    return _Part(kept[alive[0] : alive[-1] + 1], offset + int(alive[0]), count, halves)


def _join(left: _Part, right: _Part, least: float, total: int) -> _Part:
    """Best sums of both parts together, up to the samples of the whole batch."""
    offset, count = left.offset + right.offset, left.count + right.count
    values = _convolve(left.values, right.values)[: max(0, total - offset + 1)]
    return _trimmed(values, offset, count, least, (left, right))


def _power(one: _Part, count: int, least: float, total: int) -> _Part:
    """Best sums of ``count`` equal ranks, by doubling."""
    power: _Part | None = None
    while True:
        if count & 1:
            power = one if power is None else _join(power, one, least, total)
        count >>= 1
        if not count:
            break
        one = _join(one, one, least, total)
    if power is None:
        raise AssertionError("a group has no ranks")
    return power


def _convolve(first: Floats, second: Floats) -> Floats:
    """(max, +) convolution."""
    if len(second) > len(first):
        first, second = second, first
    width = len(second)
    if width == 0:
        return first[:0]
    padded = np.concatenate([np.full(width - 1, NEVER), first, np.full(width - 1, NEVER)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    flipped = second[::-1]
    rows = max(1, CHUNK // width)
    if len(windows) <= rows:
        return np.asarray((windows + flipped).max(axis=1))
    return np.concatenate(
        [(windows[start : start + rows] + flipped).max(axis=1) for start in range(0, len(windows), rows)]
    )


def _convolved(values: Floats, counts: Ints, total: int, least: float) -> tuple[float, list[list[int]]] | None:
    """The largest sum of any split and its split, where all parts of that sum are at least ``least``."""
    parts = [
        _power(_trimmed(value, 0, 1, least), int(count), least, total)
        for value, count in zip(values, counts, strict=True)
    ]
    joined = parts[0]
    for part in parts[1:]:
        joined = _join(joined, part, least, total)
    index = total - joined.offset
    if not 0 <= index < len(joined.values) or joined.values[index] == NEVER:
        return None
    return float(joined.values[index]), _traced(joined, counts, total)


def _traced(joined: _Part, counts: Ints, total: int) -> list[list[int]]:
    """The samples of every rank behind a sum, group by group."""
    found: list[int] = []
    joined.trace(total, found)
    splits, start = [], 0
    for count in counts.tolist():
        splits.append(found[start : start + count])
        start += count
    return splits


def stacked(values: Sequence[Floats]) -> Floats:
    """Values of groups with different lengths as one array."""
    out = np.full((len(values), max(len(value) for value in values)), NEVER)
    for row, value in zip(out, values, strict=True):
        row[: len(value)] = value
    return out
