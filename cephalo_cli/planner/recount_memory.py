"""Bytes of a plan's ranks, counted again from the plan alone: see `recount`."""

import math
from dataclasses import dataclass
from functools import cached_property

from cephalo_cli.artifacts.plan import Plan, RankPlan
from cephalo_cli.artifacts.profile import UnitKind, UnitProfile
from cephalo_cli.planner.recount import value_at
from cephalo_cli.schedule import StepStages, plan_stages
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes

__all__ = ["RankMemory"]


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank by term."""

    plan: Plan
    rank: RankPlan
    step: StepStages

    @cached_property
    def state_bytes(self) -> int:
        """Master weights, gradients and moments of the shard; frozen parameters have weights only."""
        kept = {"sgd": 1, "sgd with momentum": 2}.get(self.plan.settings.optimizer or "adamw", 3) * self._num_trained
        numbers = kept + min(self._num_trained, self._num_gradients)
        return math.ceil(self.rank.state_share * (numbers * self._wide + self._frozen_bytes))

    @cached_property
    def buffers_bytes(self) -> int:
        """Whole units in flight, their gradients, and boundaries on their way to and from the host."""
        plan, num_ranks = self.plan, len(self.plan.ranks)
        if plan.devices[self.rank.device].method == "imported":
            return self._kept_unsharded_bytes
        narrow = DTYPE_BYTES[plan.dtype]
        if num_ranks == 1 or plan.schedule == "replicated":
            stored = plan.model.frozen_dtype or ("float64" if self._wide == 8 else "float32")
            copied = (
                0 if narrow == self._wide else sum(unit.num_parameters - unit.num_frozen for unit in self.step.units)
            )
            copied += 0 if stored == plan.dtype else sum(unit.num_frozen for unit in self.step.units)
            buffers = narrow * copied
        else:
            reduced = self._wide if self.step.reduce_dtype is None else DTYPE_BYTES[self.step.reduce_dtype]
            buffers = max(narrow * whole + reduced * summed for whole, summed in _in_flight(self.step))
        if self.rank.offload and self.rank.microbatch_sizes:
            buffers += 4 * self._boundary_bytes(max(self.rank.microbatch_sizes))
        return buffers

    @cached_property
    def working_bytes(self) -> int:
        """The fullest unit at the largest microbatch."""
        largest = max(self.rank.microbatch_sizes, default=0)
        if largest == 0:
            return 0
        found = [0.0]
        for kind, unit in self._curves.items():
            live = value_at(unit.microbatch, unit.working_bytes, largest)
            if kind == "block" and unit.saved_bytes is not None and self._num_again < self.plan.model.num_layers:
                live -= value_at(unit.microbatch, unit.saved_bytes, largest)
            found.append(live)
        return math.ceil(max(found))

    @cached_property
    def saved_bytes(self) -> int:
        """What lives from forward to backward."""
        sizes = self.rank.microbatch_sizes
        if self.plan.schedule != "layer-major" and sizes:
            sizes = (max(sizes),)
        keepers: dict[UnitKind, int] = {"embedding": 1, "block": self.plan.model.num_layers - self._num_again}
        kept = 0.0
        for kind, times in keepers.items():
            unit = self._curves.get(kind)
            if unit is not None and unit.saved_bytes is not None:
                kept += times * sum(value_at(unit.microbatch, unit.saved_bytes, size) for size in sizes)
        boundaries = 0 if self.rank.offload else self._num_again + 1
        return math.ceil(kept) + boundaries * self._boundary_bytes(sum(sizes))

    @cached_property
    def reserve_bytes(self) -> int:
        """What the settings say, else the device's own."""
        stated = self.plan.settings.reserve_bytes
        return self.plan.devices[self.rank.device].reserve_bytes if stated is None else stated

    @cached_property
    def limit_bytes(self) -> int:
        """Memory fraction times capacity."""
        capacity = self.plan.cluster.device_types[self.rank.device].memory_bytes
        return 0 if capacity is None else math.floor(self.plan.settings.memory_fraction * capacity)

    @cached_property
    def startup_bytes(self) -> int:
        """While weights are made unit by unit: the shard of the weights, one whole unit, and the reserve."""
        largest = max(unit.num_parameters for unit in self.step.units)
        shard = math.ceil(self.rank.state_share * (self._wide * self._num_trained + self._frozen_bytes))
        return shard + self._wide * largest + self.reserve_bytes

    @property
    def _wide(self) -> int:
        """Bytes of an element of weights, gradients and moments."""
        return 8 if self.plan.dtype == "float64" else 4

    @property
    def _num_trained(self) -> int:
        return self.plan.num_parameters - self.plan.num_frozen_parameters

    @property
    def _num_again(self) -> int:
        return self.rank.num_recomputed(self.plan.model.num_layers)

    @property
    def _curves(self) -> dict[UnitKind, UnitProfile]:
        return self.plan.devices[self.rank.device].units

    @property
    def _num_gradients(self) -> int:
        """Gradients of the whole state that there are at once: all, unless units are updated one by one."""
        if not self.plan.settings.optimizer_in_backward:
            return self.plan.num_parameters
        if len(self.plan.ranks) == 1 or self.plan.schedule == "replicated":
            return max(summed for _, summed in _in_flight(self.step))
        return max(unit.num_parameters - unit.num_frozen for unit in self.step.units)

    @property
    def _frozen_bytes(self) -> int:
        """Weights that are not trained, in the dtype they are stored in, over all ranks."""
        stored = self.plan.model.frozen_dtype
        return self.plan.num_frozen_parameters * (DTYPE_BYTES[stored] if stored is not None else self._wide)

    @property
    def _kept_unsharded_bytes(self) -> int:
        """What the fullest stage grows by because blocks stay unsharded between their phases."""
        if not self.plan.num_kept_unsharded or len(self.plan.ranks) == 1:
            return 0
        usual = plan_stages(self.plan.model_copy(update={"keep_unsharded": None}))
        narrow = DTYPE_BYTES[self.plan.dtype]
        now, before = (
            max(narrow * whole + self._wide * summed for whole, summed in _in_flight(step))
            for step in (self.step, usual)
        )
        return now - before

    def _boundary_bytes(self, samples: int) -> int:
        return boundary_bytes(self.plan.model, self.plan.seq_len, self.plan.dtype, samples)


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
