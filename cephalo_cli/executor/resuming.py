"""Where a training goes on: the checkpoint it starts from, its seed, and its shards read back."""

from collections.abc import Callable
from pathlib import Path

from torch import distributed as dist

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor.checkpoint import find_checkpoint, load_shards
from cephalo_cli.executor.checkpoint_folder import has_checkpoints
from cephalo_cli.executor.checkpoint_manifest import Found, check_same_model
from cephalo_cli.executor.engine import CephaloEngine
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.peers import broadcast_value

__all__ = ["find_start", "restore", "seed_in_force", "state_dtype"]


def find_start(
    options: TrainOptions, model: Model, dtype: DType, group: dist.ProcessGroup, notice: Callable[[str], None]
) -> Found | None:
    """Find the checkpoint to go on from, on all ranks the same; None to start with step 1.

    Args:
        options: What is asked for.
        model: The model that is trained.
        dtype: Its compute dtype.
        group: All ranks.
        notice: Told of what was skipped, and of a folder without a checkpoint.

    Raises:
        UsageError: The folder holds checkpoints nobody asked for, or the checkpoint is beyond the last step.
        ArtifactError: There is no such checkpoint, or it is of another model.
    """
    folder = None if options.checkpoint_dir is None else Path(options.checkpoint_dir)
    if options.resume is None:
        if broadcast_value(folder is not None and has_checkpoints(folder), group):
            raise UsageError(
                "holds checkpoints already",
                where=f"--checkpoint-dir {folder}",
                hint="--resume latest continues from them, or give another folder",
            )
        return None
    found, skipped = find_checkpoint(options.resume, folder, group)
    for sentence in skipped:
        notice(sentence)
    if found is None:
        notice(f"no checkpoint in {folder} yet, starting from step 1")
        return None
    check_same_model(found, model, state_dtype(dtype), options.optimizer_kind)
    if found.manifest.step > options.num_steps:
        raise UsageError(
            f"has done {found.manifest.step} steps already, --steps {options.num_steps} asks for fewer",
            where=str(found.path),
        )
    return found


def seed_in_force(options: TrainOptions, found: Found | None) -> int:
    """Give the seed of weights, sample order and dropout: the checkpoint's, where there is one.

    Raises:
        UsageError: Another one is asked for than the checkpoint's.
    """
    if found is None:
        return options.seed or 0
    if options.seed is not None and options.seed != found.manifest.seed:
        raise UsageError(
            f"the checkpoint was trained with --seed {found.manifest.seed}, --seed {options.seed} would shuffle anew",
            where=str(found.path),
            hint="leave --seed out",
        )
    return found.manifest.seed


def restore(engine: CephaloEngine, found: Found, data_digest: str, group: dist.ProcessGroup) -> None:
    """Read a checkpoint into an engine's shards.

    Args:
        engine: Its shards have no values yet.
        found: The checkpoint.
        data_digest: Digest of the training data at hand.
        group: All ranks.

    Raises:
        ArtifactError: It was trained on other data, or cannot be read.
    """
    manifest = found.manifest
    if manifest.data != data_digest:
        raise ArtifactError(
            "was trained on other data, so its position in the data means nothing here",
            where=str(found.path),
            hint="give the --data (and the sequence length) it was trained with",
        )
    load_shards(found, engine.shards(to_write=False), group)
    engine.restored(num_updates=manifest.num_updates, loss_scale=manifest.loss_scale, good_steps=manifest.good_steps)


def state_dtype(dtype: DType) -> DType:
    """Dtype of master weights and moments for a compute dtype."""
    return "float64" if dtype == "float64" else "float32"
