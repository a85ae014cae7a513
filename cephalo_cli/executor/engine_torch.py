"""PyTorch's own engines, FSDP2 and DistributedDataParallel, under the same model, weights, data and token count.

They are here to be compared with. Everything but the way state is kept and moved is the same: units, starting weights,
microbatches, recompute, one count of tokens for the whole batch, clipping by the whole norm, optimizer with the same
groups. Both average gradients over ranks, so the loss is multiplied by the number of ranks. Their waits hide inside
PyTorch's calls: on CPU devices the process's CPU time tells compute (copying for collectives included) from waiting, on
accelerators all of it counts as compute.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cephalo_cli.artifacts.model import Model
from cephalo_cli.executor.data import Microbatch
from cephalo_cli.executor.engine import EngineSetting, Traffic
from cephalo_cli.executor.journal import Journal, StepTimes
from cephalo_cli.executor.numbers import LossScale, StepNumbers, step_numbers
from cephalo_cli.executor.optimizer import clip_factor, make_optimizer, set_learning_rate
from cephalo_cli.models import DropoutKey, build_unit, initialise_
from cephalo_cli.schedule import Op, Record
from cephalo_cli.units import Unit, model_units

__all__ = ["TorchEngine"]


class _WholeModel(nn.Module):
    """The units as one module that maps a microbatch to the summed loss."""

    def __init__(self, model: Model, *, num_recomputed: int) -> None:
        super().__init__()
        self.model = model
        self.num_recomputed = num_recomputed
        self.units = nn.ModuleList(build_unit(model, unit.kind, unit.index) for unit in model_units(model))

    def forward(self, batch: Microbatch, key: Callable[[int], DropoutKey | None]) -> torch.Tensor:
        """Sum the losses of one microbatch; ``key`` gives the dropout key of a unit."""
        embedding, *blocks, head = self.units
        x_BTD = embedding(batch, key(0))
        for index, block in enumerate(blocks, start=1):
            if index <= self.num_recomputed:
                x_BTD = checkpoint(block, x_BTD, batch, key(index), use_reentrant=False, preserve_rng_state=False)
            else:
                x_BTD = block(x_BTD, batch, key(index))
        tied = (embedding.matrix,) if self.model.tie_embeddings else ()
        loss: torch.Tensor = head(x_BTD, batch, *tied)
        return loss


class TorchEngine:
    """FSDP2 or DistributedDataParallel.

    Args:
        setting: What to run; ``options.engine`` says with which.
    """

    def __init__(self, setting: EngineSetting) -> None:
        context, plan = setting.context, setting.plan
        self._setting = setting
        self._state_dtype, self._compute_dtype = setting.dtypes.state, setting.dtypes.compute
        self.traffic: Traffic | None = None
        self.algorithm: str | None = None
        self.scale = LossScale(is_dynamic=False)
        num_recomputed = plan.ranks[context.rank].num_recomputed(plan.model.num_layers)
        if setting.options.even_split:
            num_recomputed = plan.model.num_layers if setting.options.recompute else 0
        units = model_units(plan.model)
        with torch.device("meta"):
            whole = _WholeModel(plan.model, num_recomputed=num_recomputed).to(self._state_dtype)
        if setting.options.engine == "fsdp2":
            self._shard(whole, units)
            self._wrapped: nn.Module = whole
        else:
            whole.to_empty(device=context.device)
            for unit, module in zip(units, whole.units, strict=True):
                initialise_(module, plan.model, unit.index, setting.seed)
            self._wrapped = DistributedDataParallel(whole, process_group=context.process_group)
        self._parameters = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in self._parameters if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._parameters if parameter.ndim < 2]
        self._optimizer = make_optimizer(matrices, vectors, setting.optimizer, context.device)
        self._journal = Journal(
            rank=context.rank, device=context.device, unit_names=[unit.name for unit in units], num_collectives=0
        )

    def run_step(self, batch: Sequence[Microbatch], *, num_tokens: int, step: int) -> tuple[StepNumbers, StepTimes]:
        """Run one step, see `cephalo_cli.executor.engine.StepEngine.run_step`."""
        self._journal.begin(samples_memory=step == self._setting.options.num_steps)
        cpu_s = time.process_time()
        context, hooks = self._setting.context, self._setting.hooks
        dtype = torch.float32 if context.device.type == "mps" else torch.float64
        loss_sum = torch.zeros((), dtype=dtype, device=context.device)
        factor = context.world_size / max(num_tokens, 1)
        for index, microbatch in enumerate(batch):
            with self._reducing(is_last=index == len(batch) - 1):
                start = self._journal.mark()
                with hooks.throttle(), self._low_precision():
                    loss = self._wrapped(microbatch, self._keys(microbatch, step))
                self._journal.worked(Record(op=Op.FORWARD, microbatch=index), start)
                loss_sum += loss.detach()
                start = self._journal.mark()
                with hooks.throttle():
                    (loss * factor).backward()
                self._journal.worked(Record(op=Op.BACKWARD, microbatch=index), start)
        numbers = self._update(loss_sum, num_tokens, step)
        return numbers, self._without_waits(self._journal.finish(), time.process_time() - cpu_s)

    @torch.no_grad()
    def evaluate(self, batch: Sequence[Microbatch]) -> float:
        """Sum token losses, see `cephalo_cli.executor.engine.StepEngine.evaluate`."""
        total = 0.0
        for microbatch in batch:
            with self._setting.hooks.throttle(), self._low_precision():
                total += float(self._wrapped(microbatch, lambda _: None))
        return total

    def numerics(self) -> dict[str, str]:
        """Dtypes in force, by purpose."""
        compute, state = (str(dtype).removeprefix("torch.") for dtype in (self._compute_dtype, self._state_dtype))
        gather = {"gather": compute} if self._setting.options.engine == "fsdp2" else {}
        return {"compute": compute} | gather | dict.fromkeys(("master", "gradient", "reduction", "optimizer"), state)

    def close(self) -> None:
        """Nothing is held."""

    def _without_waits(self, times: StepTimes, cpu_s: float) -> StepTimes:
        """Count as compute no more than the process had of its CPUs."""
        context = self._setting.context
        if context.device.type != "cpu" or times.compute_s == 0:
            return times
        cpus = context.device_type.emulated_speed or torch.get_num_threads()
        part = min(1.0, cpu_s / cpus / times.compute_s)
        return replace(
            times,
            forward_s=times.forward_s * part,
            backward_s=times.backward_s * part,
            optimizer_s=times.optimizer_s * part,
        )

    def _update(self, loss_sum: torch.Tensor, num_tokens: int, step: int) -> StepNumbers:
        """Clip by the whole norm and update."""
        record, hooks = Record(op=Op.OPTIMIZER_STEP), self._setting.hooks
        start = self._journal.mark()
        gradients = [_local(parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        with hooks.throttle():
            squares = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
            squared_norm = squares.to(loss_sum.dtype).square().sum()
        self._journal.worked(record, start)
        is_copy = self._setting.options.engine == "ddp" and self._setting.context.rank > 0
        sums = hooks.sum_over_ranks(torch.stack((loss_sum, squared_norm * (not is_copy)))).tolist()
        numbers = step_numbers(
            loss_sum=sums[0],
            squared_norm=sums[1],
            num_tokens=num_tokens,
            scale=self.scale,
            step=step,
            on_nonfinite=self._setting.options.on_nonfinite,
        )
        start = self._journal.mark()
        with hooks.throttle():
            if numbers.grad_norm is not None:
                factor = clip_factor(numbers.grad_norm, self._setting.options.clip)
                if factor != 1.0:
                    for gradient in gradients:
                        gradient.mul_(factor)
                set_learning_rate(self._optimizer, self._setting.options.learning_rate_of(step))
                self._optimizer.step()
            self._optimizer.zero_grad()
        self._journal.worked(record, start)
        return numbers

    def _shard(self, whole: _WholeModel, units: Sequence[Unit]) -> None:
        """Shard unit by unit, then fill the shards unit by unit; a tied matrix lives in the root, with its head."""
        setting = self._setting
        context, model = setting.context, setting.plan.model
        mesh = DeviceMesh.from_group(context.process_group, context.device.type)
        policy = MixedPrecisionPolicy(
            param_dtype=self._compute_dtype if self._compute_dtype != self._state_dtype else None,
            reduce_dtype=self._state_dtype,
        )
        for unit, module in zip(units, whole.units, strict=True):
            if unit.kind == "block" or not model.tie_embeddings:
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(whole, mesh=mesh, mp_policy=policy)
        whole.to_empty(device=context.device)
        for unit, module in zip(units, whole.units, strict=True):
            full = build_unit(model, unit.kind, unit.index).to(self._state_dtype)
            initialise_(full, model, unit.index, setting.seed)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    shard = cast("DTensor", parameter)
                    value = full.get_parameter(name).detach().to(context.device)
                    shard.to_local().copy_(
                        distribute_tensor(value, mesh, shard.placements, src_data_rank=None).to_local()
                    )

    @contextlib.contextmanager
    def _reducing(self, *, is_last: bool) -> Iterator[None]:
        """Reduce gradients with the last microbatch only."""
        if isinstance(self._wrapped, DistributedDataParallel):
            with contextlib.nullcontext() if is_last else self._wrapped.no_sync():
                yield
            return
        cast("FSDPModule", self._wrapped).set_requires_gradient_sync(is_last)
        yield

    def _low_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast for DistributedDataParallel, which has no dtype policy of its own."""
        if self._setting.options.engine == "fsdp2" or self._compute_dtype == self._state_dtype:
            return contextlib.nullcontext()
        return torch.autocast(self._setting.context.device.type, dtype=self._compute_dtype)

    def _keys(self, microbatch: Microbatch, step: int) -> Callable[[int], DropoutKey]:
        seed = self._setting.seed
        return lambda unit: DropoutKey(seed=seed, step=step, unit=unit, samples=microbatch.samples)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
