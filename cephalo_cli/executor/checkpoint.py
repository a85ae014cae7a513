"""Checkpoints: complete or absent, checked before they are trusted, and tied to the model, not to the plan.

Note: complete or absent
    A checkpoint is written into a hidden folder beside its place. The ranks' shards come first, then torch's index of
    them, and last the manifest with the size and SHA-256 of every file; only then the folder gets its name. Whatever
    interrupts this leaves a folder that is not taken for a checkpoint.

Note: checked first
    Resuming reads the manifest (JSON), then compares every file with it, the ranks sharing the work. Only then is
    anything unpickled. ``latest`` takes the newest checkpoint that passes and says which it passed over, and why.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cephalo_cli.artifacts.store import write_text
from cephalo_cli.errors import ArtifactError
from cephalo_cli.executor.checkpoint_folder import UnwrittenError, candidates, on_rank_0, prune, replace, unwritten
from cephalo_cli.executor.checkpoint_manifest import (
    INDEX,
    MANIFEST,
    Found,
    Manifest,
    SavedFile,
    file_problem,
    read_manifest,
)
from cephalo_cli.executor.checkpoint_reader import VouchedReader
from cephalo_cli.executor.checkpoint_shards import LoadShards, SaveShards, Shard
from cephalo_cli.executor.peers import broadcast_value, gather_values, reaching_peers
from cephalo_cli.runtime.peers import PeerLostError, is_peer_loss

__all__ = ["find_checkpoint", "load_shards", "save_checkpoint"]


def save_checkpoint(
    folder: Path, manifest: Manifest, shards: Mapping[str, Shard], group: dist.ProcessGroup, *, keep: int | None = None
) -> Path:
    """Save a checkpoint; every rank takes part.

    Args:
        folder: Where checkpoints live; the new one becomes ``folder/step-N``.
        manifest: What to say about it; ``files`` is filled in.
        shards: This rank's part of every tensor; the same names on all ranks.
        group: All ranks.
        keep: How many checkpoints up to this one stay; all of them when absent.

    Raises:
        UnwrittenError: It cannot be written, or the ranks do not share the folder; on all ranks. Older ones stay.
    """
    final = folder / f"step-{manifest.step:08d}"
    scratch = folder / f".{final.name}.part"
    rank = dist.get_rank(group)

    def prepare() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    def complete(written: list[dict[str, SavedFile]]) -> None:
        files: dict[str, SavedFile] = {INDEX: SavedFile.of(scratch / INDEX)}
        for part in written:
            files |= part
        for name in files:
            if not (scratch / name).is_file():
                raise UnwrittenError(
                    f"rank 0 does not see {name}, which another rank wrote",
                    where=str(folder),
                    hint="give a folder that all nodes share",
                )
        write_text(manifest.model_copy(update={"files": files}).model_dump_json(indent=1) + "\n", scratch / MANIFEST)
        replace(scratch, final)
        if keep is not None:
            prune(folder, final, keep)

    try:
        on_rank_0(prepare, folder, group)
        with reaching_peers():
            save(dict(shards), storage_writer=FileSystemWriter(scratch), planner=SaveShards(), process_group=group)
        written = _all_written(scratch, folder, group)
        on_rank_0(lambda: complete(written), folder, group)
    except CheckpointException as failed:
        raise _reason(failed, folder) from failed
    finally:
        if rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def _all_written(scratch: Path, folder: Path, group: dist.ProcessGroup) -> list[dict[str, SavedFile]]:
    """What every rank wrote; all ranks fail where one cannot read its own files again."""
    own: dict[str, SavedFile] | str
    try:
        own = {path.name: SavedFile.of(path) for path in sorted(scratch.glob(f"__{dist.get_rank(group)}_*"))}
    except OSError as error:
        own = error.strerror or str(error)
    written = []
    for part in gather_values(own, group):
        if isinstance(part, str):
            raise unwritten(folder, part)
        written.append(part)
    return written


def _reason(failed: CheckpointException, folder: Path) -> UnwrittenError | PeerLostError:
    """The first rank's reason; the loss of a rank is no matter of writing."""
    reasons = [reason for reason, _ in failed.failures.values()]
    lost = next((reason for reason in reasons if is_peer_loss(reason)), None)
    if lost is not None:
        return PeerLostError(f"another rank cannot be reached: {lost}")
    return unwritten(folder, reasons[0])


def load_shards(found: Found, shards: Mapping[str, Shard], group: dist.ProcessGroup) -> None:
    """Fill this rank's shards from a checkpoint, whatever the plan that wrote it; every rank takes part.

    Raises:
        ArtifactError: It does not hold these tensors.
    """
    reader = VouchedReader(found.path, found.manifest.files)
    try:
        with reaching_peers():
            load(dict(shards), storage_reader=reader, planner=LoadShards(), process_group=group)
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
    for candidate in broadcast_value(candidates(root, is_latest=wanted == "latest"), group):
        problem = _problem(candidate, group)
        if problem is None:
            return Found(path=candidate, manifest=read_manifest(candidate)), skipped
        skipped.append(f"passed over {candidate}: {problem}")
    if skipped or wanted != "latest":
        raise ArtifactError(
            "; ".join(skipped) or "no checkpoint here", where=str(root), hint="no checkpoint is complete"
        )
    return None, []


def _problem(path: Path, group: dist.ProcessGroup) -> str | None:
    """What is wrong with a checkpoint; the ranks share its files, and get the same answer."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    try:
        files = sorted(read_manifest(path).files.items())
        problem = next(filter(None, (file_problem(path / name, file) for name, file in files[rank::world_size])), None)
    except ArtifactError as error:
        problem = error.message
    return next(filter(None, gather_values(problem, group)), None)
