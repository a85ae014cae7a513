"""Reading the catalog's JSON files, and finding entries by the names people use.

Each file is read once, when it is first asked for. Every number in it has its source beside it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeVar

from pydantic import Field

from cephalo_cli.artifacts.base import DType, NumBytes, PositiveFloat, PositiveInt, Value
from cephalo_cli.artifacts.cluster import Backend
from cephalo_cli.catalog.suggest import suggestion
from cephalo_cli.errors import ArtifactError

__all__ = [
    "DeviceRecord",
    "ModelRecord",
    "Pcie",
    "bare",
    "device_records",
    "find",
    "model_records",
    "named_device",
    "normal",
    "pcie_rates",
]

R = TypeVar("R")
_UNSAID = frozenset(
    ("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon", "intel", "generation", "hbm3")
)


class Pcie(Value):
    """A device's slot."""

    generation: PositiveInt
    """Generation of PCI Express."""
    lanes: PositiveInt
    """Lanes the device uses."""


class DeviceRecord(Value):
    """What the catalog knows of a device type."""

    description: str
    """What people call it."""
    aliases: tuple[str, ...] = ()
    """Other ids it answers to."""
    architecture: str
    """Family of chips it belongs to; devices without measurements take its coefficients."""
    backend: Backend
    """What runs tensors on it."""
    memory_bytes: NumBytes
    """Nominal capacity; vendors count memory chips in powers of two."""
    memory_bandwidth_bytes_per_s: PositiveFloat
    """Peak rate of its memory."""
    peak_flops: Annotated[dict[DType, PositiveFloat], Field(min_length=1)]
    """Peak rate of dense products without structured sparsity; a dtype that is absent cannot be run."""
    pcie: Pcie | None = None
    """Connection to the host."""
    board_link_bytes_per_s: PositiveFloat | None = None
    """One direction of the links that join all devices of its board (NVLink, Infinity Fabric)."""
    host_bytes_per_s: PositiveFloat | None = None
    """One direction of a host connection that is not PCI Express."""
    source: str
    """Where the numbers come from."""
    other_sources: dict[str, str] = Field(default_factory=dict)
    """Numbers that come from elsewhere."""


class ModelRecord(Value):
    """What the catalog knows of a model."""

    aliases: tuple[str, ...] = ()
    """Other names it answers to."""
    table_names: tuple[str, ...] = ()
    """Names that published tables of measurements have for it, as they are written there. With dashes the same name is
    another model, so these are taken to the letter."""
    shape: dict[str, Any]
    """Fields of the model artifact."""
    num_parameters: PositiveInt
    """The published count."""
    source: str
    """Where the shape and the count come from."""


@cache
def device_records() -> Mapping[str, DeviceRecord]:
    """Return all device types by id."""
    return {key: _record(DeviceRecord, entry) for key, entry in _document("devices")["devices"].items()}


@cache
def model_records() -> Mapping[str, ModelRecord]:
    """Return all models by name."""
    return {key: _record(ModelRecord, entry) for key, entry in _document("models")["models"].items()}


def pcie_rates() -> Mapping[int, float]:
    """Return bytes a second of 16 lanes in one direction, by generation."""
    return {int(generation): rate for generation, rate in _document("devices")["pcie_bytes_per_s"].items()}


def normal(name: str) -> str:
    """Bring a name to the catalog's spelling: lower case, dashes for underscores and spaces."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def bare(name: str) -> str:
    """Bring a device's name to letters and digits, without its maker and family: as drivers and people write it.

    ``NVIDIA GeForce RTX 4090`` and ``rtx4090`` are one, as are ``Tesla V100-SXM2-16GB`` and ``v100-sxm2-16gb``.
    """
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in _UNSAID)


def find(name: str, records: Mapping[str, R], aliases: Callable[[R], Iterable[str]], *, what: str, where: str) -> str:
    """Find the key of an entry by its id or an alias.

    Args:
        name: What the user wrote.
        records: The catalog.
        aliases: Gives an entry's other names.
        what: What is looked for, in the message.
        where: File and field path of the name.

    Raises:
        ArtifactError: Nothing has that name; the nearest one is suggested.
    """
    wanted = normal(name)
    names = {other: key for key, record in records.items() for other in (key, *aliases(record))}
    if wanted in names:
        return names[wanted]
    hint = suggestion(wanted, names, kind=f"{what}s")
    raise ArtifactError(f"the catalog has no {what} {name!r}", where=where, hint=hint)


def named_device(name: str) -> str | None:
    """Return the id of the device type that a name means, to the letter or as `bare`; None where it means none."""
    names = {other: key for key, record in device_records().items() for other in (key, *record.aliases)}
    return names.get(normal(name)) or {bare(other): key for other, key in names.items()}.get(bare(name))


def _document(name: str) -> Any:
    return json.loads(resources.files("cephalo_cli.catalog").joinpath(f"{name}.json").read_text(encoding="utf-8"))


def _record(kind: type[R], entry: dict[str, Any]) -> R:
    record: R = kind.model_validate_json(json.dumps(entry))  # type: ignore[attr-defined]
    return record
