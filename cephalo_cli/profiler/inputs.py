"""What units are measured on: random microbatches. Their content does not matter."""

import torch

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models import ImageBatch, TextBatch

__all__ = ["random_batch"]


def random_batch(
    model: Model, num_samples: int, seq_len: int, device: torch.device | str = "cpu"
) -> TextBatch | ImageBatch:
    """Make a microbatch: images in float32 for vit, text of one document a sample for the others.

    Args:
        model: The model.
        num_samples: Samples.
        seq_len: Tokens of a sample (not used for vit).
        device: Where its tensors live.
    """
    samples = tuple(range(num_samples))
    if model.family == "vit":
        size = model.image_size or 0
        shape = (num_samples, model.num_channels_or_default, size, size)
        return ImageBatch(
            samples=samples,
            images_BCHW=torch.randn(shape, dtype=torch.float32, device=device),
            labels_B=torch.randint(0, model.num_classes or 1, (num_samples,), device=device),
        )
    ids_BT = torch.randint(0, model.vocab_size or 1, (num_samples, seq_len), device=device)
    return TextBatch(samples=samples, tokens_BT=ids_BT, targets_BT=ids_BT)
