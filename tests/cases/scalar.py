"""A model of three numbers, so that gradients can be worked out on paper, run by the real engine on real ranks.

``loss = sum over counted tokens of f(gain * scale * w * token, target)``; w starts at 0, gain and scale stay 1.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from cephalo_cli.artifacts import Plan
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.data import count_tokens
from cephalo_cli.executor.engine import CephaloEngine
from cephalo_cli.executor.peers import sum_over_ranks
from cephalo_cli.models import IGNORED_TARGET, TextBatch
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import Unit
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, make_engine

Pairs = Sequence[Sequence[tuple[int, int]]]
"""Tokens and targets of one rank, by microbatch."""

UNITS = (
    Unit(index=0, name="embedding", kind="embedding", num_parameters=1, backward_reads=False),
    Unit(index=1, name="block.0", kind="block", num_parameters=1),
    Unit(index=2, name="head", kind="head", num_parameters=1),
)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(1, 1))

    def forward(self, batch: TextBatch, _: object = None) -> torch.Tensor:
        return batch.tokens_BT[..., None].to(self.matrix.dtype) * self.matrix


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, x_BTD: torch.Tensor, *_: object) -> torch.Tensor:
        return x_BTD * self.scale


class Head(nn.Module):
    def __init__(self, *, squared: bool) -> None:
        super().__init__()
        self.norm = nn.Module()
        self.norm.register_parameter("weight", nn.Parameter(torch.empty(1)))
        self.squared = squared

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
        targets_BT = batch.targets_BT
        x_BT = (x_BTD * self.norm.get_parameter("weight"))[..., 0]
        counts_BT = targets_BT != IGNORED_TARGET
        wide = torch.promote_types(x_BT.dtype, torch.float32)
        losses_BT = (x_BT.to(wide) - targets_BT) ** 2 if self.squared else x_BT.to(wide) * targets_BT
        return losses_BT.where(counts_BT, 0.0).sum()


def scalar_job(
    pairs: Sequence[Pairs],
    shares: Sequence[float] | None = None,
    *,
    squared: bool = True,
    dtype: str = "float64",
    num_tokens: int | None = None,
    num_steps: int = 1,
    first_weight: float = 0.0,
) -> Job:
    """One or more steps of SGD with rate 6e-4 on the given pairs; gives every rank's part of w's gradient and of w."""
    sizes = [[len(microbatch) for microbatch in rank] for rank in pairs]
    plan: Plan = make_plan(make_model(num_layers=1), sizes, shares)
    options = TrainOptions.model_validate(
        {
            "data": "random",
            "num_steps": 1,
            "dtype": dtype,
            "optimizer": "sgd",
            "learning_rate": 6e-4,
            "clip": None,
            "weight_decay": 0.0,
        }
    )
    return Job(
        plan=plan, options=options, run=run_scalar, arguments=(pairs, squared, num_tokens, num_steps, first_weight)
    )


def run_scalar(context: ProcessContext, job: Job) -> tuple[list[float], list[float]]:
    pairs, squared, num_tokens, num_steps, first_weight = job.arguments
    makers: dict[str, Callable[[], nn.Module]] = {
        "embedding": Embedding,
        "block": Block,
        "head": lambda: Head(squared=squared),
    }

    def build(_: Any, kind: str, __: int) -> nn.Module:
        return makers[kind]()

    with (
        patch("cephalo_cli.executor.sharded_unit.build_unit", build),
        patch("cephalo_cli.executor.engine.model_units", lambda _: UNITS),
        patch("cephalo_cli.schedule.model_units", lambda _: UNITS),
    ):
        engine: CephaloEngine = make_engine(context, job)
    with torch.no_grad():
        engine.units[0].master.fill_(first_weight)
        engine.units[0].refresh()
    batch = _microbatches(pairs[context.rank], sum(len(each) for rank in pairs[: context.rank] for each in rank))
    counted = torch.tensor([count_tokens(batch)], dtype=torch.float64)
    whole = int(sum_over_ranks(counted, context.process_group).item())
    for step in range(1, num_steps + 1):
        engine.run_step(batch, num_tokens=whole if num_tokens is None else num_tokens, step=step)
        with torch.no_grad():
            for unit in engine.units[1:]:
                unit.master.fill_(1.0)  # w alone is trained
                unit.refresh()
    found = engine.units[0].grad.tolist(), engine.units[0].master.tolist()
    engine.close()
    return found


def gradient(outcome: Sequence[tuple[list[float], list[float]]]) -> float:
    """w's gradient, from whichever rank keeps it."""
    (value,) = [value for grad, _ in outcome for value in grad]
    return value


def weight(outcome: Sequence[tuple[list[float], list[float]]]) -> float:
    """W, from whichever rank keeps it."""
    (value,) = [value for _, master in outcome for value in master]
    return value


def _microbatches(pairs: Pairs, start: int) -> list[TextBatch]:
    microbatches = []
    for microbatch in pairs:
        tokens, targets = zip(*microbatch, strict=True)
        microbatches.append(
            TextBatch(
                samples=tuple(range(start, start + len(microbatch))),
                tokens_BT=torch.tensor(tokens)[:, None],
                targets_BT=torch.tensor(targets)[:, None],
            )
        )
        start += len(microbatch)
    return microbatches
