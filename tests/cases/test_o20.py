"""O20: SIGTERM ignored or handled on one rank only."""

import os
import signal
from pathlib import Path

import pytest

from cephalo_cli.errors import InterruptedRunError
from cephalo_cli.executor import Callbacks, TrainOptions, engine
from cephalo_cli.executor.checkpoint_manifest import SavedFile
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import write_text

PLAN = make_plan(make_model(num_layers=1), [[2], [1], [1]], [0.5, 0.3, 0.2], dtype="float32")
NUM_STEPS = 4
STOPPED_AFTER = {"before the first step": 0, "mid step": 2, "during validation": 2}


def test_o20_a_signal_to_one_rank_stops_all_in_one_step(ranks: Ranks, tmp_path: Path) -> None:
    """O20: SIGTERM to rank 1 of 3 (a) mid step, (b) during validation, (c) before the first step.

    All ranks save the same step and leave with 143; the resumed run equals an uninterrupted one, to the bit.
    """
    text = write_text(tmp_path, 40 * SEQ_LEN + 1)
    jobs = {
        name: Job(
            plan=PLAN,
            options=TrainOptions(
                data=str(text),
                num_steps=NUM_STEPS,
                checkpoint_dir=str(tmp_path / name),
                resume="latest",
                validation_fraction=0.5,
                validate_every=2,
            ),
            run=train_job,
        )
        for name in ("whole", *STOPPED_AFTER)
    }
    stopped = [Job(plan=PLAN, options=jobs[name].options, run=stop_at, arguments=name) for name in STOPPED_AFTER]
    for (name, step), errors in zip(STOPPED_AFTER.items(), ranks.run(stopped), strict=True):
        for error in errors:
            assert isinstance(error, InterruptedRunError), (name, error)
            assert error.exit_code == 143
            assert error.message.startswith(f"stopped after step {step}; a checkpoint is in"), (name, error)
        assert [path.name for path in (tmp_path / name).iterdir()] == [f"step-{step:08d}"]
    ranks.run(list(jobs.values()))
    last = f"step-{NUM_STEPS:08d}"
    shards = {name: [SavedFile.of(path) for path in sorted((tmp_path / name / last).glob("__*"))] for name in jobs}
    assert len(shards["whole"]) == 3
    for name, of_run in shards.items():
        assert of_run == shards["whole"], name


def stop_at(context: ProcessContext, job: Job) -> None:
    """Train; rank 1 gets SIGTERM at a moment."""
    moment, num_updates = job.arguments, 0

    def hit(now: str) -> None:
        if context.rank == 1 and now == moment:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_record(record: Record) -> None:
        nonlocal num_updates
        if num_updates == 1 and record == Record(op=Op.UNSHARD, unit=2):
            hit("mid step")
        num_updates += record.op is Op.OPTIMIZER_STEP

    def on_memory(step: int, _: int) -> None:
        if step == 0:
            hit("before the first step")

    evaluate = engine.CephaloEngine.evaluate

    def evaluate_and_hit(self: engine.CephaloEngine, *arguments: object) -> float:
        hit("during validation")
        return evaluate(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.CephaloEngine, "evaluate", evaluate_and_hit)
        train(job.plan, job.options, context, Callbacks(on_record=on_record, on_memory=on_memory))
