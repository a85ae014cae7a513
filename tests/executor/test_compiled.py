"""Blocks through torch.compile train as without, ragged microbatches and dropout included, from one compilation."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.compiled import COMPILING_STEP, BlockCompiler
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, train_job
from tests.executor.reference import write_text

MODEL: Model = make_model(num_layers=2, dropout=0.1)
NUM_STEPS = COMPILING_STEP + 3


def train_counting(context: ProcessContext, job: Job) -> tuple[Trained, dict[str, Any]]:
    """Train, and give what the compiler counted."""
    from torch._dynamo.utils import counters

    counters.clear()
    trained = train_job(context, job)
    return trained, {name: dict(counters[name]) for name in ("stats", "graph_break")}


def test_compiled_blocks_train_as_uncompiled_ones(ranks: Ranks, tmp_path: Path) -> None:
    """Recompute is off, so that there is one thing to compile; the first block is gathered twice a step."""
    plan = make_plan(MODEL, [[3, 2], [2]], [0.6, 0.4], recompute=False, dtype="float32")
    options = TrainOptions(data=str(write_text(tmp_path)), num_steps=NUM_STEPS, learning_rate=3e-3)
    compiled = options.model_copy(update={"compile": True})
    plain, outcome = ranks.run([Job(plan=plan, options=each, run=train_counting) for each in (options, compiled)])
    for (right, _), (trained, counted) in zip(plain, outcome, strict=True):
        assert counted == {"stats": counted["stats"] | {"unique_graphs": 1}, "graph_break": {}}
        assert trained.records == right.records
        assert trained.collectives == right.collectives
    right, trained = plain[0][0], outcome[0][0]
    assert trained.losses == pytest.approx(right.losses, rel=1e-5)
    assert trained.grad_norms == pytest.approx(right.grad_norms, rel=1e-4)
    assert trained.losses[:2] == right.losses[:2]
    report = trained.result.report
    assert all(rank.compile_speedup > 0 for rank in report.ranks)
    assert [rank.compile_speedup for rank in right.result.report.ranks] == [None, None]
    counted_steps = sorted(step.step_s for step in report.steps[COMPILING_STEP:])
    assert report.step_s == counted_steps[1]


def test_a_compiler_that_fails_is_told_in_one_line() -> None:
    from torch._dynamo.exc import TorchDynamoException

    def fail() -> None:
        raise TorchDynamoException("no C++ compiler was found\n\nand a long trace")

    compiler = BlockCompiler([], [1], torch.device("cpu"))
    for _ in range(COMPILING_STEP - 1):
        with compiler.step():
            pass
    with pytest.raises(UsageError) as refusal, compiler.step():
        fail()
    assert refusal.value.message == "torch.compile failed: no C++ compiler was found"
