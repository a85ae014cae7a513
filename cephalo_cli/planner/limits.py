"""The exact search where shares do not act on compute: branch and bound over limits on stage times.

Symbols as in `problem`; L_k is a limit on the compute of kind k, and a *box* is a pair (lo, hi) of limits.

1. A plan belongs to a box if its largest times t_k lie in it. No plan of the box is faster than the step with
   T_k = lo_k and the options that hi admits, so if no state fits under any w and O with ``A_lo(w) + O < target``,
   the box is done.
2. That is decided without approximation: along the curve ``O = target - A_lo(w)`` the largest state S(w, O)
   (`split.find_split`) is compared with 1. S grows with w and O, so ``S(w2, O(w1)) < 1`` settles all of [w1, w2];
   otherwise the interval is halved, until it is settled or a point of the curve holds the state: a witness.
3. A witness is a plan. Its own best limits (`shares.best_limits`) may be a new best value, which lowers the target
   ``(1 - tolerance) * best``. A box that still has a witness is shrunk and branched:
   lo_k rises to the least limit that has a witness with all other hi; then the widest kind is halved.
4. Limits are only ever values of some option, so boxes shrink to points, and a point ends when its target has no
   witness. When no box is left, nothing is faster than the target.

The number of limits depends on device types and samples per rank, not on the number of ranks.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cephalo_cli.planner.options import Options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import Holder, ShareLimits, best_limits, fixed_seconds
from cephalo_cli.planner.stack import Stack

__all__ = ["TOLERANCE", "Effort", "Found", "Search", "price_rows", "stage_floors"]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TOLERANCE = 1e-10
"""Relative distance between the best plan and what is proven: rounding of the sums, not slack of the search."""

MAX_INTERVALS = 20_000

QUESTION = 500
"""Effort of a question beside the options it looks at."""


@dataclass
class Effort:
    """How much a search may still do: the same on every machine, unlike seconds."""

    left: float = math.inf
    """Options looked at."""

    def spend(self, amount: float) -> None:
        """Take note of work."""
        self.left -= amount


@dataclass(frozen=True, kw_only=True)
class Found:
    """A plan of a search."""

    rows: tuple[tuple[int, ...], ...]
    """Option row of every rank, group by group."""
    limits: ShareLimits


class _Undecided(Exception):  # noqa: N818 - a signal between two functions, never seen outside
    """The curve could not be settled in the allowed number of intervals."""


class Search:
    """Branch and bound over limits."""

    def __init__(
        self,
        problem: Problem,
        options: Sequence[Options],
        deadline: float | None,
        best: Found | None = None,
        effort: Effort | None = None,
    ) -> None:
        self.problem, self.options, self.deadline = problem, options, deadline
        self.effort = effort or Effort()
        self.counts = np.array([group.count for group in problem.groups])
        self.floors = stage_floors(problem)
        self.times = [np.maximum(option.times_s, self.floors) for option in options]
        self.stack = Stack(options, self.times)
        self.values = [
            np.unique(np.concatenate([times[:, kind] for times in self.times])) for kind in range(len(problem.kinds))
        ]
        self.slowest = max(group.optimizer_s for group in problem.groups)
        self.weights = np.array(problem.counts, dtype=np.float64)
        self.least_exposed_s = problem.least_exposed_s
        self.best = best
        self.records = True
        self.timed_out = False

    def run(self) -> float:
        """Search to the end or the deadline; returns the proven lower bound (`best` holds the plan)."""
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
            if self.effort.left < 0 or (self.deadline is not None and time.monotonic() > self.deadline):
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
            except _Undecided:
                undecided = min(undecided, self._relaxed(self._at(lo), self._at(hi)))
        return min(self.target, undecided)

    def needed(self) -> Floats | None:
        """Limits by kind that every plan below the target needs; None where there is no such plan.

        For options that are only bounds: nothing is recorded.
        """
        self.records = False
        try:
            shrunk = self._shrink([0] * len(self.values), [len(values) - 1 for values in self.values])
        except _Undecided:
            return self.floors
        return None if shrunk is None else self._at(shrunk[0])

    @property
    def target(self) -> float:
        """Only plans below this value are still looked for."""
        return math.inf if self.best is None else self.best.limits.step_s * (1.0 - TOLERANCE)

    def _at(self, corner: Sequence[int]) -> Floats:
        return np.array([values[index] for values, index in zip(self.values, corner, strict=True)])

    def _start(self) -> None:
        """A first plan: the least limit on a rank's own step under which the state fits."""
        loads = self.stack.times @ np.array(self.problem.counts, dtype=np.float64)
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
        witness = self._holds(admitted, math.inf, math.inf)
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
        slack = self.target - self.least_exposed_s - float(least @ self.weights)
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
        while True:
            witness = self._witness(self._at(lo), self._at(hi))
            if witness is None:
                return False
            if not self._record(witness):
                return True

    def _record(self, rows: tuple[tuple[int, ...], ...]) -> bool:
        """Price a witness; whether it is a new best."""
        if not self.records or self._least_s(rows) >= self.target:
            return False
        limits = price_rows(self.problem, self.options, rows)
        if limits is None or (self.best is not None and limits.step_s >= self.target):
            return False
        self.best = Found(rows=rows, limits=limits)
        return True

    def _least_s(self, rows: tuple[tuple[int, ...], ...]) -> float:
        """Quick bound on a witness: its slowest stages under equal shares."""
        slowest = np.max(
            [times[list(set(chosen))].max(axis=0) for times, chosen in zip(self.times, rows, strict=True)], axis=0
        )
        return self.least_exposed_s + float(slowest @ self.weights)

    def _relaxed(self, lo: Floats, hi: Floats) -> float:
        """A bound on the box: every rank holds as much as its group's emptiest option."""
        limits = best_limits(self.problem, lo.tolist(), self._emptiest(self.stack.within(hi)))
        return math.inf if limits is None else limits.step_s

    def _emptiest(self, admitted: Mask) -> list[Holder]:
        caps = self.stack.emptiest(admitted)
        return [
            Holder(group.count, cap, group.optimizer_s) for group, cap in zip(self.problem.groups, caps, strict=True)
        ]

    def _witness(self, lo: Floats, hi: Floats) -> tuple[tuple[int, ...], ...] | None:
        """A plan under hi whose state fits at a point of the curve ``A_lo(w) + O = target``; None: there is none."""
        admitted = self.stack.within(hi)
        limits = best_limits(self.problem, lo.tolist(), self._emptiest(admitted))
        if limits is None or limits.step_s >= self.target:
            return None
        if self.problem.network is None:
            return self._holds(admitted, math.inf, self.target - fixed_seconds(self.problem, lo.tolist(), 0.0))

        def curve(busiest: float) -> float:
            return self.target - fixed_seconds(self.problem, lo.tolist(), busiest)

        found = self._holds(admitted, limits.busiest, curve(limits.busiest))
        if found is not None:
            return found
        ends = self._ends(curve, limits.busiest)
        intervals = [(ends[0], limits.busiest), (limits.busiest, ends[1])]
        for _ in range(MAX_INTERVALS):
            if not intervals:
                return None
            left, right = intervals.pop()
            if left >= right or self._holds(admitted, right, curve(left)) is None:
                continue
            middle = (left + right) / 2
            found = self._holds(admitted, middle, curve(middle))
            if found is not None:
                return found
            if not left < middle < right:
                continue
            intervals += [(left, middle), (middle, right)]
        raise _Undecided

    def _ends(self, curve: Callable[[float], float], inside: float) -> tuple[float, float]:
        """Range of w in which the curve leaves every rank its least share ``1 - w``."""
        network = self.problem.network
        if network is None:
            raise AssertionError("without a network there is no curve")

        def valid(busiest: float) -> bool:
            return curve(busiest) >= max(0.0, self.slowest * (1.0 - busiest))

        ends = []
        for end in (network.least_busiest, network.most_busiest):
            good, bad = inside, end
            if valid(end):
                good = end
            for _ in range(60):
                middle = (good + bad) / 2
                if good == end or middle in (good, bad):
                    break
                good, bad = (middle, bad) if valid(middle) else (good, middle)
            ends.append(bad if good != end else end)
        return ends[0], ends[1]

    def _holds(self, admitted: Mask, busiest: float, optimizer_s: float) -> tuple[tuple[int, ...], ...] | None:
        """Rows of every rank under which the state fits at w and O; None proves that it does not."""
        self.effort.spend(QUESTION + len(self.stack.caps))
        network = self.problem.network
        least = 0.0 if network is None else max(0.0, 1.0 - busiest)
        clip = busiest / (network.num_ranks - 1) if network is not None and network.direct else 1.0
        most = np.array(
            [
                clip if group.optimizer_s == 0 else min(clip, optimizer_s / group.optimizer_s)
                for group in self.problem.groups
            ]
        )
        if most.min() < least:
            return None
        return self.stack.split(admitted, self.counts, self.problem.batch_size, least, most)


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


def stage_floors(problem: Problem) -> Floats:
    """Least time of a stage by kind, set by the network under equal shares."""
    floors = np.full(len(problem.kinds), np.inf)
    for stage in problem.stages:
        floors[stage.kind] = min(floors[stage.kind], stage.floor_s + stage.slope_s * problem.least_busiest)
    return floors
