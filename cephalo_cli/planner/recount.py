"""A second account of a plan: every number of its ranks and its step, from the plan's own content and nothing else.

Written apart from the cost model and the search on purpose, so that a mistake in one of them shows. Only the contracts
(artifacts, units, schedule) are shared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cephalo_cli.artifacts.plan import Plan, RankPlan
from cephalo_cli.artifacts.profile import CollectiveFit, UnitKind, UnitProfile
from cephalo_cli.schedule import Stage, StepStages, plan_stages
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes

__all__ = ["RankAccount", "StepAccount"]


def value_at(points: Sequence[int], values: Sequence[float], size: int) -> float:
    """Read a measured curve: flat before the first point, straight between points, on with the last points' slope."""
    if size <= 0:
        return 0.0
    if size <= points[0]:
        return max(0.0, float(values[0]))
    for (x0, y0), (x1, y1) in zip(
        zip(points, values, strict=True), zip(points[1:], values[1:], strict=True), strict=False
    ):
        if size <= x1:
            part = (size - x0) / (x1 - x0)
            return max(0.0, y0 * (1.0 - part) + y1 * part)
    if len(points) == 1:
        return max(0.0, values[0] * size / points[0])
    start = max(0, len(points) - 5)
    slope = (values[-1] - values[start]) / (points[-1] - points[start])
    return max(0.0, values[-1] + (size - points[-1]) * slope)


