"""Seconds of a plan's ranks and of its step, counted again from the plan alone: see `recount`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cephalo_cli.artifacts.plan import Plan, RankPlan
from cephalo_cli.artifacts.profile import CollectiveFit, DeviceProfile
from cephalo_cli.planner.recount import by_rank, value_at
from cephalo_cli.schedule import Stage, StepStages
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes

__all__ = ["RankTime", "StepTime"]


@dataclass(frozen=True)
class RankTime:
    """Seconds of one rank."""

    plan: Plan
    rank: RankPlan
    step: StepStages

    @cached_property
    def forward_s(self) -> float:
        """Forward of all units and microbatches."""
        return self._whole_s(forward=True, backward=False)

    @cached_property
    def backward_s(self) -> float:
        """Backward of all units and microbatches."""
        return self._whole_s(forward=False, backward=True)

    @cached_property
    def optimizer_s(self) -> float:
        """Optimizer step on the shard."""
        trained = self.plan.num_parameters - self.plan.num_frozen_parameters
        return self._device.optimizer_s_per_parameter * trained * self.rank.state_share

    @cached_property
    def num_again(self) -> int:
        """How many blocks, the first ones, run their forward again in backward."""
        return self.rank.num_recomputed(self.plan.model.num_layers)

    def stage_s(self, stage: Stage, moved_bytes: float) -> float:
        """Compute of a stage, with what moving the stage's collectives costs the computing cores."""
        phase = stage.phase
        compute = self._unit_s(
            stage.unit,
            forward=phase != "backward",
            backward=phase != "forward",
            sizes=self._sizes_in(stage),
        )
        num_ranks, network = len(self.plan.ranks), self.plan.network
        if network == "ideal" or num_ranks == 1:
            return compute
        received, own = 1.0 - self.rank.state_share, self.rank.state_share
        handled = 2.0 * received if network.algorithm == "ring" else received + own + (num_ranks - 1) * own
        return compute + self._device.collective_compute_s_per_byte * handled * moved_bytes

    def all_reduced_s(self, moved_bytes: float) -> float:
        """Compute that all-reducing bytes costs: a reduce-scatter and a gather over equal parts."""
        num_ranks = len(self.plan.ranks)
        handled = 4.0 * (num_ranks - 1) / num_ranks
        return self._device.collective_compute_s_per_byte * handled * moved_bytes

    def copy_s(self, stage: Stage) -> float:
        """Host copies of a stage: the busier direction."""
        host, sizes = self._device.host_copy, self._sizes_in(stage)
        if host is None or not self.rank.offload or not sizes:
            return 0.0
        moved = boundary_bytes(self.plan.model, self.plan.seq_len, self.plan.dtype, sum(sizes))
        latency = host.latency_s * len(sizes)
        first = self.step.units[stage.unit].kind == "embedding"
        into = {"forward": 1, "forward-backward": 1, "backward": 2}[stage.phase] - (1 if first else 0)
        out = 0 if first and stage.phase != "forward" else 1
        return max(
            into * (latency + moved / host.to_device_bytes_per_s), out * (latency + moved / host.to_host_bytes_per_s)
        )

    def late_s(self, stage: Stage) -> float:
        """By how much the copies of a stage outlast its compute."""
        return max(0.0, self.copy_s(stage) - self.stage_s(stage, 0.0))

    @property
    def _device(self) -> DeviceProfile:
        return self.plan.devices[self.rank.device]

    def _whole_s(self, *, forward: bool, backward: bool) -> float:
        return sum(
            self._unit_s(unit.index, forward=forward, backward=backward, sizes=self.rank.microbatch_sizes)
            for unit in self.step.units
        )

    def _unit_s(self, index: int, *, forward: bool, backward: bool, sizes: Sequence[int]) -> float:
        """Compute of one unit: the passes asked for, and the forward again in the backward of a recomputed block."""
        kind = self.step.units[index].kind
        unit = self._device.units.get(kind)
        if unit is None:
            return 0.0
        passes = (1 if forward else 0) + (1 if backward and kind == "block" and index <= self.num_again else 0)
        total = passes * sum(value_at(unit.microbatch, unit.forward_s, size) for size in sizes)
        if backward:
            total += sum(value_at(unit.microbatch, unit.backward_s, size) for size in sizes)
        return total

    def _sizes_in(self, stage: Stage) -> tuple[int, ...]:
        """Microbatches that run in a stage."""
        sizes = self.rank.microbatch_sizes
        return sizes if stage.round is None else sizes[stage.round : stage.round + 1]


