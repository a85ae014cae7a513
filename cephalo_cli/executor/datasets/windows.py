"""Samples for models that predict the next token: windows of a long row, or of noise.

Note: packed documents
    Documents follow one another, and the windows of ``seq_len`` tokens run on from one into the next. Where a token is
    known to end documents, a window says which document each of its tokens belongs to: attention stays inside,
    positions start anew, and the end of a document has no next token to predict. So the loss is that of every document
    (or the part of it in a window) as a sample of its own.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.executor.data import Row, Source, seed_of
from cephalo_cli.executor.datasets.long_row import LongRow
from cephalo_cli.models.batch import IGNORED_TARGET

__all__ = ["NUM_NOISE_SAMPLES", "NoiseTokens", "Part", "Windows", "documents_of", "noise_tokens"]

NUM_NOISE_SAMPLES = 65_536


class Windows:
    """Consecutive windows; the last may be padded.

    Args:
        row: The tokens.
        seq_len: Tokens of a sample.
        end_id: Ends documents, which are then kept apart; None packs them into one.
    """

    def __init__(self, row: LongRow, seq_len: int, *, end_id: int | None = None) -> None:
        self._tokens, self._counts, self._seq_len, self._end_id = row.tokens, row.counts, seq_len, end_id
        self.num_samples = -(-max(0, len(row.tokens) - 1) // seq_len)
        apart = "" if end_id is None else f"documents end with {end_id}/"
        self.digest = row.digest("windows", seq_len, row.tokens.dtype, len(row.tokens), apart)

    def row(self, index: int, _: int) -> Row:
        """Give a window, see `cephalo_cli.executor.data.Source.row`."""
        start = index * self._seq_len
        found = self._tokens[start : start + self._seq_len + 1]
        tokens = np.zeros(self._seq_len, dtype=np.int64)
        tokens[: len(found)] = found[: self._seq_len]
        targets = np.full(self._seq_len, IGNORED_TARGET, dtype=np.int64)
        targets[: len(found) - 1] = found[1:]
        if self._counts is not None:
            targets[: len(found) - 1][self._counts[start + 1 : start + len(found)] == 0] = IGNORED_TARGET
        if self._end_id is None:
            return {"tokens_BT": tokens, "targets_BT": targets}
        targets[tokens == self._end_id] = IGNORED_TARGET
        return {"tokens_BT": tokens, "targets_BT": targets, "documents_BT": documents_of(tokens, self._end_id)}


class NoiseTokens:
    """Uniform tokens, a generator of its own for each sample."""

    num_samples = NUM_NOISE_SAMPLES

    def __init__(self, *, seq_len: int, vocab_size: int, seed: int) -> None:
        self._seq_len, self._vocab_size, self._seed = seq_len, vocab_size, seed
        self.digest = hashlib.sha256(f"random/{seq_len}/{vocab_size}/{seed}".encode()).hexdigest()

    def row(self, index: int, _: int) -> Row:
        """Give a sample, see `cephalo_cli.executor.data.Source.row`."""
        drawn = noise_tokens(self._seq_len + 1, self._vocab_size, self._seed, index)
        return {"tokens_BT": drawn[:-1], "targets_BT": drawn[1:]}


class Part:
    """Some of the samples of other data."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source, self._start = source, start
        self.num_samples = stop - start
        self.digest = hashlib.sha256(f"part/{start}/{stop}/{source.digest}".encode()).hexdigest()

    def row(self, index: int, epoch: int) -> Row:
        """Give a sample, see `cephalo_cli.executor.data.Source.row`."""
        return self._source.row(self._start + index, epoch)


def noise_tokens(num_tokens: int, vocab_size: int, seed: int, index: int) -> npt.NDArray[np.int64]:
    """Draw uniform tokens that depend on the seed and the sample alone."""
    generator = torch.Generator().manual_seed(seed_of(seed, "random", index))
    drawn: npt.NDArray[np.int64] = torch.randint(vocab_size, (num_tokens,), generator=generator).numpy()
    return drawn


def documents_of(tokens_T: npt.NDArray[np.int64], end_id: int) -> npt.NDArray[np.int64]:
    """Number the documents of a window from 0; a token that ends one belongs to it."""
    ends_T = tokens_T == end_id
    numbers: npt.NDArray[np.int64] = np.cumsum(ends_T) - ends_T
    return numbers
