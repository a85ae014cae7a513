"""What there is to say about one step, over all ranks: how fast it was, how full, and who took longest."""

import torch

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.costmodel.flops import forward_flops
from cephalo_cli.executor.journal import StepTimes
from cephalo_cli.executor.numbers import StepNumbers
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.peers import sum_over_ranks
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import model_units

__all__ = ["StepReporter", "model_flops_utilization"]


class StepReporter:
    """Puts together what all ranks know of a step.

    Args:
        plan: Who does what.
        options: What is asked for.
        dtype: Compute dtype in force.
        context: This rank.
    """

    def __init__(self, plan: Plan, options: TrainOptions, dtype: DType, context: ProcessContext) -> None:
        self._plan, self._options, self._dtype, self._context = plan, options, dtype, context

    def report(
        self,
        step: int,
        numbers: StepNumbers,
        times: StepTimes,
        *,
        num_samples: int,
        num_tokens: int,
        step_s: float,
        peak_bytes: int,
    ) -> StepReport:
        """Report a step; every rank calls it, and all get the same apart from ``step_s`` and what follows from it.

        Args:
            step: Its number.
            numbers: Loss and gradient norm.
            times: This rank's times.
            num_samples: Samples of the global batch.
            num_tokens: Targets that counted.
            step_s: Seconds of the whole step.
            peak_bytes: Most memory this rank has used so far.
        """
        mine = torch.zeros((2, self._context.world_size), dtype=torch.float64)
        mine[:, self._context.rank] = torch.tensor([times.compute_s, peak_bytes], dtype=torch.float64)
        compute_s, peaks_bytes = sum_over_ranks(mine, self._context.process_group).tolist()
        follows_plan = self._options.engine == "cephalo"
        return StepReport(
            step=step,
            loss=numbers.loss,
            grad_norm=numbers.grad_norm,
            skipped=numbers.grad_norm is None,
            learning_rate=self._options.learning_rate_of(step),
            tokens=num_tokens,
            step_s=step_s,
            tokens_per_s=num_samples * self._plan.model.tokens_per_sample(self._plan.seq_len) / step_s,
            model_flops_utilization=model_flops_utilization(
                self._plan, self._dtype, num_samples=num_samples, step_s=step_s
            ),
            predicted_step_s=self._plan.expected.step_s if follows_plan else None,
            peak_memory_bytes=int(max(peaks_bytes)),
            slowest_rank=compute_s.index(max(compute_s)) if follows_plan else None,
            slowest_compute_s=max(compute_s) if follows_plan else None,
        )


def model_flops_utilization(plan: Plan, dtype: DType, *, num_samples: int, step_s: float) -> float | None:
    """Operations that forward and backward need, divided by what all ranks could do at their peaks in a step.

    Args:
        plan: Model and devices.
        dtype: Compute dtype.
        num_samples: Samples of the step.
        step_s: Seconds of the step.

    Returns:
        A fraction; None where a device's peak or the model's operations are not known, or the step outran it.
    """
    peaks = [(plan.cluster.device_types[rank.device].peak_flops or {}).get(dtype) for rank in plan.ranks]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks) or step_s == 0:
        return None
    one_sample = sum(forward_flops(plan.model, unit.kind, plan.seq_len) for unit in model_units(plan.model))
    if one_sample == 0:
        return None
    backward = 2.0 - plan.num_frozen_parameters / plan.num_parameters  # frozen weights have no gradient to compute
    fraction = (1.0 + backward) * one_sample * num_samples / (sum(known) * step_s)
    return fraction if fraction <= 1 else None
