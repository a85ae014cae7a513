"""The end of all text families: a score for every token of the vocabulary, and the loss."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.batch import TextBatch
from cephalo_cli.models.loss import sum_token_losses

__all__ = ["TextHead", "vocabulary_matrix"]


def vocabulary_matrix(model: Model) -> nn.Parameter | None:
    """A head's own matrix, ``[V, D]``; a tied head has none and is given the embedding's."""
    return None if model.tie_embeddings else nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size))


class TextHead(nn.Module, ABC):
    """A head; a family makes its parts, the vocabulary's matrix among them, and scores with that matrix."""

    matrix: nn.Parameter | None

    @abstractmethod
    def scores(self, x_BTD: torch.Tensor, matrix_VD: torch.Tensor) -> torch.Tensor:
        """Score every token of the vocabulary at every place, ``[B, T, V]``, with the matrix to use."""

    def forward(
        self, x_BTD: torch.Tensor, batch: TextBatch, tied_matrix_VD: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum the losses of the tokens that have a target: the next one, or what was masked."""
        return sum_token_losses(self.logits(x_BTD, tied_matrix_VD), batch.targets_BT)

    def logits(self, x_BTD: torch.Tensor, tied_matrix_VD: torch.Tensor | None = None) -> torch.Tensor:
        """Score with the head's own matrix or, where it is tied, with the embedding's, ``[B, T, V]``."""
        matrix_VD = self.matrix if tied_matrix_VD is None else tied_matrix_VD
        if matrix_VD is None:
            raise AssertionError("a tied head needs the embedding's matrix")
        return self.scores(x_BTD, matrix_VD)
