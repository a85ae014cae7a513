"""Every family computes what Hugging Face's transformers computes: logits and loss."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cephalo_cli.models import IGNORED_TARGET
from tests.models.batches import images, text
from tests.models.twins import CASES, Twins, make_twins

EXACT = ("gpt2", "bert", "vit")
"""Cases without rotary positions, whose angles transformers has in float32 whatever the dtype."""


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(61, shape, generator=torch.Generator().manual_seed(sum(shape)))


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())


def run_theirs(twins: Twins, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output = twins.theirs(**inputs)
    return output.logits, output.loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_loss_are_those_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    twins = make_twins(name, tmp_path, dtype)
    if twins.model.family == "vit":
        side, channels = twins.model.image_size or 0, twins.model.num_channels_or_default
        pixels = torch.randn(3, channels, side, side, dtype=dtype, generator=torch.Generator().manual_seed(1))
        labels = torch.tensor([1, 6, 3])
        batch: Any = images(pixels, labels)
        logits, loss = run_theirs(twins, pixel_values=pixels, labels=labels)
    elif twins.model.family == "bert":
        ids, labels = tokens(3, 20), tokens(3, 21)[:, 1:].contiguous()
        labels[:, ::3] = IGNORED_TARGET
        batch = text(ids, labels)
        logits, loss = run_theirs(twins, input_ids=ids, labels=labels)
    else:
        ids = tokens(3, 20)
        after = torch.cat((ids[:, 1:], torch.full((3, 1), IGNORED_TARGET)), dim=1)
        batch = text(ids, after)
        logits, loss = run_theirs(twins, input_ids=ids, labels=ids)
    tolerance = 1e-12 if dtype == torch.float64 and name.startswith(EXACT) else 1e-5
    assert apart(twins.logits(batch), logits) < tolerance
    assert apart(twins.loss(batch), loss) < max(tolerance, 1e-6)  # theirs is a float32 number


def test_padding_and_two_texts_of_bert(tmp_path: Path) -> None:
    twins = make_twins("bert", tmp_path, torch.float64)
    ids, types = tokens(3, 20), torch.zeros(3, 20, dtype=torch.int64)
    types[:, 8:] = 1
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, 15:], mask[2, 4:] = False, False
    labels = ids.where(mask & (torch.arange(20) % 4 == 1), IGNORED_TARGET)
    batch = text(ids, labels, attention_mask_BT=mask, types_BT=types)
    logits, loss = run_theirs(twins, input_ids=ids, token_type_ids=types, attention_mask=mask.long(), labels=labels)
    assert apart(twins.logits(batch)[mask], logits[mask]) < 1e-12
    assert apart(twins.loss(batch), loss) < 1e-12


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("vit")])
def test_packed_documents_are_what_they_are_alone(name: str, tmp_path: Path) -> None:
    twins = make_twins(name, tmp_path, torch.float64)
    lengths = [9, 1, 6, 4]
    ids = tokens(2, sum(lengths))
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).expand(2, -1)
    packed = twins.logits(text(ids, documents_BT=documents))
    alone = [twins.logits(text(part)) for part in torch.split(ids, lengths, dim=1)]
    assert apart(packed, torch.cat(alone, dim=1)) < 1e-12
    theirs = [twins.theirs(input_ids=part).logits for part in torch.split(ids, lengths, dim=1)]
    assert apart(packed, torch.cat(theirs, dim=1)) < 1e-5
    assert apart(twins.logits(text(ids)), packed) > 1e-3


def test_padding_beside_packed_documents(tmp_path: Path) -> None:
    twins = make_twins("bert", tmp_path, torch.float64)
    ids = tokens(1, 12)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    mask = torch.tensor([[True] * 9 + [False] * 3])
    packed = twins.logits(text(ids, documents_BT=documents, attention_mask_BT=mask))
    assert packed.isfinite().all()
    assert apart(packed[:, :5], twins.logits(text(ids[:, :5]))) < 1e-12
    assert apart(packed[:, 5:9], twins.logits(text(ids[:, 5:9]))) < 1e-12


def test_rows_of_nothing_but_padding_are_finite(tmp_path: Path) -> None:
    twins = make_twins("bert", tmp_path, torch.float32)
    nothing = text(tokens(2, 6), torch.full((2, 6), IGNORED_TARGET), attention_mask_BT=torch.zeros(2, 6))
    total = twins.loss(nothing) * nothing.num_counted
    assert nothing.num_counted == 0
    assert twins.logits(nothing).isfinite().all()
    assert total.isnan()  # nothing to divide by, which the executor knows: it divides the sum by the global count
