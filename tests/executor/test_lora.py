"""Low-rank adapters: trained over any ranks as in plain torch, beside weights that stay; exported as one model."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from transformers.pytorch_utils import Conv1D

from cephalo_cli.artifacts import Model
from cephalo_cli.artifacts.model import Lora
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.costmodel.memory import state_bytes
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.models import build_unit
from cephalo_cli.models.build import starting_values
from cephalo_cli.units import adapted, is_frozen, model_units, num_frozen_parameters, num_parameters
from tests.executor.fine_tuning import RATE, SHARES, SPLIT, fine_tune, with_tokenizer
from tests.executor.frozen import watch_frozen
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import write_text
from tests.models.hub import load_folder, make_folder, some_batch, their_logits

LORA = Lora(rank=3, alpha=6.0, targets=("attention.qkv", "mlp.*"))
PLACES = {"attn.c_attn": "attention.qkv", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.out"}
"""Matrices of a GPT-2 block with an adapter, by their names in transformers and here."""


class Adapted(nn.Module):
    """A matrix of transformers' with an adapter: y = x W + 2 x A' B'."""

    def __init__(self, inner: Conv1D, a: torch.Tensor, b: torch.Tensor) -> None:
        super().__init__()
        self.inner, self.a, self.b = inner, nn.Parameter(a), nn.Parameter(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) + 2.0 * (x @ self.a.t()) @ self.b.t()
        return y


def adapt(theirs: Any, model: Model) -> None:
    """Put adapters with our starting values into a model of transformers, and freeze the rest."""
    theirs.requires_grad_(requires_grad=False)
    for unit in model_units(model)[1:-1]:
        block = theirs.get_submodule(f"transformer.h.{unit.index - 1}")
        for place, name in PLACES.items():
            inner = cast("Conv1D", block.get_submodule(place))
            num_in, num_out = inner.weight.shape
            a = starting_values(f"{name}.lora_a", (LORA.rank, num_in), model, unit.index, seed=0).double()
            block.set_submodule(place, Adapted(inner, a, torch.zeros(num_out, LORA.rank, dtype=torch.float64)))


def lora_model(folder: Path) -> Model:
    make_folder("gpt2", folder, std=0.1)
    return model_from_hf_config(folder / "config.json").model_copy(update={"lora": LORA})


@pytest.mark.parametrize("schedule", ["layer-major", "microbatch-major", "replicated"])
def test_adapters_train_as_in_plain_torch(schedule: str, ranks: Ranks, tmp_path: Path) -> None:
    text = write_text(tmp_path, 2500)
    model = lora_model(tmp_path / "in")
    with_tokenizer(tmp_path / "in", text)
    num_frozen = num_frozen_parameters(model)
    shares = [1.0] * 3 if schedule == "replicated" else SHARES
    plan = make_plan(model, SPLIT, shares, schedule=schedule, num_frozen_parameters=num_frozen)
    options = TrainOptions(
        data=str(text),
        tokenizer=str(tmp_path / "in"),
        num_steps=10,
        learning_rate=5 * RATE,
        weights=str(tmp_path / "in"),
        export=str(tmp_path / "out"),
    )
    (outcome,) = ranks.run([Job(plan=plan, options=options, run=train_job)])
    tokens = Tokenizer.from_file(str(tmp_path / "in" / "tokenizer.json")).encode(text.read_text()).ids
    theirs = load_folder("gpt2", tmp_path / "in").double()
    adapt(theirs, model)
    losses = fine_tune(theirs, tokens, num_steps=10, rate=5 * RATE)
    assert outcome[0].losses == pytest.approx(losses, rel=1e-10, abs=0)
    assert losses[-1] < 0.99 * losses[0]
    batch = some_batch("gpt2")
    expected = their_logits(theirs, batch)
    merged = their_logits(load_folder("gpt2", tmp_path / "out").double(), batch)
    assert (merged - expected).abs().max() <= 1e-5 * expected.abs().max()
    before = load_file(tmp_path / "in" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {f"transformer.h.{layer}.{place}.weight" for layer in range(2) for place in PLACES}


@pytest.mark.parametrize("stored", [None, "bfloat16"])
def test_the_plan_counts_the_bytes_that_ranks_keep(stored: str | None, ranks: Ranks) -> None:
    """16 bytes an adapter's parameter, 4 or 2 one of the base, which does not change."""
    model = make_model("llama", num_kv_heads=2, lora=LORA, frozen_dtype=stored)
    num_frozen = num_frozen_parameters(model)
    plan = make_plan(model, SPLIT, SHARES, dtype="float32", num_frozen_parameters=num_frozen)
    (outcome,) = ranks.run([Job(plan=plan, options=TrainOptions(data="random", num_steps=3), run=watch_frozen)])
    expected = 16 * (num_parameters(model) - num_frozen) + (4 if stored is None else 2) * num_frozen
    assert state_bytes(plan) == expected
    assert sum(num_bytes for _, num_bytes in outcome) == expected
    assert all(all(same) and same for same, _ in outcome)


def test_a_checkpoint_has_the_base_too(ranks: Ranks, tmp_path: Path) -> None:
    """Resumed under another plan, it exports what the first would have."""
    model = make_model(lora=LORA, frozen_dtype="bfloat16")
    num_frozen = num_frozen_parameters(model)
    first = make_plan(model, SPLIT, SHARES, dtype="float32", num_frozen_parameters=num_frozen)
    second = make_plan(model, [[3], [2]], [0.9, 0.1], dtype="float32", num_frozen_parameters=num_frozen)
    options = TrainOptions(
        data="random", num_steps=2, checkpoint_dir=str(tmp_path / "run"), export=str(tmp_path / "one"), seed=3
    )
    again = options.model_copy(update={"resume": "latest", "export": str(tmp_path / "two")})
    jobs = [Job(plan=first, options=options, run=train_job), Job(plan=second, options=again, run=train_job)]
    for outcome in ranks.run(jobs):
        assert not any(isinstance(found, Exception) for found in outcome), outcome
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    other = make_plan(make_model(), [[3], [2]], dtype="float32")
    (refused,) = ranks.run([Job(plan=other, options=again.model_copy(update={"export": None}), run=train_job)])
    assert isinstance(refused[0], ArtifactError)
    assert "is a checkpoint of another model: lora is" in str(refused[0])


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_adapters_are_counted_without_torch(family: str) -> None:
    model = make_model(family, lora=LORA)
    for unit in model_units(model):
        named = dict(build_unit(model, unit.kind).named_parameters())
        assert unit.num_parameters == sum(each.numel() for each in named.values())
        frozen = {name: each for name, each in named.items() if is_frozen(model, f"{unit.name}.{name}")}
        assert unit.num_frozen == sum(each.numel() for each in frozen.values())
        assert {name.rpartition(".")[2] for name in named.keys() - frozen} <= {"lora_a", "lora_b"}
    assert adapted(model) == ("attention.qkv", "mlp.up", "mlp.out")


def test_what_adapters_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"lora\.targets\[1\]: 'atention\.\*' names no matrix of a block"):
        num_frozen_parameters(make_model(lora=Lora(rank=2, targets=("mlp.up", "atention.*"))))
    with pytest.raises(ValueError, match="is not for models with lora, which trains adapters alone"):
        make_model(lora=LORA, frozen=("head.*",))
    with pytest.raises(ValueError, match="is for models with lora or frozen parameters"):
        make_model(frozen_dtype="bfloat16")
