"""The largest state that fits beside a split of the batch: a (max, +) convolution over the ranks.

    S = max { sum_i value_d(i)(b_i) : sum_i b_i = B }

where ``value_d(b)`` is the largest share a rank of group d can hold beside b samples, minus infinity where it cannot
take b. Equal devices are convolved by doubling. `Split` decides ``S >= 1`` from the concave hulls first: their
fractional optimum bounds S from above, a greedy whole split bounds it from below, and only what lies between is
convolved, with the values whose distance to the hull's supporting line is larger than the gap left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["best_split", "convolve"]

Floats = npt.NDArray[np.float64]

NEVER = -np.inf


def convolve(first: Floats, second: Floats, limit: int) -> Floats:
    """(max, +) convolution, cut after index ``limit``."""
    if np.count_nonzero(np.isfinite(second)) > np.count_nonzero(np.isfinite(first)):
        first, second = second, first
    out = np.full(min(len(first) + len(second) - 1, limit + 1), NEVER)
    for index in np.flatnonzero(np.isfinite(second)).tolist():
        reach = min(len(first), len(out) - index)
        if reach > 0:
            np.maximum(out[index : index + reach], first[:reach] + second[index], out=out[index : index + reach])
    return out


@dataclass(frozen=True)
class _Power:
    """``value`` convolved with itself ``count`` times, with the halves it was made from."""

    values: Floats
    count: int
    halves: tuple["_Power", "_Power"] | None = None

    def trace(self, total: int, found: list[int]) -> None:
        """Append the samples of every rank whose sum is ``total``."""
        if self.count == 0:
            return
        if self.halves is None:
            found.append(total)
            return
        left, right = self.halves
        cut = _cut(left.values, right.values, total)
        left.trace(cut, found)
        right.trace(total - cut, found)


def _cut(left: Floats, right: Floats, total: int) -> int:
    """How much of ``total`` the left part takes at the maximum."""
    low = max(0, total - len(right) + 1)
    high = min(total, len(left) - 1)
    sums = left[low : high + 1] + right[total - high : total - low + 1][::-1]
    return low + int(np.argmax(sums))


def _power(values: Floats, count: int, limit: int) -> _Power:
    one = _Power(values[: limit + 1], 1)
    power: _Power | None = None
    while True:
        if count & 1:
            power = one if power is None else _join(power, one, limit)
        count >>= 1
        if not count:
            break
        one = _join(one, one, limit)
    if power is None:
        raise AssertionError("a group has no ranks")
    return power


def _join(left: _Power, right: _Power, limit: int) -> _Power:
    return _Power(convolve(left.values, right.values, limit), left.count + right.count, (left, right))


def best_split(values: Sequence[Floats], counts: Sequence[int], total: int) -> tuple[float, list[list[int]]] | None:
    """Split ``total`` samples so that the sum of values is largest.

    Args:
        values: For every group the value of b samples on one rank, minus infinity where impossible.
        counts: Ranks of every group.
        total: Samples to split.

    Returns:
        The sum and the samples of every rank, group by group; None where no split exists.
    """
    joined: _Power | None = None
    powers = []
    for value, count in zip(values, counts, strict=True):
        power = _power(value, count, total)
        powers.append(power)
        joined = power if joined is None else _join(joined, power, total)
    if joined is None or len(joined.values) <= total or joined.values[total] == NEVER:
        return None
    found: list[int] = []
    joined.trace(total, found)
    splits, start = [], 0
    for count in counts:
        splits.append(found[start : start + count])
        start += count
    return float(joined.values[total]), splits
