"""The best layer-major plan of all: how many blocks recompute on each rank, and how many stay unsharded on all.

Both spend memory to save time. Symbols as in `problem`, with K the number of blocks that stay unsharded and c_i the
number of blocks that rank i recomputes.

1. The best plan with c_i in {0, all} and the least K is found and proven as ever (`solve`).
2. A *node* is a range of K and a set of cuts. Its relaxation takes the time of the largest K and the memory of the
   smallest, and averages recomputed blocks within parts (see the note on parts in `kinds`), so no plan of the node is
   faster than its best relaxed plan; that one is searched exactly, and only if it beats the best plan known.
3. The relaxed plan's microbatches and c_i are priced as they are, at the largest K that fits: a new best plan, often.
4. Where the relaxation promised more, the node is branched: by K while it has several, then by cutting the parts at
   all c_i of the relaxed plan, which makes its price exact. Nodes are taken in the order of their bounds.

When no node is left, the best plan is proven. The search ends after some effort with the least bound left; where memory
is ample, or ranks and layers are few, it hardly ever does.
"""

import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cephalo_cli.costmodel import RankChoice
from cephalo_cli.planner.given import price, with_best_shares
from cephalo_cli.planner.groups import DeviceGroup, partial_counts
from cephalo_cli.planner.problem import Problem, Space, make_problem
from cephalo_cli.planner.reach import least_s
from cephalo_cli.planner.search import Effort
from cephalo_cli.planner.solve import LISTING, Solution, improve, solve

__all__ = ["best_plan", "widest"]

MAX_NODES = 1_000
"""Nodes after which the best plan is taken with its gap."""

EFFORT = 3e6
"""Effort (`search.Effort`) after which it is too, unless the search is thorough: about half a second."""

GLANCES = 8
"""Numbers of recomputed blocks to look at first."""

SAME = 2e-9
"""Relative difference of steps that is none: the accuracy of the searches."""

ROUNDED = 1e-12
"""Relative difference of steps that is none where the same choices are priced: rounding alone."""


@dataclass(frozen=True, order=True)
class _Node:
    bound_s: float
    number: int
    least: int
    """Smallest K."""
    most: int
    """Largest K."""
    cuts: tuple[int, ...]


def widest(problem: Problem) -> Space:
    """All plans that the settings allow, with the least memory charged: what fits at all fits here."""
    least, most = _range(problem)
    return Space(keep_unsharded=most, charged=least, partial=_is_partial(problem))


def best_plan(problem: Problem, deadline: float | None = None, *, thorough: bool = False) -> Solution | None:
    """Find the best layer-major plan.

    Args:
        problem: The problem of ranks that recompute all blocks or none.
        deadline: `time.monotonic` at which to stop with the best plan so far.
        thorough: Whether to go on until the deadline, or the proof, however much there is to do.

    Returns:
        The best plan; None where no plan fits, or none was found in time.
    """
    base = solve(problem, deadline, listing=math.inf if thorough else LISTING)
    least, most = _range(problem)
    if least == most and not _is_partial(problem):
        return base
    spender = _Spender(problem, deadline, math.inf if thorough else EFFORT)
    if base is not None:
        spender.take(base)
    elif not spender.is_late:
        spender.start()
    if spender.best is None:
        return None
    spender.search()
    return spender.proven()


def _range(problem: Problem) -> tuple[int, int]:
    """Least and largest number of blocks that may stay unsharded."""
    asked = problem.space.keep_unsharded
    if problem.settings.keep_unsharded != "auto" or problem.network is None:
        return asked, asked
    return 0, problem.basis.model.num_layers - 1


def _is_partial(problem: Problem) -> bool:
    names = [group.name for group in problem.groups]
    return any(partial_counts(problem.basis, problem.settings, name) for name in names)