@dataclass(frozen=True)
class RankAccount:
    """One rank of a plan, counted again."""

    plan: Plan
    rank: RankPlan
    step: StepStages

    @property
    def wide(self) -> int:
        """Bytes of an element of weights, gradients and moments."""
        return 8 if self.plan.dtype == "float64" else 4

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return sum(self.rank.microbatch_sizes)

    @cached_property
    def _curves(self) -> dict[UnitKind, UnitProfile]:
        return self.plan.devices[self.rank.device].units

    def _boundary(self, samples: int) -> int:
        return boundary_bytes(self.plan.model, self.plan.seq_len, self.plan.dtype, samples)

    def state_bytes(self) -> int:
        """Master weights, gradients and moments of the shard; frozen parameters have weights only."""
        trained = self.plan.num_parameters - self.plan.num_frozen_parameters
        kept = {"sgd": 1, "sgd with momentum": 2}.get(self.plan.settings.optimizer or "adamw", 3) * trained
        numbers = kept + min(trained, self._num_gradients())
        return math.ceil(self.rank.state_share * (numbers * self.wide + self._frozen_bytes()))

    def _num_gradients(self) -> int:
        """Gradients of the whole state that there are at once: all, unless units are updated one by one."""
        if not self.plan.settings.optimizer_in_backward:
            return self.plan.num_parameters
        if len(self.plan.ranks) == 1 or self.plan.schedule == "replicated":
            return max(summed for _, summed in self._in_flight(self.step))
        return max(unit.num_parameters - unit.num_frozen for unit in self.step.units)

    def _frozen_bytes(self) -> int:
        """Weights that are not trained, in the dtype they are stored in, over all ranks."""
        stored = self.plan.model.frozen_dtype
        return self.plan.num_frozen_parameters * (DTYPE_BYTES[stored] if stored is not None else self.wide)

    def buffers_bytes(self) -> int:
        """Whole units in flight, their gradients, and boundaries on their way to and from the host."""
        plan, num_ranks = self.plan, len(self.plan.ranks)
        if plan.devices[self.rank.device].method == "imported":
            return self._kept_unsharded_bytes()
        narrow = DTYPE_BYTES[plan.dtype]
        if num_ranks == 1 or plan.schedule == "replicated":
            stored = plan.model.frozen_dtype or ("float64" if self.wide == 8 else "float32")
            copied = (
                0 if narrow == self.wide else sum(unit.num_parameters - unit.num_frozen for unit in self.step.units)
            )
            copied += 0 if stored == plan.dtype else sum(unit.num_frozen for unit in self.step.units)
            buffers = narrow * copied
        else:
            reduced = self.wide if self.step.reduce_dtype is None else DTYPE_BYTES[self.step.reduce_dtype]
            buffers = max(narrow * whole + reduced * summed for whole, summed in self._in_flight(self.step))
        if self.rank.offload and self.rank.microbatch_sizes:
            buffers += 4 * self._boundary(max(self.rank.microbatch_sizes))
        return buffers

    def _kept_unsharded_bytes(self) -> int:
        """What the fullest stage grows by because blocks stay unsharded between their phases."""
        if not self.plan.num_kept_unsharded or len(self.plan.ranks) == 1:
            return 0
        usual = plan_stages(self.plan.model_copy(update={"keep_unsharded": None}))
        narrow = DTYPE_BYTES[self.plan.dtype]
        now, before = (
            max(narrow * whole + self.wide * summed for whole, summed in self._in_flight(step))
            for step in (self.step, usual)
        )
        return now - before

    @cached_property
    def again(self) -> int:
        """How many blocks, the first ones, run their forward again in backward."""
        if not self.rank.recompute:
            return 0
        stated = self.rank.recompute_blocks
        return self.plan.model.num_layers if stated is None else stated

    @staticmethod
    def _in_flight(step: StepStages) -> list[tuple[int, int]]:
        """Parameters whole, and parameters with a gradient, in every stage."""
        size = {unit.index: unit.num_parameters for unit in step.units}
        trained = {unit.index: unit.num_parameters - unit.num_frozen for unit in step.units}
        found: list[tuple[int, int]] = []
        growing: set[int] = set()
        leaving: set[int] = set()
        for stage in step.stages:
            if stage.phase != "forward":
                owner = step.units[stage.unit].borrows
                growing |= {stage.unit} | (set() if owner is None else {owner})
            whole, summed = (
                sum(size[unit] for unit in stage.unsharded),
                sum(trained[unit] for unit in growing | leaving),
            )
            found.append((whole, summed))
            leaving = set(stage.reduce)
            growing = growing - leaving
        return found

    def working_bytes(self) -> int:
        """The fullest unit at the largest microbatch."""
        largest = max(self.rank.microbatch_sizes, default=0)
        if largest == 0:
            return 0
        found = [0.0]
        for kind, unit in self._curves.items():
            live = value_at(unit.microbatch, unit.working_bytes, largest)
            if kind == "block" and unit.saved_bytes is not None and self.again < self.plan.model.num_layers:
                live -= value_at(unit.microbatch, unit.saved_bytes, largest)
            found.append(live)
        return math.ceil(max(found))

    def saved_bytes(self) -> int:
        """What lives from forward to backward."""
        sizes = self.rank.microbatch_sizes
        if self.plan.schedule != "layer-major" and sizes:
            sizes = (max(sizes),)
        blocks = self.plan.model.num_layers
        kept = 0.0
        for kind, times in (("embedding", 1), ("block", blocks - self.again)):
            unit = self._curves.get(kind)  # type: ignore[call-overload]  # the two names are kinds
            if unit is not None and unit.saved_bytes is not None:
                kept += times * sum(value_at(unit.microbatch, unit.saved_bytes, size) for size in sizes)
        boundaries = 0 if self.rank.offload else self.again + 1
        return math.ceil(kept) + boundaries * self._boundary(sum(sizes))

    def reserve_bytes(self) -> int:
        """What the settings say, else the device's own."""
        stated = self.plan.settings.reserve_bytes
        return self.plan.devices[self.rank.device].reserve_bytes if stated is None else stated

    def limit_bytes(self) -> int:
        """Memory fraction times capacity."""
        capacity = self.plan.cluster.device_types[self.rank.device].memory_bytes
        return 0 if capacity is None else math.floor(self.plan.settings.memory_fraction * capacity)

    def startup_bytes(self) -> int:
        """While weights are made unit by unit: the shard of the weights, one whole unit, and the reserve."""
        largest = max(unit.num_parameters for unit in self.step.units)
        trained = self.plan.num_parameters - self.plan.num_frozen_parameters
        shard = math.ceil(self.rank.state_share * (self.wide * trained + self._frozen_bytes()))
        return shard + self.wide * largest + self.reserve_bytes()

    def seconds(self, index: int, *, forward: bool, backward: bool, sizes: Sequence[int]) -> float:
        """Compute of one unit: the passes asked for, and the forward again in the backward of a recomputed block."""
        kind = self.step.units[index].kind
        unit = self._curves.get(kind)
        if unit is None:
            return 0.0
        passes = (1 if forward else 0) + (1 if backward and kind == "block" and index <= self.again else 0)
        total = passes * sum(value_at(unit.microbatch, unit.forward_s, size) for size in sizes)
        if backward:
            total += sum(value_at(unit.microbatch, unit.backward_s, size) for size in sizes)
        return total

    def whole_seconds(self, *, backward: bool) -> float:
        """One pass through all units with all microbatches."""
        return sum(
            self.seconds(unit.index, forward=not backward, backward=backward, sizes=self.rank.microbatch_sizes)
            for unit in self.step.units
        )

    def optimizer_s(self) -> float:
        """Optimizer step on the shard."""
        trained = self.plan.num_parameters - self.plan.num_frozen_parameters
        return self.plan.devices[self.rank.device].optimizer_s_per_parameter * trained * self.rank.state_share

    def stage_sizes(self, stage: Stage) -> tuple[int, ...]:
        """Microbatches that run in a stage."""
        sizes = self.rank.microbatch_sizes
        return sizes if stage.round is None else sizes[stage.round : stage.round + 1]

    def stage_s(self, stage: Stage, moved_bytes: float) -> float:
        """Compute of a stage, with what moving the stage's collectives costs the computing cores."""
        phase = stage.phase
        compute = self.seconds(
            stage.unit,
            forward=phase != "backward",
            backward=phase != "forward",
            sizes=self.stage_sizes(stage),
        )
        num_ranks, network = len(self.plan.ranks), self.plan.network
        if network == "ideal" or num_ranks == 1:
            return compute
        received, own = 1.0 - self.rank.state_share, self.rank.state_share
        handled = 2.0 * received if network.algorithm == "ring" else received + own + (num_ranks - 1) * own
        return compute + self.plan.devices[self.rank.device].collective_compute_s_per_byte * handled * moved_bytes

    def all_reduced_s(self, moved_bytes: float) -> float:
        """Compute that all-reducing bytes costs: a reduce-scatter and a gather over equal parts."""
        num_ranks = len(self.plan.ranks)
        handled = 4.0 * (num_ranks - 1) / num_ranks
        return self.plan.devices[self.rank.device].collective_compute_s_per_byte * handled * moved_bytes

    def copy_s(self, stage: Stage) -> float:
        """Host copies of a stage: the busier direction."""
        host = self.plan.devices[self.rank.device].host_copy
        sizes = self.stage_sizes(stage)
        if host is None or not self.rank.offload or not sizes:
            return 0.0
        moved, latency = self._boundary(sum(sizes)), host.latency_s * len(sizes)
        first = self.step.units[stage.unit].kind == "embedding"
        into = {"forward": 1, "forward-backward": 1, "backward": 2}[stage.phase] - (1 if first else 0)
        out = 0 if first and stage.phase != "forward" else 1
        return max(
            into * (latency + moved / host.to_device_bytes_per_s), out * (latency + moved / host.to_host_bytes_per_s)
        )


