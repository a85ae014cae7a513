"""O13: a rank with no work, or fewer microbatches, stops everyone; so does a validation set that runs dry on one."""

from pathlib import Path

import pytest
import torch

from cephalo_cli.executor import TrainOptions
from cephalo_cli.models import TextBatch
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import train_reference, write_text

MODEL = make_model(num_layers=1, tie_embeddings=True)
PLANS = {
    "two of four ranks have nothing": make_plan(MODEL, [[1], [1], [], []], [0.25] * 4),
    "4 samples beside none": make_plan(MODEL, [[4], []], [0.5, 0.5]),
    "4 microbatches beside one": make_plan(MODEL, [[1, 1, 1, 1], [1]], [0.2, 0.8]),
    "microbatch-major": make_plan(MODEL, [[1, 1, 1, 1], [1]], [0.2, 0.8], schedule="microbatch-major"),
    "replicated": make_plan(MODEL, [[2, 1], []], schedule="replicated"),
}


def test_o13_ranks_with_little_or_nothing_to_do_take_part(ranks: Ranks, tmp_path: Path) -> None:
    """O13: no hang, results as in one process; validation data of 7 samples over 2 ranks, on every engine."""
    text = write_text(tmp_path, 27 * SEQ_LEN + 1)
    options = TrainOptions(data=str(text), num_steps=3, learning_rate=3e-3, validation_fraction=7 / 27)
    training = tmp_path / "training.txt"
    training.write_bytes(text.read_bytes()[: 20 * SEQ_LEN + 1])
    jobs = [Job(plan=plan, options=options, run=train_job) for plan in PLANS.values()]
    even = make_plan(MODEL, [[2], [2]], [0.5, 0.5])
    for engine in ("fsdp2", "ddp"):
        given = options.model_copy(update={"engine": engine})
        jobs.append(Job(plan=even, options=given, run=train_job))
    for job, outcome in zip(jobs, ranks.run(jobs), strict=True):
        name = (job.options.engine, job.plan.schedule, job.plan.global_batch_size)
        reference = train_reference(
            MODEL,
            training,
            seq_len=SEQ_LEN,
            batch_size=job.plan.global_batch_size,
            num_steps=3,
            learning_rate=3e-3,
        )
        steps = outcome[0].result.report.steps
        assert [step.loss for step in steps] == pytest.approx(reference.losses, rel=1e-10, abs=0), name
        assert [step.validation_loss for step in steps[:2]] == [None, None]
        assert steps[2].validation_loss == pytest.approx(loss_of(reference.modules, text), rel=1e-10), name


def loss_of(modules: list[torch.nn.Module], text: Path) -> float:
    """Mean loss of one process over the last 7 samples."""
    tokens = torch.tensor(list(text.read_bytes()))[20 * SEQ_LEN :]
    with torch.no_grad():
        targets = tokens[1:].view(7, SEQ_LEN)
        batch = TextBatch(samples=tuple(range(7)), tokens_BT=tokens[:-1].view(7, SEQ_LEN), targets_BT=targets)
        x = modules[0](batch)
        for module in modules[1:-1]:
            x = module(x, batch)
        return float(modules[-1](x, batch, modules[0].get_parameter("matrix")) / targets.numel())
