"""The options of all device groups in one array, so that a question about all of them is a few array operations."""

from collections.abc import Sequence

import numpy as np

from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.options import Options
from cephalo_cli.planner.split import find_split

__all__ = ["Rows", "Stack"]

Rows = tuple[tuple[int, ...], ...]
"""Option row of every rank, group by group."""


class Stack:
    """Options of all groups, in the order of the shares that fit beside them."""

    def __init__(self, options: Sequence[Options], times: Sequence[Floats]) -> None:
        """Stack options.

        Args:
            options: Of every device group.
            times: Their seconds by kind, shape (options, kinds); differences that do not count may be flattened.
        """
        caps = np.concatenate([option.caps for option in options])
        order = np.argsort(caps, kind="stable")
        sizes = [len(option) for option in options]
        self.num_groups = len(options)
        self.width = 1 + max(int(option.samples.max(initial=0)) for option in options)
        self.caps = caps[order]
        self.times = np.concatenate(times)[order]
        self.groups = np.repeat(np.arange(len(options)), sizes)[order]
        self.rows = np.concatenate([np.arange(size) for size in sizes])[order]
        samples = np.concatenate([option.samples for option in options])[order]
        self.slots = self.groups * self.width + samples
        # Kinds in which all options are alike need no comparing.
        self.columns = np.flatnonzero(np.ptp(self.times, axis=0) > 0) if len(caps) else np.zeros(0, dtype=np.int64)
        self.compared = np.ascontiguousarray(self.times[:, self.columns].T)

    def within(self, limits_s: Floats) -> Mask:
        """Options whose times are within limits by kind."""
        mask = np.ones(len(self.caps), dtype=bool)
        for times, limit_s in zip(self.compared, limits_s[self.columns], strict=True):
            mask &= times <= limit_s
        return mask

    def emptiest(self, admitted: Mask) -> list[float]:
        """Largest share of any admitted option, by group; below zero where there is none."""
        found = np.full(self.num_groups, -1.0)
        found[self.groups[admitted]] = self.caps[admitted]  # the last one stays: the largest share
        return [float(cap) for cap in found]

    def split(self, admitted: Mask, counts: Ints, total: int, least: float, most: Floats) -> Rows | None:
        """Rows of every rank so that the batch is split and shares between least and most sum to 1.

        Args:
            admitted: Which options may be taken.
            counts: Ranks of every group.
            total: Samples of the batch.
            least: Least share of a rank.
            most: Largest share of a rank of every group, beside what fits.
        """
        chosen = np.flatnonzero(admitted & (self.caps >= least) if least > 0 else admitted)
        values = np.full(self.num_groups * self.width, -np.inf)
        rows = np.zeros(self.num_groups * self.width, dtype=np.int64)
        slots = self.slots[chosen]
        values[slots] = np.minimum(self.caps[chosen], most[self.groups[chosen]])
        rows[slots] = self.rows[chosen]
        split = find_split(values.reshape(self.num_groups, self.width), counts, total, 1.0)
        if split is None:
            return None
        return tuple(
            tuple(rows[group * self.width + np.array(samples)].tolist()) for group, samples in enumerate(split)
        )
