"""What others do, under the same cost model: each decides as its source describes, with its own schedule.

fsdp              even batch, even shares, one microbatch size; gathers every microbatch (Zhao et al., VLDB 2023)
compute-balanced  batch in proportion to measured speed, even shares, layer-major: an ablation of Cephalo (ICS 2025)
memory-balanced   even batch, shares in proportion to memory, layer-major: the other ablation
whale             replicated state, batch in proportion to peak FLOPS, shifted away from cards short of memory
                  (Jia et al., Whale, ATC 2022)
poplar            even shares; in every round each device gets the microbatch that its measured curve finishes in the
                  common time (Zhang et al., Poplar, AAAI 2025)

Where nothing fits, the decisions that need least memory are returned, so that what is missing can be told.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cephalo_cli.artifacts.plan import Alternative, Strategy
from cephalo_cli.costmodel import RankChoice
from cephalo_cli.errors import UsageError
from cephalo_cli.planner.apportion import largest_remainder, uniform_sizes
from cephalo_cli.planner.decided import Decided
from cephalo_cli.planner.groups import DeviceGroup
from cephalo_cli.planner.problem import Problem
from cephalo_cli.planner.rounds import make_fsdp, make_poplar, make_whale
from cephalo_cli.planner.sizes import KEPT, SizeCosts, size_costs

__all__ = ["OTHERS", "decide", "other_strategies"]

LEAST_SECONDS = 1e-12
"""What a microbatch takes at least, so that curves of zeros still have a speed."""

OTHERS: tuple[Strategy, ...] = ("fsdp", "compute-balanced", "memory-balanced", "whale", "poplar")


def other_strategies(problem: Problem) -> list[tuple[Alternative, Decided | None]]:
    """Every strategy but cephalo: what a plan shows of it, and its decisions where it has any."""
    found: list[tuple[Alternative, Decided | None]] = []
    for strategy in OTHERS:
        try:
            decided = decide(problem, strategy)
            found.append((decided.alternative(), decided))
        except UsageError as error:
            found.append((Alternative(strategy=strategy, feasible=False, reason=error.message), None))
    return found


def decide(problem: Problem, strategy: Strategy) -> Decided:
    """Decide as one of the other strategies does.

    Raises:
        UsageError: The strategy needs a number that the profile lacks, or the settings do not suit a device.
    """
    makers: dict[Strategy, Callable[[Problem], Decided]] = {
        "fsdp": make_fsdp,
        "compute-balanced": _compute_balanced,
        "memory-balanced": _memory_balanced,
        "whale": make_whale,
        "poplar": make_poplar,
    }
    return makers[strategy](problem)


def _compute_balanced(problem: Problem) -> Decided:
    even = 1.0 / problem.num_ranks
    weights = [0.0] * problem.num_ranks
    for group in problem.groups:
        quickest = _Quickest(problem, group, -(-problem.batch_size // problem.num_ranks))
        for rank in group.ranks:
            weights[rank] = quickest.speed(even)
    if not any(weights):
        weights = [1.0] * problem.num_ranks
    batches = largest_remainder(weights, problem.batch_size)
    return _layer_major(problem, "compute-balanced", batches, [even] * problem.num_ranks)


def _memory_balanced(problem: Problem) -> Decided:
    batches = largest_remainder([1.0] * problem.num_ranks, problem.batch_size)
    total = sum(group.limit_bytes * group.count for group in problem.groups)
    shares = [0.0] * problem.num_ranks
    for group in problem.groups:
        for rank in group.ranks:
            shares[rank] = group.limit_bytes / total
    return _layer_major(problem, "memory-balanced", batches, shares)


def _layer_major(problem: Problem, strategy: Strategy, batches: Sequence[int], shares: Sequence[float]) -> Decided:
    choices: dict[int, RankChoice] = {}
    for group in problem.groups:
        quickest = _Quickest(problem, group, max(batches[rank] for rank in group.ranks))
        known: dict[int, RankChoice] = {}
        for rank in group.ranks:
            if batches[rank] not in known:
                known[batches[rank]] = quickest.choice(batches[rank], shares[rank])
            choices[rank] = known[batches[rank]]
    return Decided(
        basis=problem.basis,
        settings=problem.settings,
        strategy=strategy,
        schedule="layer-major",
        choices=tuple(choices[rank] for rank in range(problem.num_ranks)),
    )


class _Quickest:
    """The quickest equal microbatches (a smaller last one excepted) of one device group."""

    def __init__(self, problem: Problem, group: DeviceGroup, most: int) -> None:
        self.problem, self.group = problem, group
        self.counts = np.array(problem.counts, dtype=np.float64)
        self.costs: list[SizeCosts] = [size_costs(problem, group, mode, max(1, most)) for mode in group.modes]

    def speed(self, share: float) -> float:
        """Samples a second at the best microbatch size that fits beside a share; 0 where none does."""
        best = 0.0
        for costs in self.costs:
            room = self.group.limit_bytes - share * self.problem.state_bytes
            sizes = np.flatnonzero(costs.beside_bytes[1:] <= room) + 1
            if self.problem.settings.microbatch_size is not None:
                sizes = sizes[sizes == self.problem.settings.microbatch_size]
            seconds = costs.seconds[sizes] @ self.counts
            if len(sizes):
                best = max(best, float((sizes / np.maximum(seconds, LEAST_SECONDS)).max()))
        return best

    def choice(self, samples: int, share: float) -> RankChoice:
        """The quickest option that fits beside a share, else the one that needs least memory."""
        only = self.problem.settings.microbatch_size
        best: tuple[tuple[bool, float, float], int, tuple[int, ...]] | None = None
        room = self.group.limit_bytes - share * self.problem.state_bytes
        for index, costs in enumerate(self.costs):
            for size in [only] if only is not None else range(1, max(1, min(samples, costs.max_size)) + 1):
                sizes = uniform_sizes(samples, size)
                if sizes and sizes[0] > costs.max_size:
                    key = (True, float("inf"), float(sizes[0]))
                else:
                    total = costs.additive[list(sizes)].sum(axis=0) if sizes else costs.additive[0]
                    beside = costs.beside_bytes[max(sizes, default=0)] + total[KEPT] + costs.boundary_bytes * samples
                    seconds = float(total[: costs.num_kinds] @ self.counts)
                    fits = bool(beside <= room)
                    key = (not fits, seconds if fits else float(beside), seconds)
                if best is None or key < best[0]:
                    best = key, index, sizes
        if best is None:
            raise AssertionError("a device group has no mode")
        return self.group.modes[best[1]].choice(self.group.name, best[2], share)
