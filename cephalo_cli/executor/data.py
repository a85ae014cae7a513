"""Training data: where tokens come from, which sample comes when, and which rank gets it.

Note: order
    A sample is a window of ``seq_len`` tokens and the one after each. Sample positions count from 0 over the whole
    training; position p is entry ``p mod n`` of the permutation of epoch ``p div n``, which depends on the seed and the
    epoch alone. Step k takes the next ``global_batch_size`` positions, so batches run on into the next epoch, each
    sample comes once an epoch, and neither the plan nor the number of ranks matters. Within a batch rank i starts
    where the samples of the ranks before it end.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.models import IGNORED_TARGET

__all__ = ["Batches", "Microbatch", "TokenSource", "open_source"]

NUM_BYTE_TOKENS = 256
NUM_RANDOM_SAMPLES = 65_536
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


class TokenSource(Protocol):
    """Numbered samples of tokens."""

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""

    @property
    def digest(self) -> str:
        """What the content depends on, hashed; equal on all ranks that see the same data."""

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the ``seq_len + 1`` tokens of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Microbatch:
    """Samples that a rank runs together."""

    samples: tuple[int, ...]
    """Position of each sample in the global batch."""
    tokens: torch.Tensor
    """Token ids, [B, T] int64."""
    targets: torch.Tensor
    """The token after each, [B, T] int64."""


class Batches:
    """The global batches of a training, and each rank's part of them.

    Args:
        source: Where tokens come from.
        split: Microbatch sizes of every rank.
        seed: Shuffles the samples of every epoch.

    Raises:
        UsageError: The data has fewer samples than one global batch.
    """

    def __init__(self, source: TokenSource, split: Sequence[Sequence[int]], seed: int) -> None:
        self.global_batch_size = sum(map(sum, split))
        if source.num_samples < self.global_batch_size:
            raise UsageError(
                f"the data has {source.num_samples} samples, one step takes {self.global_batch_size}",
                where="--data",
                hint="give more text, or plan a smaller batch or shorter sequences",
            )
        self._source = source
        self._split = split
        self._starts = (0, *accumulate(sum(sizes) for sizes in split))
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def sample_indices(self, position: int) -> tuple[int, ...]:
        """Which samples the global batch that starts at ``position`` has, in order."""
        return tuple(self._at(position + offset) for offset in range(self.global_batch_size))

    def of_rank(self, rank: int, position: int) -> list[Microbatch]:
        """One rank's microbatches of the global batch that starts at ``position``."""
        start = self._starts[rank]
        microbatches = []
        for size in self._split[rank]:
            samples = tuple(range(start, start + size))
            rows = np.stack([self._source.sample(self._at(position + sample)) for sample in samples])
            tokens = torch.from_numpy(rows)
            microbatches.append(
                Microbatch(samples=samples, tokens=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())
            )
            start += size
        return microbatches

    def _at(self, position: int) -> int:
        epoch, entry = divmod(position, self._source.num_samples)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(_seed_of(self._seed, "epoch", epoch))
            self._order = torch.randperm(self._source.num_samples, generator=generator)
            self._epoch = epoch
        return int(self._order[entry])


def count_tokens(microbatches: Sequence[Microbatch]) -> int:
    """Targets that count."""
    return sum(int((microbatch.targets != IGNORED_TARGET).sum()) for microbatch in microbatches)


def open_source(name: str, *, seq_len: int, vocab_size: int, seed: int) -> TokenSource:
    """Open training data.

    Args:
        name: ``python-stdlib`` (the Python files of the running interpreter's standard library, tests left out), a text
            file or a folder of them (their bytes), a ``.npy`` file (integers in one dimension), a ``.bin`` file
            (little-endian uint16 tokens without header, as nanoGPT writes them), or ``random``.
        seq_len: Tokens of a sample.
        vocab_size: Token ids the model has.
        seed: Draws the tokens of ``random``.

    Raises:
        ArtifactError: The file or folder is missing, unreadable or not of its kind.
        UsageError: The model has too few token ids for the data.
    """
    if name == "random":
        return _RandomTokens(seq_len=seq_len, vocab_size=vocab_size, seed=seed)
    if Path(name).suffix in (".npy", ".bin"):
        tokens = _read_tokens(Path(name))
        _check_ids(tokens, vocab_size, name)
    else:
        tokens = np.frombuffer(_read_text(name), dtype=np.uint8)
        if vocab_size < NUM_BYTE_TOKENS:
            raise UsageError(
                f"text is read as bytes, which need {NUM_BYTE_TOKENS} token ids, the model has {vocab_size}",
                where=f"--data {name}",
                hint="use a model with a larger vocab_size, or --data random",
            )
    return _Windows(tokens, seq_len)


class _Windows:
    """Consecutive windows of one long row of tokens."""

    def __init__(self, tokens: npt.NDArray[np.integer[Any]], seq_len: int) -> None:
        self._tokens = tokens
        self._seq_len = seq_len
        self.num_samples = max(0, len(tokens) - 1) // seq_len
        head = f"windows/{seq_len}/{tokens.dtype}/{len(tokens)}/".encode()
        self.digest = hashlib.sha256(head + hashlib.sha256(np.ascontiguousarray(tokens).data).digest()).hexdigest()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        start = index * self._seq_len
        return self._tokens[start : start + self._seq_len + 1].astype(np.int64)


class _RandomTokens:
    """Uniform tokens, a generator of its own for each sample."""

    num_samples = NUM_RANDOM_SAMPLES

    def __init__(self, *, seq_len: int, vocab_size: int, seed: int) -> None:
        self._length, self._vocab_size, self._seed = seq_len + 1, vocab_size, seed
        self.digest = hashlib.sha256(f"random/{seq_len}/{vocab_size}/{seed}".encode()).hexdigest()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        generator = torch.Generator().manual_seed(_seed_of(self._seed, "random", index))
        drawn = torch.randint(self._vocab_size, (self._length,), generator=generator)
        return cast("npt.NDArray[np.int64]", drawn.numpy())


def _read_tokens(path: Path) -> npt.NDArray[np.integer[Any]]:
    try:
        if path.suffix == ".bin":
            return np.memmap(path, dtype=np.dtype("<u2"), mode="r")
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read as tokens: {error}", where=str(path)) from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ArtifactError(
            f"holds {tokens.dtype} of shape {tokens.shape}, expected integers in one dimension", where=str(path)
        )
    return cast("npt.NDArray[np.integer[Any]]", tokens)


def _check_ids(tokens: npt.NDArray[np.integer[Any]], vocab_size: int, name: str) -> None:
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
        raise UsageError(
            f"holds token ids from {int(tokens.min())} to {int(tokens.max())}, the model has 0 to {vocab_size - 1}",
            where=f"--data {name}",
            hint="use the tokens of this model's tokenizer",
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


def _seed_of(*parts: object) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
