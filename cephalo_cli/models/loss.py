"""The loss: a sum of token losses that keeps the logits once, whatever their dtype.

Note: memory of the loss
    Cross entropy by the book converts the logits to float32, keeps their logarithmic softmax for backward and makes a
    gradient as large again: 12 bytes a logit in 16-bit dtypes, more than all else that a model with a large vocabulary
    keeps. Here forward keeps the logits alone; backward turns them into their gradient where they lie. Both go a few
    rows at a time. The method is that of flash-attention's cross entropy with ``inplace_backward``; so a graph through
    it can be walked back once only.

Shape letters: N tokens, V vocabulary, R tokens of one piece, X anything.
"""

from typing import Any

import torch

from cephalo_cli.models.batch import IGNORED_TARGET

__all__ = ["sum_token_losses"]

NUM_PIECES = 8
"""Parts in which logits are converted to float32: half a byte for each logit at a time."""
SMALL_ELEMENTS = 2**20
"""So few logits are converted at once."""


def sum_token_losses(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Sum the cross entropies of the tokens that count, in float32 (float64 stays float64); 0 when none counts.

    Backward overwrites the logits, which nothing else may keep.
    """
    loss: torch.Tensor = _SumTokenLosses.apply(logits_BTV.flatten(0, 1), targets_BT.flatten())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


class _SumTokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        counts_N = targets_N != IGNORED_TARGET
        safe_N = targets_N.where(counts_N, 0)
        ctx.save_for_backward(logits_NV, safe_N, counts_N)
        losses_N = [
            -piece_RV.log_softmax(-1, dtype=_wide(logits_NV)).gather(1, safe_R[:, None])[:, 0]
            for piece_RV, safe_R in zip(_pieces(logits_NV), _pieces(safe_N, like=logits_NV), strict=True)
        ]
        return torch.cat(losses_N).where(counts_N, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits_NV, safe_N, counts_N = ctx.saved_tensors
        weights_N = upstream[0] * counts_N
        for piece_RV, safe_R, weights_R in zip(
            *(_pieces(each_N, like=logits_NV) for each_N in (logits_NV, safe_N, weights_N)), strict=True
        ):
            gradient_RV = piece_RV.softmax(-1, dtype=_wide(logits_NV)).mul_(weights_R[:, None])
            gradient_RV.scatter_add_(1, safe_R[:, None], -weights_R[:, None])
            piece_RV.copy_(gradient_RV)
        return logits_NV, None


def _wide(logits_NV: torch.Tensor) -> torch.dtype:
    return torch.promote_types(logits_NV.dtype, torch.float32)


def _pieces(tensor_NX: torch.Tensor, *, like: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """Cut along the tokens as the logits are cut."""
    logits_NV = tensor_NX if like is None else like
    num_pieces = 1 if logits_NV.numel() <= SMALL_ELEMENTS else NUM_PIECES
    return torch.split(tensor_NX, max(1, -(-len(logits_NV) // num_pieces)))
