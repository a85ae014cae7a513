"""When checkpoints are saved: at once, or beside the training from a copy in host memory.

Note: saving beside the training
    The shards are copied to the host, and a thread writes the copy while the next steps run. The thread talks to the
    other ranks through a process group of its own, so its collectives cannot mix with those of a step. A save waits
    for the one before it, and a training for its last. The copy is as large as the shards' weights and moments: on a
    CPU device that is the device's own memory, so there a save happens at once unless asked otherwise.

Note: a save that fails
    A full disk is no reason to lose a training: the failure is told, older checkpoints stay, the next save tries
    anew. `Saver.unsaved` says at the end whether the last one failed.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist

from cephalo_cli.executor.checkpoint import save_checkpoint
from cephalo_cli.executor.checkpoint_folder import UnwrittenError
from cephalo_cli.executor.checkpoint_manifest import Manifest
from cephalo_cli.executor.checkpoint_shards import Shard

__all__ = ["Saver"]

PATIENCE_S = 20.0
"""How long a training that failed waits for its last save."""


class Saver:
    """Saves the checkpoints of one training; every rank has one and calls it in the same steps.

    Args:
        folder: Where checkpoints live.
        group: All ranks.
        keep: How many checkpoints stay; all of them when absent.
        is_async: Whether to save beside the training.
        on_saved: Told the path of a checkpoint once it is complete, in the calling thread.
        on_failed: Told why a checkpoint could not be written, in the calling thread.
    """

    def __init__(
        self,
        folder: Path,
        group: dist.ProcessGroup,
        *,
        keep: int | None,
        is_async: bool,
        on_saved: Callable[[Path], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._on_saved, self._on_failed = on_saved, on_failed
        self._group = dist.new_group(backend="gloo") if is_async and dist.get_world_size(group) > 1 else group
        self._is_async = is_async
        self._thread: threading.Thread | None = None
        self._outcome: Path | BaseException | None = None
        self.saved_step: int | None = None
        """The last step that is safe."""
        self.unsaved: str | None = None
        """Why the last save failed, if it did."""
        self._step: int | None = None

    def save(self, manifest: Manifest, shards: Mapping[str, Shard]) -> None:
        """Save a checkpoint, or start to; each step is tried once."""
        self.wait()
        if manifest.step in (self.saved_step, self._step):
            return
        self._step = manifest.step
        if not self._is_async:
            self._write(manifest, shards)
            self._tell()
            return
        copies = {
            name: Shard(
                data=shard.data.detach().to("cpu", copy=True), start=shard.start, num_elements=shard.num_elements
            )
            for name, shard in shards.items()
        }
        self._thread = threading.Thread(target=self._write, args=(manifest, copies), name="cephalo-save", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Tell about a save that has ended by now."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait for the save that is under way, and tell how it ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._tell()

    def leave(self) -> None:
        """Give the save that is under way a while to end, before the process does; nobody is told."""
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def _write(self, manifest: Manifest, shards: Mapping[str, Shard]) -> None:
        try:
            self._outcome = save_checkpoint(self._folder, manifest, shards, self._group, keep=self._keep)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that trains
            self._outcome = error

    def _tell(self) -> None:
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Path):
            self.saved_step, self.unsaved = self._step, None
            self._on_saved(outcome)
        elif isinstance(outcome, UnwrittenError):
            self.unsaved = str(outcome)
            self._on_failed(f"step {self._step}: {outcome}")
        elif outcome is not None:
            raise outcome
