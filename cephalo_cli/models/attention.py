"""Attention of all families: which tokens see which, and the one operator that does the work."""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.batch import ImageBatch, TextBatch
from cephalo_cli.models.layers import Linear
from cephalo_cli.models.rotary import rotate, turns

__all__ = ["Attention", "learned_positions"]


class Attention(nn.Module):
    """Attention with one product for queries, keys and values.

    Args:
        model: The model; with a sliding window a token sees itself and the ``window - 1`` tokens before it.
        is_causal: Whether later tokens are hidden.
        is_rotary: Whether queries and keys are turned by their positions.
    """

    def __init__(self, model: Model, *, is_causal: bool, is_rotary: bool = False) -> None:
        super().__init__()
        self.model = model
        self.is_causal = is_causal
        self.is_rotary = is_rotary
        self.sizes = (model.num_heads, model.kv_heads, model.kv_heads)
        self.head_width = model.width_of_head
        self.qkv = Linear(model.hidden_size, sum(self.sizes) * self.head_width, bias=model.has_qkv_bias)
        self.out = Linear(model.num_heads * self.head_width, model.hidden_size, bias=model.has_attention_out_bias)

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch | ImageBatch) -> torch.Tensor:
        """Let every token look at those it may see."""
        num_samples, tokens, _ = x_BTD.shape
        heads_BTXC = self.qkv(x_BTD).view(num_samples, tokens, sum(self.sizes), self.head_width)
        q_BHTC, k_BKTC, v_BKTC = (part.transpose(1, 2) for part in heads_BTXC.split(self.sizes, dim=2))
        if self.is_rotary:
            cos_sin = turns(self.model, tokens, _positions(batch), x_BTD)
            q_BHTC, k_BKTC = rotate(q_BHTC, *cos_sin), rotate(k_BKTC, *cos_sin)
        seen = self._seen(tokens, batch, x_BTD.device)
        y_BHTC = functional.scaled_dot_product_attention(
            q_BHTC,
            k_BKTC,
            v_BKTC,
            attn_mask=seen,
            is_causal=self.is_causal and seen is None,
            enable_gqa=self.sizes[0] != self.sizes[1],
        )
        y_BTX = y_BHTC.transpose(1, 2).reshape(num_samples, tokens, -1)
        projected: torch.Tensor = self.out(y_BTX)
        return projected

    def _seen(self, tokens: int, batch: TextBatch | ImageBatch, device: torch.device) -> torch.Tensor | None:
        """True where a token (second last dimension) sees another; None where `is_causal` says it all."""
        if isinstance(batch, ImageBatch):
            return None
        window, documents_BT = self.model.sliding_window, batch.documents_BT
        if batch.attention_mask_BT is not None and not self.is_causal:
            return _hide_padding(batch.attention_mask_BT.bool(), documents_BT)
        seen: torch.Tensor | None = None
        is_windowed = window is not None and window < tokens
        if self.is_causal and (is_windowed or documents_BT is not None):
            seen = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
            seen = seen.triu(1 - window) if window is not None and is_windowed else seen
        if documents_BT is not None:
            seen = _same_document(documents_BT) if seen is None else _same_document(documents_BT) & seen
        return seen


def _same_document(documents_BT: torch.Tensor) -> torch.Tensor:
    return documents_BT[:, None, :, None] == documents_BT[:, None, None, :]


def _hide_padding(real_BT: torch.Tensor, documents_BT: torch.Tensor | None) -> torch.Tensor:
    """Leave something to see to every token: attention over nothing is not a number."""
    if documents_BT is None:
        return (real_BT | ~real_BT.any(dim=1, keepdim=True))[:, None, None, :]
    itself_TT = torch.eye(real_BT.shape[1], dtype=torch.bool, device=real_BT.device)
    return (_same_document(documents_BT) & real_BT[:, None, None, :]) | itself_TT


def learned_positions(positions_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """Vector of every place: ``[T, D]``, or ``[B, T, D]`` where each document counts from 0."""
    places_BT = _positions(batch)
    if places_BT is None:
        return positions_TD[: batch.tokens_BT.shape[1]]
    return functional.embedding(places_BT, positions_TD)


def _positions(batch: TextBatch | ImageBatch) -> torch.Tensor | None:
    """Position of every token in its own document, ``[B, T]``; None where a sample is one document."""
    if isinstance(batch, ImageBatch) or batch.documents_BT is None:
        return None
    documents_BT = batch.documents_BT
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    starts_BT: torch.Tensor = torch.where(is_first_BT, places_T, 0).cummax(dim=1).values
    return places_T - starts_BT
