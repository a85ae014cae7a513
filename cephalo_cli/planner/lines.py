"""Linear conditions that every option of a better plan obeys: they close long lists of microbatches before they grow.

Symbols as in `problem`, with f_k the least T_k of any better plan, c_k how often kind k occurs, and

    X = min over shares of exposed(w) + O              what a step takes beside its stages
    budget = target - X                                so a better plan has ``sum_k c_k T_k <= budget``

A *line* of a device group is a set of weights with a limit by samples: an option x of b samples can only be part of a
better plan if ``sum_k weight_k t_k(x) <= limit(b)``. There are two.

1. Its own step: ``sum_k c_k t_k(x) <= budget``. From this follows how many samples a rank can take at most, and as the
   others cannot take more either, at least.
2. All ranks together: for weights v_dk with ``sum_d N_d v_dk <= c_k``, and m the least weighted seconds a sample of any
   microbatch of any group,

       sum_k c_k T_k >= D + sum_i r_i,   D = sum_k (c_k - sum_d N_d v_dk) f_k + m B,   r_i = sum_k v_dk t_k(x_i) - m b_i

   where no r_i is below 0: so r_i is at most ``budget - D`` less what the other ranks need. The best weights are the
   prices of a small linear program over numbers of microbatches of each size, which may be fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog

from cephalo_cli.planner.arrays import Floats, Ints, Mask
from cephalo_cli.planner.bounds import Bounds
from cephalo_cli.planner.options import Window
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.shares import ROUNDING, Holder, best_limits
from cephalo_cli.planner.sizes import MICROBATCHES, SizeCosts

__all__ = ["Line", "Lines", "draw_lines", "least_beside_stages_s"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A linear condition on the options of one family of modes."""

    weights: Floats
    """By column of additive costs."""
    least: Floats
    """The least weighted costs of microbatches, by their sum."""
    limits: Floats
    """The most that a better plan allows, by samples; minus infinity where it has no such option."""

    def open(self, samples: int, done: Floats, targets: Ints) -> Mask:
        """Whether prefixes may become an option of a target: shape (prefixes, targets).

        Args:
            samples: Samples of the prefixes.
            done: Additive costs of the prefixes, shape (prefixes, columns).
            targets: Samples of the options.
        """
        rest = self.least[targets - samples]
        return np.asarray((done @ self.weights)[:, None] + rest[None] <= self.limits[targets][None])


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of all device groups."""

    bound_s: float
    """No plan takes less for its stages."""
    of: tuple[tuple[tuple[Line, ...], ...], ...]
    """By group and family of modes."""

    def open_targets(self, group: int, family: int, targets: Ints) -> Ints:
        """Samples for which some option of a family may obey all its lines."""
        for line in self.of[group][family]:
            targets = targets[line.least[targets] <= line.limits[targets]]
        return targets


def least_beside_stages_s(problem: Problem, bounds: Sequence[Bounds]) -> float:
    """X; infinite where the state does not fit."""
    holders = [
        Holder(group.count, float(bound.relaxed.caps.max(initial=-1.0)), group.optimizer_s)
        for group, bound in zip(problem.groups, bounds, strict=True)
    ]
    best = best_limits(replace(problem, stages=()), [0.0] * len(problem.kinds), holders)
    return np.inf if best is None else best.step_s


def draw_lines(problem: Problem, bounds: Sequence[Bounds], window: Window) -> Lines:
    """Draw the lines of all groups within a window, whose budget and floors they use."""
    groups = [[_Family(bound, index, window) for index in range(len(bound.costs))] for bound in bounds]
    counts = np.array([group.count for group in problem.groups])
    # What a rank can take at most in its own step, and so at least.
    most = np.array([max(family.most for family in families) for families in groups])
    fewest = np.maximum(0, problem.batch_size - (int(counts @ most) - most))
    for families, low in zip(groups, fewest, strict=True):
        for family in families:
            family.narrow(int(low))
    prices = _prices(problem, groups, window)
    for families, price in zip(groups, prices, strict=True):
        for family in families:
            family.price(price)
    sample_s = min((family.sample_s for families in groups for family in families if family.alive), default=0.0)
    unpriced = np.maximum(0.0, window.counts - counts @ prices)
    needs = np.array(
        [
            min((family.need(sample_s) for family in families if family.alive), default=0.0 if low == 0 else np.inf)
            for families, low in zip(groups, fewest, strict=True)
        ]
    )
    needs = np.where(fewest == 0, np.minimum(needs, 0.0), needs)
    bound_s = float(unpriced @ window.floors_s) + sample_s * problem.batch_size + float(counts @ needs)
    slack_s = window.budget_s - bound_s
    return Lines(
        bound_s=bound_s,
        of=tuple(
            tuple(family.lines(slack_s + need, sample_s) for family in families)
            for families, need in zip(groups, needs.tolist(), strict=True)
        ),
    )


class _Family:
    """One family of modes of a device group."""

    def __init__(self, bound: Bounds, index: int, window: Window) -> None:
        relaxed = bound.relaxed
        self.costs, self.window = bound.costs[index], window
        modes = relaxed.group.families[index]
        width = len(bound.least[index])
        self.fits = np.zeros(width, dtype=bool)
        self.fits[relaxed.samples[np.isin(relaxed.modes, modes)]] = True
        self.columns, self.rates = _slowest_parts(self.costs)
        """For every kind the additive costs and seconds a sample that bound its time from below."""
        self.own = self._line(window.counts)
        self.own_limits: Floats = np.full(width, window.budget_s * (1.0 + ROUNDING), dtype=np.float64)
        self.own_limits -= float(self.rates @ window.counts) * np.arange(width)
        self.open = self.fits & (self.own <= self.own_limits)
        self.most = int(np.flatnonzero(self.open).max(initial=0))

    @property
    def alive(self) -> bool:
        """Whether any rank of a better plan may be in one of its modes, with samples."""
        return bool(self.open[1:].any())

    def narrow(self, fewest: int) -> None:
        """Rule out fewer samples than some."""
        self.open[:fewest] = False

    def seconds(self) -> Floats:
        """Lower bounds of the seconds of microbatches by kind, from size 1 on."""
        sizes = np.arange(1, len(self.costs.additive))
        return np.asarray(self.costs.additive[1:] @ self.columns.T + np.outer(sizes, self.rates))

    def price(self, weights: Floats) -> None:
        """Weigh the kinds."""
        self.weights = weights
        self.together = self._line(weights)
        sizes = np.arange(1, len(self.costs.additive))
        self.sample_s = float((self.seconds() @ weights / sizes).min(initial=np.inf))

    def need(self, sample_s: float) -> float:
        """The least r of one of its options."""
        samples = np.arange(len(self.open))
        weighed = self.together + (float(self.rates @ self.weights) - sample_s) * samples
        return max(0.0, float(weighed[self.open].min(initial=np.inf)))

    def lines(self, slack_s: float, sample_s: float) -> tuple[Line, Line]:
        """Both lines."""
        limits = np.full_like(self.own, -np.inf)
        least_s = sample_s - float(self.rates @ self.weights)
        limits[self.open] = least_s * np.flatnonzero(self.open) + slack_s + ROUNDING * self.window.budget_s
        return (
            Line(weights=self.window.counts @ self.columns, least=self.own, limits=self.own_limits),
            Line(weights=self.weights @ self.columns, least=self.together, limits=limits),
        )

    def _line(self, weights: Floats) -> Floats:
        """The least weighted costs of microbatches, by their sum."""
        costs = self.costs.additive[1:] @ (weights @ self.columns)
        table = np.full(len(self.fits), np.inf)
        table[0] = 0.0
        for samples in range(1, len(table)):
            before = table[max(0, samples - len(costs)) : samples][::-1]
            table[samples] = (before + costs[: len(before)]).min(initial=np.inf)
        return table


def _slowest_parts(costs: SizeCosts) -> tuple[Floats, Floats]:
    """What bounds the time of every kind from below: its compute, or its copies where those are always longer.

    Returns:
        Weights of additive costs, shape (kinds, columns), and seconds a sample.
    """
    columns = np.eye(costs.num_kinds, costs.additive.shape[1])
    rates = np.zeros(costs.num_kinds)
    sizes = np.arange(1, len(costs.additive))
    slowest = (costs.seconds[1:] / sizes[:, None]).max(axis=0, initial=0.0)
    for per_sample, latency in ((costs.in_s, costs.in_latency_s), (costs.out_s, costs.out_latency_s)):
        for kind in np.flatnonzero(per_sample > np.maximum(slowest, rates)):
            rates[kind] = per_sample[kind]
            columns[kind] = 0.0
            columns[kind, MICROBATCHES] = latency[kind]
    return columns, rates


def _prices(problem: Problem, groups: Sequence[Sequence[_Family]], window: Window) -> Floats:
    """Weights v by group and kind, from the linear program."""
    num_kinds = len(window.counts)
    if window.budget_s <= 0.0:
        return np.zeros((len(groups), num_kinds))
    blocks, sizes, owners = [np.zeros((0, num_kinds))], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for group, families in enumerate(groups):
        for family in families:
            if family.alive:
                blocks.append(family.seconds())
                sizes.append(np.arange(1.0, len(blocks[-1]) + 1.0))
                owners.append(np.full(len(blocks[-1]), group))
    seconds, size, owner = np.concatenate(blocks), np.concatenate(sizes), np.concatenate(owners)
    rows = np.zeros((len(groups) * num_kinds, len(size) + num_kinds))
    for group, members in enumerate(problem.groups):
        mine = np.flatnonzero(owner == group)
        at = slice(group * num_kinds, (group + 1) * num_kinds)
        rows[at, mine] = seconds[mine].T * (problem.batch_size / (window.budget_s * members.count))
        rows[at, len(size) :] = -np.eye(num_kinds)
    solved = linprog(
        np.concatenate([np.zeros(len(size)), window.counts]),
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=np.concatenate([size, np.zeros(num_kinds)])[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * len(size) + [(floor / window.budget_s, None) for floor in window.floors_s.tolist()],
        method="highs",
    )
    if solved.x is None:
        return np.zeros((len(groups), num_kinds))
    prices = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals)).reshape(len(groups), num_kinds)
    over = np.maximum(1.0, prices.sum(axis=0) / window.counts)
    return np.asarray(prices / over / np.array([[members.count] for members in problem.groups]))
