"""Plans below a target: whether the state fits beside admitted options, at a point (w, O) or on a whole curve of them.

Symbols as in `problem`. With limits L_k on the compute of every kind, the step is below the target where
``A_L(w) + O < target``. The largest state S(w, O) that admitted options can hold grows with w and O, so the best points
lie on the curve ``O = target - A_L(w)``:

1. Where every rank holds as much as its group's emptiest option leaves room for, the best w in closed form
   (`shares.best_limits`) is a point inside; it is asked first.
2. ``S(w2, O(w1)) < 1`` settles all of [w1, w2]; otherwise the interval is halved, until it is settled or a point of the
   curve holds the state: a witness.

Nothing here is approximate: `split.find_split` decides every point.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cephalo_cli.planner.arrays import Mask
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.search import Effort
from cephalo_cli.planner.shares import Holder, ShareLimits, best_limits, fixed_seconds
from cephalo_cli.planner.stack import Rows, Stack

__all__ = ["UndecidedError", "Witnesses"]

MAX_INTERVALS = 20_000
"""Intervals of a curve after which it is left undecided."""

QUESTION = 500
"""Effort of a question beside the options it looks at."""

BISECTIONS = 60
"""Enough to halve the range of w down to neighbouring floats."""


class UndecidedError(Exception):
    """The curve could not be settled in the allowed number of intervals."""


class Witnesses:
    """Looks for plans of one search's options."""

    def __init__(self, problem: Problem, stack: Stack, effort: Effort) -> None:
        self.problem, self.stack, self.effort = problem, stack, effort
        self.counts = np.array([group.count for group in problem.groups])
        self.slowest_s = max(group.optimizer_s for group in problem.groups)

    def relaxed(self, admitted: Mask, limits_s: Sequence[float]) -> ShareLimits | None:
        """No plan of the admitted options is better: every rank holds as much as its group's emptiest one leaves.

        Args:
            admitted: Which options may be taken.
            limits_s: Least compute of a stage by kind.
        """
        caps = self.stack.emptiest(admitted)
        holders = [
            Holder(group.count, cap, group.optimizer_s) for group, cap in zip(self.problem.groups, caps, strict=True)
        ]
        return best_limits(self.problem, limits_s, holders)

    def at(self, admitted: Mask, busiest: float, optimizer_s: float) -> Rows | None:
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

    def below(self, admitted: Mask, limits_s: Sequence[float], target_s: float) -> Rows | None:
        """Rows of every rank whose state fits somewhere on the curve; None proves that there are none.

        Args:
            admitted: Which options may be taken.
            limits_s: Least compute of a stage by kind (L_k).
            target_s: The step to stay below.

        Raises:
            UndecidedError: The curve needs more intervals than are looked at.
        """
        limits = self.relaxed(admitted, limits_s)
        if limits is None or limits.step_s >= target_s:
            return None

        def curve(busiest: float) -> float:
            return target_s - fixed_seconds(self.problem, limits_s, busiest)

        if self.problem.network is None:
            return self.at(admitted, np.inf, curve(0.0))
        found = self.at(admitted, limits.busiest, curve(limits.busiest))
        if found is not None:
            return found
        first, last = self._ends(curve, limits.busiest)
        intervals = [(first, limits.busiest), (limits.busiest, last)]
        for _ in range(MAX_INTERVALS):
            if not intervals:
                return None
            left, right = intervals.pop()
            if left >= right or self.at(admitted, right, curve(left)) is None:
                continue
            middle = (left + right) / 2
            found = self.at(admitted, middle, curve(middle))
            if found is not None:
                return found
            if left < middle < right:
                intervals += [(left, middle), (middle, right)]
        raise UndecidedError

    def _ends(self, curve: Callable[[float], float], inside: float) -> tuple[float, float]:
        """Range of w in which the curve leaves every rank its least share ``1 - w``."""
        network = self.problem.network
        if network is None:
            raise AssertionError("without a network there is no curve")

        def valid(busiest: float) -> bool:
            return curve(busiest) >= max(0.0, self.slowest_s * (1.0 - busiest))

        def last_valid(end: float) -> float:
            if valid(end):
                return end
            good, bad = inside, end
            for _ in range(BISECTIONS):
                middle = (good + bad) / 2
                if middle in (good, bad):
                    break
                good, bad = (middle, bad) if valid(middle) else (good, middle)
            return bad

        return last_valid(network.least_busiest), last_valid(network.most_busiest)
