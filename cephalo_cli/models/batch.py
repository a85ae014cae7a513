"""What the units of a model are called with, beside what passes between them: one microbatch as tensors.

Every unit gets the whole microbatch, so whatever a block needs of it (what is padding, where a document ends) reaches
it without passing through the blocks before.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

__all__ = ["IGNORED_TARGET", "ImageBatch", "TextBatch"]

IGNORED_TARGET = -100
"""A target that counts nothing, as in torch's cross entropy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """What text and images share."""

    samples: tuple[int, ...]
    """Position of each sample in the global batch."""

    @property
    def targets(self) -> torch.Tensor:
        """What the loss compares with."""
        raise NotImplementedError

    @property
    def num_counted(self) -> int:
        """Targets that count: the microbatch's part of the denominator of the loss."""
        return int((self.targets != IGNORED_TARGET).sum())

    def to(self, device: torch.device) -> Self:
        """Move all tensors to a device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextBatch(_Batch):
    """Rows of tokens (gpt, llama, bert)."""

    tokens_BT: torch.Tensor
    """Token ids, int64."""
    targets_BT: torch.Tensor
    """The right token at each place (gpt and llama: the next one; bert: the one that was masked), int64; -100 counts
    nothing."""
    documents_BT: torch.Tensor | None = None
    """Number of the document each token belongs to, integers; a document's tokens follow one another. Tokens see their
    own document alone, whose positions count from 0. None: a row is one document."""
    attention_mask_BT: torch.Tensor | None = None
    """False (or 0) at padding, which no token looks at (bert; causal families need none, as their padding comes last).
    None: there is no padding. A token that would see nothing sees itself, or, without documents, all."""
    types_BT: torch.Tensor | None = None
    """Which of its two texts a token belongs to, 0 or 1, int64 (bert). None: all to the first."""

    @property
    def targets(self) -> torch.Tensor:
        """The right tokens."""
        return self.targets_BT


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageBatch(_Batch):
    """Images with their classes (vit)."""

    images_BCHW: torch.Tensor
    """Pixels, floating point, as the model expects them."""
    labels_B: torch.Tensor
    """Class of each image, int64; -100 counts nothing."""

    @property
    def targets(self) -> torch.Tensor:
        """The right classes."""
        return self.labels_B
