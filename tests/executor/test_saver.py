"""Saving beside the training, keeping the last few, and outliving a full disk."""

import contextlib
import errno
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import FileSystem

from cephalo_cli.executor import Callbacks, TrainOptions, saver
from cephalo_cli.executor.checkpoint import save_checkpoint
from cephalo_cli.executor.checkpoint_manifest import SavedFile
from cephalo_cli.executor.checkpoint_reader import VouchedReader
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, train_job

PLAN = make_plan(make_model(num_layers=1), [[2, 1], [1]], [0.7, 0.3])
WAIT_S = 30.0


def job(folder: Path, num_steps: int = 4, **options: Any) -> Job:
    given = TrainOptions(data="random", num_steps=num_steps, checkpoint_dir=str(folder), **options)
    return Job(plan=PLAN, options=given, run=train_job)


def steps_in(folder: Path) -> list[int]:
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def shards_of(folder: Path) -> dict[str, SavedFile]:
    return {path.name: SavedFile.of(path) for path in sorted(folder.glob("__*"))}


def test_training_goes_on_during_a_save_and_the_last_few_are_kept(ranks: Ranks, tmp_path: Path) -> None:
    slow = job(tmp_path / "beside", checkpoint_every=2, async_checkpoint=True)
    jobs = [
        job(tmp_path / "at once", checkpoint_every=1, keep=2),
        Job(plan=slow.plan, options=slow.options, run=train_while_saving),
    ]
    at_once, beside = ranks.run(jobs)
    assert steps_in(tmp_path / "at once") == [3, 4]
    assert steps_in(tmp_path / "beside") == [2, 4]
    assert len(at_once[0].checkpoints) == 4
    assert [Path(path).name for path in beside[0].checkpoints] == ["step-00000002", "step-00000004"]
    for trained in beside:
        assert trained.records == ["step 3 ran while step 2 was being saved"]
    final = "step-00000004"
    assert shards_of(tmp_path / "at once" / final) == shards_of(tmp_path / "beside" / final)


def train_while_saving(context: ProcessContext, given: Job) -> Trained:
    """Train; the first save does not end before the step after it has."""
    trained, gone_on, num_updates = Trained(), threading.Event(), 0
    told: list[Any] = trained.records
    save = save_checkpoint

    def save_late(*arguments: Any, **options: Any) -> Path:
        if num_updates < 3:
            told.append(
                "step 3 ran while step 2 was being saved" if gone_on.wait(WAIT_S) else "the training stood still"
            )
        return save(*arguments, **options)

    def on_record(record: Record) -> None:
        nonlocal num_updates
        num_updates += record.op is Op.OPTIMIZER_STEP
        if num_updates == 3:
            gone_on.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "save_checkpoint", save_late)
        train(
            given.plan,
            given.options,
            context,
            Callbacks(on_record=on_record, on_checkpoint=trained.checkpoints.append),
        )
    return trained


@pytest.mark.parametrize("is_async", [False, True])
def test_a_full_disk_costs_a_checkpoint_but_not_the_training(ranks: Ranks, tmp_path: Path, *, is_async: bool) -> None:
    options: dict[str, Any] = {"checkpoint_every": 1, "async_checkpoint": is_async}
    healed = job(tmp_path / "healed", **options)
    full = job(tmp_path / "full", **options)
    outcomes = ranks.run(
        [
            Job(plan=healed.plan, options=healed.options, run=train_on_a_full_disk, arguments=(2, 3)),
            Job(plan=full.plan, options=full.options, run=train_on_a_full_disk, arguments=(2, 9)),
        ]
    )
    (told, unsaved), (told_full, unsaved_full) = outcomes[0][0], outcomes[1][0]
    assert steps_in(tmp_path / "healed") == [1, 3, 4]
    assert len(told) == 1
    assert told[0].startswith("training goes on although a checkpoint is missing: step 2: ")
    assert "the checkpoint cannot be written: No space left on device" in told[0]
    assert unsaved is None
    assert steps_in(tmp_path / "full") == [1]
    assert len(told_full) == 3
    assert "the checkpoint cannot be written: " in unsaved_full


def train_on_a_full_disk(context: ProcessContext, given: Job) -> Any:
    """Train; rank 1's disk is full while the saves of some steps run."""
    first, end = given.arguments
    told: list[str] = []
    save = save_checkpoint

    def save_or_fail(folder: Path, manifest: Any, *arguments: Any, **options: Any) -> Path:
        with _full_disk() if context.rank == 1 and first <= manifest.step < end else contextlib.nullcontext():
            return save(folder, manifest, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "save_checkpoint", save_or_fail)
        result = train(given.plan, given.options, context, Callbacks(on_notice=told.append))
    return [text for text in told if "checkpoint" in text], None if result is None else result.unsaved


@contextlib.contextmanager
def _full_disk() -> Iterator[None]:
    """Have shards fail to be written, when a part of them is there already."""
    create = FileSystem.create_stream

    @contextlib.contextmanager
    def create_and_fail(self: FileSystem, path: Any, mode: str) -> Iterator[Any]:
        with create(self, path, mode) as stream:
            if str(path).endswith(".distcp"):
                stream.write(b"part")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystem, "create_stream", create_and_fail)
        yield


class Malice:
    def __reduce__(self) -> Any:
        return os.kill, (os.getpid(), signal.SIGKILL)


class Attribute:
    """Pickled as Python before 3.11.4 pickles members of enumerations."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


def test_an_index_may_get_members_of_its_own_enumerations_and_no_other_attribute(tmp_path: Path) -> None:
    formats = metadata._MEM_FORMAT_ENCODING  # noqa: SLF001 - a part of every index torch writes
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(formats, formats.TORCH_PRESERVE_FORMAT.name)))
    with pytest.raises(ValueError, match="holds a _MEM_FORMAT_ENCODING, not an index"):
        VouchedReader(tmp_path, [".metadata"]).read_metadata()
    for of, name in ((metadata.Metadata, "__init__"), (formats, "__class__"), (torch.Size, "count")):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(of, name)))
        with pytest.raises(pickle.UnpicklingError, match=f"for {name}, which no index needs"):
            VouchedReader(tmp_path, [".metadata"]).read_metadata()


def test_an_index_that_would_run_something_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Malice()))
    with pytest.raises(pickle.UnpicklingError, match=r"names posix\.kill, which no index needs"):
        VouchedReader(tmp_path, [".metadata"]).read_metadata()
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds a dict, not an index"):
        VouchedReader(tmp_path, [".metadata"]).read_metadata()


def test_an_index_may_only_point_to_files_that_were_compared(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run([job(tmp_path / "run", num_steps=1)])
    folder = tmp_path / "run" / "step-00000001"
    files = [path.name for path in folder.iterdir()]
    assert VouchedReader(folder, files).read_metadata().state_dict_metadata
    with pytest.raises(ValueError, match=r"points to __1_0\.distcp, which the manifest does not list"):
        VouchedReader(folder, [name for name in files if name != "__1_0.distcp"]).read_metadata()
