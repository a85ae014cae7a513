"""The loss is torch's cross entropy, summed, with gradients in the logits' own memory."""

import pytest
import torch
from torch.nn import functional

from cephalo_cli.models import IGNORED_TARGET
from cephalo_cli.models import loss as loss_module
from cephalo_cli.models.loss import sum_token_losses

VOCAB = 11
TARGETS = torch.tensor([[3, IGNORED_TARGET, 0], [10, 7, IGNORED_TARGET]])


def _both(dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Losses and gradients of what made the logits, ours and torch's."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, VOCAB, generator=generator, dtype=torch.float64).mul_(4).to(dtype)
    found = []
    for is_ours in (True, False):
        leaf = x.clone().requires_grad_()
        logits = leaf * 1.0
        if is_ours:
            loss = sum_token_losses(logits, TARGETS)
        else:
            wide = torch.promote_types(dtype, torch.float32)
            loss = functional.cross_entropy(
                logits.flatten(0, 1).to(wide), TARGETS.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
            )
        (0.25 * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        assert leaf.grad is not None
        found.append([loss.detach(), leaf.grad])
    return found[0], found[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_pieces", [1, 2, 4, 6, 8])
def test_it_is_torchs_cross_entropy(dtype: torch.dtype, num_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "SMALL_ELEMENTS", 0)
    monkeypatch.setattr(loss_module, "NUM_PIECES", num_pieces)
    ours, theirs = _both(dtype)
    assert ours[0].dtype == theirs[0].dtype
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


def test_tokens_that_count_nothing_cost_and_change_nothing() -> None:
    logits = torch.randn(1, 4, VOCAB, requires_grad=True)
    loss = sum_token_losses(logits * 1.0, torch.full((1, 4), IGNORED_TARGET))
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert loss == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_the_gradient_lies_where_the_logits_lay() -> None:
    leaf = torch.randn(1, 4, VOCAB, requires_grad=True)
    logits = leaf * 1.0
    sum_token_losses(logits, torch.zeros(1, 4, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert leaf.grad is not None
    torch.testing.assert_close(logits.detach(), leaf.grad)
