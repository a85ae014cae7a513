"""GPT-2's family: learned positions, LayerNorm before each branch, a two-layer MLP.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and the weights' published shapes.
Shape letters: B samples, T tokens, D hidden size, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.dropout import DropoutKey, dropout
from cephalo_cli.models.layers import Attention, LayerNorm, Linear, activate
from cephalo_cli.models.loss import sum_token_losses

__all__ = ["Block", "Embedding", "Head"]


class Embedding(nn.Module):
    """Token plus position."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.matrix = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))
        self.positions = nn.Parameter(torch.empty(model.max_seq_len or 0, model.hidden_size))

    def forward(self, tokens_BT: torch.Tensor, key: DropoutKey | None = None) -> torch.Tensor:
        """Look the tokens up."""
        x_BTD = functional.embedding(tokens_BT, self.matrix) + self.positions[: tokens_BT.shape[1]]
        return dropout(x_BTD, self.dropout, key, "embedding")


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention_norm = LayerNorm(model.hidden_size, model.eps)
        self.attention = Attention(model)
        self.mlp_norm = LayerNorm(model.hidden_size, model.eps)
        self.mlp = MLP(model)

    def forward(self, x_BTD: torch.Tensor, key: DropoutKey | None = None) -> torch.Tensor:
        """Run both branches."""
        x_BTD = x_BTD + dropout(self.attention(self.attention_norm(x_BTD)), self.dropout, key, "attention")
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, key, "mlp")


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


class Head(nn.Module):
    """Last norm, logits and loss; a tied head has no matrix of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = LayerNorm(model.hidden_size, model.eps)
        shape = (model.vocab_size or 0, model.hidden_size)
        self.matrix = None if model.tie_embeddings else nn.Parameter(torch.empty(shape))

    def forward(
        self, x_BTD: torch.Tensor, targets_BT: torch.Tensor, tied_matrix_VD: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum the token losses."""
        matrix_VD = self.matrix if tied_matrix_VD is None else tied_matrix_VD
        if matrix_VD is None:
            raise AssertionError("a tied head needs the embedding's matrix")
        return sum_token_losses(functional.linear(self.norm(x_BTD), matrix_VD), targets_BT)
