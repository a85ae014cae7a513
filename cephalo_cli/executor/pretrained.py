"""Weights of a Hugging Face folder: checked against the model before anything starts, then read piece by piece.

Note: what a rank reads
    A rank reads the elements of its own shard and no others: rows of a tensor (columns, where a file has it the other
    way round), a few MiB at a time, converted straight into the shard. So it never holds more than its shard and one
    piece, whatever its share; a rank without a share reads nothing.
"""

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.model import Model
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.catalog.huggingface_write import same_shape, shape_of
from cephalo_cli.errors import ArtifactError
from cephalo_cli.executor.pretrained_files import DTYPES, StoredTensor, list_tensors, opened, weight_files
from cephalo_cli.models.weights import Part, TensorMap, ours, tensor_map

__all__ = ["CONFIG", "Pretrained"]

CONFIG = "config.json"
PIECE_ELEMENTS = 1 << 20
"""About how many elements are read at a time."""


class Pretrained:
    """The weights of a folder.

    Opening it checks everything that can be known without reading the numbers.

    Args:
        folder: The folder.
        model: The model the weights are for.

    Raises:
        ArtifactError: The folder is not that of this model: the message names the file and the tensor.
        UsageError: The library that reads it is not installed.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder, self.model = folder, model
        files = weight_files(folder)
        if (folder / CONFIG).is_file():
            _expect_same(model_from_hf_config(folder / CONFIG), model, folder / CONFIG)
        self.files = files
        self.unused: list[str] = []
        self._map: TensorMap = tensor_map(model)
        self._found = self._by_our_names(list_tensors(files))
        self._check()
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._open = {path: self._stack.enter_context(opened(path)) for path in self.files}
        return self

    def __exit__(self, *_: object) -> None:
        self._open = {}
        self._stack.close()

    def dtype_of(self, key: str) -> str | None:
        """Dtype a tensor is kept in, as we call it; None where the folder does not have it."""
        found = self._found.get(key)
        return None if found is None else DTYPES[found[1].dtype]

    def rounded_to(self, dtype: str | None) -> str | None:
        """Name a dtype of the folder that loses digits when its tensors are kept in another."""
        kept = {DTYPES[stored.dtype] for _, stored in self._found.values()}
        return None if dtype is None else next(iter(sorted(kept - {dtype}, reverse=True)), None)

    def has(self, unit: str, parameter: str) -> bool:
        """Whether a parameter is one of the model's own; adapters are not."""
        return parameter in self._map.units[unit]

    def fill(self, unit: str, parameter: str, start: int, target: torch.Tensor) -> None:
        """Read some elements of a parameter into a tensor, converted to its dtype.

        Args:
            unit: The unit's name.
            parameter: The parameter's name in its unit.
            start: The first element.
            target: Where they go, [N].
        """
        first = 0
        for part in self._map.units[unit][parameter]:
            begin, end = max(start, first), min(start + len(target), first + part.num_elements)
            if begin < end:
                self._fill(part, begin - first, target[begin - start : end - start])
            first += part.num_elements

    def check_copies(self, rank: int, num_ranks: int) -> None:
        """Compare what a file holds twice; the ranks share the work.

        Raises:
            ArtifactError: They differ, so the model is not tied as it says.
        """
        for copy, key in self._map.copies.items():
            if copy not in self._found or key not in self._found:
                continue
            rows = self._found[copy][1].shape[0]
            share = range(rows * rank // num_ranks, rows * (rank + 1) // num_ranks)
            width = max(self._found[copy][1].shape[-1], 1)
            for row in share[:: max(PIECE_ELEMENTS // width, 1)]:
                stop = min(row + max(PIECE_ELEMENTS // width, 1), share.stop)
                if not torch.equal(self._slice(copy)[row:stop], self._slice(key)[row:stop]):
                    name, stored = self._found[copy]
                    raise ArtifactError(
                        f"differs from {self._found[key][0]}, but the model has one tensor for both"
                        f"{' (tie_embeddings)' if copy.endswith('weight') else ''}",
                        where=f"{stored.file}: {name}",
                    )

    def digests(self, rank: int, num_ranks: int) -> list[InputFile]:
        """Hash every ``num_ranks``-th file, from the one of this rank on."""
        return [_digest(path) for path in self.files[rank::num_ranks]]

    # Checking ---------------------------------------------------------------------------------------------------------

    def _by_our_names(self, tensors: Mapping[str, StoredTensor]) -> dict[str, tuple[str, StoredTensor]]:
        """Each tensor's name in the file, and the tensor."""
        known = self._map.parts().keys() | self._map.copies.keys() | self._map.repeats.keys()
        found: dict[str, tuple[str, StoredTensor]] = {}
        for key, stored in tensors.items():
            name = ours(key, self.model.family, known)
            if name is None:
                self.unused.append(key)
                continue
            where = f"{stored.file}: {key}"
            if stored.dtype not in DTYPES:
                raise ArtifactError(
                    f"holds {stored.dtype} numbers, expected F32, BF16 or F16; quantised weights cannot be trained",
                    where=where,
                )
            if name not in known:
                raise ArtifactError(
                    f"is not a tensor of a {self.model.family} model with {self.model.num_layers} layers", where=where
                )
            if name in found:
                raise ArtifactError(f"is {found[name][0]} under another name", where=where)
            found[name] = (key, stored)
        return found

    def _check(self) -> None:
        parts, same = self._map.parts(), {**self._map.copies, **self._map.repeats}
        one = self.files[0] if len(self.files) == 1 else self.folder
        for copy, key in same.items():
            if copy in self._found:
                parts[copy] = Part(key=copy, shape=parts[key].shape)
        for key, part in parts.items():
            if key not in self._found:
                raise ArtifactError(f"is missing{self._why_needed(key)}", where=f"{one}: {key}")
            name, stored = self._found[key]
            if stored.shape != part.shape:
                raise ArtifactError(
                    f"has shape {list(stored.shape)}, expected {list(part.shape)}", where=f"{stored.file}: {name}"
                )

    def _why_needed(self, key: str) -> str:
        is_head = key in {part.key for part in self._map.units["head"].get("matrix", ())}
        return ", and the model's head is not tied to its embedding (tie_embeddings is false)" if is_head else ""

    # Reading ----------------------------------------------------------------------------------------------------------

    def _slice(self, key: str) -> Any:
        name, stored = self._found[key]
        return self._open[stored.file].get_slice(name)

    def _fill(self, part: Part, start: int, target: torch.Tensor) -> None:
        """Read elements of one tensor, counted as the parameter has them."""
        width = part.row_elements if len(part.shape) > 1 else 1
        stop, done = start + len(target), start
        while done < stop:
            row = done // width
            last = min(max(row + PIECE_ELEMENTS // width, row + 1), -(-stop // width))
            rows = self._slice(part.key)
            piece = rows[:, row:last].t() if part.is_turned else rows[row:last]
            flat = piece.reshape(-1)[done - row * width : stop - row * width]
            target[done - start : done - start + len(flat)].copy_(flat)
            done += len(flat)


def _digest(path: Path) -> InputFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return InputFile(path=str(path), sha256=digest.hexdigest())


def _expect_same(theirs: Model, model: Model, path: Path) -> None:
    """Refuse a folder whose configuration is of another model."""
    name = same_shape(theirs, model)
    if name is not None:
        here, there = shape_of(model)[name], shape_of(theirs)[name]
        raise ArtifactError(
            f"describes another model than the plan: {name} is {there}, the plan's model has {here}",
            where=str(path),
            hint="profile and plan with --model and this folder",
        )
