"""A model of one's own trains under any plan as in one process, with weights that depend on the seed alone."""

from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.models.own import describe_own
from tests.executor.plans import SEQ_LEN, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import train_reference, write_text

SOURCE = "examples.own_model:model"
MODEL = describe_own(SOURCE, SEQ_LEN, "float64")
RATE = 3e-3
NUM_STEPS = 5


def test_any_plan_trains_like_one_process_and_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    text = write_text(tmp_path, 40 * SEQ_LEN - 5)
    plans = [
        make_plan(MODEL, [[3, 3, 1]], recompute=False),
        make_plan(MODEL, [[1, 2, 1], [3]], [0.83, 0.17]),
        make_plan(MODEL, [[4], [], [1, 2]], [0.3, 0.7, 0.0], recompute=[True, False, False]),
    ]
    folder = str(tmp_path / "run")
    options = TrainOptions(data=str(text), num_steps=NUM_STEPS, learning_rate=RATE, model=SOURCE)
    first = options.model_copy(update={"num_steps": 2, "checkpoint_dir": folder})
    rest = options.model_copy(update={"resume": folder})
    jobs = [Job(plan=plan, options=options, run=train_job) for plan in plans]
    jobs += [
        Job(plan=plans[1], options=first, run=train_job),
        Job(plan=plans[2], options=rest, run=train_job),
    ]
    expected = train_reference(
        MODEL, text, seq_len=SEQ_LEN, batch_size=7, num_steps=NUM_STEPS, learning_rate=RATE
    ).losses
    *outcomes, _, resumed = ranks.run(jobs)
    for outcome in outcomes:
        assert outcome[0].losses == pytest.approx(expected, rel=1e-9, abs=0)
    assert resumed[0].losses == pytest.approx(expected[2:], rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the plan is for a model of one's own, whose code would be run: examples.own_model:model"),
        ({"model": "os:abort"}, "--model is os:abort, the plan was made for examples.own_model:model"),
        ({"model": SOURCE, "export": "x"}, "--weights and --export are for families"),
    ],
)
def test_code_is_run_only_where_it_is_named(ranks: Ranks, given: dict[str, Any], message: str) -> None:
    job = Job(plan=make_plan(MODEL, [[1]]), options=TrainOptions(data="random", num_steps=1, **given), run=train_job)
    ((error,),) = ranks.run([job])
    assert isinstance(error, UsageError)
    assert error.message == message
