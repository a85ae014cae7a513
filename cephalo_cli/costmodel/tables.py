"""Measured curves between and beyond their points."""

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["interpolate"]


def interpolate(microbatch: Sequence[int], values: Sequence[float], size: int) -> float:
    """Value of a curve at a microbatch size.

    Between points the curve is linear; beyond the last point it goes on with the slope of the last min(5, n) points
    (from the first of them to the last), or in proportion to the size where they fall or there is one point only: more
    samples never take less. Below the first point it keeps the first value; it is never below zero.

    Args:
        microbatch: Increasing sizes of the measured points.
        values: One value a point.
        size: The size asked for, in samples; 0 gives 0.
    """
    if size == 0:
        return 0.0
    if size <= microbatch[0]:
        return max(0.0, float(values[0]))
    last = microbatch[-1]
    if size > last:
        back = min(5, len(microbatch))
        run = last - microbatch[-back]
        slope = (values[-1] - values[-back]) / run if run else -1.0
        if slope < 0:
            slope = values[-1] / last
        return max(0.0, values[-1] + slope * (size - last))
    right = bisect_left(microbatch, size)
    if microbatch[right] == size:
        return max(0.0, float(values[right]))
    x0, x1 = microbatch[right - 1], microbatch[right]
    y0, y1 = values[right - 1], values[right]
    return max(0.0, y0 + (y1 - y0) * (size - x0) / (x1 - x0))
