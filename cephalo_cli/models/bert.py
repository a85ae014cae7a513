"""BERT's family: learned positions, text types, every token sees all, LayerNorm after each branch, masked tokens.

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", arXiv 1810.04805, and the weights'
published shapes. Shape letters are those of `cephalo_cli.models`.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.attention import Attention, learned_positions
from cephalo_cli.models.batch import TextBatch
from cephalo_cli.models.dropout import DropoutKey, dropout
from cephalo_cli.models.layers import MLP, LayerNorm, Linear, activate
from cephalo_cli.models.text_head import TextHead, vocabulary_matrix
from cephalo_cli.units import NUM_TEXT_TYPES

__all__ = ["Block", "Embedding", "Head"]


class Embedding(nn.Module):
    """Token plus position plus type, normalised."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.matrix = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))
        self.positions = nn.Parameter(torch.empty(model.max_seq_len or 0, model.hidden_size))
        self.types = nn.Parameter(torch.empty(NUM_TEXT_TYPES, model.hidden_size))
        self.norm = LayerNorm(model.hidden_size, model.eps)

    def forward(self, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Look the tokens up."""
        x_BTD = functional.embedding(batch.tokens_BT, self.matrix) + learned_positions(self.positions, batch)
        x_BTD = x_BTD + (self.types[0] if batch.types_BT is None else functional.embedding(batch.types_BT, self.types))
        return dropout(self.norm(x_BTD), self.dropout, key, "embedding")


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream, which is normalised after."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention = Attention(model, is_causal=False)
        self.attention_norm = LayerNorm(model.hidden_size, model.eps)
        self.mlp = MLP(model)
        self.mlp_norm = LayerNorm(model.hidden_size, model.eps)

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Run both branches."""
        x_BTD = self.attention_norm(x_BTD + dropout(self.attention(x_BTD, batch), self.dropout, key, "attention"))
        y_BTD: torch.Tensor = self.mlp_norm(x_BTD + dropout(self.mlp(x_BTD), self.dropout, key, "mlp"))
        return y_BTD


class Head(TextHead):
    """A dense layer, logits with a bias, and the loss; a tied head has no matrix of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.dense = Linear(model.hidden_size, model.hidden_size, bias=True)
        self.norm = LayerNorm(model.hidden_size, model.eps)
        self.matrix = vocabulary_matrix(model)
        self.bias = nn.Parameter(torch.empty(model.vocab_size or 0))

    def scores(self, x_BTD: torch.Tensor, matrix_VD: torch.Tensor) -> torch.Tensor:
        """Transform every place, then compare with every token's vector."""
        return functional.linear(self.norm(activate(self.dense(x_BTD), self.model)), matrix_VD, self.bias)
