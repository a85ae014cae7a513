"""GPT-2's family: learned positions, LayerNorm before each branch, a two-layer MLP.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and the weights' published shapes.
Shape letters are those of `cephalo_cli.models`.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.attention import Attention, learned_positions
from cephalo_cli.models.batch import TextBatch
from cephalo_cli.models.dropout import DropoutKey, dropout
from cephalo_cli.models.layers import MLP, LayerNorm
from cephalo_cli.models.text_head import TextHead, vocabulary_matrix

__all__ = ["Block", "Embedding", "Head"]


class Embedding(nn.Module):
    """Token plus position."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.matrix = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))
        self.positions = nn.Parameter(torch.empty(model.max_seq_len or 0, model.hidden_size))

    def forward(self, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Look the tokens up."""
        x_BTD = functional.embedding(batch.tokens_BT, self.matrix) + learned_positions(self.positions, batch)
        return dropout(x_BTD, self.dropout, key, "embedding")


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention_norm = LayerNorm(model.hidden_size, model.eps)
        self.attention = Attention(model, is_causal=True)
        self.mlp_norm = LayerNorm(model.hidden_size, model.eps)
        self.mlp = MLP(model)

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Run both branches."""
        x_BTD = x_BTD + dropout(self.attention(self.attention_norm(x_BTD), batch), self.dropout, key, "attention")
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, key, "mlp")


class Head(TextHead):
    """Last norm, logits and loss; a tied head has no matrix of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = LayerNorm(model.hidden_size, model.eps)
        self.matrix = vocabulary_matrix(model)

    def scores(self, x_BTD: torch.Tensor, matrix_VD: torch.Tensor) -> torch.Tensor:
        """Normalise once more, then compare with every token's vector."""
        return functional.linear(self.norm(x_BTD), matrix_VD)
