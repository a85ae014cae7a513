"""What a checkpoint says about itself, and whether its files are the ones it speaks of."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from cephalo_cli import __version__
from cephalo_cli.artifacts.base import DType, NonNegativeInt, PositiveFloat, Value
from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import ArtifactError

__all__ = ["INDEX", "MANIFEST", "Found", "Manifest", "SavedFile", "check_same_model", "file_problem", "read_manifest"]

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

    @classmethod
    def of(cls, path: Path) -> "SavedFile":
        """Read a file's size and digest."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(num_bytes=os.fstat(file.fileno()).st_size, sha256=digest)


class Manifest(Value):
    """What a checkpoint is, apart from its tensors.

    There is no state of a random generator: what is drawn in a step depends on the seed and the step alone.
    """

    created_by: Annotated[str, Field(pattern=r"^cephalo \S+$")] = f"cephalo {__version__}"
    """The program that wrote it."""
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
    optimizer: str = "adamw"
    """What the moments belong to: adamw, sgd or sgd with momentum."""
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


def check_same_model(found: Found, model: Model, state_dtype: DType, optimizer: str) -> None:
    """Refuse a checkpoint of another model or optimizer.

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
    if found.manifest.optimizer != optimizer:
        raise ArtifactError(
            f"was trained with {found.manifest.optimizer}, whose moments mean nothing to {optimizer}",
            where=str(found.path),
            hint="resume with the --optimizer and --momentum the checkpoint was trained with",
        )


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        ArtifactError: It is missing, damaged, not ours, or does not vouch for the index of the shards.
    """
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except OSError as error:
        raise ArtifactError(f"{MANIFEST} cannot be read: {error.strerror or error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = f"{field}: {first['msg']}" if field else first["msg"]
        raise ArtifactError(f"{MANIFEST} is damaged: {message}", where=str(path)) from error
    if INDEX not in manifest.files:
        raise ArtifactError(f"{MANIFEST} does not list {INDEX}, the index of the shards", where=str(path))
    return manifest


def file_problem(path: Path, expected: SavedFile) -> str | None:
    """What is wrong with one file of a checkpoint, if anything."""
    try:
        size = path.stat().st_size
        if size != expected.num_bytes:
            return f"{path.name} has {size} bytes, the manifest says {expected.num_bytes}"
        if SavedFile.of(path) != expected:
            return f"{path.name} does not have the manifest's SHA-256"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    return None
