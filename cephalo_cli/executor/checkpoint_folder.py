"""The folder that checkpoints live in: which are there, which may go, and what a killed job left behind.

Note: one training a folder
    Two trainings that save the same step in one folder would write into each other's files. So rank 0 locks the folder
    while it trains. The lock is the system's: it ends with the process, however that ends. A training that is started
    again waits a while for the one before it, whose ranks may still be leaving.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist

from cephalo_cli.errors import ArtifactError, CephaloError, TrainingError
from cephalo_cli.executor.checkpoint_manifest import MANIFEST
from cephalo_cli.executor.peers import broadcast_value, gather_values

__all__ = ["UnwrittenError", "candidates", "has_checkpoints", "on_rank_0", "prepare_folder", "prune", "replace"]

CUT_SHORT = ("unexpected pos", "PytorchStreamWriter failed")
"""What torch says when a write did not go through, whatever the system's reason (torch 2.13)."""
PATIENCE_S = 15.0
"""How long to wait for a training before, whose ranks may still be leaving."""
PAUSE_S = 0.2
PROBE = ".shared"
"""Name of the file that shows whether all ranks see the same folder."""


class UnwrittenError(TrainingError):
    """A checkpoint could not be written; those before it are untouched."""


def candidates(root: Path, *, is_latest: bool) -> list[Path]:
    """What may be a checkpoint, newest first; ask on rank 0 alone, so that all ranks look at the same ones."""
    if not is_latest and (root / MANIFEST).exists():
        return [root]
    steps = [path for path in root.glob("step-*") if path.is_dir()]
    return sorted(steps, key=lambda path: path.name, reverse=True)


def has_checkpoints(folder: Path) -> bool:
    """Whether a folder holds anything that was saved."""
    return bool(candidates(folder, is_latest=True))


def prepare_folder(folder: Path, group: dist.ProcessGroup, held: ExitStack) -> None:
    """Make the folder before the first step, lock it, and remove what a killed job left; every rank takes part.

    Args:
        folder: Where checkpoints live.
        group: All ranks.
        held: The folder is locked until this is closed.

    Raises:
        UnwrittenError: It cannot be written, another training uses it, or the ranks do not share it.
    """

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _lock(folder, held)
        (folder / PROBE).write_bytes(b"")
        for old in folder.glob(".step-*.old"):
            name = folder / old.name.removeprefix(".").removesuffix(".old")
            if not name.exists():
                old.rename(name)
        for rest in (*folder.glob(".step-*.old"), *folder.glob(".step-*.part")):
            shutil.rmtree(rest, ignore_errors=True)

    on_rank_0(prepare, folder, group)
    seen = gather_values((folder / PROBE).exists(), group)
    if dist.get_rank(group) == 0:
        (folder / PROBE).unlink(missing_ok=True)
    if not all(seen):
        raise UnwrittenError(
            f"rank {seen.index(False)} does not see it", where=str(folder), hint="give a folder that all nodes share"
        )


def replace(scratch: Path, final: Path) -> None:
    """Give a finished folder its name; a checkpoint of the same step is moved away first, and then removed."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    _sync(scratch)
    if final.exists():
        final.rename(old)
    scratch.rename(final)
    _sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def prune(folder: Path, newest: Path, keep: int) -> None:
    """Remove all but the last ``keep`` checkpoints up to the newest; later ones are of another run and stay.

    A folder loses its name before its content, so that a checkpoint is never half there.
    """
    done = [path for path in candidates(folder, is_latest=True) if path.name <= newest.name]
    for path in done[keep:]:
        gone = path.with_name(f".{path.name}.part")
        with contextlib.suppress(OSError):
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def on_rank_0(work: Callable[[], None], folder: Path, group: dist.ProcessGroup) -> None:
    """Have rank 0 do something in the folder; all ranks wait for it and fail with it.

    Raises:
        UnwrittenError: It could not.
    """
    problem: CephaloError | None = None
    if dist.get_rank(group) == 0:
        try:
            work()
        except UnwrittenError as error:
            problem = error
        except (OSError, ArtifactError) as error:
            problem = unwritten(folder, error)
    problem = broadcast_value(problem, group)
    if problem is not None:
        raise problem


def unwritten(folder: Path, reason: BaseException | str) -> UnwrittenError:
    """The error for a reason."""
    words = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
    if any(sign in words for sign in CUT_SHORT):
        words = "a file was cut short; is the disk full?"
    return UnwrittenError(
        f"the checkpoint cannot be written: {words}", where=str(folder), hint="earlier checkpoints are untouched"
    )


def _lock(folder: Path, held: ExitStack) -> None:
    """Keep other trainings out, see the note; file systems that cannot lock a folder are taken as they are."""
    descriptor = os.open(folder, os.O_RDONLY)
    held.callback(os.close, descriptor)
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise UnwrittenError(
                    "another training keeps its checkpoints here, and is still running",
                    where=str(folder),
                    hint="end it first, or give another folder",
                ) from None
            time.sleep(PAUSE_S)
        except OSError:
            return
        else:
            return


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
