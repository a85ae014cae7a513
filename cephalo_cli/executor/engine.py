"""Engines: what runs a step. This file has what they share, and the one that follows the plan."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import Memory, Plan
from cephalo_cli.executor.boundaries import Boundaries
from cephalo_cli.executor.checkpoint_shards import Shard
from cephalo_cli.executor.compiled import BlockCompiler
from cephalo_cli.executor.data import Microbatch
from cephalo_cli.executor.evaluate import sum_losses
from cephalo_cli.executor.interpreter import Hooks, StepInterpreter
from cephalo_cli.executor.journal import Journal, StepTimes
from cephalo_cli.executor.numbers import LossScale, StepNumbers
from cephalo_cli.executor.optimizer import OptimizerSettings, ShardOptimizer
from cephalo_cli.executor.options import Callbacks, TrainOptions
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.executor.sharded_unit import Dtypes, ShardedUnit, dtypes_of
from cephalo_cli.layout import Range, shard_ranges
from cephalo_cli.runtime.buffers import BufferLayout
from cephalo_cli.runtime.collectives import CollectiveRecord, ShardedCollectives
from cephalo_cli.runtime.heap import HeapRoom
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import COLLECTIVES, plan_stages, rank_records
from cephalo_cli.units import model_units

__all__ = ["CephaloEngine", "EngineSetting", "StepEngine", "Traffic"]


@dataclass(frozen=True, kw_only=True)
class EngineSetting:
    """What every engine is made from."""

    plan: Plan
    options: TrainOptions
    dtype: DType
    """Compute dtype in force."""
    seed: int
    """Seed in force."""
    context: ProcessContext
    hooks: Hooks
    callbacks: Callbacks

    @property
    def dtypes(self) -> Dtypes:
        """Compute and state dtype."""
        return dtypes_of(self.dtype)

    @property
    def optimizer(self) -> OptimizerSettings:
        """Settings of the optimizer."""
        options = self.options
        return OptimizerSettings(
            name=options.optimizer,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            betas=options.betas,
            eps=options.eps,
            momentum=options.momentum,
            clip=options.clip,
        )


@dataclass
class Traffic:
    """Bytes this rank received."""

    gathered_bytes: int = 0
    reduced_bytes: int = 0

    def add(self, record: CollectiveRecord) -> None:
        """Count a collective."""
        if record.kind == "all_gather":
            self.gathered_bytes += record.received_bytes
        else:
            self.reduced_bytes += record.received_bytes


class StepEngine(Protocol):
    """Runs steps."""

    traffic: Traffic | None
    """What was received so far; None where it is not known."""
    scale: LossScale
    """Scale of the loss."""
    algorithm: str | None
    """How bytes travel between ranks; None where none do, and in PyTorch's own engines."""

    def run_step(self, batch: Sequence[Microbatch], *, num_tokens: int, step: int) -> tuple[StepNumbers, StepTimes]:
        """Run one step on this rank's microbatches, which are on its device.

        Raises:
            TrainingError: Loss or gradient is not finite, and the options say to stop.
        """

    def evaluate(self, batch: Sequence[Microbatch]) -> float:
        """Sum the token losses of this rank's microbatches, without dropout and without learning from them."""

    def numerics(self) -> dict[str, str]:
        """Dtypes in force, by purpose."""

    def close(self) -> None:
        """Let go of threads and process groups."""


