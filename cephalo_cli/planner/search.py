"""What the two exact searches share: the options they choose from, the best plan they hold, and when they stop.

`limit_search` branches over limits on stage times, `team_search` over options: for where shares act on compute.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class Search(ABC):
    """Branch and bound over the options of every device group."""

    tolerance: ClassVar[float]
    """Relative distance between the best plan and what is proven."""

    problem: Problem
    options: Sequence[Options]
    """What a rank may run, by device group."""
    deadline: float | None = None
    """`time.monotonic` at which to stop."""
    best: Found | None = None
    """The best plan so far; at first the one to beat."""
    effort: Effort = field(default_factory=Effort)
    """How much to do before stopping likewise."""
    timed_out: bool = field(default=False, init=False)
    """Whether it was stopped."""

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
