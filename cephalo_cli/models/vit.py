"""ViT's family: patches of an image as tokens, a class token, LayerNorm before each branch, one class an image.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv 2010.11929, and the weights' published shapes.
Shape letters are those of `cephalo_cli.models`.
"""

import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts.model import Model
from cephalo_cli.models.attention import Attention
from cephalo_cli.models.batch import ImageBatch
from cephalo_cli.models.dropout import DropoutKey, dropout
from cephalo_cli.models.layers import MLP, LayerNorm, Linear
from cephalo_cli.models.loss import sum_token_losses

__all__ = ["Block", "Embedding", "Head"]


class Embedding(nn.Module):
    """The class token and the patches' projections, plus position."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.patch_size = model.patch_size or 0
        self.patches = PatchProjection(model.num_channels_or_default, self.patch_size, model.hidden_size)
        self.class_token = nn.Parameter(torch.empty(1, model.hidden_size))
        self.positions = nn.Parameter(torch.empty(model.tokens_per_sample(0), model.hidden_size))

    def forward(self, batch: ImageBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Make tokens of the images; the class token is the first."""
        patches_BTD = self.patches(batch.images_BCHW)
        first_B1D = self.class_token.expand(len(patches_BTD), 1, -1)
        x_BTD = torch.cat((first_B1D, patches_BTD), dim=1) + self.positions
        return dropout(x_BTD, self.dropout, key, "embedding")


class PatchProjection(nn.Module):
    """A convolution whose stride is its size: one matrix product, the same for every patch."""

    def __init__(self, num_channels: int, patch_size: int, hidden_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(hidden_size, num_channels, patch_size, patch_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Project the patches of every image, row by row; P is the size of a patch."""
        num_images, channels, height, width = images_BCHW.shape
        size = self.patch_size
        rows, columns = height // size, width // size
        cut_BCRPSP = images_BCHW.to(self.weight.dtype).view(num_images, channels, rows, size, columns, size)
        patches_BTX = cut_BCRPSP.permute(0, 2, 4, 1, 3, 5).reshape(num_images, rows * columns, -1)
        return functional.linear(patches_BTX, self.weight.flatten(1), self.bias)


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention_norm = LayerNorm(model.hidden_size, model.eps)
        self.attention = Attention(model, is_causal=False)
        self.mlp_norm = LayerNorm(model.hidden_size, model.eps)
        self.mlp = MLP(model)

    def forward(self, x_BTD: torch.Tensor, batch: ImageBatch, key: DropoutKey | None = None) -> torch.Tensor:
        """Run both branches."""
        x_BTD = x_BTD + dropout(self.attention(self.attention_norm(x_BTD), batch), self.dropout, key, "attention")
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)), self.dropout, key, "mlp")


class Head(nn.Module):
    """Last norm, logits of the class token, and the loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = LayerNorm(model.hidden_size, model.eps)
        self.classifier = Linear(model.hidden_size, model.num_classes or 0, bias=True)

    def forward(
        self, x_BTD: torch.Tensor, batch: ImageBatch, tied_matrix_VD: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum the images' losses; there is no matrix to be tied."""
        del tied_matrix_VD
        return sum_token_losses(self.logits(x_BTD)[:, None], batch.labels_B[:, None])

    def logits(self, x_BTD: torch.Tensor, tied_matrix_VD: torch.Tensor | None = None) -> torch.Tensor:
        """Score every class for each image, ``[B, classes]``."""
        del tied_matrix_VD
        scores: torch.Tensor = self.classifier(self.norm(x_BTD[:, 0]))
        return scores
