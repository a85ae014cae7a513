"""Which format a name stands for, and the files it has. What is not known is refused."""

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["NOISE", "STDLIB", "TOKEN_SUFFIXES", "DataFiles", "Format", "find_files"]

Format = Literal["noise", "text", "json-lines", "parquet", "tokens", "image folder", "image arrays"]

NOISE = "random"
STDLIB = "python-stdlib"
TOKEN_SUFFIXES = frozenset({".bin", ".npy"})
JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
STRUCTURED_SUFFIXES = frozenset({".json", ".csv", ".tsv", ".xml", ".arrow", ".yaml", ".yml"})
"""Text that means more than its characters: training on it as it stands is hardly ever what is wanted."""
IMAGES_FILE, LABELS_FILE = "images.npy", "labels.npy"
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
SNIFFED_BYTES = 8192
"""A NUL byte among so many at the start tells a file that is not text, as git has it."""
READ = (
    "read are text (.txt, and any file without NUL bytes), .jsonl with text or with prompt and completion, .parquet "
    "with the same columns, .bin and .npy tokens, folders of text, .jsonl or .parquet files, for vit folders of class "
    "folders with .png and .jpg images or with images.npy and labels.npy, python-stdlib, random"
)


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """What a name stands for."""

    name: str
    """The name, for messages."""
    format: Format
    """What the files hold."""
    root: Path
    """The file or folder itself."""
    paths: tuple[Path, ...]
    """The files, sorted."""


def find_files(name: str) -> DataFiles:
    """Find out what a name stands for.

    Raises:
        ArtifactError: There is no such file or folder, or it cannot be read.
        UsageError: It is of a format that is not read, or mixes several.
    """
    if name == NOISE:
        return DataFiles(name=name, format="noise", root=Path(), paths=())
    root = Path(sysconfig.get_path("stdlib")) if name == STDLIB else Path(name)
    try:
        if name == STDLIB:
            return DataFiles(name=name, format="text", root=root, paths=tuple(sorted(_python_files(root))))
        if root.is_dir():
            paths = tuple(sorted(_visible_files(root)))
            return DataFiles(name=name, format=_format_of_folder(root, paths), root=root, paths=paths)
        if root.is_file():
            return DataFiles(name=name, format=_format_of_file(root), root=root, paths=(root,))
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror or error}", where=f"--data {name}") from error
    raise ArtifactError("no such file or folder", where=f"--data {name}", hint=f"{STDLIB} is text on every machine")


def _format_of_file(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix in TOKEN_SUFFIXES:
        return "tokens"
    if suffix in JSON_LINES_SUFFIXES:
        return "json-lines"
    if suffix == ".parquet":
        return "parquet"
    if suffix in STRUCTURED_SUFFIXES:
        raise UsageError(
            f"{suffix} files are not read",
            where=f"--data {path}",
            hint=f"make it .jsonl, or name it .txt to train on its characters; {READ}",
        )
    if suffix in IMAGE_SUFFIXES:
        raise UsageError("is one image, expected a folder of class folders", where=f"--data {path}", hint=READ)
    _check_text(path)
    return "text"


def _format_of_folder(root: Path, paths: Sequence[Path]) -> Format:
    where = f"--data {root}"
    if not paths:
        raise ArtifactError("holds no files", where=where)
    if (root / IMAGES_FILE).exists() or (root / LABELS_FILE).exists():
        return "image arrays"
    kinds = {_kind(path): path for path in reversed(paths)}
    if len(kinds) > 1:
        one, other = sorted(kinds.items())[:2]
        raise UsageError(
            f"mixes {one[0]} and {other[0]} files, such as {one[1].relative_to(root)} and {other[1].relative_to(root)}",
            where=where,
            hint="give a folder of one kind",
        )
    (kind,) = kinds
    if kind == "token":
        raise UsageError("is a folder of token files, expected one .bin or .npy file", where=where, hint=READ)
    if kind == "image":
        return "image folder"
    if kind == "text":
        for path in paths:
            _check_text(path)
        return "text"
    return "json-lines" if kind == "JSON-lines" else "parquet"


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return "image"
    if suffix in TOKEN_SUFFIXES:
        return "token"
    if suffix in JSON_LINES_SUFFIXES:
        return "JSON-lines"
    return "Parquet" if suffix == ".parquet" else "text"


def _check_text(path: Path) -> None:
    if path.suffix.lower() == ".txt":
        return
    with path.open("rb") as file:
        start = file.read(SNIFFED_BYTES)
    if b"\0" in start:
        raise UsageError("is neither text nor of a format that is read", where=f"--data {path}", hint=READ)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _visible_files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(folder, name) for name in files if not name.startswith("."))
