"""Time of one step in closed form: THE objective of the planner.

For every stage u of the schedule, with n ranks:

    step = AG(first) + sum_u max( AG(prefetched in u) + RS(complete before u), max_i compute_i(u), max_i copy_i(u) )
         + RS(last) + max_i optimizer_i

``compute_i(u)`` is the sum over the rank's microbatches of F, of B (plus F where it recomputes block u), or of F + B
for the head, whose forward and backward run together. On CPU devices it also carries what the rank spends on moving the
bytes of the collectives that run in the stage. Units that stay unsharded are not gathered again. Gathers and reductions
take the time of `costmodel.network` over the plan's unequal shares. Replicated state has no gathers and ranks meet only
in the reductions, see `_replicated_step`.

Source: Guo et al., Cephalo, ICS 2025 (arXiv 2411.01075), section 4.2, with embedding, head, copies, optimizer and the
exposed first gather and last reduction added.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.costmodel.compute import RankChoice, copy_s, moving_s_per_byte, optimizer_s, stage_s
from cephalo_cli.costmodel.memory import gradient_bytes
from cephalo_cli.costmodel.network import busiest_fraction, collective_s
from cephalo_cli.schedule import Phase, Stage, StepStages, is_recomputed
from cephalo_cli.units import DTYPE_BYTES

__all__ = ["CollectiveTimes", "RankSeconds", "StageEstimate", "StepEstimate", "collective_times", "step_estimate"]

CLEARLY = 0.05
"""By this part of the step something takes clearly more of it than compute does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTimes:
    """Seconds and bytes of the collectives of every unit under given shares."""

    gather_s: tuple[float, ...]
    """Seconds to unshard each unit."""
    reduce_s: tuple[float, ...]
    """Seconds to reduce each unit's gradient (replicated: to all-reduce it)."""
    gather_bytes: tuple[int, ...]
    """Bytes of each unit in the compute dtype."""
    reduce_bytes: tuple[int, ...]
    """Bytes of each unit's gradient in the dtype it is reduced in; frozen parameters have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEstimate:
    """One stage: its time is the largest of compute, copies, and collectives after what they wait for."""

    network_s: float
    """Gathers for the next stage and reductions of the stage before."""
    compute_s: float
    """Compute of the slowest rank."""
    copy_s: float
    """Host copies of the slowest rank."""
    ready_s: float = 0.0
    """Compute of the slowest rank before the stage's collectives can begin; part of its compute."""

    @property
    def network_end_s(self) -> float:
        """When the stage's collectives have ended."""
        return self.ready_s + self.network_s

    @property
    def seconds(self) -> float:
        """Time of the stage."""
        return max(self.network_end_s, self.compute_s, self.copy_s)

    def divided(self) -> dict[str, float]:
        """The stage's time by part: seconds in which several parts run side by side are divided among them.

        So a part that the others outlast by a hair counts nearly as much as they do, and one that is far longer than
        the others counts most: it is what a faster device or network would shorten. (The Shapley value of a maximum:
        Littlechild and Owen, Management Science 20(3), 1973.)
        """
        parts = {"compute": self.compute_s, "network": self.network_end_s, "copy": self.copy_s}
        shares = {"compute": self.ready_s, "network": 0.0, "copy": 0.0}
        running, before = sorted(parts, key=lambda part: parts[part]), self.ready_s
        while running:
            now = max(before, parts[running[0]])
            for part in running:
                shares[part] += (now - before) / len(running)
            before = now
            running.pop(0)
        return shares


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSeconds:
    """Compute of one rank in a step."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """What a step is expected to take, and why."""

    step_s: float
    ranks: tuple[RankSeconds, ...]
    exposed_s: float
    """The first gather and the last reduction, which nothing hides."""
    stages: tuple[StageEstimate, ...]
    optimizer_s: float
    """Optimizer step of the slowest rank."""

    @property
    def bound(self) -> str:
        """What takes most of the step: compute unless network, copy or optimizer takes clearly more."""
        parts = {"compute": 0.0, "network": self.exposed_s, "copy": 0.0, "optimizer": self.optimizer_s}
        for stage, times in Counter(self.stages).items():
            for part, seconds in stage.divided().items():
                parts[part] += times * seconds
        most = max(parts, key=lambda part: parts[part])
        return most if parts[most] - parts["compute"] > CLEARLY * self.step_s else "compute"


def collective_times(basis: Basis, step: StepStages, shares: Sequence[float]) -> CollectiveTimes:
    """Seconds and bytes of every unit's collectives.

    Args:
        basis: Network fits and dtype.
        step: Units and schedule.
        shares: State share of each rank (ignored where the state is replicated).
    """
    gather_bytes = tuple(unit.num_parameters * DTYPE_BYTES[basis.dtype] for unit in step.units)
    reduce_bytes = tuple(unit.num_trained * gradient_bytes(step, basis.dtype) for unit in step.units)
    zeros = (0.0,) * len(step.units)
    network = basis.network
    if network == "ideal":
        return CollectiveTimes(gather_s=zeros, reduce_s=zeros, gather_bytes=gather_bytes, reduce_bytes=reduce_bytes)
    replicated = step.name == "replicated"
    busiest = busiest_fraction(network.algorithm, [1 / len(shares)] * len(shares) if replicated else shares)
    gather_s = tuple(collective_s(network.all_gather, size, busiest) for size in gather_bytes)
    reduce_s = tuple(collective_s(network.reduce_scatter, size, busiest) for size in reduce_bytes)
    if replicated:
        again = tuple(collective_s(network.all_gather, size, busiest) for size in reduce_bytes)
        gather_s, reduce_s = zeros, tuple(map(sum, zip(reduce_s, again, strict=True)))
    return CollectiveTimes(gather_s=gather_s, reduce_s=reduce_s, gather_bytes=gather_bytes, reduce_bytes=reduce_bytes)


def step_estimate(basis: Basis, choices: Sequence[RankChoice], step: StepStages) -> StepEstimate:
    """Estimate one step of a plan.

    Args:
        basis: Measured curves, model and network.
        choices: What the plan decides, one a rank.
        step: The stages of its schedule.

    Returns:
        The step's seconds with every part that led to them.
    """
    times = collective_times(basis, step, [choice.state_share for choice in choices])
    computes = [_Compute(basis, choice, len(choices), times, step) for choice in dict.fromkeys(choices)]
    totals = {compute.choice: compute.totals() for compute in computes}
    ranks = tuple(totals[choice] for choice in choices)
    optimizer = max(rank.optimizer_s for rank in ranks)
    if step.name == "replicated":
        return replace(_replicated_step(step, times, computes, tuple(totals.values()), optimizer), ranks=ranks)
    stages: list[StageEstimate] = []
    before: tuple[int, ...] = ()
    cache: dict[tuple[object, ...], StageEstimate] = {}
    cuts = sorted({choice.recompute_blocks for choice in totals if choice.recompute_blocks is not None})
    for stage in step.stages:
        moved = (
            tuple(times.gather_bytes[unit] for unit in stage.unshard),
            tuple(times.reduce_bytes[unit] for unit in before),
        )
        unit = step.units[stage.unit]
        part = bisect_left(cuts, unit.index) if stage.phase == "backward" else 0
        key = (unit.kind, stage.phase, stage.round, part, *moved)
        if key not in cache:
            network = sum(times.gather_s[unit] for unit in stage.unshard) + sum(times.reduce_s[unit] for unit in before)
            cache[key] = StageEstimate(
                network_s=network,
                compute_s=max(compute.seconds(stage) + compute.moving_s(stage.unshard, before) for compute in computes),
                copy_s=max(compute.copy(stage) for compute in computes),
            )
        stages.append(cache[key])
        before = stage.reduce
    exposed = sum(times.gather_s[unit] for unit in step.first) + sum(times.reduce_s[unit] for unit in before)
    total = exposed + sum(stage.seconds for stage in stages) + optimizer
    return StepEstimate(step_s=total, ranks=ranks, exposed_s=exposed, stages=tuple(stages), optimizer_s=optimizer)


class _Compute:
    """Compute of all ranks with one choice, stage by stage."""

    def __init__(
        self, basis: Basis, choice: RankChoice, num_ranks: int, times: CollectiveTimes, step: StepStages
    ) -> None:
        self.basis, self.choice, self.times, self.step = basis, choice, times, step
        self.device = basis.devices[choice.device]
        self.moving_s_per_byte = moving_s_per_byte(basis, choice, num_ranks, step.name)

    def sizes(self, stage: Stage) -> tuple[int, ...]:
        sizes = self.choice.microbatch_sizes
        return sizes if stage.round is None else sizes[stage.round : stage.round + 1]

    def seconds(self, stage: Stage) -> float:
        unit, choice = self.step.units[stage.unit], self.choice
        again = is_recomputed(unit, recompute=choice.recompute, recompute_blocks=choice.recompute_blocks)
        return stage_s(self.device, unit.kind, stage.phase, self.sizes(stage), recompute=again)

    def copy(self, stage: Stage) -> float:
        kind = self.step.units[stage.unit].kind
        return copy_s(self.basis, self.device, kind, stage.phase, self.sizes(stage), offload=self.choice.offload)

    def waits_s(self, stages: Sequence[Stage]) -> float:
        """What stages that only this rank waits for take longer than their compute, because of its host copies."""
        if not self.choice.offload:
            return 0.0
        alike = Counter((self.step.units[stage.unit].kind, stage.phase, self.sizes(stage)) for stage in stages)
        found = {(self.step.units[stage.unit].kind, stage.phase, self.sizes(stage)): stage for stage in stages}
        return sum(times * max(0.0, self.copy(found[key]) - self.seconds(found[key])) for key, times in alike.items())

    def moving_s(self, gathered: Sequence[int], reduced: Sequence[int]) -> float:
        num_bytes = sum(self.times.gather_bytes[unit] for unit in gathered)
        num_bytes += sum(self.times.reduce_bytes[unit] for unit in reduced)
        return self.moving_s_per_byte * num_bytes

    def totals(self) -> RankSeconds:
        sizes, num_blocks = self.choice.microbatch_sizes, len(self.step.units) - 2
        num_again = self.choice.num_recomputed(num_blocks)

        def whole(phase: Phase) -> float:
            ends = sum(
                stage_s(self.device, unit.kind, phase, sizes, recompute=False)
                for unit in (self.step.units[0], self.step.units[-1])
            )
            once, again = (stage_s(self.device, "block", phase, sizes, recompute=each) for each in (False, True))
            return ends + (num_blocks - num_again) * once + num_again * again

        return RankSeconds(
            forward_s=whole("forward"),
            backward_s=whole("backward"),
            optimizer_s=optimizer_s(self.basis, self.choice),
        )


def _replicated_step(
    step: StepStages,
    times: CollectiveTimes,
    computes: Sequence[_Compute],
    ranks: tuple[RankSeconds, ...],
    optimizer: float,
) -> StepEstimate:
    """Replicated state: ranks run freely until the reductions, which start as gradients are complete, unit after unit.

    ``step = max( max_i compute_i + AR(last), max_i(compute_i until the first gradient is complete) + sum_u AR(u) )
    + max_i optimizer_i``, where on CPU devices compute_i carries the moving of all reductions but the last. A rank that
    offloads takes the longer of compute and copies in each of its stages.
    """
    reduced = [stage for stage in step.stages if stage.reduce]
    tail = reduced[1:]
    waits = [rank_compute.waits_s(step.stages) for rank_compute in computes]
    hidden = [unit for stage in reduced[:-1] for unit in stage.reduce]
    computed = [
        rank.forward_s + rank.backward_s + rank_compute.moving_s((), hidden)
        for rank, rank_compute in zip(ranks, computes, strict=True)
    ]
    compute = max(computed)
    ready = [
        rank.forward_s + rank.backward_s - sum(rank_compute.seconds(stage) for stage in tail)
        for rank, rank_compute in zip(ranks, computes, strict=True)
    ]
    all_reduces = sum(times.reduce_s[unit] for stage in reduced for unit in stage.reduce)
    last = sum(times.reduce_s[unit] for unit in reduced[-1].reduce)
    busy = max(compute + last, max(ready) + all_reduces)
    copied = 0.0
    if any(waits):
        ends = max(seconds + wait_s for seconds, wait_s in zip(computed, waits, strict=True))
        copied_ready = max(
            seconds + wait_s - rank_compute.waits_s(tail)
            for seconds, wait_s, rank_compute in zip(ready, waits, computes, strict=True)
        )
        busy = max(busy, ends + last, copied_ready + all_reduces)
        copied = busy - last
    stage = StageEstimate(network_s=all_reduces - last, compute_s=compute, copy_s=copied, ready_s=max(ready))
    return StepEstimate(step_s=busy + optimizer, ranks=ranks, exposed_s=last, stages=(stage,), optimizer_s=optimizer)
