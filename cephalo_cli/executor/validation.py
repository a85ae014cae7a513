"""The loss on the validation data, now and then.

Every rank runs the same batches with the microbatches of the plan, the last batch filled up with rows that count
nothing; so the data cannot run dry on one rank first.
"""

import math
from collections.abc import Callable, Sequence

import torch

from cephalo_cli.executor.data import Batches, Source, count_tokens, on_device
from cephalo_cli.executor.engine import StepEngine
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.peers import sum_over_ranks
from cephalo_cli.runtime.process import ProcessContext

__all__ = ["Validation"]


class Validation:
    """Validation of one training.

    Args:
        source: Validation data; None where there is none.
        split: Microbatch sizes of every rank.
        options: When, and how much of the data.
        context: This rank.
        must_stop: Says, the same on all ranks at once, whether to break off because a signal came.
    """

    def __init__(
        self,
        source: Source | None,
        split: Sequence[Sequence[int]],
        options: TrainOptions,
        context: ProcessContext,
        must_stop: Callable[[], bool],
    ) -> None:
        self._batches = None if source is None else Batches(source, split, None)
        self._options = options
        self._context = context
        self._must_stop = must_stop

    def loss_after(self, step: int, engine: StepEngine) -> float | None:
        """Mean loss over the validation data; None where it is not due, broken off, or not finite."""
        batches, every = self._batches, self._options.validate_every
        is_due = step == self._options.num_steps or (every is not None and step % every == 0)
        if batches is None or not is_due:
            return None
        sums = torch.zeros(2, dtype=torch.float64)
        position = num_batches = 0
        while position < batches.num_samples and num_batches != self._options.validation_steps:
            if self._must_stop():
                return None
            batch = batches.of_rank(self._context.rank, position)
            loss_sum = engine.evaluate(on_device(batch, self._context.device))
            sums += torch.tensor([loss_sum, count_tokens(batch)], dtype=torch.float64)
            position, num_batches = batches.after(position), num_batches + 1
        total, num_tokens = sum_over_ranks(sums, self._context.process_group).tolist()
        return total / num_tokens if num_tokens and math.isfinite(total) else None
