"""Training data: where tokens come from, which sample comes when, and which rank gets it.

Note: order
    A sample is a window of ``seq_len`` tokens and the one after each; the last window of the data may be shorter and is
    padded with targets that count nothing. Sample positions count from 0 over the whole training; position p is entry
    ``p mod n`` of the permutation of epoch ``p div n``, which depends on the seed and the epoch alone. A step takes
    ``global_batch_size`` positions, the last step of an epoch those that are left, so each sample comes once an epoch,
    and neither the plan nor the number of ranks matters. Within a batch rank i starts where the samples of the ranks
    before it end.

Note: short batches
    Where a batch has fewer samples than the plan's, the places left over are filled with rows whose targets count
    nothing. So every rank runs the microbatches it always runs, no rank waits for one that has less to do, and such a
    row adds exactly zero to the loss, the gradient and the count of tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.errors import UsageError
from cephalo_cli.models import IGNORED_TARGET

__all__ = ["Batches", "Microbatch", "TokenSource", "count_tokens", "on_device", "seed_of"]


class TokenSource(Protocol):
    """Numbered samples of tokens."""

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""

    @property
    def digest(self) -> str:
        """What the content depends on, hashed; equal on all ranks that see the same data."""

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the ``seq_len + 1`` tokens of a sample; what is beyond the end of the data is 0."""

    def counted(self, index: int) -> npt.NDArray[np.bool_]:
        """Say which of the ``seq_len`` tokens after the first count as targets."""


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
        seed: Shuffles the samples of every epoch; None keeps them in order.
        drop_last: Whether the last batch of an epoch is left out where it is short.

    Raises:
        UsageError: The data has fewer samples than one global batch, and they are to be shuffled.
    """

    def __init__(
        self, source: TokenSource, split: Sequence[Sequence[int]], seed: int | None, *, drop_last: bool = False
    ) -> None:
        self.global_batch_size = sum(map(sum, split))
        self.num_samples = source.num_samples
        if seed is not None and source.num_samples < self.global_batch_size:
            raise UsageError(
                f"the data has {source.num_samples} samples, one step takes {self.global_batch_size}",
                where="--data",
                hint="give more text, or plan a smaller batch or shorter sequences",
            )
        self._source = source
        self._split = split
        self._starts = (0, *accumulate(sum(sizes) for sizes in split))
        self._seed = seed
        self._drop_last = drop_last
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @property
    def num_dropped(self) -> int:
        """Samples of every epoch that are left out."""
        return self.num_samples % self.global_batch_size if self._drop_last else 0

    def sample_indices(self, position: int) -> tuple[int, ...]:
        """Which samples the global batch that starts at ``position`` has, in order."""
        left = self.num_samples - position % self.num_samples
        return tuple(self._at(position + offset) for offset in range(min(left, self.global_batch_size)))

    def after(self, position: int) -> int:
        """Where the batch after the one at ``position`` starts."""
        position += min(self.num_samples - position % self.num_samples, self.global_batch_size)
        left = self.num_samples - position % self.num_samples
        return position + left if self._drop_last and left < self.global_batch_size else position

    def of_rank(self, rank: int, position: int) -> list[Microbatch]:
        """One rank's microbatches of the global batch that starts at ``position``."""
        indices = self.sample_indices(position)
        start = self._starts[rank]
        microbatches = []
        for size in self._split[rank]:
            rows, targets = zip(
                *(self._row(indices[place] if place < len(indices) else None) for place in range(start, start + size)),
                strict=True,
            )
            microbatches.append(
                Microbatch(
                    samples=tuple(range(start, start + size)),
                    tokens=torch.from_numpy(np.stack(rows)),
                    targets=torch.from_numpy(np.stack(targets)),
                )
            )
            start += size
        return microbatches

    def _row(self, index: int | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens and targets of a sample, or of a place that no sample fills."""
        tokens = self._source.sample(0 if index is None else index)
        if index is None:
            return np.zeros_like(tokens[:-1]), np.full_like(tokens[1:], IGNORED_TARGET)
        return tokens[:-1], np.where(self._source.counted(index), tokens[1:], IGNORED_TARGET)

    def _at(self, position: int) -> int:
        epoch, entry = divmod(position, self.num_samples)
        if self._seed is None:
            return entry
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_of(self._seed, "epoch", epoch))
            self._order = torch.randperm(self.num_samples, generator=generator)
            self._epoch = epoch
        return int(self._order[entry])


def count_tokens(microbatches: Sequence[Microbatch]) -> int:
    """Targets that count."""
    return sum(int((microbatch.targets != IGNORED_TARGET).sum()) for microbatch in microbatches)


def seed_of(*parts: object) -> int:
    """Make a seed from anything that has a name."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def on_device(batch: Sequence[Microbatch], device: torch.device) -> list[Microbatch]:
    """Move microbatches to a device."""
    if device.type == "cpu":
        return list(batch)
    return [
        replace(microbatch, tokens=microbatch.tokens.to(device), targets=microbatch.targets.to(device))
        for microbatch in batch
    ]