class _Spender:
    """The search over nodes."""

    def __init__(self, problem: Problem, deadline: float | None, effort: float) -> None:
        self.problem, self.deadline = problem, deadline
        self.least, self.most = _range(problem)
        self.partial = _is_partial(problem)
        self.best: Solution | None = None
        self.effort = Effort(effort)
        self.problems: dict[Space, Problem] = {}
        self.groups: tuple[DeviceGroup, ...] | None = None
        self.left_s = math.inf
        """The least bound of what was left undecided."""

    @property
    def is_late(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def best_s(self) -> float:
        """Step of the best plan so far."""
        return math.inf if self.best is None else self.best.step_s

    def take(self, solution: Solution) -> None:
        """Keep a plan if it is the best."""
        if solution.step_s < self.best_s:
            self.best = solution

    def start(self) -> None:
        """A first plan where none fits whose ranks recompute all blocks or none."""
        relaxed = solve(self._problem(self.least, self.least, ()), self.deadline)
        if relaxed is not None:
            self._price(relaxed.choices, self.least)

    def search(self) -> None:
        """Take nodes until none is left that may hold a better plan."""
        self._glance()
        numbers = itertools.count()
        root = self._problem(self.least, self.most, ())
        nodes = [_Node(least_s(root), next(numbers), self.least, self.most, ())]
        for _ in range(MAX_NODES):
            spent = self.is_late or self.effort.left < 0
            if not nodes or nodes[0].bound_s >= self.best_s * (1.0 - SAME) or spent:
                break
            node = heapq.heappop(nodes)
            for bound_s, least, most, cuts in self._children(node):
                heapq.heappush(nodes, _Node(max(bound_s, node.bound_s), next(numbers), least, most, cuts))
        self.left_s = min([self.left_s, *(node.bound_s for node in nodes)])

    def _glance(self) -> None:
        """Find a good plan among few numbers of recomputed blocks first: the search proper then has less to look at."""
        stride = -(-self.problem.basis.model.num_layers // GLANCES)
        if not self.partial or stride == 1:
            return
        space = Space(keep_unsharded=self.least, partial=True, stride=stride)
        outcome = improve(self._problem_in(space), self.best_s, self.deadline, effort=Effort(EFFORT / 4), bounded=False)
        if outcome.solution is not None:
            self._price(outcome.solution.choices, self.least)
            self._price_common(outcome.solution.choices, self.least)

    def proven(self) -> Solution:
        """The best plan with what is proven of it, keeping no more blocks unsharded than its time needs."""
        best = self.best
        if best is None:
            raise AssertionError("a search does not lose its plan")
        low, high = self.least, best.keep_unsharded
        while low < high:
            middle = (low + high) // 2
            priced_s = price(self._exactly(best.choices, middle), best.choices)
            if priced_s is not None and priced_s <= best.step_s * (1.0 + ROUNDED):
                high = middle
            else:
                low = middle + 1
        if high < best.keep_unsharded:
            less = with_best_shares(self._exactly(best.choices, high), best.choices)
            best = replace(best if less is None else less, keep_unsharded=high)
        lower_s = min(self.left_s, best.step_s)
        return replace(best, lower_bound_s=lower_s, proven=lower_s >= best.step_s * (1.0 - SAME))

    def _children(self, node: _Node) -> list[tuple[float, int, int, tuple[int, ...]]]:
        """Bound, range of K and cuts of what is left of a node after its relaxation has been solved and priced."""
        problem = self._problem(node.least, node.most, node.cuts)
        outcome = improve(problem, self.best_s, self.deadline, effort=self.effort)
        bound_s = outcome.lower_bound_s
        if outcome.solution is None:
            self.left_s = min(self.left_s, bound_s)
            return []
        choices = outcome.solution.choices
        kept = self._price_roomiest(choices, node)
        self._price_common(choices, kept)
        if bound_s >= self.best_s * (1.0 - SAME):
            return []
        cuts = _cuts(choices, node.cuts)
        cut_s = price(self._problem(node.least, node.most, cuts), choices)
        gained_s = 0.0 if cut_s is None else cut_s - bound_s
        if node.least < node.most and (cuts == node.cuts or gained_s < (self.best_s - bound_s) / 2):
            middle = kept if kept < node.most else (node.least + node.most) // 2
            return [(bound_s, node.least, middle, node.cuts), (bound_s, middle + 1, node.most, node.cuts)]
        if cuts == node.cuts:
            self.left_s = min(self.left_s, bound_s)
            return []
        return [(bound_s, node.least, node.most, cuts)]

    def _price_roomiest(self, choices: Sequence[RankChoice], node: _Node) -> int:
        """Price choices at the largest K of a node at which they fit; returns it."""
        low, high = node.least, node.most
        if self._price(choices, high) or low == high:
            return high
        while low < high - 1:
            middle = (low + high) // 2
            fits = price(self._exactly(choices, middle), choices) is not None
            low, high = (middle, high) if fits else (low, middle)
        self._price(choices, low)
        return low

    def _price_common(self, choices: Sequence[RankChoice], keep_unsharded: int) -> None:
        """Price choices with one number of recomputed blocks for all ranks that recompute some: fewer stages differ."""
        for count in _cuts(choices, ()):
            common = [
                replace(choice, recompute_blocks=count if choice.recompute_blocks <= count else None)
                if choice.recompute_blocks is not None
                else choice
                for choice in choices
            ]
            self._price(common, keep_unsharded)

    def _price(self, choices: Sequence[RankChoice], keep_unsharded: int) -> bool:
        """Keep choices if they make the best plan; whether they fit."""
        problem = self._exactly(choices, keep_unsharded)
        priced_s = price(problem, choices)
        if priced_s is not None and priced_s < self.best_s:
            solution = with_best_shares(problem, choices)
            if solution is not None:
                self.take(solution)
        return priced_s is not None

    def _exactly(self, choices: Sequence[RankChoice], keep_unsharded: int) -> Problem:
        """The problem that prices choices as they are."""
        return self._problem(keep_unsharded, keep_unsharded, _cuts(choices, ()))

    def _problem(self, least: int, most: int, cuts: tuple[int, ...]) -> Problem:
        space = Space(keep_unsharded=most, charged=least, partial=self.partial, cuts=cuts)
        if space not in self.problems:
            self.problems[space] = self._problem_in(space, self.groups)
            self.groups = self.problems[space].groups
        return self.problems[space]

    def _problem_in(self, space: Space, groups: tuple[DeviceGroup, ...] | None = None) -> Problem:
        return make_problem(self.problem.basis, self.problem.settings, self.problem.batch_size, space, groups)


def _cuts(choices: Sequence[RankChoice], others: tuple[int, ...]) -> tuple[int, ...]:
    found = {choice.recompute_blocks for choice in choices if choice.recompute_blocks is not None}
    return tuple(sorted({*others, *found}))
