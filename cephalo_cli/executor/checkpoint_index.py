"""Reading torch's index of a checkpoint without trusting it.

Note: an index that can only describe
    torch keeps the index as a pickle, and a pickle may name any function to be called. Checksums show that a file is
    the one its manifest speaks of, not who wrote both. So the index is read by an unpickler that knows the classes an
    index is made of and nothing else, and it may point only to files whose checksums were compared. Shards themselves
    are read as plain bytes (`checkpoint_reader.py`).
"""

import enum
import pickle
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import torch
from torch import serialization
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from cephalo_cli.executor.checkpoint_manifest import INDEX

__all__ = ["read_index"]

CLASSES = (
    metadata.Metadata,
    metadata.TensorStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata._MEM_FORMAT_ENCODING,  # noqa: SLF001 - a part of every index torch writes
    filesystem._StorageInfo,  # noqa: SLF001 - a part of every index torch writes
    serialization._get_layout,  # noqa: SLF001 - names a tensor's layout, which has no class of its own
    torch.Size,
)
"""What an index is made of, dtypes and paths apart."""
PATHS = {"PosixPath": PurePosixPath, "WindowsPath": PureWindowsPath}
"""An index says where it was written; that need not be a path of this system."""


def read_index(root: Path, files: Collection[str], load_id: str) -> Metadata:
    """Read the index of a checkpoint.

    Args:
        root: The checkpoint.
        files: Names of the files that were compared with the manifest.
        load_id: What torch calls this reading.

    Raises:
        ValueError: It holds anything but an index, or points to a file nobody vouches for.
    """
    with (root / INDEX).open("rb") as file:
        index = _IndexUnpickler(file).load()
    if not isinstance(index, Metadata):
        raise ValueError(f"{INDEX} holds a {type(index).__name__}, not an index")  # noqa: TRY004 - the file is wrong
    for place in (index.storage_data or {}).values():
        if place.relative_path not in files:
            raise ValueError(f"{INDEX} points to {place.relative_path}, which the manifest does not list")
    index.storage_meta = metadata.StorageMeta(load_id=load_id)
    return index


class _IndexUnpickler(pickle.Unpickler):
    """Knows the classes of an index only."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._known: dict[tuple[str, str], Any] = {(kind.__module__, kind.__qualname__): kind for kind in CLASSES}

    def find_class(self, module: str, name: str) -> Any:
        """Give one of the known classes, or a dtype.

        Python before 3.11.4 writes a member of an enumeration as an attribute to get.

        Raises:
            UnpicklingError: It is anything else.
        """
        if module.partition(".")[0] == "pathlib" and name in PATHS:
            return PATHS[name]
        if (module, name) in self._known:
            return self._known[module, name]
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{INDEX} names {module}.{name}, which no index needs")


def _member(kind: Any, name: str) -> enum.Enum:
    """Give a member of one of the known enumerations, and no other attribute of anything."""
    if isinstance(kind, enum.EnumMeta) and kind in CLASSES and name in kind.__members__:
        member: enum.Enum = kind[name]
        return member
    raise pickle.UnpicklingError(f"{INDEX} asks {kind!r} for {name}, which no index needs")