class CephaloEngine:
    """Follows the plan: unequal shards, unequal batches, the plan's schedule.

    Units are made one by one, so that no rank ever holds more than its shards and one whole unit.

    Args:
        setting: What to run.
        initialise: Whether to fill in starting weights; a checkpoint is loaded otherwise.
        pretrained: Where starting weights are read; drawn from the seed when absent.
    """

    def __init__(self, setting: EngineSetting, *, initialise: bool, pretrained: Pretrained | None = None) -> None:
        plan, context = setting.plan, setting.context
        mine = plan.ranks[context.rank]
        self._dtypes = setting.dtypes
        self._options, self._hooks, self._offload = setting.options, setting.hooks, mine.offload
        stages = plan_stages(plan)
        records = rank_records(
            stages,
            num_microbatches=len(mine.microbatch_sizes),
            recompute=mine.recompute,
            offload=mine.offload,
            recompute_blocks=mine.recompute_blocks,
        )
        self._replicated = plan.schedule == "replicated"
        shares = [1.0 if self._replicated else rank.state_share for rank in plan.ranks]
        self._layouts = {
            unit.name: BufferLayout(
                ranges=shard_ranges(unit.num_parameters - unit.num_frozen, shares),
                gather_dtype=self._dtypes.compute,
                reduce_dtype=self._dtypes.state,
            )
            for unit in stages.units
        }
        self._layouts |= {
            f"{unit.name}.frozen": BufferLayout(
                ranges=shard_ranges(unit.num_frozen, shares), gather_dtype=self._dtypes.compute, reduce_dtype=None
            )
            for unit in stages.units
            if unit.num_frozen
        }
        self.traffic: Traffic | None = Traffic()
        self.collectives = ShardedCollectives(
            context.process_group,
            context.device,
            self._layouts,
            timeout=context.timeout,
            observer=self.traffic.add,
        )
        way = "all-reduce" if self._replicated else "direct"
        self.algorithm = f"{way} over {self.collectives.backend}" if context.world_size > 1 else None
        self.units = [self._make_unit(setting, index) for index in range(len(stages.units))]
        for unit in self.units if initialise else ():
            unit.initialise(setting.seed, pretrained)
        updates_early = setting.options.optimizer_in_backward
        self.optimizer = ShardOptimizer(self.units, setting.optimizer, context.device, by_unit=updates_early)
        self.scale = LossScale(is_dynamic=self._dtypes.compute == torch.float16)
        self.num_updates = 0
        self._compiler: BlockCompiler | None = None
        if setting.options.compile:
            self._compiler = BlockCompiler(self.units, mine.microbatch_sizes, context.device)
        self._journal = Journal(
            rank=context.rank,
            device=context.device,
            unit_names=[unit.name for unit in stages.units],
            num_collectives=sum(record.op in COLLECTIVES for record in records),
        )
        self._interpreter = StepInterpreter(
            records=records,
            units=self.units,
            seed=setting.seed,
            collectives=self.collectives,
            optimizer=self.optimizer,
            boundaries=Boundaries(context.device, offload=mine.offload, notice=setting.callbacks.on_notice),
            journal=self._journal,
            scale=self.scale,
            on_nonfinite=setting.options.on_nonfinite,
            updates_early=updates_early,
            make_room=_room(mine.memory, context.device),
            hooks=setting.hooks,
        )

    def run_step(self, batch: Sequence[Microbatch], *, num_tokens: int, step: int) -> tuple[StepNumbers, StepTimes]:
        """Run one step, see `StepEngine.run_step`."""
        self._journal.begin(samples_memory=step == self._options.num_steps)
        self.optimizer.set_learning_rate(self._options.learning_rate_of(step))
        with contextlib.nullcontext() if self._compiler is None else self._compiler.step():
            numbers = self._interpreter.run(batch, num_tokens=num_tokens, step=step)
        self.num_updates += numbers.grad_norm is not None
        return numbers, self._journal.finish()

    def evaluate(self, batch: Sequence[Microbatch]) -> float:
        """Sum token losses, see `StepEngine.evaluate`."""
        return sum_losses(self.units, self.collectives, batch, offload=self._offload, throttle=self._hooks.throttle)

    def numerics(self) -> dict[str, str]:
        """Dtypes in force, by purpose."""
        compute, state = (str(dtype).removeprefix("torch.") for dtype in (self._dtypes.compute, self._dtypes.state))
        return {"compute": compute, "gather": compute} | dict.fromkeys(
            ("master", "gradient", "reduction", "optimizer"), state
        )

    def close(self) -> None:
        """End the reduction thread."""
        self.collectives.close()

    @property
    def is_replicated(self) -> bool:
        """Whether every rank keeps everything."""
        return self._replicated

    def ranges(self, buffer: str) -> Sequence[Range]:
        """Each rank's range of a flat buffer, by its name in collectives."""
        return self._layouts[buffer].ranges

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def shards(self, *, to_write: bool) -> dict[str, Shard]:
        """This rank's part of weights and moments; of replicated state rank 0 writes everything."""
        shards = {}
        tensors = {"weights": [unit.master for unit in self.units]} | self.optimizer.moments
        for name, of_units in tensors.items():
            for unit, tensor in zip(self.units, of_units, strict=True):
                is_copy = to_write and self._replicated and self.collectives.rank > 0
                shards[f"{unit.unit.name}.{name}"] = Shard(
                    data=tensor[:0] if is_copy else tensor,
                    start=unit.own.start,
                    num_elements=unit.layout.num_elements,
                )
        for unit in self.units:
            if unit.frozen is not None:
                is_copy = to_write and self._replicated and self.collectives.rank > 0
                shards[f"{unit.frozen.name}.weights"] = Shard(
                    data=unit.frozen.master[:0] if is_copy else unit.frozen.master,
                    start=unit.frozen.own.start,
                    num_elements=unit.frozen.layout.num_elements,
                )
        return shards

    def layout(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Where every parameter lies in its unit's flat buffer."""
        layouts = {unit.unit.name: unit.layout for unit in self.units}
        layouts |= {unit.frozen.name: unit.frozen.layout for unit in self.units if unit.frozen is not None}
        return {name: {slot.name: (slot.start, slot.stop) for slot in of.slots} for name, of in layouts.items()}

    def restored(self, *, num_updates: int, loss_scale: float, good_steps: int) -> None:
        """Take over from a checkpoint, after its shards were filled in."""
        self.num_updates = num_updates
        self.optimizer.set_num_steps(num_updates)
        if self.scale.is_dynamic:
            self.scale.value, self.scale.good_steps = loss_scale, good_steps
        for unit in self.units:
            unit.refresh()

    def _make_unit(self, setting: EngineSetting, index: int) -> ShardedUnit:
        unit = model_units(setting.plan.model)[index]
        return ShardedUnit(
            unit=unit,
            model=setting.plan.model,
            ranges=self._layouts[unit.name].ranges,
            rank=setting.context.rank,
            replicated=self._replicated,
            dtypes=self._dtypes,
            device=setting.context.device,
            frozen_ranges=self._layouts[f"{unit.name}.frozen"].ranges if unit.num_frozen else (),
            keeps_gradient=not setting.options.optimizer_in_backward,
        )


def _room(planned: Memory, device: torch.device) -> Callable[[int], None]:
    """What keeps a CPU process below its limit, see `StepInterpreter`."""
    if device.type != "cpu":
        return lambda _: None
    room = HeapRoom(planned.limit_bytes)
    return lambda coming_bytes: room.make(planned.working_bytes + coming_bytes)
