"""O08: frozen and trainable parameters in one flat buffer."""

from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.artifacts import Model
from cephalo_cli.costmodel.memory import state_bytes
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.models import build_unit
from cephalo_cli.units import is_frozen, model_units, num_frozen_parameters, num_parameters
from tests.executor.frozen import watch_frozen
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import train_reference, write_text

ATTENTION = make_model(num_layers=2, frozen=("block.*.attention.*",))
EMBEDDING = make_model(num_layers=1, tie_embeddings=True, dropout=0.1, frozen=("embedding.*", "head.norm.bias"))
LLAMA = make_model("llama", num_layers=2, num_kv_heads=2, qkv_bias=True, frozen=("block.0.*", "*.norm.weight"))


def frozen_plan(model: Model, split: list[list[int]], shares: list[float], **changes: Any) -> Job:
    plan = make_plan(model, split, shares, num_frozen_parameters=num_frozen_parameters(model), **changes)
    return Job(plan=plan, options=TrainOptions(data="random", num_steps=10, learning_rate=3e-3), run=train_job)


JOBS = [
    frozen_plan(ATTENTION, [[2, 1], [2]], [0.83, 0.17]),
    frozen_plan(ATTENTION, [[5]], [1.0], recompute=False),
    frozen_plan(ATTENTION, [[2], [], [1, 2]], [0.2, 0.8, 0.0], schedule="microbatch-major"),
    frozen_plan(ATTENTION, [[3], [2]], [1.0, 1.0], schedule="replicated"),
    frozen_plan(EMBEDDING, [[3], [1, 1]], [0.4, 0.6]),
    frozen_plan(LLAMA, [[2, 1], [2]], [0.3, 0.7], recompute=False),
]


def test_o08_the_rest_trains_like_one_process_and_frozen_weights_stay(ranks: Ranks, tmp_path: Path) -> None:
    """O08: attention frozen in every block, weight decay 0.1, uneven shards."""
    text = write_text(tmp_path)
    jobs = [
        Job(plan=job.plan, options=job.options.model_copy(update={"data": str(text)}), run=train_job) for job in JOBS
    ]
    for job, outcome in zip(jobs, ranks.run(jobs), strict=True):
        model = job.plan.model
        reference = train_reference(model, text, seq_len=SEQ_LEN, batch_size=5, num_steps=10, learning_rate=3e-3)
        assert outcome[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0), model.frozen
        assert outcome[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0), model.frozen
    for job, outcome in zip(
        JOBS, ranks.run([Job(plan=job.plan, options=job.options, run=watch_frozen) for job in JOBS]), strict=True
    ):
        for same, _ in outcome:
            assert same
            assert all(same)
        if job.plan.schedule != "replicated":
            assert sum(num_bytes for _, num_bytes in outcome) == state_bytes(job.plan)


def test_o08_a_checkpoint_holds_frozen_weights_too(ranks: Ranks, tmp_path: Path) -> None:
    """O08: resumed under another plan the frozen weights are those that were trained with."""
    text = write_text(tmp_path)
    folder = str(tmp_path / "run")
    first = JOBS[0].options.model_copy(update={"data": str(text), "num_steps": 3, "checkpoint_dir": folder})
    rest = first.model_copy(update={"num_steps": 5, "checkpoint_dir": None, "resume": folder, "seed": 5})
    first = first.model_copy(update={"seed": 5})
    ranks.run([Job(plan=JOBS[0].plan, options=first, run=train_job)])
    (resumed,) = ranks.run([Job(plan=JOBS[2].plan, options=rest, run=train_job)])
    reference = train_reference(ATTENTION, text, seq_len=SEQ_LEN, batch_size=5, num_steps=5, seed=5, learning_rate=3e-3)
    assert resumed[0].losses == pytest.approx(reference.losses[3:], rel=1e-10, abs=0)


@pytest.mark.parametrize("model", [ATTENTION, EMBEDDING, LLAMA])
def test_o08_the_plan_counts_what_training_freezes(model: Model) -> None:
    """O08: 4 bytes a frozen parameter instead of 16, counted without torch, as the modules have it."""
    frozen = 0
    for unit in model_units(model):
        named = dict(build_unit(model, unit.kind).named_parameters())
        of_unit = sum(each.numel() for name, each in named.items() if is_frozen(model, f"{unit.name}.{name}"))
        assert unit.num_frozen == of_unit
        frozen += of_unit
    assert 0 < frozen == num_frozen_parameters(model)
    plan = make_plan(model, [[1]], dtype="float32", num_frozen_parameters=frozen)
    assert state_bytes(plan) == 16 * (num_parameters(model) - frozen) + 4 * frozen


def test_o08_patterns_that_name_nothing_or_everything_are_refused() -> None:
    """O08: a misspelt pattern would train what was meant to stay."""
    with pytest.raises(UsageError, match=r"'block\.\*\.atention\.\*' names no parameter of model tiny-gpt"):
        num_frozen_parameters(make_model(frozen=("block.*.atention.*",)))
    with pytest.raises(UsageError, match="all parameters of model tiny-gpt are frozen"):
        num_frozen_parameters(make_model(frozen=("*",)))
