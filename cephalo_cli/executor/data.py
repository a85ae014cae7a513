"""Training data: which sample comes when, and which rank gets it. Where samples come from: `datasets`.

Note: order
    Sample positions count from 0 over the whole training; position p is entry ``p mod n`` of the permutation of epoch
    ``p div n``, which depends on the seed and the epoch alone. A step takes ``global_batch_size`` positions, the last
    step of an epoch those that are left, so each sample comes once an epoch, and neither the plan nor the number of
    ranks matters. Within a batch rank i starts where the samples of the ranks before it end.

Note: short batches
    Where a batch has fewer samples than the plan's, the places left over are filled with a sample whose targets count
    nothing. So every rank runs the microbatches it always runs, no rank waits for one that has less to do, and such a
    row adds exactly zero to the loss, the gradient and the count of tokens.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.errors import UsageError
from cephalo_cli.models.batch import IGNORED_TARGET, ImageBatch, TextBatch

__all__ = ["Batches", "Microbatch", "Row", "Source", "count_tokens", "on_device", "seed_of"]

Row = dict[str, npt.NDArray[Any]]
"""A sample: the fields of its microbatch, see `cephalo_cli.models.batch`, as arrays without the first dimension."""
Microbatch = TextBatch | ImageBatch
"""Samples that a rank runs together."""

TARGETS = frozenset({"targets_BT", "labels_B"})


class Source(Protocol):
    """Numbered samples."""

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""

    @property
    def digest(self) -> str:
        """What the content depends on, hashed; equal on all ranks that see the same data."""

    def row(self, index: int, epoch: int) -> Row:
        """Give a sample; every row of a source has the same fields and shapes.

        Args:
            index: Which sample.
            epoch: For what is drawn anew in every epoch; everything else is the same in all of them.
        """


class Batches:
    """The global batches of a training, and each rank's part of them.

    Args:
        source: The samples.
        split: Microbatch sizes of every rank.
        seed: Shuffles the samples of every epoch; None keeps them in order.
        drop_last: Whether the last batch of an epoch is left out where it is short.

    Raises:
        UsageError: The data has fewer samples than one global batch, and they are to be shuffled.
    """

    def __init__(
        self, source: Source, split: Sequence[Sequence[int]], seed: int | None, *, drop_last: bool = False
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
        indices, epoch = self.sample_indices(position), position // self.num_samples
        start = self._starts[rank]
        microbatches = []
        for size in self._split[rank]:
            places = range(start, start + size)
            rows = [
                self._source.row(indices[place], epoch) if place < len(indices) else self._blank(epoch)
                for place in places
            ]
            microbatches.append(_stacked(tuple(places), rows))
            start += size
        return microbatches

    def _blank(self, epoch: int) -> Row:
        """A sample that counts nothing."""
        row = self._source.row(0, epoch)
        return row | {name: np.full_like(row[name], IGNORED_TARGET) for name in TARGETS & row.keys()}

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
    return sum(microbatch.num_counted for microbatch in microbatches)


def seed_of(*parts: object) -> int:
    """Make a seed from anything that has a name."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def on_device(batch: Sequence[Microbatch], device: torch.device) -> list[Microbatch]:
    """Move microbatches to a device."""
    return list(batch) if device.type == "cpu" else [microbatch.to(device) for microbatch in batch]


def _stacked(samples: tuple[int, ...], rows: Sequence[Row]) -> Microbatch:
    """Put rows together; where each is one document, nothing need say so."""
    fields: dict[str, Any] = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}
    if "documents_BT" in fields and not bool(fields["documents_BT"].any()):
        del fields["documents_BT"]
    if "images_BCHW" in fields:
        return ImageBatch(samples=samples, **fields)
    return TextBatch(samples=samples, **fields)
