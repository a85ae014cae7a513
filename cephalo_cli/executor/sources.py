"""Where tokens come from: text, token files, noise; and their split into training and validation data.

Documents are packed: a folder's files follow one another in the order of their paths, a line break between two, and the
windows of ``seq_len`` tokens run on from one into the next.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor.data import TokenSource, seed_of
from cephalo_cli.executor.options import TOKEN_FILES

__all__ = ["open_source", "split_source"]

NUM_BYTE_TOKENS = 256
NUM_RANDOM_SAMPLES = 65_536
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
PIECE_TOKENS = 2**24
"""Tokens of a file that are looked at at a time."""

Tokens = npt.NDArray[np.integer[Any]]


def open_source(
    name: str, *, seq_len: int, vocab_size: int, seed: int, dtype: str = "uint16", mask: str | None = None
) -> TokenSource:
    """Open training data.

    Args:
        name: ``python-stdlib`` (the Python files of the running interpreter's standard library, tests left out), a text
            file or a folder of them (their bytes), a ``.npy`` file (integers in one dimension), a ``.bin`` file
            (little-endian tokens without header, as nanoGPT writes them), or ``random``. Token files are mapped into
            memory, not read.
        seq_len: Tokens of a sample.
        vocab_size: Token ids the model has.
        seed: Draws the tokens of ``random``.
        dtype: Dtype of a ``.bin`` file, uint16 or uint32.
        mask: A ``.npy`` file of as many numbers as the token file has tokens; where it is 0 the token counts nothing as
            a target.

    Raises:
        ArtifactError: The file or folder is missing, unreadable or not of its kind.
        UsageError: The model has too few token ids for the data.
    """
    if name == "random":
        return _RandomTokens(seq_len=seq_len, vocab_size=vocab_size, seed=seed)
    counts = None
    if Path(name).suffix in TOKEN_FILES:
        tokens = _read_tokens(Path(name), dtype)
        _check_ids(tokens, vocab_size, name)
        counts = None if mask is None else _read_mask(Path(mask), len(tokens))
    else:
        tokens = np.frombuffer(_read_text(name), dtype=np.uint8)
        if vocab_size < NUM_BYTE_TOKENS:
            raise UsageError(
                f"text is read as bytes, which need {NUM_BYTE_TOKENS} token ids, the model has {vocab_size}",
                where=f"--data {name}",
                hint="use a model with a larger vocab_size, or --data random",
            )
    return _Windows(tokens, counts, seq_len)


def split_source(source: TokenSource, validation_fraction: float) -> tuple[TokenSource, TokenSource | None]:
    """Keep the last samples for validation.

    Args:
        source: All data.
        validation_fraction: Part of the samples that is kept, rounded, but at least one; 0 keeps none.

    Returns:
        Training data, and validation data or None.
    """
    if validation_fraction == 0:
        return source, None
    border = source.num_samples - max(1, round(source.num_samples * validation_fraction))
    if border < 1:
        raise UsageError(
            f"the data has {source.num_samples} samples, which leaves none to train on",
            where="--validation-fraction",
            hint="give more text, or a smaller fraction",
        )
    return _Part(source, 0, border), _Part(source, border, source.num_samples)


class _Windows:
    """Consecutive windows of one long row of tokens; the last may be padded."""

    def __init__(self, tokens: Tokens, counts: npt.NDArray[Any] | None, seq_len: int) -> None:
        self._tokens, self._counts, self._seq_len = tokens, counts, seq_len
        self.num_samples = -(-max(0, len(tokens) - 1) // seq_len)
        content = hashlib.sha256(f"windows/{seq_len}/{tokens.dtype}/{len(tokens)}/".encode())
        for part in (tokens, counts):
            if part is not None:
                content.update(hashlib.sha256(np.ascontiguousarray(part).data).digest())
        self.digest = content.hexdigest()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        start = index * self._seq_len
        row = np.zeros(self._seq_len + 1, dtype=np.int64)
        found = self._tokens[start : start + self._seq_len + 1]
        row[: len(found)] = found
        return row

    def counted(self, index: int) -> npt.NDArray[np.bool_]:
        first = index * self._seq_len + 1
        row = np.zeros(self._seq_len, dtype=np.bool_)
        stop = min(first + self._seq_len, len(self._tokens))
        row[: stop - first] = True if self._counts is None else self._counts[first:stop] != 0
        return row


class _RandomTokens:
    """Uniform tokens, a generator of its own for each sample."""

    num_samples = NUM_RANDOM_SAMPLES

    def __init__(self, *, seq_len: int, vocab_size: int, seed: int) -> None:
        self._length, self._vocab_size, self._seed = seq_len + 1, vocab_size, seed
        self.digest = hashlib.sha256(f"random/{seq_len}/{vocab_size}/{seed}".encode()).hexdigest()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        generator = torch.Generator().manual_seed(seed_of(self._seed, "random", index))
        drawn = torch.randint(self._vocab_size, (self._length,), generator=generator)
        return cast("npt.NDArray[np.int64]", drawn.numpy())

    def counted(self, _: int) -> npt.NDArray[np.bool_]:
        return np.ones(self._length - 1, dtype=np.bool_)


class _Part:
    """Some of the samples of other data."""

    def __init__(self, source: TokenSource, start: int, stop: int) -> None:
        self._source, self._start = source, start
        self.num_samples = stop - start
        self.digest = hashlib.sha256(f"part/{start}/{stop}/{source.digest}".encode()).hexdigest()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        return self._source.sample(self._start + index)

    def counted(self, index: int) -> npt.NDArray[np.bool_]:
        return self._source.counted(self._start + index)


def _read_tokens(path: Path, dtype: str) -> Tokens:
    try:
        if path.suffix == ".bin":
            return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read as tokens: {error}", where=str(path)) from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ArtifactError(
            f"holds {tokens.dtype} of shape {tokens.shape}, expected integers in one dimension", where=str(path)
        )
    return cast("Tokens", tokens)


def _read_mask(path: Path, num_tokens: int) -> npt.NDArray[Any]:
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


def _check_ids(tokens: Tokens, vocab_size: int, name: str) -> None:
    for start in range(0, len(tokens), PIECE_TOKENS):
        piece = tokens[start : start + PIECE_TOKENS]
        if int(piece.min()) < 0 or int(piece.max()) >= vocab_size:
            place = int(np.argmax((piece < 0) | (piece >= vocab_size)))
            raise UsageError(
                f"holds token id {int(piece[place])} at position {start + place}, the model has 0 to {vocab_size - 1}",
                where=f"--data {name}",
                hint="use the tokens of this model's tokenizer; .bin files are read as uint16 unless --token-dtype "
                "says otherwise",
            )


def _read_text(name: str) -> bytes:
    """All bytes of a file, or of a folder's files in the order of their paths, a line break between two."""
    root = Path(sysconfig.get_path("stdlib")) if name == "python-stdlib" else Path(name)
    try:
        if root.is_file():
            return root.read_bytes()
        if not root.is_dir():
            raise ArtifactError(
                "no such file or folder", where=f"--data {name}", hint="python-stdlib is text on every machine"
            )
        files = _python_files(root) if name == "python-stdlib" else _visible_files(root)
        return b"\n".join(path.read_bytes() for path in sorted(files))
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror or error}", where=f"--data {name}") from error


def _python_files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _visible_files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(folder, name) for name in files if not name.startswith("."))
