"""Any plan at all trains like one process; so does everything at once, and low precision stays close."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cephalo_cli.artifacts import Plan
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.learning_rate import learning_rate_at
from cephalo_cli.units import num_frozen_parameters
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import Reference, train_reference, write_text

LEARNING_RATE = 3e-3
SMALL = make_model(tie_embeddings=True, num_layers=2, dropout=0.1)
PARTLY_FROZEN = make_model(
    tie_embeddings=True, num_layers=2, dropout=0.1, frozen=("embedding.positions", "block.0.attention.*", "*.mlp.up.*")
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"), 9 * SEQ_LEN - 3)


@cache
def reference_of(text: Path, batch_size: int, num_steps: int) -> Reference:
    return train_reference(
        SMALL, text, seq_len=SEQ_LEN, batch_size=batch_size, num_steps=num_steps, learning_rate=LEARNING_RATE
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """1 to 4 ranks with any microbatches and any shares, of which some may be nothing."""
    num_ranks = draw(st.integers(1, 4))
    microbatches = draw(
        st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=num_ranks, max_size=num_ranks).filter(
            lambda split: 1 <= sum(map(sum, split)) <= 9
        )
    )
    weights = draw(st.lists(st.integers(0, 100), min_size=num_ranks, max_size=num_ranks).filter(any))
    blocks = draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=num_ranks, max_size=num_ranks))
    schedule = draw(st.sampled_from(["layer-major", "layer-major", "microbatch-major"]))
    kept = draw(st.sampled_from([None, 0, 1])) if schedule == "layer-major" else None
    shares = [weight / sum(weights) for weight in weights]
    return make_plan(SMALL, microbatches, shares, recompute_blocks=blocks, schedule=schedule, keep_unsharded=kept)


@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(plan=plans())
def test_no_plan_is_a_counter_example(ranks: Ranks, text: Path, plan: Plan) -> None:
    options = TrainOptions(data=str(text), num_steps=2, learning_rate=LEARNING_RATE)
    (outcome,) = ranks.run([Job(plan=plan, options=options, run=train_job)])
    reference = reference_of(text, plan.global_batch_size, 2)
    assert outcome[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0)
    assert outcome[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0)


THREE_PLANS = {
    "one rank": [[3, 3, 1]],
    "two ranks": [[1, 2, 1], [3]],
    "three ranks, one idle": [[4], [], [1, 2]],
}
THREE_SHARES = {
    "one rank": [1.0],
    "two ranks": [0.83, 0.17],
    "three ranks, one idle": [0.3, 0.7, 0.0],
}


def three_jobs(model: Any, options: TrainOptions) -> list[Job]:
    return [
        Job(
            plan=make_plan(
                model,
                split,
                THREE_SHARES[name],
                recompute=name != "two ranks",
                num_frozen_parameters=num_frozen_parameters(model),
            ),
            options=options,
            run=train_job,
        )
        for name, split in THREE_PLANS.items()
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_everything_at_once_over_20_steps(ranks: Ranks, tmp_path: Path, optimizer: str) -> None:
    """Clipping, decay, warm-up and cosine, ragged batches, masks, a short last batch, frozen, tied, dropout."""
    text = write_text(tmp_path, 25 * SEQ_LEN - 5)
    tokens = np.frombuffer(text.read_bytes(), dtype=np.uint8)
    counted = (np.arange(len(tokens)) * 7 % 11) < 8
    counted[SEQ_LEN : 5 * SEQ_LEN] = False  # samples without any counted token
    tokens.astype("<u4").tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "mask.npy", counted)
    rate = LEARNING_RATE if optimizer == "adamw" else 0.3
    schedule = {"schedule": "cosine", "num_warmup_steps": 4, "floor": 1e-4, "num_steps": 20}
    options = TrainOptions.model_validate(
        {
            "data": str(tmp_path / "tokens.bin"),
            "token_dtype": "uint32",
            "data_mask": str(tmp_path / "mask.npy"),
            "num_steps": 20,
            "optimizer": optimizer,
            "momentum": 0.9 if optimizer == "sgd" else 0.0,
            "learning_rate": rate,
            "lr_schedule": "cosine",
            "warmup_steps": 4,
            "min_lr": 1e-4,
            "clip": 0.5,
        }
    )
    reference = train_reference(
        PARTLY_FROZEN,
        text,
        seq_len=SEQ_LEN,
        batch_size=7,
        num_steps=20,
        learning_rate=rate,
        clip=0.5,
        rate=lambda step: learning_rate_at(step, peak=rate, **schedule),  # type: ignore[arg-type]  # a dict of them
        momentum=0.9 if optimizer == "sgd" else None,
        counted=counted.tolist(),
    )
    assert max(reference.grad_norms) > 0.5
    for name, outcome in zip(THREE_PLANS, ranks.run(three_jobs(PARTLY_FROZEN, options)), strict=True):
        assert outcome[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0), name
        assert outcome[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0), name
        steps = outcome[0].result.report.steps
        assert [step.learning_rate for step in steps[:5]] == pytest.approx(
            [rate / 4, rate / 2, rate * 3 / 4, rate, steps[4].learning_rate]
        )
        assert steps[-1].learning_rate == pytest.approx(1e-4)


def test_float32_stays_within_a_hundred_thousandth(ranks: Ranks, text: Path) -> None:
    options = TrainOptions(data=str(text), num_steps=6, learning_rate=LEARNING_RATE, dtype="float32")
    reference = train_reference(
        SMALL, text, seq_len=SEQ_LEN, batch_size=7, num_steps=6, learning_rate=LEARNING_RATE, dtype=torch.float32
    )
    for name, outcome in zip(THREE_PLANS, ranks.run(three_jobs(SMALL, options)), strict=True):
        assert outcome[0].losses == pytest.approx(reference.losses, rel=1e-5, abs=0), name


def test_bfloat16_curves_of_three_plans_agree_within_a_hundredth(ranks: Ranks) -> None:
    """200 steps of real text: that of Python's own library."""
    model = make_model(num_layers=1)
    three = [
        make_plan(model, [[16]]),
        make_plan(model, [[8], [5, 3]], [0.83, 0.17], recompute=False),
        make_plan(model, [[], [16]], [1.0, 0.0]),
    ]
    options = TrainOptions(data="python-stdlib", num_steps=200, learning_rate=LEARNING_RATE, dtype="bfloat16")
    outcomes = ranks.run([Job(plan=plan, options=options, run=train_job) for plan in three])
    curves = [np.array(outcome[0].losses) for outcome in outcomes]
    assert curves[0][-20:].mean() < curves[0][0] - 1.5
    for curve in curves[1:]:
        assert np.abs(curve / curves[0] - 1).max() < 0.01