class StepTime:
    """Seconds of a plan's step."""

    def __init__(self, plan: Plan, step: StepStages) -> None:
        self.plan, self.step = plan, step
        self.ranks = by_rank(plan, lambda rank: RankTime(plan, rank, step))
        self.distinct = list({id(rank): rank for rank in self.ranks}.values())

    def step_s(self) -> float:
        """Seconds of the step."""
        optimizer = max(rank.optimizer_s for rank in self.distinct)
        if self.plan.schedule == "replicated":
            return self._replicated_s() + optimizer
        total = self._network_s(self.step.first, ()) + optimizer
        complete: tuple[int, ...] = ()
        known: dict[tuple[object, ...], float] = {}
        for stage in self.step.stages:
            network = self._network_s(stage.unshard, complete)
            moved = self._moved_bytes(stage.unshard, complete)
            again = tuple(stage.unit <= rank.num_again for rank in self.distinct) if stage.phase == "backward" else ()
            key = (self.step.units[stage.unit].kind, stage.phase, stage.round, again, network, moved)
            if key not in known:
                compute = max(rank.stage_s(stage, moved) for rank in self.distinct)
                known[key] = max(network, compute, *(rank.copy_s(stage) for rank in self.distinct))
            total += known[key]
            complete = stage.reduce
        return total + self._network_s((), complete)

    def _replicated_s(self) -> float:
        """Ranks run freely until the gradients, which are reduced one after the other, the head's first.

        A stage of a rank that offloads ends when its copies have, if they are longer than its compute.
        """
        reducing = [stage for stage in self.step.stages if stage.reduce]
        hidden = self._moved_bytes((), [unit for stage in reducing[:-1] for unit in stage.reduce])
        ends, ready = 0.0, 0.0
        for rank in self.distinct:
            whole = rank.forward_s + rank.backward_s
            moving = 0.0 if self.plan.network == "ideal" else rank.all_reduced_s(hidden)
            late = {stage: rank.late_s(stage) for stage in self.step.stages} if rank.rank.offload else {}
            whole += sum(late.values())
            ends = max(ends, whole + moving)
            ready = max(ready, whole - sum(rank.stage_s(stage, 0.0) + late.get(stage, 0.0) for stage in reducing[1:]))
        reductions = [self._all_reduce_s(stage.reduce) for stage in reducing]
        return max(ends + reductions[-1], ready + sum(reductions))

    def _all_reduce_s(self, units: Sequence[int]) -> float:
        network = self.plan.network
        if network == "ideal" or len(self.plan.ranks) == 1:
            return 0.0
        busiest = (len(self.plan.ranks) - 1) / len(self.plan.ranks)
        return sum(
            _collective_s(fit, self._bytes(unit, reduced=True), busiest)
            for unit in units
            for fit in (network.all_gather, network.reduce_scatter)
        )

    @cached_property
    def _busiest(self) -> float:
        """Fraction of a unit that passes through the busiest rank, from the shares of all."""
        shares, network = [rank.state_share for rank in self.plan.ranks], self.plan.network
        received = 1.0 - min(shares)
        if network == "ideal" or network.algorithm == "ring":
            return received
        return max(received, (len(shares) - 1) * max(shares))

    def _bytes(self, unit: int, *, reduced: bool) -> int:
        element, of = DTYPE_BYTES[self.plan.dtype], self.step.units[unit]
        if not reduced:
            return of.num_parameters * element
        element = max(4, element) if self.step.reduce_dtype is None else DTYPE_BYTES[self.step.reduce_dtype]
        return (of.num_parameters - of.num_frozen) * element

    def _moved_bytes(self, gathered: Sequence[int], reduced: Sequence[int]) -> int:
        return sum(self._bytes(unit, reduced=False) for unit in gathered) + sum(
            self._bytes(unit, reduced=True) for unit in reduced
        )

    def _network_s(self, gathered: Sequence[int], reduced: Sequence[int]) -> float:
        network = self.plan.network
        if network == "ideal" or len(self.plan.ranks) == 1:
            return 0.0
        busiest = self._busiest
        return sum(
            _collective_s(network.all_gather, self._bytes(unit, reduced=False), busiest) for unit in gathered
        ) + sum(_collective_s(network.reduce_scatter, self._bytes(unit, reduced=True), busiest) for unit in reduced)


def _collective_s(fit: CollectiveFit, unit_bytes: int, busiest: float) -> float:
    return fit.latency_s + unit_bytes * busiest / fit.bandwidth_bytes_per_s if unit_bytes and busiest > 0 else 0.0
