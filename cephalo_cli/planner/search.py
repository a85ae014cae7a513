"""What the two exact searches share: the options they choose from, the best plan they hold, and when they stop.

`limit_search` branches over limits on stage times, `team_search` over options: for where shares act on compute.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cephalo_cli.planner.options import Options
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ShareLimits

__all__ = ["Effort", "Found", "Search"]


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
    """Option row of every rank, group by group; empty for a step that is only to be beaten."""
    limits: ShareLimits


class Search(ABC):
    """Branch and bound over the options of every device group."""

    tolerance: ClassVar[float]
    """Relative distance between the best plan and what is proven."""

    def __init__(
        self,
        problem: Problem,
        options: Sequence[Options],
        deadline: float | None = None,
        best: Found | None = None,
        effort: Effort | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            problem: The problem.
            options: What a rank of every group may run.
            deadline: `time.monotonic` at which to stop.
            best: The plan to beat.
            effort: How much to do before stopping likewise.
        """
        self.problem, self.options, self.deadline = problem, options, deadline
        self.best = best
        self.effort = effort or Effort()
        self.timed_out = False

    @abstractmethod
    def run(self) -> float:
        """Search to the end or until stopped; returns the proven lower bound in seconds (`best` holds the plan)."""

    @property
    def target(self) -> float:
        """Only plans below this step, in seconds, are still looked for."""
        return math.inf if self.best is None else self.best.limits.step_s * (1.0 - self.tolerance)

    def must_stop(self) -> bool:
        """Whether time or effort is used up."""
        return self.effort.left < 0 or (self.deadline is not None and time.monotonic() > self.deadline)
