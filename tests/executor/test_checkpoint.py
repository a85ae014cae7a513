"""Checkpoints belong to the model, not to the plan; they are complete or absent."""

import dataclasses
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from cephalo_cli.artifacts import Plan
from cephalo_cli.errors import ArtifactError, InterruptedRunError, TrainingError, UsageError
from cephalo_cli.executor import Callbacks, TrainOptions, checkpoint_folder
from cephalo_cli.executor.checkpoint import find_checkpoint, load_shards, save_checkpoint
from cephalo_cli.executor.checkpoint_manifest import Manifest
from cephalo_cli.executor.checkpoint_shards import LoadShards, Shard
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record
from cephalo_cli.units import model_units
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, make_engine, train_job
from tests.executor.reference import Reference, train_reference, write_text

MODEL = make_model(tie_embeddings=True, num_layers=2, hidden_size=12, ffn_size=13, vocab_size=257)
PLANS = {
    "saved": make_plan(MODEL, [[2, 1], [1]], [0.7, 0.3]),
    "three ranks": make_plan(MODEL, [[2], [1, 1], []], [0.2, 0.5, 0.3]),
    "one rank": make_plan(MODEL, [[3, 1]]),
    "two ranks, other shares": make_plan(MODEL, [[1], [3]], [0.3, 0.7]),
    "a rank without state": make_plan(MODEL, [[1], [3]], [0.0, 1.0]),
    "replicated": make_plan(MODEL, [[1], [3]], schedule="replicated"),
}
LEARNING_RATE = 3e-3


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, text: Path, ranks: Ranks) -> Path:
    """Checkpoints after steps 2, 4 and 5, written by two ranks with shares 0.7 and 0.3."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    (trained,) = ranks.run([train_steps(PLANS["saved"], text, 5, checkpoint_dir=str(folder), checkpoint_every=2)])
    assert [Path(path).name for path in trained[0].checkpoints] == ["step-00000002", "step-00000004", "step-00000005"]
    return folder


def train_steps(plan: Plan, text: Path, num_steps: int, **options: Any) -> Job:
    given: dict[str, Any] = {"data": str(text), "num_steps": num_steps, "learning_rate": LEARNING_RATE} | options
    return Job(plan=plan, options=TrainOptions(**given), run=train_job)


def reference_of(text: Path, num_steps: int) -> Reference:
    return train_reference(MODEL, text, seq_len=SEQ_LEN, batch_size=4, num_steps=num_steps, learning_rate=LEARNING_RATE)


def test_resuming_under_other_plans_continues_and_recuts_to_the_bit(
    ranks: Ranks, saved: Path, text: Path, tmp_path: Path
) -> None:
    names = [name for name in PLANS if name != "saved"]
    recut = [
        Job(
            plan=PLANS[name],
            options=train_steps(PLANS[name], text, 5).options,
            run=recut_job,
            arguments=(str(saved / "step-00000005"), str(tmp_path / name)),
        )
        for name in names
    ]
    resumed = [train_steps(PLANS[name], text, 8, resume=str(saved)) for name in names]
    outcomes = ranks.run(recut + resumed)
    original = read_whole(saved / "step-00000005")
    for name in names:
        again = read_whole(tmp_path / name / "step-00000005")
        for tensor, values in original.items():
            assert torch.equal(again[tensor], values), (name, tensor)
    uninterrupted = reference_of(text, 8)
    for name, trained in zip(names, outcomes[len(names) :], strict=True):
        assert trained[0].losses == pytest.approx(uninterrupted.losses[5:], rel=1e-10, abs=0), name
        assert trained[0].notices == [f"resumed from {saved / 'step-00000005'} after step 5"]


def test_a_checkpoint_holds_the_weights_and_moments_of_one_process(saved: Path, text: Path) -> None:
    whole = read_whole(saved / "step-00000005")
    manifest = Manifest.model_validate_json((saved / "step-00000005" / "manifest.json").read_bytes())
    reference = reference_of(text, 5)
    assert (manifest.step, manifest.position, manifest.num_updates) == (5, 20, 5)
    for unit, module in zip(model_units(MODEL), reference.modules, strict=True):
        parameters = dict(module.named_parameters())
        assert set(manifest.layout[unit.name]) == set(parameters)
        for name, (start, stop) in manifest.layout[unit.name].items():
            moments = reference.moments[id(parameters[name])]
            for tensor, expected in (
                ("weights", parameters[name]),
                ("first_moment", moments["exp_avg"]),
                ("second_moment", moments["exp_avg_sq"]),
            ):
                found = whole[f"{unit.name}.{tensor}"][start:stop].view_as(expected)
                torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-12)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated shard": (lambda folder: truncate(folder / "__1_0.distcp"), "__1_0.distcp has"),
    "a changed byte": (lambda folder: flip(folder / "__0_0.distcp"), "does not have the manifest's SHA-256"),
    "a changed index": (lambda folder: flip(folder / ".metadata"), ".metadata does not have"),
    "a missing shard": (lambda folder: (folder / "__1_0.distcp").unlink(), "__1_0.distcp cannot be read: No such"),
    "an empty manifest": (lambda folder: (folder / "manifest.json").write_bytes(b""), "manifest.json is damaged"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json cannot be read"),
}


def test_damaged_checkpoints_are_passed_over_or_refused(ranks: Ranks, saved: Path, text: Path, tmp_path: Path) -> None:
    plan = PLANS["three ranks"]
    latest, named = [], []
    for name, (damage, _) in DAMAGES.items():
        folder = tmp_path / name
        shutil.copytree(saved, folder)
        damage(folder / "step-00000005")
        (folder / ".step-00000006.part").mkdir()
        named.append(train_steps(plan, text, 6, resume=str(folder / "step-00000005")))
        latest.append(train_steps(plan, text, 6, checkpoint_dir=str(folder), resume="latest"))
    hopeless = tmp_path / "hopeless"
    shutil.copytree(saved, hopeless)
    for step in hopeless.iterdir():
        truncate(step / ".metadata")
    jobs = [*named, *latest, train_steps(plan, text, 6, checkpoint_dir=str(hopeless), resume="latest")]
    outcomes = ranks.run(jobs)
    expected = reference_of(text, 6).losses[4:]
    for index, (name, (_, reason)) in enumerate(DAMAGES.items()):
        for error in outcomes[index]:
            assert isinstance(error, ArtifactError), name
            assert (reason if name != "no manifest" else "no checkpoint here") in error.message, name
        trained: Trained = outcomes[len(DAMAGES) + index][0]
        assert f"passed over {tmp_path / name / 'step-00000005'}: " in trained.notices[0], name
        assert reason in trained.notices[0], name
        assert trained.losses == pytest.approx(expected, rel=1e-10, abs=0), name
    for error in outcomes[-1]:
        assert isinstance(error, ArtifactError)
        assert error.message.count("passed over") == 3


def test_what_does_not_belong_together_is_refused(ranks: Ranks, saved: Path, text: Path, tmp_path: Path) -> None:
    plan = PLANS["saved"]
    other = make_plan(make_model(num_layers=2, hidden_size=12, ffn_size=14, vocab_size=257), [[2, 1], [1]])
    elsewhere = write_text(tmp_path, 500)
    cases: dict[str, tuple[Job, type[Exception]]] = {
        "another model: ffn_size is 13, the plan's model has 14": (
            train_steps(other, text, 6, resume=str(saved)),
            ArtifactError,
        ),
        "holds float64 weights, this run keeps float32": (
            train_steps(plan, text, 6, resume=str(saved), dtype="bfloat16"),
            ArtifactError,
        ),
        "was trained with adamw, whose moments mean nothing to sgd": (
            train_steps(plan, text, 6, resume=str(saved), optimizer="sgd"),
            ArtifactError,
        ),
        "was trained on other data": (train_steps(plan, elsewhere, 6, resume=str(saved)), ArtifactError),
        "was trained with --seed 0, --seed 1 would shuffle anew": (
            train_steps(plan, text, 6, resume=str(saved), seed=1),
            UsageError,
        ),
        "has done 5 steps already, --steps 4 asks for fewer": (
            train_steps(plan, text, 4, resume=str(saved)),
            UsageError,
        ),
        "holds checkpoints already": (train_steps(plan, text, 6, checkpoint_dir=str(saved)), UsageError),
        "no checkpoint here": (train_steps(plan, text, 6, resume=str(tmp_path / "nothing")), ArtifactError),
        "the checkpoint cannot be written": (
            train_steps(plan, text, 1, checkpoint_dir=str(elsewhere / "below a file")),
            TrainingError,
        ),
    }
    outcomes = ranks.run([job for job, _ in cases.values()])
    for (message, (_, kind)), errors in zip(cases.items(), outcomes, strict=True):
        for error in errors:
            assert isinstance(error, kind), (message, error)
            assert message in str(error)


def test_a_finished_training_has_nothing_left_to_do(ranks: Ranks, saved: Path, text: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in saved.rglob("*")}
    plan, options = PLANS["two ranks, other shares"], {"checkpoint_dir": str(saved), "resume": "latest"}
    (outcome,) = ranks.run([train_steps(plan, text, 5, **options)])
    assert [trained.result for trained in outcome] == [None, None]
    assert outcome[0].notices == [
        f"resumed from {saved / 'step-00000005'} after step 5",
        "step 5 is the last and was done before: nothing was trained or measured",
    ]
    assert {path: path.stat().st_mtime_ns for path in saved.rglob("*")} == before


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_everything_goes_on_where_it_was(ranks: Ranks, text: Path, tmp_path: Path, dtype: str) -> None:
    """Dropout, schedule, place in the data (within an epoch and beyond one) and the scale of the loss.

    What is drawn depends on the seed, the step, the unit and the sample, so a checkpoint holds no random state. Under
    the same plan everything goes on to the last bit, under another one within rounding.
    """
    model = MODEL.model_copy(update={"dropout": 0.1})
    plan = make_plan(model, [[2, 1], [1]], [0.7, 0.3])
    given: dict[str, Any] = {"dtype": dtype, "lr_schedule": "cosine", "warmup_steps": 3, "clip": 0.5}
    folder = tmp_path / "run"
    whole = train_steps(plan, text, 20, checkpoint_dir=str(folder), checkpoint_every=7, **given)
    again = train_steps(plan, text, 20, resume=str(folder / "step-00000014"), **given)
    other_plan = make_plan(model, [[1], [], [1, 2]], [0.0, 0.6, 0.4])
    other = train_steps(other_plan, text, 20, resume=str(folder / "step-00000014"), **given)
    straight, resumed, elsewhere = ranks.run([whole, again, other])
    steps = [outcome[0].result.report.steps for outcome in (straight, resumed, elsewhere)]
    for step, same, close in zip(steps[0][14:], steps[1], steps[2], strict=True):
        assert (same.step, same.loss, same.grad_norm) == (step.step, step.loss, step.grad_norm)
        assert same.learning_rate == close.learning_rate == step.learning_rate
        assert same.tokens == close.tokens == step.tokens
        if dtype == "float64":
            assert close.loss == pytest.approx(step.loss, rel=1e-10)
            assert close.grad_norm == pytest.approx(step.grad_norm, rel=1e-9)


def test_a_signal_to_one_rank_stops_all_and_the_rest_is_done_on_resuming(
    ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    plan = PLANS["three ranks"]
    late = train_steps(plan, text, 8, checkpoint_dir=str(tmp_path / "late"), resume="latest")
    early = train_steps(plan, text, 8, checkpoint_dir=str(tmp_path / "early"), resume="latest")
    stopped_late = dataclasses.replace(late, run=stop_job, arguments=(1, 3, signal.SIGTERM))
    stopped_early = dataclasses.replace(early, run=stop_job, arguments=(0, 0, signal.SIGHUP))
    stop, early_stop, rest, whole = ranks.run([stopped_late, stopped_early, late, early])
    for errors, step, number in ((stop, 3, signal.SIGTERM), (early_stop, 0, signal.SIGHUP)):
        for error in errors:
            assert isinstance(error, InterruptedRunError)
            assert error.exit_code == 128 + number
            assert f"stopped after step {step}; a checkpoint is in" in error.message
    reference = reference_of(text, 8)
    assert rest[0].losses == pytest.approx(reference.losses[3:], rel=1e-10, abs=0)
    assert whole[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0)


def test_two_trainings_do_not_share_a_folder(ranks: Ranks, text: Path, tmp_path: Path) -> None:
    """One training at a time; the lock of one that ended, however it did, is gone."""
    folder = tmp_path / "run"
    folder.mkdir()
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    job = train_steps(PLANS["one rank"], text, 1, checkpoint_dir=str(folder))
    ((refused,),) = ranks.run([dataclasses.replace(job, run=impatient_job)])
    os.close(other)
    assert isinstance(refused, TrainingError)
    assert "another training keeps its checkpoints here, and is still running" in refused.message
    assert list(folder.iterdir()) == []
    again = dataclasses.replace(job, options=job.options.model_copy(update={"num_steps": 2, "resume": "latest"}))
    ((first,), (second,)) = ranks.run([job, again])
    assert [first.checkpoints, second.checkpoints] == [
        [str(folder / "step-00000001")],
        [str(folder / "step-00000002")],
    ]


def impatient_job(context: ProcessContext, job: Job) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_folder, "PATIENCE_S", 0.3)
        return train_job(context, job)


def recut_job(context: ProcessContext, job: Job) -> None:
    """Load under this job's plan and save again, without a step between."""
    source, target = job.arguments
    found, _ = find_checkpoint(source, None, context.process_group)
    assert found is not None
    engine = make_engine(context, job, initialise=False)
    load_shards(found, engine.shards(to_write=False), context.process_group)
    manifest = found.manifest.model_copy(update={"files": {}})
    save_checkpoint(Path(target), manifest, engine.shards(to_write=True), context.process_group)
    engine.close()


