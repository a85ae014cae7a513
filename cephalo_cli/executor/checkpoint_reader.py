"""Reading shards from a checkpoint's files straight to where they belong.

Note: no copy on the way
    torch's own reader loads every saved chunk as a tensor and copies the part it needs. A chunk that one rank wrote is
    a whole unit, so a small card, or the host of a small rank, would need several units beside its shard. Here the
    bytes of the part that is needed go into the shard itself; for an accelerator, through a piece of host memory.
    torch saves each chunk as a zip archive whose only tensor is the uncompressed record ``data/0``.
"""

import io
import os
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from cephalo_cli.executor.checkpoint_index import read_index

__all__ = ["VouchedReader"]

PIECE_BYTES = 1 << 22
"""Most host memory between a file and an accelerator."""
LOCAL_HEADER = struct.Struct("<26xHH")
"""Where a zip record's own header says how long its name and its extra field are (PKWARE's APPNOTE, 4.3.7)."""


class VouchedReader(FileSystemReader):
    """Reads a checkpoint whose files were compared with its manifest.

    Args:
        path: The checkpoint.
        files: Names of the files that were compared.
    """

    def __init__(self, path: Path, files: Collection[str]) -> None:
        super().__init__(path)
        self._root = path
        self._files = frozenset(files)
        self._index: Metadata | None = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index, see `cephalo_cli.executor.checkpoint_index.read_index`."""
        self._index = read_index(self._root, self._files, self.load_id)
        return self._index

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Fill every part of this rank's shards.

        Raises:
            ValueError: A file does not hold what the index says.
        """
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            target = planner.resolve_tensor(item).detach()
            with (self._root / place.relative_path).open("rb", buffering=0) as file:
                self._fill(target, item, _Part(file, place.offset, place.length))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fill(self, target: torch.Tensor, item: ReadItem, part: "_Part") -> None:
        name = item.storage_index.fqn
        saved = None if self._index is None else self._index.state_dict_metadata[name]
        if not isinstance(saved, TensorStorageMetadata) or saved.properties.dtype != target.dtype:
            raise ValueError(f"{name} is kept as {target.dtype}, the checkpoint has {saved}")
        chunk = saved.chunks[cast("int", item.storage_index.index)]
        start, num_bytes = _record(part, name)
        if num_bytes != chunk.sizes[0] * target.itemsize:
            raise ValueError(f"{name} has {num_bytes} bytes in its file, the index says {chunk.sizes[0]} elements")
        part.seek(start + item.storage_offsets[0] * target.itemsize)
        num_elements = max(PIECE_BYTES // target.itemsize, 1)
        for first in range(0, len(target), num_elements):
            piece = target[first : first + num_elements]
            here = piece if piece.device.type == "cpu" else torch.empty_like(piece, device="cpu")
            _read_all(part, here.view(torch.uint8).numpy().data, name)
            if here is not piece:
                piece.copy_(here)


def _read_all(part: "_Part", view: "memoryview[int]", name: str) -> None:
    while view:
        count = part.readinto(view)
        if count == 0:
            raise ValueError(f"{name} is cut short in its file")
        view = view[count:]


def _record(part: "_Part", name: str) -> tuple[int, int]:
    """Where, in a part of a file that torch saved one tensor in, its bytes start, and how many there are."""
    try:
        with ZipFile(cast("BinaryIO", part)) as archive:
            records = [info for info in archive.infolist() if info.filename.endswith("/data/0")]
            orders = [archive.read(info) for info in archive.infolist() if info.filename.endswith("/byteorder")]
    except BadZipFile as error:
        raise ValueError(f"{name} is not in its file: {error}") from error
    if len(records) != 1 or records[0].compress_type != ZIP_STORED:
        raise ValueError(f"{name} is not saved as torch saves one tensor")
    if any(order.decode() != sys.byteorder for order in orders):
        raise ValueError(f"{name} was saved on a machine of another byte order")
    part.seek(records[0].header_offset)
    header = part.read(LOCAL_HEADER.size)
    name_length, extra_length = LOCAL_HEADER.unpack(header or b"")
    return part.tell() + name_length + extra_length, records[0].file_size


class _Part(io.RawIOBase):
    """Some bytes of a file, as a file of their own."""

    def __init__(self, file: BinaryIO, start: int, num_bytes: int) -> None:
        self._file, self._start, self._num_bytes = file, start, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: max(self._num_bytes - self._position, 0)]
        self._file.seek(self._start + self._position)
        count: int = self._file.readinto(view)  # type: ignore[attr-defined]  # files opened "rb" have it
        self._position += count
        return count
