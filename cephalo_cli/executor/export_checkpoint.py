"""Exporting from a checkpoint: it knows its model, so neither plan nor ranks nor data are needed."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata

from cephalo_cli.errors import ArtifactError
from cephalo_cli.executor.checkpoint_folder import candidates
from cephalo_cli.executor.checkpoint_manifest import Found, Manifest, file_problem, read_manifest
from cephalo_cli.executor.checkpoint_reader import VouchedReader
from cephalo_cli.executor.checkpoint_shards import LoadShards, Shard
from cephalo_cli.executor.export import Export, UnitTensors, check_target
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.executor.sharded_unit import dtypes_of
from cephalo_cli.models import build_unit
from cephalo_cli.units import Unit, model_units

__all__ = ["export_checkpoint"]


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    *,
    weights: Path | None = None,
    dtype: str | None = None,
    replaces: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Manifest:
    """Write a checkpoint's weights as a Hugging Face folder, one unit at a time.

    Args:
        checkpoint: A checkpoint, or a folder of checkpoints, whose newest complete one is taken.
        folder: Where the folder goes.
        weights: The folder that training started from: its configuration, dtypes and tokenizer are kept.
        dtype: Dtype of all tensors instead.
        replaces: Whether a folder that is there already makes way.
        say: Told what a person should know.

    Returns:
        What the checkpoint says about itself.

    Raises:
        ArtifactError: There is no complete checkpoint, ``weights`` is of another model, or the folder is taken.
        UsageError: The model has no Hugging Face form.
        TrainingError: The folder cannot be written.
    """
    check_target(folder, replaces=replaces)
    found = _newest(checkpoint, say)
    model = found.manifest.model
    kept = None if weights is None else Pretrained(weights, model)
    export = Export(folder, model, weights=kept, dtype=dtype)
    export.write(_units(found))
    return found.manifest


def _newest(root: Path, say: Callable[[str], None]) -> Found:
    problems: list[str] = []
    for path in candidates(root, is_latest=False):
        try:
            manifest = read_manifest(path)
            wrong = (file_problem(path / name, file) for name, file in manifest.files.items())
            problem = next(filter(None, wrong), None)
        except ArtifactError as error:
            problem = error.message
        if problem is None:
            for each in problems:
                say(each)
            return Found(path=path, manifest=manifest)
        problems.append(f"passed over {path}: {problem}")
    raise ArtifactError("; ".join(problems) or "no checkpoint here", where=str(root), hint="no checkpoint is complete")


def _units(found: Found) -> Iterator[UnitTensors]:
    """Read every unit whole, one after the other; torch's own entry would want a process group for it.

    Raises:
        ArtifactError: The checkpoint does not hold what its manifest says.
    """
    reader = VouchedReader(found.path, found.manifest.files)
    try:
        index = reader.read_metadata()
        reader.set_up_storage_reader(index, is_coordinator=True)
        for unit in model_units(found.manifest.model):
            yield _unit(found.manifest, unit, lambda shards: _read(reader, index, shards))
    except (ValueError, OSError, pickle.UnpicklingError) as error:
        raise ArtifactError(f"cannot be loaded: {error}", where=str(found.path)) from error


def _read(reader: VouchedReader, index: Metadata, shards: dict[str, Shard]) -> None:
    planner = LoadShards()
    planner.set_up_planner(shards, index)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner)


def _unit(manifest: Manifest, unit: Unit, read: Callable[[dict[str, Shard]], None]) -> UnitTensors:
    wide = dtypes_of(manifest.state_dtype).state
    stored = wide if manifest.model.frozen_dtype is None else dtypes_of(manifest.model.frozen_dtype).compute
    flat = {
        name: torch.empty(_length(manifest, name), dtype=dtype)
        for name, dtype in ((unit.name, wide), (f"{unit.name}.frozen", stored))
        if name in manifest.layout
    }
    read({f"{name}.weights": Shard(data=data, start=0, num_elements=len(data)) for name, data in flat.items()})
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in build_unit(manifest.model, unit.kind).named_parameters()}
    return {
        name: data[slice(*manifest.layout[buffer][name])].view(shapes[name])
        for buffer, data in flat.items()
        for name in manifest.layout[buffer]
    }


def _length(manifest: Manifest, buffer: str) -> int:
    return max((stop for _, stop in manifest.layout[buffer].values()), default=0)
