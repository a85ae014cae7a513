"""Samples of prompts with completions: one record a sample, loss on the completion only.

Note: records that are too long
    A sample has ``seq_len`` tokens and the one after each. Of a longer record the beginning of the prompt is left out,
    so that the completion stays with what came right before it. A completion that is too long by itself loses its end;
    the last token of its prompt stays, so that its first token is learned.
"""

import hashlib

import numpy as np

from cephalo_cli.executor.data import Row
from cephalo_cli.executor.datasets.cache import Tokenised
from cephalo_cli.models.batch import IGNORED_TARGET

__all__ = ["Completions"]


class Completions:
    """Prompts with completions.

    Args:
        found: Tokens of all records; a prompt's come before its completion's.
        seq_len: Tokens of a sample.
    """

    def __init__(self, found: Tokenised, seq_len: int) -> None:
        self._tokens, self._seq_len = found.tokens, seq_len
        starts, self._middles = found.records[:, 0], found.records[:, 1]
        self._starts = np.append(starts, len(found.tokens))
        self.num_samples = len(starts)
        self.digest = hashlib.sha256(f"completions/{seq_len}/{found.digest}".encode()).hexdigest()

    @property
    def num_prompts_cut(self) -> int:
        """Records whose prompt loses its beginning."""
        return int((np.diff(self._starts) > self._seq_len + 1).sum())

    @property
    def num_completions_cut(self) -> int:
        """Records whose completion loses its end."""
        has_prompt = self._middles > self._starts[:-1]
        return int((self._starts[1:] - self._middles + has_prompt > self._seq_len + 1).sum())

    def row(self, index: int, _: int) -> Row:
        """Give a record, see `cephalo_cli.executor.data.Source.row`."""
        start, middle, stop = int(self._starts[index]), int(self._middles[index]), int(self._starts[index + 1])
        last_of_prompt = max(start, middle - 1)
        first = max(start, min(last_of_prompt, stop - self._seq_len - 1))
        found = self._tokens[first : min(stop, first + self._seq_len + 1)]
        tokens = np.zeros(self._seq_len, dtype=np.int64)
        tokens[: len(found)] = found[: self._seq_len]
        targets = np.full(self._seq_len, IGNORED_TARGET, dtype=np.int64)
        learned = max(middle - first - 1, 0)
        targets[learned : max(len(found) - 1, 0)] = found[learned + 1 :]
        return {"tokens_BT": tokens, "targets_BT": targets}
