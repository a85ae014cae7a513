"""What the families are made of.

Shape letters: B samples, T tokens, D hidden size, H query heads, K key and value heads, C width of a head.
Parameters are left empty where they are made; `build.initialise_` fills them.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model

__all__ = ["Attention", "LayerNorm", "Linear", "RMSNorm", "activate"]


class Linear(nn.Module):
    """A matrix product, with a bias or without."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        return functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Centre and scale to unit variance, then a learned gain and bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Scale to unit mean square, then a learned gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal attention with one product for queries, keys and values; ``rope_theta`` turns rotary positions on."""

    def __init__(self, model: Model, *, rope_theta: float | None = None) -> None:
        super().__init__()
        self.sizes = (model.num_heads, model.kv_heads, model.kv_heads)
        self.head_width = model.width_of_head
        self.rope_theta = rope_theta
        self.qkv = Linear(model.hidden_size, sum(self.sizes) * self.head_width, bias=model.has_qkv_bias)
        self.out = Linear(model.num_heads * self.head_width, model.hidden_size, bias=model.has_linear_bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Let every token look at itself and the ones before it."""
        batch, tokens, _ = x_BTD.shape
        heads_BTXC = self.qkv(x_BTD).view(batch, tokens, sum(self.sizes), self.head_width)
        q_BHTC, k_BKTC, v_BKTC = (part.transpose(1, 2) for part in heads_BTXC.split(self.sizes, dim=2))
        if self.rope_theta is not None:
            turns = _turns(tokens, self.head_width, self.rope_theta, x_BTD)
            q_BHTC, k_BKTC = _rotate(q_BHTC, *turns), _rotate(k_BKTC, *turns)
        y_BHTC = functional.scaled_dot_product_attention(
            q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=self.sizes[0] != self.sizes[1]
        )
        y_BTX = y_BHTC.transpose(1, 2).reshape(batch, tokens, -1)
        projected: torch.Tensor = self.out(y_BTX)
        return projected


def activate(x: torch.Tensor, model: Model) -> torch.Tensor:
    """Apply the model's activation."""
    if model.mlp_activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if model.mlp_activation == "gelu-tanh" else "none")


def _turns(tokens: int, width: int, theta: float, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position's angles, ``[T, C/2]``.

    The angle of position t and pair i is ``t * theta**(-2i/C)`` (Su et al., RoFormer, arXiv 2104.09864). They are made
    anew in every call: the work is ``T * C/2`` elements, small beside a block's, and no unit has to keep them.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, dtype=dtype, device=like.device)
    angles_TC = torch.outer(torch.arange(tokens, dtype=dtype, device=like.device), theta ** (-pairs / width))
    return angles_TC.cos().to(like.dtype), angles_TC.sin().to(like.dtype)


def _rotate(x_BHTC: torch.Tensor, cos_TC: torch.Tensor, sin_TC: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + C/2) of every head, the layout of Hugging Face's Llama."""
    first, second = x_BHTC.chunk(2, dim=-1)
    return torch.cat((first * cos_TC - second * sin_TC, second * cos_TC + first * sin_TC), dim=-1)
