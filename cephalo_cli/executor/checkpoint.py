"""Checkpoints: complete or absent, checked before they are trusted, and tied to the model, not to the plan.

Note: complete or absent
    A checkpoint is written into a hidden folder beside its place. The ranks' shards come first, then torch's index of
    them, and last the manifest with the size and SHA-256 of every file; only then the folder gets its name. Whatever
    interrupts this leaves a folder that is not taken for a checkpoint.

Note: checked first
    Resuming reads the manifest (JSON), then compares every file with it, the ranks sharing the work. Only then is
    anything unpickled. ``latest`` takes the newest checkpoint that passes and says which it passed over, and why.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
from pydantic import Field, ValidationError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cephalo_cli.artifacts.base import DType, NonNegativeInt, PositiveFloat, Value
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.store import write_text
from cephalo_cli.errors import ArtifactError, TrainingError
from cephalo_cli.executor.checkpoint_shards import LoadShards, SaveShards, Shard
from cephalo_cli.executor.peers import broadcast_value, gather_values, reaching_peers

__all__ = ["Found", "Manifest", "find_checkpoint", "load_shards", "save_checkpoint"]

MANIFEST = "manifest.json"
INDEX = ".metadata"
"""torch's name for the index of the shards."""
NAMES_OF_THE_SAME_MODEL = frozenset({"kind", "schema_version", "created_by", "inputs", "name", "dropout"})
"""What may differ between the checkpoint's model and the plan's."""


class SavedFile(Value):
    """A file of the checkpoint."""

    num_bytes: NonNegativeInt
    """Its size."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of its bytes."""


class Manifest(Value):
    """What a checkpoint is, apart from its tensors."""

    step: NonNegativeInt
    """Steps done."""
    position: NonNegativeInt
    """Samples taken from the data."""
    seed: int
    """Seed of the training."""
    data: str
    """Digest of the training data."""
    model: Model
    """The model."""
    state_dtype: DType
    """Dtype of weights and moments."""
    num_updates: NonNegativeInt
    """Updates the moments have seen: steps, less those float16 left out."""
    loss_scale: PositiveFloat
    """Scale of the loss (float16)."""
    good_steps: NonNegativeInt
    """Steps since the scale last changed."""
    layout: dict[str, dict[str, tuple[int, int]]]
    """Where every parameter lies in its unit's flat buffer: unit, parameter, start and stop."""
    files: Annotated[dict[str, SavedFile], Field(default_factory=dict)]
    """Every file beside the manifest."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint that passed all checks."""

    path: Path
    manifest: Manifest


def save_checkpoint(folder: Path, manifest: Manifest, shards: Mapping[str, Shard], group: dist.ProcessGroup) -> Path:
    """Save a checkpoint; every rank takes part.

    Args:
        folder: Where checkpoints live; the new one becomes ``folder/step-N``.
        manifest: What to say about it; ``files`` is filled in.
        shards: This rank's part of every tensor; the same names on all ranks.
        group: All ranks.

    Raises:
        TrainingError: It cannot be written, or the ranks do not share the folder. Older checkpoints stay.
    """
    final = folder / f"step-{manifest.step:08d}"
    scratch = folder / f".{final.name}.part"
    rank = dist.get_rank(group)

    def prepare() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    def complete(written: list[dict[str, SavedFile]]) -> None:
        files: dict[str, SavedFile] = {INDEX: _digest(scratch / INDEX)}
        for part in written:
            files |= part
        for name in files:
            if not (scratch / name).is_file():
                raise TrainingError(
                    f"rank 0 does not see {name}, which another rank wrote",
                    where=str(folder),
                    hint="give a folder that all nodes share",
                )
        write_text(manifest.model_copy(update={"files": files}).model_dump_json(indent=1) + "\n", scratch / MANIFEST)
        _replace(scratch, final)

    try:
        _on_rank_0(prepare, folder, group)
        with reaching_peers():
            save(dict(shards), storage_writer=FileSystemWriter(scratch), planner=SaveShards(), process_group=group)
        own = {path.name: _digest(path) for path in sorted(scratch.glob(f"__{rank}_*"))}
        written = gather_values(own, group)
        _on_rank_0(lambda: complete(written), folder, group)
    except CheckpointException as error:
        raise _cannot_be_written(folder, next(iter(error.failures.values()))[0]) from error
    finally:
        if rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def load_shards(found: Found, shards: Mapping[str, Shard], group: dist.ProcessGroup) -> None:
    """Fill this rank's shards from a checkpoint, whatever the plan that wrote it; every rank takes part.

    Raises:
        ArtifactError: It does not hold these tensors.
    """
    try:
        with reaching_peers():
            load(dict(shards), storage_reader=FileSystemReader(found.path), planner=LoadShards(), process_group=group)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise ArtifactError(f"cannot be loaded: {reason}", where=str(found.path)) from error


