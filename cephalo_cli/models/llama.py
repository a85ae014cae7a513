"""Llama's family: rotary positions, RMSNorm before each branch, a gated MLP, grouped-query attention.

Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", arXiv 2302.13971, and Grattafiori et
al., "The Llama 3 Herd of Models", arXiv 2407.21783.
Mistral (Jiang et al., arXiv 2310.06825) adds a sliding window, Qwen2 (Yang et al., arXiv 2407.10671) biases of queries,
keys and values. Shape letters are those of `cephalo_cli.models`.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.attention import Attention
from cephalo_cli.models.batch import TextBatch
from cephalo_cli.models.dropout import DropoutKey, dropout
from cephalo_cli.models.layers import Linear, RMSNorm, activate
from cephalo_cli.models.text_head import TextHead, vocabulary_matrix

__all__ = ["Block", "Embedding", "Head"]


class Embedding(nn.Module):
    """Token only; positions enter in attention."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.matrix = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))

    def forward(self, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Look the tokens up."""
        return dropout(functional.embedding(batch.tokens_BT, self.matrix), self.dropout, key, "embedding")


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention_norm = RMSNorm(model.hidden_size, model.eps)
        self.attention = Attention(model, is_causal=True, is_rotary=True)
        self.mlp_norm = RMSNorm(model.hidden_size, model.eps)
        self.mlp = MLP(model)

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Run both branches."""
        x_BTD = x_BTD + dropout(self.attention(self.attention_norm(x_BTD), batch), self.dropout, key, "attention")
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, key, "mlp")


class MLP(nn.Module):
    """Widen twice, let one half gate the other, narrow."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.up = Linear(model.hidden_size, 2 * model.ffn_size, bias=model.has_linear_bias)
        self.out = Linear(model.ffn_size, model.hidden_size, bias=model.has_linear_bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Run the branch; the first half of the wide product is the gate."""
        gate_BTF, wide_BTF = self.up(x_BTD).chunk(2, dim=-1)
        y_BTD: torch.Tensor = self.out(activate(gate_BTF, self.model) * wide_BTF)
        return y_BTD


class Head(TextHead):
    """Last norm, logits and loss; a tied head has no matrix of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = RMSNorm(model.hidden_size, model.eps)
        self.matrix = vocabulary_matrix(model)

    def scores(self, x_BTD: torch.Tensor, matrix_VD: torch.Tensor) -> torch.Tensor:
        """Normalise once more, then compare with every token's vector."""
        return functional.linear(self.norm(x_BTD), matrix_VD)
