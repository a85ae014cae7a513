"""Which files of a Hugging Face folder hold weights, and what they say they hold; nothing in them is ever executed.

Note: no pickles
    ``pytorch_model.bin`` and ``*.pt`` are pickles, and a pickle may call any function when it is read. They are
    refused; whoever trusts one can convert it. A safetensors file is a table and numbers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cephalo_cli.artifacts.store import read_object
from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["DTYPES", "StoredTensor", "list_tensors", "opened", "weight_files"]

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONVERT = (
    "if you trust it: transformers' from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes safetensors, run by you"
)
DTYPES: Mapping[str, str] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes of weights, as files call them and as we do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """A tensor of a file."""

    file: Path
    """The file."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """Its dtype as the file calls it, such as ``BF16``."""


def safetensors_library() -> ModuleType:
    """Load the library.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import safetensors  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise UsageError(
            "weights need the package safetensors, which is not installed", hint='pip install "cephalo_cli[hf]"'
        ) from error
    return safetensors


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, mapped into memory: what is read of it is copied, what is not stays on disk.

    Raises:
        ArtifactError: It cannot be read, or is no such file.
        UsageError: The library is not installed.
    """
    library = safetensors_library()
    try:
        file = library.safe_open(path, framework="pt", device="cpu")
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except library.SafetensorError as error:
        raise ArtifactError(f"is not a safetensors file: {error}", where=str(path)) from error
    with file as inside:
        yield inside


def weight_files(folder: Path) -> list[Path]:
    """Find the files that hold a folder's weights: one, or those of its index.

    Raises:
        ArtifactError: There are none, or only pickles, or the index names what is not there.
    """
    if not folder.is_dir():
        problem = "is a file, expected the folder it is in" if folder.exists() else "no such folder"
        raise ArtifactError(problem, where=str(folder), hint="give a folder with model.safetensors")
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        return _indexed(folder / INDEX)
    pickle = next((path for pattern in PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickle is not None:
        raise ArtifactError(
            "is a pickle, which could run any code when it is read; weights are read from safetensors alone",
            where=str(pickle),
            hint=CONVERT,
        )
    raise ArtifactError(f"holds neither {WHOLE} nor {INDEX}", where=str(folder))


def _indexed(index: Path) -> list[Path]:
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ArtifactError("is missing, or not a map from tensors to files", where=f"{index}: weight_map")
    files = {}
    for key, name in named.items():
        where = f"{index}: weight_map.{key}"
        if not isinstance(name, str) or not name.endswith(".safetensors") or {"/", "\\"} & set(name):
            raise ArtifactError(f"found {name!r}, expected the name of a .safetensors file beside it", where=where)
        files[name] = index.parent / name
        if not files[name].is_file():
            raise ArtifactError(f"names {name}, which is not there", where=where)
    return sorted(files.values())


def list_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """List every tensor of some files.

    Raises:
        ArtifactError: A file is damaged, or two hold the same tensor.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        with opened(path) as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                if key in tensors:
                    raise ArtifactError(f"is in {tensors[key].file.name} too", where=f"{path}: {key}")
                kept = file.get_slice(key)
                tensors[key] = StoredTensor(file=path, shape=tuple(kept.get_shape()), dtype=kept.get_dtype())
    return tensors
