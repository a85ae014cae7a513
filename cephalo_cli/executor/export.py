"""A trained model as a Hugging Face folder: configuration, weights, and the tokenizer that came with them.

Note: one unit at a time
    Units come whole, one after the other, to the process that writes; each is taken apart into the tensors of the
    family's files and written before the next. So that process holds its shard and one unit.

Note: complete or absent
    Everything is written into a hidden folder beside its place, which gets its name at the end.

Note: adapters
    Low-rank adapters are added to the matrices they adapt, in the precision of the master weights: the folder is one of
    the plain model, and ``transformers`` needs no adapter library.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.store import read_object
from cephalo_cli.catalog.huggingface_write import hf_config
from cephalo_cli.errors import ArtifactError, TrainingError
from cephalo_cli.executor.checkpoint_folder import replace
from cephalo_cli.executor.export_files import MOST_BYTES, Outline, WeightWriter
from cephalo_cli.executor.pretrained import CONFIG, Pretrained
from cephalo_cli.models.weights import Part, tensor_map
from cephalo_cli.units import model_units

__all__ = ["Export", "UnitTensors", "check_target"]

UnitTensors = Mapping[str, torch.Tensor]
"""A unit's parameters by name, whole, in the dtype of the master weights."""
PASSED_ON = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
)
"""Files that are passed on where the weights came with them."""
LARGEST_PASSED_BYTES = 1 << 28


class Export:
    """What is to be written, checked as far as it can be before training.

    Args:
        folder: Where the folder goes.
        model: The model.
        weights: Where the weights came from: their dtypes, configuration and tokenizer are kept.
        dtype: Dtype of all tensors instead.
        most_bytes: Most bytes of tensors in one file.

    Raises:
        UsageError: The model has no Hugging Face form.
    """

    def __init__(
        self,
        folder: Path,
        model: Model,
        *,
        weights: Pretrained | None = None,
        dtype: str | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._folder, self._model, self._weights = folder, model, weights
        self._most_bytes = most_bytes
        self._map = tensor_map(model)
        self._outlines = [
            Outline(key=key, shape=shape, dtype=dtype or self._kept_dtype(key)) for key, shape in self._shapes()
        ]
        self._config = self._make_config(dtype)

    def write(self, units: Iterator[UnitTensors]) -> None:
        """Write the folder; ``units`` come in the order of the model.

        Raises:
            TrainingError: It cannot be written, or a number does not fit the dtype.
        """
        scratch = _beside(self._folder, "part")
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            with WeightWriter(scratch, self._outlines, self._most_bytes) as writer:
                for unit in model_units(self._model):
                    self._write_unit(writer, unit.name, next(units))  # no name keeps a unit while the next is made
                index = writer.index()
            if index is not None:
                (scratch / "model.safetensors.index.json").write_text(index)
            (scratch / CONFIG).write_text(self._config)
            self._pass_on(scratch)
            replace(scratch, self._folder)
        except OSError as error:
            raise TrainingError(
                f"the export cannot be written: {error.strerror or error}", where=str(self._folder)
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _write_unit(self, writer: WeightWriter, name: str, tensors: UnitTensors) -> None:
        repeated = {first: second for second, first in self._map.repeats.items()}
        for parameter, parts in self._map.units[name].items():
            merged = _merged(self._model, tensors, parameter).reshape(-1)
            start = 0
            for part in parts:
                tensor = _as_stored(merged[start : start + part.num_elements], part)
                start += part.num_elements
                writer.write(part.key, tensor)
                if part.key in repeated:
                    writer.write(repeated[part.key], tensor)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor in the order it is written."""
        repeated = {first: second for second, first in self._map.repeats.items()}
        for key, part in self._map.parts().items():
            yield key, part.shape
            if key in repeated:
                yield repeated[key], part.shape

    def _kept_dtype(self, key: str) -> str:
        kept = None if self._weights is None else self._weights.dtype_of(key)
        return kept or "float32"

    def _make_config(self, dtype: str | None) -> str:
        """The configuration the weights came with, or a new one."""
        source = None if self._weights is None else self._weights.folder / CONFIG
        if source is None or not source.is_file():
            return json.dumps(hf_config(self._model, self._outlines[0].dtype), indent=2) + "\n"
        if dtype is None:
            return source.read_text(encoding="utf-8")
        settings: dict[str, Any] = read_object(source)
        settings |= {name: dtype for name in ("dtype", "torch_dtype") if name in settings} or {"dtype": dtype}
        return json.dumps(settings, indent=2) + "\n"

    def _pass_on(self, scratch: Path) -> None:
        if self._weights is None:
            return
        for name in PASSED_ON:
            source = self._weights.folder / name
            if source.is_file() and source.stat().st_size <= LARGEST_PASSED_BYTES:
                shutil.copyfile(source, scratch / name)


def check_target(folder: Path, *, replaces: bool) -> None:
    """Find out before a long job whether a folder could be written.

    Raises:
        ArtifactError: It is there already and is not to be replaced, or its parent cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ArtifactError("is a file or a link, expected a folder to be made", where=str(folder))
    if folder.exists() and any(folder.iterdir()):
        if not replaces:
            raise ArtifactError("exists already", where=str(folder), hint="--force replaces it")
        if not (folder / CONFIG).is_file():
            raise ArtifactError(
                f"holds no {CONFIG}, so it is no earlier export, and is not replaced", where=str(folder)
            )
    probe = _beside(folder, "probe")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ArtifactError(f"cannot be written: {error.strerror or error}", where=str(folder)) from error


def _beside(folder: Path, ending: str) -> Path:
    """A hidden name beside a folder, on the same file system."""
    whole = folder.absolute()
    return whole.with_name(f".{whole.name}.{ending}")


def _merged(model: Model, tensors: UnitTensors, parameter: str) -> torch.Tensor:
    """A parameter with what its adapter adds."""
    tensor = tensors[parameter]
    projection = parameter.removesuffix(".weight")
    down, up = tensors.get(f"{projection}.lora_a"), tensors.get(f"{projection}.lora_b")
    if down is None or up is None or model.lora is None:
        return tensor
    return tensor.to(up.dtype) + model.lora.scale * (up @ down)


def _as_stored(flat: torch.Tensor, part: Part) -> torch.Tensor:
    if part.is_turned:
        return flat.view(part.shape[::-1]).t()
    return flat.view(part.shape)
