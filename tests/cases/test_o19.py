"""O19: half-written checkpoint taken as the newest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cephalo_cli.artifacts.store import dumps
from cephalo_cli.errors import TrainingError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.checkpoint_manifest import SavedFile
from cephalo_cli.runtime.launch import run_ranks
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job

PLAN = make_plan(make_model(num_layers=1), [[2], [1], [1]], [0.5, 0.3, 0.2], dtype="float32")
NUM_STEPS = 5
LAST = f"step-{NUM_STEPS:08d}"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "half a shard": lambda newest: halve(newest / "__1_0.distcp"),
    "a manifest of no bytes": lambda newest: (newest / "manifest.json").write_bytes(b""),
    "half a manifest": lambda newest: halve(newest / "manifest.json"),
    "one rank's file missing": lambda newest: remove([newest / "__2_0.distcp"]),
    "half deleted": lambda newest: remove(sorted(newest.iterdir())[::2]),
    "a manifest that vouches for nothing": lambda newest: forget(newest / "manifest.json"),
    "of another program": lambda newest: sign(newest / "manifest.json", "other 1.0"),
}


def options_for(folder: Path) -> TrainOptions:
    return TrainOptions(
        data="random", num_steps=NUM_STEPS, checkpoint_dir=str(folder), checkpoint_every=2, resume="latest"
    )


def shards_of(folder: Path) -> dict[str, SavedFile]:
    return {path.name: SavedFile.of(path) for path in sorted((folder / LAST).glob("__*"))}


def test_o19_a_save_that_was_killed_is_no_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    """O19: SIGKILL when shards are written and the manifest is not; damaged newest ones are named and passed over.

    Each resumed run ends with the weights of the uninterrupted one, to the bit.
    """
    (tmp_path / "whole").mkdir()
    killed = tmp_path / "killed"
    arguments = {
        "plan": json.loads(dumps(PLAN)),
        "options": options_for(killed).model_dump(mode="json"),
        "rank": 1,
        "moment": "SAVE",
        "step": 4,
        "signal": "SIGKILL",
    }
    with pytest.raises(TrainingError, match=r"rank 1 .* was killed by SIGKILL"):
        run_ranks("tests.cases.troubled:troubled", arguments, PLAN.cluster)
    assert [path.name for path in killed.glob("step-*")] == ["step-00000002"]

    whole = Job(plan=PLAN, options=options_for(tmp_path / "whole"), run=train_job)
    resumed = Job(plan=PLAN, options=options_for(killed), run=train_job)
    (_, found) = ranks.run([whole, resumed])
    assert found[0].notices[0] == f"resumed from {killed / 'step-00000002'} after step 2"
    assert shards_of(killed) == shards_of(tmp_path / "whole")
    assert not [path for path in killed.iterdir() if path.name.startswith(".")]

    jobs = []
    for name, damage in DAMAGES.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        shutil.rmtree(tmp_path / name / LAST)
        damage(tmp_path / name / "step-00000004")
        jobs.append(Job(plan=PLAN, options=options_for(tmp_path / name), run=train_job))
    for name, trained in zip(DAMAGES, ranks.run(jobs), strict=True):
        notices = trained[0].notices
        assert notices[0].startswith(f"passed over {tmp_path / name / 'step-00000004'}: "), name
        assert notices[1] == f"resumed from {tmp_path / name / 'step-00000002'} after step 2"
        assert shards_of(tmp_path / name) == shards_of(tmp_path / "whole"), name


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def forget(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": {}}))


def sign(path: Path, program: str) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created_by": program}))
