"""From text to token ids: a ``tokenizer.json``, or the bytes themselves."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["BYTE_MASK_ID", "NUM_BYTES", "ByteTokenizer", "SpecialTokens", "Tokenizer", "load_tokenizer"]

NUM_BYTES = 256
BYTE_MASK_ID = NUM_BYTES
"""Bytes are the ids 0 to 255; what stands for a masked byte is the first id after them."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids that are no text."""

    end_id: int | None = None
    """Ends a document."""
    end_text: str | None = None
    """Its text, where it has one."""
    mask_id: int | None = None
    """Stands for a token to be found (bert)."""
    frame: tuple[int, int] | None = None
    """What a sample begins and ends with (bert)."""
    ids: frozenset[int] = frozenset()
    """All of them, these and others: they are never masked and never drawn in place of a token."""


class Tokenizer(Protocol):
    """Turns text into ids."""

    @property
    def num_ids(self) -> int:
        """One more than the largest id."""

    @property
    def special(self) -> SpecialTokens:
        """Ids that are no text."""

    @property
    def digest(self) -> str:
        """What the ids of a text depend on, hashed."""

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Ids of each text, nothing added."""


class ByteTokenizer:
    """Every byte of the UTF-8 text is a token.

    Args:
        end_id: Ends a document; None joins documents with a line break.
        mask_id: Stands for a masked byte.
    """

    digest = "bytes"

    def __init__(self, *, end_id: int | None = None, mask_id: int | None = None) -> None:
        ids = frozenset(id_ for id_ in (end_id, mask_id) if id_ is not None)
        self.special = SpecialTokens(end_id=end_id, mask_id=mask_id, ids=ids)
        self.num_ids = max(NUM_BYTES, *(id_ + 1 for id_ in ids)) if ids else NUM_BYTES

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Give the bytes."""
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]


def load_tokenizer(name: str, *, end_token: str | None = None, mask_token: str | None = None) -> Tokenizer:
    """Read a ``tokenizer.json`` and the ``tokenizer_config.json`` beside it, where there is one.

    The configuration's ``eos_token`` ends documents, else its ``sep_token``; its ``mask_token`` stands for masked
    tokens; samples of bert begin with its ``cls_token`` and end with its ``sep_token``.

    Args:
        name: The file, or a folder that has it.
        end_token: Text of the token that ends documents, if not the configuration's.
        mask_token: Text of the token that stands for masked ones, if not the configuration's.

    Raises:
        ArtifactError: A file cannot be read, or names a token that the vocabulary lacks.
        UsageError: The package ``tokenizers`` is not installed, or an option names a token that the vocabulary lacks.
    """
    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    where = f"--tokenizer {path}"
    if not path.is_file():
        raise ArtifactError("no such file", where=where, hint="give a tokenizer.json, or a folder that has one")
    try:
        import tokenizers  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise UsageError(
            "--tokenizer needs the package tokenizers, which is not installed",
            hint="pip install 'cephalo_cli[hf]', or leave --tokenizer out: then bytes are the tokens",
        ) from error
    try:
        content = path.read_text(encoding="utf-8")
        read = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no class of its own
        raise ArtifactError(f"cannot be read as a tokenizer: {error}", where=where) from error
    read.no_truncation()
    read.no_padding()
    config = _Config(path.with_name("tokenizer_config.json"), read)
    separator = config.id_of("sep_token")
    first = config.id_of("cls_token")
    end = config.id_of("eos_token")
    special = {id_ for id_, token in read.get_added_tokens_decoder().items() if token.special}
    end_id = (separator if end is None else end) if end_token is None else _id_of(read, end_token, "--end-token", path)
    mask_id = config.id_of("mask_token") if mask_token is None else _id_of(read, mask_token, "--mask-token", path)
    special |= {id_ for id_ in (separator, first, end, end_id, mask_id) if id_ is not None}
    return _FileTokenizer(
        read,
        SpecialTokens(
            end_id=end_id,
            end_text=None if end_id is None else read.id_to_token(end_id),
            mask_id=mask_id,
            frame=None if first is None or separator is None else (first, separator),
            ids=frozenset(special),
        ),
        hashlib.sha256(f"{tokenizers.__version__}/{content}".encode()).hexdigest(),
    )


class _FileTokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, read: Any, special: SpecialTokens, digest: str) -> None:
        self._read = read
        self.special, self.digest = special, digest
        self.num_ids = max(read.get_vocab().values(), default=-1) + 1

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        encoded = self._read.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(each.ids, dtype=np.int64) for each in encoded]


class _Config:
    """The special tokens that a ``tokenizer_config.json`` names."""

    def __init__(self, path: Path, read: Any) -> None:
        self._path, self._read = path, read
        self._content: dict[str, Any] = {}
        if not path.is_file():
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot be read: {error}", where=str(path)) from error
        if not isinstance(content, dict):
            raise ArtifactError(f"expected a JSON object, found {type(content).__name__}", where=str(path))
        self._content = content

    def id_of(self, key: str) -> int | None:
        """Id of a token such as ``eos_token``, which is a text or an object with one; None where none is named."""
        token = self._content.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        if token is None:
            return None
        found = self._read.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise ArtifactError(f"{token!r} is not in the tokenizer's vocabulary", where=f"{self._path}: {key}")
        return int(found)


def _id_of(read: Any, token: str, option: str, path: Path) -> int:
    found = read.token_to_id(token)
    if found is None:
        raise UsageError(f"{token!r} is not in the vocabulary of {path}", where=option)
    return int(found)
