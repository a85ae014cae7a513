"""Cephalo's units and schedule in a training loop of one's own, see ``examples/own_loop.py``.

Whoever brings the loop brings the process group and the data; the plan says how much each rank computes and stores.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.agreement import compare_ranks, job_facts
from cephalo_cli.executor.engine import CephaloEngine, EngineSetting
from cephalo_cli.executor.interpreter import Hooks
from cephalo_cli.executor.numbers import StepNumbers
from cephalo_cli.executor.options import Callbacks, TrainOptions, check_options
from cephalo_cli.executor.peers import sum_over_ranks
from cephalo_cli.executor.sharded_unit import ShardedUnit
from cephalo_cli.models import ImageBatch, TextBatch
from cephalo_cli.models.own import check_own
from cephalo_cli.runtime.process import ProcessContext

__all__ = ["ShardedModel", "read_plan"]

NO_DATA = "random"
"""What options say about data that they are not asked for."""


def read_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        ArtifactError: It cannot be read, or is not a plan.
    """
    return store.read(path, Plan)


class ShardedModel:
    """A plan's model on this rank: unequal shards, an optimizer over them, and the plan's order of work.

    Every rank of the plan makes one and calls the same methods in the same order. Starting weights depend on the seed
    alone; loss and gradient are those of the global batch in one process, however it is split.

    Args:
        plan: Who does what; its ranks are those of the process group.
        process_group: All ranks.
        device: This rank's device.
        num_steps: Steps of the training, for the schedule of the learning rate.
        timeout: How long one rank may wait for another.
        settings: Other fields of `TrainOptions`: seed, dtype, optimizer, learning_rate, lr_schedule, warmup_steps,
            weight_decay, clip, on_nonfinite, and model for a model of one's own.

    Raises:
        UsageError: The plan or a setting cannot be trained, or the group has another number of ranks.
        TrainingError: Ranks have different plans or settings.
    """

    def __init__(
        self,
        plan: Plan,
        process_group: dist.ProcessGroup,
        device: torch.device,
        *,
        num_steps: int,
        timeout: timedelta = timedelta(minutes=10),
        **settings: Any,
    ) -> None:
        options = TrainOptions(data=NO_DATA, num_steps=num_steps, **settings)
        check_options(plan, options)
        rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if world_size != len(plan.ranks):
            raise UsageError(f"the process group has {world_size} ranks, the plan {len(plan.ranks)}")
        compare_ranks(job_facts(plan, options), process_group)
        dtype = options.dtype or plan.dtype
        if plan.model.own is not None:
            check_own(plan.model, plan.seq_len, dtype)
        context = ProcessContext(
            cluster=plan.cluster,
            place=plan.cluster.ranks[rank],
            device=device,
            world_size=world_size,
            process_group=process_group,
            timeout=timeout,
            emulation=None,
            emit=lambda _: None,
        )
        self._sum = partial(sum_over_ranks, group=process_group)
        self._plan, self._rank, self._device = plan, rank, device
        self._num_steps_done = 0
        setting = EngineSetting(
            plan=plan,
            options=options,
            dtype=dtype,
            seed=options.seed or 0,
            context=context,
            hooks=Hooks(throttle=context.compute, sum_over_ranks=self._sum, on_record=lambda _: None),
            callbacks=Callbacks(),
        )
        self._engine = CephaloEngine(setting, initialise=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @property
    def units(self) -> Sequence[ShardedUnit]:
        """The units: ``master`` and ``grad`` are this rank's shards of weights and gradient, ``own`` where they lie."""
        return self._engine.units

    def part_of(self, batch: TextBatch | ImageBatch) -> list[TextBatch | ImageBatch]:
        """Cut this rank's microbatches out of a global batch, on its device; a rank may have none.

        Args:
            batch: As many samples as the plan's global batch, the same on every rank.

        Raises:
            UsageError: It has another number of samples.
        """
        if len(batch.samples) != self._plan.global_batch_size:
            raise UsageError(
                f"the batch has {len(batch.samples)} samples, the plan's steps {self._plan.global_batch_size}"
            )
        start = sum(sum(rank.microbatch_sizes) for rank in self._plan.ranks[: self._rank])
        parts = []
        for size in self._plan.ranks[self._rank].microbatch_sizes:
            parts.append(_rows(batch, slice(start, start + size)).to(self._device))
            start += size
        return parts

    def step(self, microbatches: Sequence[TextBatch | ImageBatch]) -> StepNumbers:
        """Run one step of the plan's schedule on this rank's microbatches, and update its shards.

        Args:
            microbatches: As many as the plan gives this rank.

        Returns:
            Loss and gradient norm of the global batch, the same on all ranks.

        Raises:
            UsageError: The plan gives this rank another number of microbatches.
            TrainingError: Loss or gradient is not finite, and the settings do not say to skip the update.
        """
        planned = len(self._plan.ranks[self._rank].microbatch_sizes)
        if len(microbatches) != planned:
            raise UsageError(f"{len(microbatches)} microbatches, the plan gives rank {self._rank} {planned}")
        num_counted = self._counted(microbatches)
        self._num_steps_done += 1
        numbers, _ = self._engine.run_step(microbatches, num_tokens=num_counted, step=self._num_steps_done)
        return numbers

    def evaluate(self, microbatches: Sequence[TextBatch | ImageBatch]) -> float:
        """Mean loss over all ranks' microbatches, without dropout and without learning from them."""
        total = torch.tensor([self._engine.evaluate(microbatches)], dtype=torch.float64)
        return float(self._sum(total).item()) / max(self._counted(microbatches), 1)

    def _counted(self, microbatches: Sequence[TextBatch | ImageBatch]) -> int:
        counted = torch.tensor([sum(batch.num_counted for batch in microbatches)], dtype=torch.float64)
        return round(self._sum(counted).item())


def _rows(batch: TextBatch | ImageBatch, rows: slice) -> TextBatch | ImageBatch:
    """Some samples of a batch."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: value[rows] for name, value in values.items() if value is not None})