class StepAccount:
    """A plan's step, counted again."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.step = plan, plan_stages(plan)
        known: dict[tuple[str, tuple[int, ...], float, int, bool], RankAccount] = {}
        self.ranks = [
            known.setdefault(
                (
                    rank.device,
                    rank.microbatch_sizes,
                    rank.state_share,
                    rank.num_recomputed(plan.model.num_layers),
                    rank.offload,
                ),
                RankAccount(plan, rank, self.step),
            )
            for rank in plan.ranks
        ]
        self.distinct = list(known.values())

    def step_s(self) -> float:
        """Seconds of the step."""
        optimizer = max(rank.optimizer_s() for rank in self.distinct)
        if self.plan.schedule == "replicated":
            return self._replicated_s() + optimizer
        total = self._network_s(self.step.first, ()) + optimizer
        complete: tuple[int, ...] = ()
        known: dict[tuple[object, ...], float] = {}
        for stage in self.step.stages:
            network = self._network_s(stage.unshard, complete)
            moved = self._moved_bytes(stage.unshard, complete)
            again = tuple(stage.unit <= rank.again for rank in self.distinct) if stage.phase == "backward" else ()
            key = (self.step.units[stage.unit].kind, stage.phase, stage.round, again, network, moved)
            if key not in known:
                compute = max(rank.stage_s(stage, moved) for rank in self.distinct)
                known[key] = max(network, compute, *(rank.copy_s(stage) for rank in self.distinct))
            total += known[key]
            complete = stage.reduce
        return total + self._network_s((), complete)

    def _replicated_s(self) -> float:
        """Ranks run freely until the gradients, which are reduced one after the other, the head's first."""
        reducing = [stage for stage in self.step.stages if stage.reduce]
        hidden = self._moved_bytes((), [unit for stage in reducing[:-1] for unit in stage.reduce])
        ends, ready = 0.0, 0.0
        for rank in self.distinct:
            whole = rank.whole_seconds(backward=False) + rank.whole_seconds(backward=True)
            moving = 0.0 if self.plan.network == "ideal" else rank.all_reduced_s(hidden)
            ends = max(ends, whole + moving)
            ready = max(ready, whole - sum(rank.stage_s(stage, 0.0) for stage in reducing[1:]))
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

    def _busiest(self) -> float:
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
        busiest = self._busiest()
        return sum(
            _collective_s(network.all_gather, self._bytes(unit, reduced=False), busiest) for unit in gathered
        ) + sum(_collective_s(network.reduce_scatter, self._bytes(unit, reduced=True), busiest) for unit in reduced)


def _collective_s(fit: CollectiveFit, unit_bytes: int, busiest: float) -> float:
    return fit.latency_s + unit_bytes * busiest / fit.bandwidth_bytes_per_s if unit_bytes and busiest > 0 else 0.0
