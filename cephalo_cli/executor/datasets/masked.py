"""Samples for models that find masked tokens (bert).

Note: masking
    Of a window's tokens, special ones left out, 15 % (``--mask-rate``; at least one) are to be found. Of these 80 % are
    replaced by the mask token, 10 % by a random ordinary token and 10 % stay, so that the model cannot trust what it
    sees (Devlin et al., "BERT", arXiv 1810.04805, section 3.1). Everything is drawn from a generator seeded with (seed,
    epoch, sample): anew in every epoch, and the same whatever the plan.

Note: padding
    What pads the last window, behind the last token, is a document of its own, so that no token looks at it.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cephalo_cli.executor.data import Row, seed_of
from cephalo_cli.executor.datasets.long_row import LongRow
from cephalo_cli.executor.datasets.windows import NUM_NOISE_SAMPLES, documents_of, noise_tokens
from cephalo_cli.models.batch import IGNORED_TARGET

__all__ = ["MaskedNoise", "MaskedWindows", "Masking"]

MASKED_PART, RANDOM_PART = 0.8, 0.1


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Draws what is masked."""

    mask_id: int
    """Stands for a masked token."""
    special: frozenset[int]
    """Ids that are never masked and never drawn."""
    num_ids: int
    """Ids that text has are below this."""
    rate: float
    """Part of the tokens that is to be found."""
    seed: int
    """Seed of the draws."""

    def __call__(
        self, tokens_T: npt.NDArray[np.int64], may_be_masked_T: npt.NDArray[np.bool_], index: int, epoch: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Mask a sample.

        Args:
            tokens_T: Its tokens.
            may_be_masked_T: Which of them may be chosen; of these special ones are not.
            index: Which sample it is.
            epoch: Which epoch it is.

        Returns:
            Tokens as the model sees them, and what is to be found, -100 elsewhere.
        """
        special = np.fromiter(self.special, dtype=np.int64)
        places = torch.from_numpy(np.flatnonzero(may_be_masked_T & ~np.isin(tokens_T, special)))
        seen, targets = tokens_T.copy(), np.full_like(tokens_T, IGNORED_TARGET)
        if not len(places):
            return seen, targets
        generator = torch.Generator().manual_seed(seed_of(self.seed, "mask", epoch, index))
        num_chosen = max(1, round(self.rate * len(places)))
        chosen = places[torch.randperm(len(places), generator=generator)[:num_chosen]].numpy()
        draw = torch.rand(num_chosen, generator=generator).numpy()
        ordinary = np.setdiff1d(np.arange(self.num_ids), special)
        others = ordinary[torch.randint(len(ordinary), (num_chosen,), generator=generator).numpy()]
        targets[chosen] = tokens_T[chosen]
        kept_or_other = np.where(draw < MASKED_PART + RANDOM_PART, others, tokens_T[chosen])
        seen[chosen] = np.where(draw < MASKED_PART, self.mask_id, kept_or_other)
        return seen, targets

    @property
    def digest(self) -> str:
        """What the draws depend on, hashed."""
        parts = (self.mask_id, sorted(self.special), self.num_ids, self.rate, self.seed)
        return hashlib.sha256("/".join(map(str, ("mask", *parts))).encode()).hexdigest()


class MaskedWindows:
    """Consecutive windows, masked; the last may be padded.

    Args:
        row: The tokens.
        seq_len: Tokens of a sample, its frame included.
        masking: Draws what is masked.
        end_id: Ends documents, which are then kept apart; None packs them into one.
    """

    def __init__(self, row: LongRow, seq_len: int, masking: Masking, *, end_id: int | None = None) -> None:
        self._tokens, self._counts, self._seq_len, self._end_id = row.tokens, row.counts, seq_len, end_id
        self._masking, self._frame = masking, row.special.frame
        self._width = seq_len - (0 if self._frame is None else 2)
        self.num_samples = -(-len(row.tokens) // self._width)
        self.digest = row.digest(
            "masked", seq_len, row.tokens.dtype, len(row.tokens), self._frame, end_id, masking.digest
        )

    def row(self, index: int, epoch: int) -> Row:
        """Give a window, see `cephalo_cli.executor.data.Source.row`."""
        start = index * self._width
        text = self._tokens[start : start + self._width].astype(np.int64)
        may_be_masked = np.ones(len(text), dtype=np.bool_)
        if self._counts is not None:
            may_be_masked = self._counts[start : start + len(text)] != 0
        documents = np.zeros(len(text), np.int64) if self._end_id is None else documents_of(text, self._end_id)
        if self._frame is not None:
            text = np.array([self._frame[0], *text, self._frame[1]])
            may_be_masked = np.array([False, *may_be_masked, False])
            documents = np.array([documents[0], *documents, documents[-1]])
        seen, targets = self._masking(text, may_be_masked, index, epoch)
        padding = (0, self._seq_len - len(text))
        return {
            "tokens_BT": np.pad(seen, padding),
            "targets_BT": np.pad(targets, padding, constant_values=IGNORED_TARGET),
            "documents_BT": np.pad(documents, padding, constant_values=documents[-1] + 1),
        }


class MaskedNoise:
    """Uniform ordinary tokens, masked."""

    num_samples = NUM_NOISE_SAMPLES

    def __init__(self, *, seq_len: int, masking: Masking) -> None:
        self._seq_len, self._masking = seq_len, masking
        self.digest = hashlib.sha256(f"random/{seq_len}/{masking.digest}".encode()).hexdigest()

    def row(self, index: int, epoch: int) -> Row:
        """Give a sample, see `cephalo_cli.executor.data.Source.row`."""
        tokens = noise_tokens(self._seq_len, self._masking.num_ids, self._masking.seed, index)
        seen, targets = self._masking(tokens, np.ones(self._seq_len, dtype=np.bool_), index, epoch)
        return {"tokens_BT": seen, "targets_BT": targets}
