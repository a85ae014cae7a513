"""The exact search where shares do not act on compute: branch and bound over limits on stage times.

Symbols as in `problem`; L_k is a limit on the compute of kind k, and a *box* is a pair (lo, hi) of limits.

1. A plan belongs to a box if its largest times t_k lie in it. No plan of the box is faster than the step with
   T_k = lo_k and the options that hi admits, so if no state fits under any w and O with ``A_lo(w) + O < target``,
   the box is done. `witness` decides that without approximation, and finds a plan where there is one: a witness.
2. A witness is a plan. Its own best limits (`shares.best_limits`) may be a new best value, which lowers the target
   ``(1 - tolerance) * best``. A box that still has a witness is shrunk and branched:
   lo_k rises to the least limit that has a witness with all other hi; then the widest kind is halved.
3. Limits are only ever values of some option, so boxes shrink to points, and a point ends when its target has no
   witness. When no box is left, nothing is faster than the target.

The number of limits depends on device types and samples per rank, not on the number of ranks.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cephalo_cli.planner.arrays import Floats, Mask
from cephalo_cli.planner.options import Options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.reach import stage_floors
from cephalo_cli.planner.search import Found, Search
from cephalo_cli.planner.shares import Holder, ShareLimits, best_limits
from cephalo_cli.planner.stack import Rows, Stack
from cephalo_cli.planner.witness import UndecidedError, Witnesses

__all__ = ["TOLERANCE", "LimitSearch", "price_rows"]


TOLERANCE = 1e-10
"""Relative distance between the best plan and what is proven: rounding of the sums, not slack of the search."""


@dataclass(eq=False)
class LimitSearch(Search):
    """Branch and bound over limits."""

    tolerance = TOLERANCE

    def __post_init__(self) -> None:
        problem, options = self.problem, self.options
        self.floors = stage_floors(problem)
        self.times = [np.maximum(option.times_s, self.floors) for option in options]
        self.stack = Stack(options, self.times)
        self.witnesses = Witnesses(problem, self.stack, self.effort)
        self.values = [
            np.unique(np.concatenate([times[:, kind] for times in self.times])) for kind in range(len(problem.kinds))
        ]
        """What limits of every kind can be, increasing; a corner of a box is an index into each."""
        self.weights = np.array(problem.counts, dtype=np.float64)
        self.records = True
        """Whether witnesses are priced; not where options are only bounds (`needed`)."""

    def run(self) -> float:
        """Search to the end or until stopped; returns the proven lower bound in seconds (`best` holds the plan)."""
        if self.best is None:
            self._start()
        if self.best is None:
            return math.inf
        numbers = itertools.count()
        first = tuple(0 for _ in self.values), tuple(len(values) - 1 for values in self.values)
        boxes = [(0.0, next(numbers), first)]
        undecided = math.inf
        while boxes:
            bound, _, (lo, hi) = heapq.heappop(boxes)
            if bound >= self.target:
                break
            if self.must_stop():
                self.timed_out = True
                return min(bound, undecided)
            try:
                shrunk = self._shrink(list(lo), list(hi))
                if shrunk is None:
                    continue
                for child in self._branch(*shrunk):
                    bound = self._relaxed(self._at(child[0]), self._at(child[1]))
                    if bound < self.target:
                        heapq.heappush(boxes, (bound, next(numbers), child))
            except UndecidedError:
                undecided = min(undecided, self._relaxed(self._at(lo), self._at(hi)))
        return min(self.target, undecided)

    def needed(self) -> Floats | None:
        """Limits by kind that every plan below the target needs; None where there is no such plan.

        For options that are only bounds: nothing is recorded.
        """
        self.records = False
        try:
            shrunk = self._shrink([0] * len(self.values), [len(values) - 1 for values in self.values])
        except UndecidedError:
            return self.floors
        return None if shrunk is None else self._at(shrunk[0])

    def _at(self, corner: Sequence[int]) -> Floats:
        return np.array([values[index] for values, index in zip(self.values, corner, strict=True)])

    def _start(self) -> None:
        """A first plan: the least limit on a rank's own step under which the state fits."""
        loads = self.stack.times @ self.weights
        levels = np.unique(loads)
        low, high = 0, len(levels) - 1
        if any(len(options) == 0 for options in self.options) or not self._try(loads <= levels[high]):
            return
        while low < high:
            middle = (low + high) // 2
            if self._try(loads <= levels[middle]):
                high = middle
            else:
                low = middle + 1

    def _try(self, admitted: Mask) -> bool:
        witness = self.witnesses.at(admitted, math.inf, math.inf)
        if witness is not None:
            self._record(witness)
        return witness is not None

    def _shrink(self, lo: list[int], hi: list[int]) -> tuple[list[int], list[int]] | None:
        """Lower hi and raise lo to what a better plan can have; None when the box holds none."""
        if not self._lower(lo, hi) or not self._witnessed(lo, hi):
            return None
        for kind in self._widest_first(lo, hi):
            low, high = lo[kind], hi[kind]
            while low < high:
                middle = (low + high) // 2
                if self._witnessed(lo, [*hi[:kind], middle, *hi[kind + 1 :]]):
                    high = middle
                else:
                    low = middle + 1
            if low > lo[kind]:
                lo[kind] = low
                if not self._lower(lo, hi) or not self._witnessed(lo, hi):
                    return None
        return lo, hi

    def _lower(self, lo: Sequence[int], hi: list[int]) -> bool:
        """Lower hi to what the target leaves a kind when all others are at lo; whether it leaves anything."""
        least = self._at(lo)
        slack = self.target - self.problem.least_exposed_s - float(least @ self.weights)
        if slack < 0:
            return False
        for kind, values in enumerate(self.values):
            most = int(np.searchsorted(values, least[kind] + slack / self.weights[kind], side="right")) - 1
            hi[kind] = max(lo[kind], min(hi[kind], most))
        return True

    def _branch(self, lo: list[int], hi: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        if lo == hi:  # its witness is worth the target itself, to rounding
            return []
        kind = self._widest_first(lo, hi)[0]
        middle = (lo[kind] + hi[kind]) // 2
        lower = tuple(lo), (*hi[:kind], middle, *hi[kind + 1 :])
        upper = (*lo[:kind], middle + 1, *lo[kind + 1 :]), tuple(hi)
        return [lower, upper]

    def _widest_first(self, lo: Sequence[int], hi: Sequence[int]) -> list[int]:
        widths = (self._at(hi) - self._at(lo)) * np.array(self.problem.counts)
        return [int(kind) for kind in np.argsort(-widths, kind="stable") if lo[kind] < hi[kind]]

    def _witnessed(self, lo: Sequence[int], hi: Sequence[int]) -> bool:
        """Whether the box holds a plan below the target; records the plans it meets."""
        limits_s, admitted = self._at(lo).tolist(), self.stack.within(self._at(hi))
        while True:
            witness = self.witnesses.below(admitted, limits_s, self.target)
            if witness is None:
                return False
            if not self._record(witness):
                return True

    def _record(self, rows: Rows) -> bool:
        """Price a witness; whether it is a new best."""
        if not self.records or self._least_s(rows) >= self.target:
            return False
        limits = price_rows(self.problem, self.options, rows)
        if limits is None or (self.best is not None and limits.step_s >= self.target):
            return False
        self.best = Found(rows=rows, limits=limits)
        return True

    def _least_s(self, rows: Rows) -> float:
        """Quick bound on a witness: its slowest stages under equal shares."""
        slowest = np.max(
            [times[list(set(chosen))].max(axis=0) for times, chosen in zip(self.times, rows, strict=True)], axis=0
        )
        return self.problem.least_exposed_s + float(slowest @ self.weights)

    def _relaxed(self, lo: Floats, hi: Floats) -> float:
        """A bound on the box, see `Witnesses.relaxed`."""
        limits = self.witnesses.relaxed(self.stack.within(hi), lo.tolist())
        return math.inf if limits is None else limits.step_s


def price_rows(problem: Problem, options: Sequence[Options], rows: Sequence[Sequence[int]]) -> ShareLimits | None:
    """Best limits of a plan given by option rows where shares do not act on compute; None: the state does not fit."""
    kinds = stage_floors(problem)
    holders = []
    for group, listed, chosen in zip(problem.groups, options, rows, strict=True):
        used, counts = np.unique(np.array(chosen), return_counts=True)
        kinds = np.maximum(kinds, listed.times_s[used].max(axis=0))
        holders += [
            Holder(int(count), float(listed.caps[row]), group.optimizer_s)
            for row, count in zip(used, counts, strict=True)
        ]
    return best_limits(problem, kinds.tolist(), holders)
