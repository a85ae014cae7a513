"""Microbatches for tests of modules."""

import torch

from cephalo_cli.models import ImageBatch, TextBatch


def text(tokens_BT: torch.Tensor, targets_BT: torch.Tensor | None = None, **sides: torch.Tensor | None) -> TextBatch:
    """Tokens, with the tokens themselves as targets where nothing else is said."""
    samples = tuple(range(len(tokens_BT)))
    targets_BT = tokens_BT if targets_BT is None else targets_BT
    return TextBatch(samples=samples, tokens_BT=tokens_BT, targets_BT=targets_BT, **sides)


def blank(x_BTD: torch.Tensor) -> TextBatch:
    """A microbatch for what passes between units, without anything that a block could need."""
    return text(torch.zeros(x_BTD.shape[:2], dtype=torch.int64))


def images(images_BCHW: torch.Tensor, labels_B: torch.Tensor) -> ImageBatch:
    return ImageBatch(samples=tuple(range(len(labels_B))), images_BCHW=images_BCHW, labels_B=labels_B)
