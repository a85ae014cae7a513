"""Writing safetensors files tensor by tensor, which the library's own writer, wanting all at once, does not do.

Note: the format
    Eight bytes with the length of a header (little-endian), the header (JSON: each tensor's dtype, shape and place
    among the bytes that follow, padded with spaces to a multiple of eight), the tensors' bytes back to back,
    little-endian, rows first. Source: the safetensors documentation, "Format".
"""

import json
import math
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch

from cephalo_cli.errors import TrainingError

__all__ = ["MOST_BYTES", "NAMES", "Outline", "WeightWriter"]

MOST_BYTES = 5 * 10**9
"""Most bytes of tensors in one file, as transformers has it for hubs; one tensor may be larger."""
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Dtypes as files call them."""
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A tensor to be written."""

    key: str
    """Its name."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """Its dtype, as we call it."""

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * SIZES[self.dtype]


class WeightWriter:
    """Writes tensors in the order of their outlines, into one file or several with an index.

    Args:
        folder: Where the files go.
        outlines: Every tensor, in the order they will come.
        most_bytes: Most bytes of tensors in one file.
    """

    def __init__(self, folder: Path, outlines: Sequence[Outline], most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._groups = _grouped(outlines, most_bytes)
        self._todo = [(outline, number) for number, group in enumerate(self._groups) for outline in group][::-1]
        self._file: BinaryIO | None = None
        self._number = -1
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is None and self._todo:
            raise AssertionError(f"{self._todo[-1][0].key} was never written")

    def write(self, key: str, tensor: torch.Tensor) -> None:
        """Write the next tensor, converted to its dtype.

        Raises:
            TrainingError: A number does not fit the dtype.
        """
        outline, number = self._todo.pop()
        if (outline.key, outline.shape) != (key, tuple(tensor.shape)):
            raise AssertionError(f"{key} {list(tensor.shape)} comes where {outline} was to come")
        if number != self._number:
            self._begin(number)
        kept = tensor.detach().to("cpu", getattr(torch, outline.dtype)).contiguous()
        if outline.dtype == "float16" and kept.isinf().any() and not tensor.isinf().any():
            raise TrainingError(f"{key} holds numbers beyond float16", hint="export with --export-dtype bfloat16")
        if self._file is None:
            raise AssertionError("a file is open")
        self._file.write(_bytes(kept))

    def names(self) -> list[str]:
        """Names of the files."""
        count = len(self._groups)
        if count == 1:
            return ["model.safetensors"]
        return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]

    def index(self) -> str | None:
        """The index of several files, as JSON; None where there is one."""
        if len(self._groups) == 1:
            return None
        pairs = zip(self.names(), self._groups, strict=True)
        weight_map = {outline.key: name for name, group in pairs for outline in group}
        total = sum(outline.num_bytes for group in self._groups for outline in group)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        return json.dumps(index, indent=2) + "\n"

    def _begin(self, number: int) -> None:
        self._stack.close()
        self._file = self._stack.enter_context((self._folder / self.names()[number]).open("xb"))
        self._number = number
        self._file.write(_header(self._groups[number]))


def _grouped(outlines: Sequence[Outline], most_bytes: int) -> list[list[Outline]]:
    groups: list[list[Outline]] = [[]]
    filled = 0
    for outline in outlines:
        if groups[-1] and filled + outline.num_bytes > most_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(outline)
        filled += outline.num_bytes
    return groups


def _header(outlines: Sequence[Outline]) -> bytes:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for outline in outlines:
        stop = start + outline.num_bytes
        described[outline.key] = {
            "dtype": NAMES[outline.dtype],
            "shape": list(outline.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _bytes(tensor: torch.Tensor) -> memoryview:
    numbers = tensor.reshape(-1).view(torch.uint8).numpy()
    if sys.byteorder == "big":
        numbers = numbers.reshape(-1, tensor.itemsize)[:, ::-1].copy()
    return numbers.data