def find_checkpoint(wanted: str, folder: Path | None, group: dist.ProcessGroup) -> tuple[Found | None, list[str]]:
    """Choose the checkpoint to resume from; every rank takes part and gets the same answer.

    Args:
        wanted: ``latest`` (in ``folder``), a checkpoint, or a folder of checkpoints.
        folder: Where this training keeps its checkpoints.
        group: All ranks.

    Returns:
        The checkpoint, or None if ``latest`` found none at all (a first start); and one sentence for each folder that
        was passed over.

    Raises:
        ArtifactError: The named checkpoint is damaged, or all are.
    """
    root = folder if wanted == "latest" else Path(wanted)
    if root is None:
        raise AssertionError("latest needs a checkpoint folder")
    skipped: list[str] = []
    for candidate in broadcast_value(_candidates(root, is_latest=wanted == "latest"), group):
        problem = _problem(candidate, group)
        if problem is None:
            return Found(path=candidate, manifest=_read_manifest(candidate)), skipped
        skipped.append(f"passed over {candidate}: {problem}")
    if skipped or wanted != "latest":
        raise ArtifactError(
            "; ".join(skipped) or "no checkpoint here", where=str(root), hint="no checkpoint is complete"
        )
    return None, []


def check_same_model(found: Found, model: Model, state_dtype: DType) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        ArtifactError: With the first field that differs.
    """
    theirs, ours = found.manifest.model.model_dump(), model.model_dump()
    for name in theirs:
        if name not in NAMES_OF_THE_SAME_MODEL and theirs[name] != ours[name]:
            raise ArtifactError(
                f"is a checkpoint of another model: {name} is {theirs[name]}, the plan's model has {ours[name]}",
                where=str(found.path),
            )
    if found.manifest.state_dtype != state_dtype:
        raise ArtifactError(
            f"holds {found.manifest.state_dtype} weights, this run keeps {state_dtype}",
            where=str(found.path),
            hint="resume with the --dtype the checkpoint was trained with",
        )


def has_checkpoints(folder: Path) -> bool:
    """Whether a folder holds anything that was saved."""
    return bool(_candidates(folder, is_latest=True))


def _candidates(root: Path, *, is_latest: bool) -> list[Path]:
    """Newest first; on rank 0 alone, so that all ranks look at the same ones."""
    if not is_latest and (root / MANIFEST).exists():
        return [root]
    steps = [path for path in root.glob("step-*") if path.is_dir()]
    return sorted(steps, key=lambda path: path.name, reverse=True)


def _problem(path: Path, group: dist.ProcessGroup) -> str | None:
    """What is wrong with a checkpoint; the ranks share its files, and get the same answer."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    try:
        files = sorted(_read_manifest(path).files.items())
        problem = next(filter(None, (_file_problem(path / name, file) for name, file in files[rank::world_size])), None)
    except ArtifactError as error:
        problem = error.message
    return next(filter(None, gather_values(problem, group)), None)


def _file_problem(path: Path, expected: SavedFile) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected.num_bytes:
            return f"{path.name} has {size} bytes, the manifest says {expected.num_bytes}"
        if _digest(path) != expected:
            return f"{path.name} does not have the manifest's SHA-256"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    return None


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except OSError as error:
        raise ArtifactError(f"{MANIFEST} cannot be read: {error.strerror or error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactError(f"{MANIFEST} is damaged: {first['msg']}", where=str(path)) from error


def _digest(path: Path) -> SavedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SavedFile(num_bytes=os.fstat(file.fileno()).st_size, sha256=digest)


def _replace(scratch: Path, final: Path) -> None:
    """Give a finished folder its name; a checkpoint of the same step is moved away first, and then removed."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    scratch.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _on_rank_0(work: Callable[[], None], folder: Path, group: dist.ProcessGroup) -> None:
    """Have rank 0 do something; all ranks wait for it and fail with it."""
    problem: TrainingError | None = None
    if dist.get_rank(group) == 0:
        try:
            work()
        except TrainingError as error:
            problem = error
        except (OSError, ArtifactError) as error:
            problem = _cannot_be_written(folder, error)
    problem = broadcast_value(problem, group)
    if problem is not None:
        raise problem


def _cannot_be_written(folder: Path, error: BaseException) -> TrainingError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return TrainingError(
        f"the checkpoint cannot be written: {reason}", where=str(folder), hint="earlier checkpoints are untouched"
    )
