"""A model of one's own for Cephalo: an embedding, blocks that are not all alike, and a head with the loss.

    cephalo profile --model examples.own_model:model --seq-len 32 -o profile.json
    cephalo plan profile.json --batch-size 8 -o plan.json
    cephalo train plan.json --model examples.own_model:model --data python-stdlib --steps 20

What units must be is in own_model.md, beside this file.
Shape letters: B samples, T tokens, D width, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional

VOCAB_SIZE = 260
WIDTH = 32


class Embedding(nn.Module):
    """Token plus position."""

    vocab_size = VOCAB_SIZE
    max_seq_len = 64

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB_SIZE, WIDTH)
        self.positions = nn.Embedding(self.max_seq_len, WIDTH)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Look both up."""
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD: torch.Tensor = self.tokens(tokens_BT) + self.positions(places_T)
        return x_BTD


class Mixer(nn.Module):
    """A causal mean over the tokens before, then a two-layer network, both added to what came in."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Mix, then widen and narrow."""
        count_T = torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device, dtype=x_BTD.dtype)
        x_BTD = x_BTD + self.value(self.norm(x_BTD)).cumsum(dim=1) / count_T[:, None]
        y_BTD: torch.Tensor = x_BTD + self.down(functional.gelu(self.up(x_BTD)))
        return y_BTD


class Head(nn.Module):
    """Logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, VOCAB_SIZE, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Score every token id."""
        logits_BTV: torch.Tensor = self.logits(self.norm(x_BTD))
        return logits_BTV


def loss(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Sum the losses of all tokens that count, in float32 at least."""
    wide_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    return functional.cross_entropy(wide_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=-100, reduction="sum")


def model() -> tuple[list[nn.Module], object]:
    """Give the units and the loss."""
    return [Embedding(), Mixer(64), Mixer(128), Mixer(64), Head()], loss