def stop_job(context: ProcessContext, job: Job) -> None:
    """Send this process a signal in the middle of a step, or before the first, on one rank only."""
    rank, step, number = job.arguments
    updates = 0

    def on_record(record: Record) -> None:
        nonlocal updates
        updates += record.op is Op.OPTIMIZER_STEP
        if (rank, step - 1) == (context.rank, updates) and record == Record(op=Op.UNSHARD, unit=2):
            os.kill(os.getpid(), number)

    def on_notice(sentence: str) -> None:
        if step == 0 and "starting from step 1" in sentence:
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # nohup has tests ignore SIGHUP, and what is ignored stays so
    try:
        train(job.plan, job.options, context, Callbacks(on_record=on_record, on_notice=on_notice))
    finally:
        signal.signal(number, before)


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, put together in this process."""
    shards = {}
    for unit in model_units(MODEL):
        for name in ("weights", "first_moment", "second_moment"):
            data = torch.full((unit.num_parameters,), torch.nan, dtype=torch.float64)
            shards[f"{unit.name}.{name}"] = Shard(data=data, start=0, num_elements=unit.num_parameters)
    with pytest.warns(UserWarning, match="load in a single process"):
        load(dict(shards), storage_reader=FileSystemReader(folder), planner=LoadShards(), no_dist=True)
    return {name: shard.data for name, shard in shards.items()}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_momentum_is_saved_and_resumed_under_another_plan(ranks: Ranks, text: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1}
    folder = str(tmp_path / "run")
    ranks.run([train_steps(PLANS["saved"], text, 3, checkpoint_dir=folder, **given)])
    (resumed,) = ranks.run([train_steps(PLANS["three ranks"], text, 6, resume=folder, **given)])
    reference = train_reference(
        MODEL, text, seq_len=SEQ_LEN, batch_size=4, num_steps=6, learning_rate=0.1, momentum=0.9
    )
    assert resumed[0].losses == pytest.approx(reference.losses[3:], rel=1e-10, abs=0)
