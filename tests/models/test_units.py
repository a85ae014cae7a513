"""The modules against the artifact: sizes, weights, losses, dropout."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cephalo_cli.artifacts import Model
from cephalo_cli.errors import UsageError
from cephalo_cli.models import IGNORED_TARGET, DropoutKey, build_unit, initialise_
from cephalo_cli.units import model_units
from tests.models.batches import blank, images, text


def make_model(family: str = "gpt", **changes: Any) -> Model:
    fields: dict[str, Any] = {
        "name": "tiny",
        "family": family,
        "num_layers": 2,
        "hidden_size": 16,
        "num_heads": 4,
        "ffn_size": 24,
        "vocab_size": 40,
        "max_seq_len": 12,
    }
    return Model(**(fields | changes))


SHAPES = {
    "gpt": make_model(),
    "gpt tied": make_model(tie_embeddings=True),
    "gpt without biases": make_model(linear_bias=False),
    "gpt with qkv biases alone": make_model(linear_bias=False, qkv_bias=True),
    "llama": make_model("llama"),
    "llama tied": make_model("llama", tie_embeddings=True),
    "llama with grouped queries": make_model("llama", num_kv_heads=2),
    "llama with qkv biases": make_model("llama", num_kv_heads=1, qkv_bias=True),
    "llama with biases": make_model("llama", linear_bias=True),
    "llama with wide heads": make_model("llama", head_size=6, num_kv_heads=2),
}


ENCODERS = {
    "bert": make_model("bert"),
    "bert tied": make_model("bert", tie_embeddings=True),
    "bert without biases": make_model("bert", linear_bias=False, tie_embeddings=True),
    "vit": make_model("vit", vocab_size=None, max_seq_len=None, image_size=8, patch_size=4, num_classes=5),
    "vit, gray, without qkv biases": make_model(
        "vit",
        vocab_size=None,
        max_seq_len=None,
        image_size=8,
        patch_size=2,
        num_classes=5,
        num_channels=1,
        qkv_bias=False,
    ),
}


@pytest.mark.parametrize("model", (SHAPES | ENCODERS).values(), ids=SHAPES | ENCODERS)
def test_parameters_are_as_many_as_the_units_say(model: Model) -> None:
    with torch.device("meta"):
        for unit in model_units(model):
            module = build_unit(model, unit.kind)
            assert sum(parameter.numel() for parameter in module.parameters()) == unit.num_parameters
            assert all(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("model", ENCODERS.values(), ids=ENCODERS)
def test_an_encoder_runs_and_every_parameter_gets_a_gradient(model: Model) -> None:
    modules = make_modules(model, seed=1)
    if model.family == "vit":
        size, channels = model.image_size or 0, model.num_channels_or_default
        pixels = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(1))
        batch: Any = images(pixels, torch.tensor([0, 4, IGNORED_TARGET]))
    else:
        tokens_BT = torch.arange(20).view(2, 10)
        batch = text(tokens_BT, types_BT=tokens_BT % 2)
    x_BTD = modules[0](batch)
    for block in modules[1:-1]:
        x_BTD = block(x_BTD, batch)
    tied = (modules[0].matrix,) if model.tie_embeddings else ()
    loss = modules[-1](x_BTD, batch, *tied)
    loss.backward()
    for module in modules:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    classes = model.num_classes or model.vocab_size or 0
    assert loss.item() / batch.num_counted == pytest.approx(torch.tensor(float(classes)).log().item(), rel=0.05)


def test_every_token_of_an_encoder_sees_a_later_one() -> None:
    modules = make_modules(make_model("bert"), seed=2)
    tokens_BT = torch.arange(10).view(1, 10)
    changed_BT = tokens_BT.clone()
    changed_BT[0, 7] = 30
    before, after = (run_blocks(modules, tokens) for tokens in (tokens_BT, changed_BT))
    assert ((before - after).abs().amax(-1) > 0).all()


def test_only_an_embedding_with_a_norm_is_read_by_its_backward() -> None:
    """What the schedule frees before the backward is what autograd did not keep."""
    for model in (SHAPES["gpt"], SHAPES["llama"], ENCODERS["bert"], ENCODERS["vit"]):
        embedding = build_unit(model, "embedding")
        initialise_(embedding, model, 0, 0)
        own = {parameter.untyped_storage().data_ptr() for parameter in embedding.parameters()}
        kept: set[int] = set()

        def keep(tensor: torch.Tensor, kept: set[int] = kept) -> torch.Tensor:
            kept.add(tensor.untyped_storage().data_ptr())
            return tensor

        batch: Any = text(torch.arange(20).view(2, 10))
        if model.family == "vit":
            batch = images(torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            embedding(batch)
        assert bool(own & kept) == model_units(model)[0].backward_reads, model.family


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
def test_a_model_runs_and_every_parameter_gets_a_gradient(model: Model) -> None:
    modules = make_modules(model, seed=1)
    tokens_BT = torch.arange(20).view(2, 10) % 40
    loss = run(modules, model, tokens_BT, (tokens_BT + 1) % 40)
    loss.backward()  # type: ignore[no-untyped-call]
    for module in modules:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    assert loss.item() / 20 == pytest.approx(torch.tensor(40.0).log().item(), rel=0.05)


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
def test_no_token_sees_a_later_one(model: Model) -> None:
    modules = make_modules(model, seed=2)
    tokens_BT = torch.arange(10).view(1, 10)
    changed_BT = tokens_BT.clone()
    changed_BT[0, 7] = 30
    before, after = (run_blocks(modules, tokens) for tokens in (tokens_BT, changed_BT))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_order_of_tokens_matters(family: str) -> None:
    modules = make_modules(make_model(family), seed=3)
    first = run_blocks(modules, torch.tensor([[1, 2, 3, 4]]))
    swapped = run_blocks(modules, torch.tensor([[2, 1, 3, 4]]))
    assert not torch.allclose(first[:, 3], swapped[:, 3], rtol=1e-6, atol=1e-6)


def test_grouped_queries_equal_repeated_keys_and_values() -> None:
    grouped, full = make_model("llama", num_kv_heads=2), make_model("llama")
    block, twin = build_unit(grouped, "block"), build_unit(full, "block")
    initialise_(block, grouped, 1, 0)
    state = block.state_dict()
    q, k, v = state["attention.qkv.weight"].split((16, 8, 8))
    k, v = (part.view(2, 4, 16).repeat_interleave(2, 0).reshape(16, 16) for part in (k, v))
    twin.load_state_dict(state | {"attention.qkv.weight": torch.cat((q, k, v))})
    x_BTD = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x_BTD, blank(x_BTD)), twin(x_BTD, blank(x_BTD)))


def test_rotary_attention_depends_on_distance_alone() -> None:
    model = make_model("llama", num_heads=1)
    block: Any = build_unit(model, "block").double()
    initialise_(block, model, 1, 0)
    width, theta = 16, 10_000.0
    vector = torch.randn(2, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def turn(x: torch.Tensor, position: int) -> torch.Tensor:
        pairs = torch.view_as_complex(torch.stack((x[: width // 2], x[width // 2 :]), -1))
        angles = position * theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return torch.cat((turned[:, 0], turned[:, 1]))

    x_BTD = torch.randn(1, 5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q, k, v = block.attention.qkv(x_BTD)[0].split(width, -1)
    q, k = (torch.stack([turn(row, position) for position, row in enumerate(part)]) for part in (q, k))
    scores = (q @ k.T / width**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = block.attention.out(scores.softmax(-1) @ v)
    torch.testing.assert_close(block.attention(x_BTD, blank(x_BTD))[0], expected)
    torch.testing.assert_close(turn(vector[0], 3) @ turn(vector[1], 1), turn(vector[0], 9) @ turn(vector[1], 7))


def test_weights_depend_on_seed_and_unit_alone() -> None:
    model = make_model()
    first, again, other_seed, other_unit = (build_unit(model, "block") for _ in range(4))
    initialise_(first, model, 1, 5)
    torch.manual_seed(99)
    initialise_(again, model, 1, 5)
    initialise_(other_seed, model, 1, 6)
    initialise_(other_unit, model, 2, 5)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        if weight.ndim == 2:
            assert not torch.equal(weight, other_seed.state_dict()[name])
            assert not torch.equal(weight, other_unit.state_dict()[name])


def test_weights_have_the_spread_of_gpt2() -> None:
    model = make_model(hidden_size=128, ffn_size=512, num_layers=8)
    block = build_unit(model, "block")
    initialise_(block, model, 1, 0)
    state = block.state_dict()
    assert state["mlp.up.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["mlp.out.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert state["attention.out.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert state["mlp_norm.weight"].unique().tolist() == [1.0]
    assert state["mlp.up.bias"].unique().tolist() == [0.0]


def test_every_dtype_starts_from_the_same_weights() -> None:
    model = make_model("llama")
    single, double, half = (build_unit(model, "block").to(t) for t in (torch.float32, torch.float64, torch.bfloat16))
    for module in (single, double, half):
        initialise_(module, model, 1, 0)
    for name, weight in single.state_dict().items():
        assert torch.equal(weight.double(), double.state_dict()[name])
        assert torch.equal(weight.bfloat16(), half.state_dict()[name])


def test_ignored_targets_count_nothing_and_none_at_all_is_zero() -> None:
    model = make_model()
    head: Any = build_unit(model, "head").double()
    initialise_(head, model, 3, 0)
    x_BTD = torch.randn(2, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets_BT = torch.tensor([[1, IGNORED_TARGET, 2], [IGNORED_TARGET, 39, 0]])
    logits = functional.linear(functional.layer_norm(x_BTD, (16,)), head.matrix).log_softmax(-1)
    expected = -(logits[0, 0, 1] + logits[0, 2, 2] + logits[1, 1, 39] + logits[1, 2, 0])
    torch.testing.assert_close(head(x_BTD, text(targets_BT)), expected)
    nothing = head(x_BTD, text(torch.full_like(targets_BT, IGNORED_TARGET)))
    nothing.backward()
    assert nothing.item() == 0
    assert head.matrix.grad.abs().max() == 0


def test_low_precision_losses_are_summed_in_float32() -> None:
    model = make_model("llama")
    head = build_unit(model, "head").bfloat16()
    initialise_(head, model, 3, 0)
    loss = head(torch.ones(1, 2, 16, dtype=torch.bfloat16), text(torch.zeros(1, 2, dtype=torch.long)))
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_dropout_belongs_to_the_sample(family: str) -> None:
    model = make_model(family, dropout=0.5)
    block = build_unit(model, "block")
    initialise_(block, model, 1, 0)
    x_BTD = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
    key = DropoutKey(seed=7, step=2, unit=1, samples=(4, 5, 6))
    batch = blank(x_BTD)
    whole = block(x_BTD, batch, key)
    parts = [
        block(x_BTD[:2], blank(x_BTD[:2]), DropoutKey(seed=7, step=2, unit=1, samples=(4, 5))),
        block(x_BTD[2:], blank(x_BTD[2:]), DropoutKey(seed=7, step=2, unit=1, samples=(6,))),
    ]
    torch.testing.assert_close(whole, torch.cat(parts))
    assert torch.equal(whole, block(x_BTD, batch, key))
    others: tuple[dict[str, Any], ...] = ({"seed": 8}, {"step": 3}, {"unit": 2}, {"samples": (1, 2, 3)})
    for other in others:
        assert not torch.allclose(whole, block(x_BTD, batch, replace(key, **other))), other
    assert torch.equal(
        block(x_BTD, batch), build_like(block, model.model_copy(update={"dropout": 0.0}))(x_BTD, batch, key)
    )


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    model = make_model(dropout=0.25, hidden_size=64, vocab_size=8)
    embedding: Any = build_unit(model, "embedding")
    torch.nn.init.ones_(embedding.matrix)
    torch.nn.init.zeros_(embedding.positions)
    key = DropoutKey(seed=0, step=1, unit=0, samples=tuple(range(16)))
    x_BTD = embedding(text(torch.zeros(16, 12, dtype=torch.long)), key)
    assert (x_BTD == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert x_BTD.mean().item() == pytest.approx(1.0, abs=0.03)


def test_rotary_positions_refuse_an_odd_head() -> None:
    with pytest.raises(UsageError, match="even head width, found 5"):
        build_unit(make_model("llama", head_size=5), "block")


def make_modules(model: Model, seed: int) -> list[Any]:
    modules: list[Any] = []
    for unit in model_units(model):
        module = build_unit(model, unit.kind)
        initialise_(module, model, unit.index, seed)
        modules.append(module)
    return modules


def run_blocks(modules: list[Any], tokens_BT: torch.Tensor) -> torch.Tensor:
    batch = text(tokens_BT)
    x_BTD: torch.Tensor = modules[0](batch)
    for block in modules[1:-1]:
        x_BTD = block(x_BTD, batch)
    return x_BTD


def run(modules: list[Any], model: Model, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    tied = (modules[0].matrix,) if model.tie_embeddings else ()
    loss: torch.Tensor = modules[-1](run_blocks(modules, tokens_BT), text(tokens_BT, targets_BT), *tied)
    return loss


def build_like(block: nn.Module, model: Model) -> nn.Module:
    twin = build_unit(model, "block")
    twin.load_state_dict(block.state_dict())
    return twin
