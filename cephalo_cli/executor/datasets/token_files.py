"""Rows of tokens as they lie on disk: token files, and the bytes of text files. Nothing is read before it is needed."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["FileBytes", "TokenRow", "check_ids", "digest_of", "read_mask", "read_token_file"]

PIECE_TOKENS = 2**24
"""Tokens that are looked at at a time."""


class TokenRow(Protocol):
    """Tokens, one after the other."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype they are kept in."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]:
        """Some of them."""


class FileBytes:
    """The bytes of files, a line break between two.

    Args:
        paths: The files.

    Raises:
        ArtifactError: One cannot be read, now or later.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        try:
            sizes = [path.stat().st_size for path in paths]
        except OSError as error:
            raise _unreadable(error) from error
        self._starts = (0, *accumulate(size + 1 for size in sizes))

    def __len__(self) -> int:
        return self._starts[-1] - 1

    def __getitem__(self, part: slice, /) -> npt.NDArray[np.uint8]:
        start, stop, _ = part.indices(len(self))
        content, index = bytearray(), bisect_right(self._starts, start) - 1
        while start + len(content) < stop:
            place = start + len(content)
            end = self._starts[index + 1] - 1
            wanted = min(stop, end) - place
            if wanted > 0:
                content += self._read(index, place - self._starts[index], wanted)
            if stop > end:
                content += b"\n"
            index += 1
        return np.frombuffer(bytes(content), dtype=np.uint8)

    def _read(self, index: int, offset: int, num_bytes: int) -> bytes:
        path = self._paths[index]
        try:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(num_bytes)
        except OSError as error:
            raise _unreadable(error) from error
        if len(content) < num_bytes:
            raise ArtifactError("has become shorter since the training started", where=str(path))
        return content


def read_token_file(path: Path, dtype: str) -> npt.NDArray[np.integer[Any]]:
    """Map a ``.npy`` file (integers in one dimension) or a ``.bin`` file (tokens without header, as nanoGPT's).

    Args:
        path: The file.
        dtype: Dtype of a ``.bin`` file, little-endian.

    Raises:
        ArtifactError: It cannot be read, or holds something else.
    """
    try:
        if path.suffix.lower() == ".bin":
            return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read as tokens: {error}", where=str(path)) from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ArtifactError(
            f"holds {tokens.dtype} of shape {tokens.shape}, expected integers in one dimension", where=str(path)
        )
    return cast("npt.NDArray[np.integer[Any]]", tokens)


def read_mask(path: Path, num_tokens: int) -> npt.NDArray[Any]:
    """Map a ``.npy`` file with one number a token: where it is 0 the token counts nothing as a target.

    Raises:
        ArtifactError: It cannot be read, or holds something else.
    """
    try:
        mask = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read as a mask: {error}", where=f"--data-mask {path}") from error
    is_mask = np.issubdtype(mask.dtype, np.integer) or mask.dtype == np.bool_
    if mask.shape != (num_tokens,) or not is_mask:
        raise ArtifactError(
            f"holds {mask.dtype} of shape {mask.shape}, expected one integer or truth value for each of "
            f"{num_tokens} tokens",
            where=f"--data-mask {path}",
        )
    return cast("npt.NDArray[Any]", mask)


def check_ids(tokens: TokenRow, vocab_size: int, name: str) -> None:
    """Make sure that the model has all ids.

    Raises:
        UsageError: It has not; the message names the first.
    """
    for start, piece in _pieces(tokens):
        if int(piece.min()) < 0 or int(piece.max()) >= vocab_size:
            place = int(np.argmax((piece < 0) | (piece >= vocab_size)))
            raise UsageError(
                f"holds token id {int(piece[place])} at position {start + place}, the model has 0 to {vocab_size - 1}",
                where=f"--data {name}",
                hint="use the tokens of this model's tokenizer; .bin files are read as uint16 unless --token-dtype "
                "says otherwise",
            )


def digest_of(row: TokenRow) -> bytes:
    """Digest of the bytes of all tokens."""
    content = hashlib.sha256()
    for _, piece in _pieces(row):
        content.update(np.ascontiguousarray(piece).data)
    return content.digest()


def _pieces(tokens: TokenRow) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    for start in range(0, len(tokens), PIECE_TOKENS):
        yield start, tokens[start : start + PIECE_TOKENS]


def _unreadable(error: OSError) -> ArtifactError:
    return ArtifactError(f"cannot be read: {error.strerror or error}", where=str(error.filename))
