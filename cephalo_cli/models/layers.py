"""What the families are made of. Parameters are left empty where they are made; `build.initialise_` fills them."""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Lora, Model

__all__ = ["MLP", "LayerNorm", "Linear", "RMSNorm", "activate"]


class Linear(nn.Module):
    """A matrix product, with a bias or without, and with an adapter of low rank where `adapt` was called."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter

    def __init__(self, num_in: int, num_out: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None
        self.lora_scale: float | None = None

    def adapt(self, lora: Lora) -> None:
        """Add ``scale * B A`` to the matrix, A narrowing to the rank and B widening from it."""
        num_out, num_in = self.weight.shape
        self.lora_a = nn.Parameter(torch.empty(lora.rank, num_in))
        self.lora_b = nn.Parameter(torch.empty(num_out, lora.rank))
        self.lora_scale = lora.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        y = functional.linear(x, self.weight, self.bias)
        if self.lora_scale is None:
            return y
        return y + functional.linear(functional.linear(x, self.lora_a) * self.lora_scale, self.lora_b)


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


class MLP(nn.Module):
    """Widen, activate, narrow."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.up = Linear(model.hidden_size, model.ffn_size, bias=model.has_linear_bias)
        self.out = Linear(model.ffn_size, model.hidden_size, bias=model.has_linear_bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Run the branch."""
        y_BTD: torch.Tensor = self.out(activate(self.up(x_BTD), self.model))
        return y_BTD


def activate(x: torch.Tensor, model: Model) -> torch.Tensor:
    """Apply the model's activation."""
    if model.mlp_activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if model.mlp_activation == "gelu-tanh" else "none")
