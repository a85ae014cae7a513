"""Weights of Hugging Face folders: read piece by piece, the same model as ``transformers`` has; bad folders refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cephalo_cli.artifacts import Model
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.errors import ArtifactError
from cephalo_cli.executor import pretrained
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.units import model_units
from tests.models.hub import FAMILIES, empty_modules, make_folder, our_logits, some_batch, their_logits


@torch.no_grad()
def filled_modules(weights: Pretrained, model: Model, num_pieces: int = 3) -> list[Any]:
    """Modules with a folder's weights; every parameter is read in as many pieces, as so many ranks would."""
    modules = empty_modules(model)
    with weights:
        weights.check_copies(0, 1)
        for unit, module in zip(model_units(model), modules, strict=True):
            for name, parameter in module.named_parameters():
                flat = torch.full((parameter.numel(),), torch.nan)
                start = 0
                for piece in flat.chunk(num_pieces):
                    weights.fill(unit.name, name, start, piece)
                    start += len(piece)
                parameter.copy_(flat.view(parameter.shape))
    return modules


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "PIECE_ELEMENTS", 50)
    theirs = make_folder(name, tmp_path)
    model = model_from_hf_config(tmp_path / "config.json")
    batch = some_batch(name)
    ours = our_logits(model, filled_modules(Pretrained(tmp_path, model), model), batch)
    expected = their_logits(theirs, batch)
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_keep_their_values(dtype: torch.dtype, tmp_path: Path) -> None:
    make_folder("gpt2", tmp_path, dtype=dtype)
    model = model_from_hf_config(tmp_path / "config.json")
    weights = Pretrained(tmp_path, model)
    modules = filled_modules(weights, model)
    kept = load_file(tmp_path / "model.safetensors")["transformer.h.1.mlp.c_fc.weight"]
    assert kept.dtype == dtype
    assert torch.equal(modules[2].mlp.up.weight, kept.float().t())
    name = str(dtype).removeprefix("torch.")
    assert weights.dtype_of("transformer.h.1.mlp.c_fc.weight") == name
    assert weights.rounded_to(None) is weights.rounded_to(name) is None
    assert {weights.rounded_to(other) for other in ("bfloat16", "float16")} == {None, name}


def test_a_rank_reads_its_own_elements_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the layout: the most that is held beside the shard is a piece or a row, and nothing is read twice."""
    make_folder("gpt2", tmp_path, vocab_size=2000)
    model = model_from_hf_config(tmp_path / "config.json")
    read: list[int] = []

    class Watched:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getitem__(self, where: Any) -> torch.Tensor:
            piece: torch.Tensor = self.inner[where]
            read.append(piece.numel())
            return piece

    inner = Pretrained._slice  # noqa: SLF001 - where reading happens
    monkeypatch.setattr(Pretrained, "_slice", lambda self, key: Watched(inner(self, key)))
    monkeypatch.setattr(pretrained, "PIECE_ELEMENTS", 320)
    with Pretrained(tmp_path, model) as weights:
        for unit, name, size in (("embedding", "matrix", 32000), ("block.0", "attention.qkv.weight", 768)):
            for start, stop in ((0, size), (size // 3 + 5, size // 2 + 7), (size, size)):
                read.clear()
                weights.fill(unit, name, start, torch.empty(stop - start))
                assert max(read, default=0) <= 320
                assert stop - start <= sum(read) <= stop - start + 2 * 16


def test_sharded_folders_and_bare_models_are_read_too(tmp_path: Path) -> None:
    theirs = make_folder("gpt2", tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    theirs.base_model.save_pretrained(tmp_path / "bare")
    batch = some_batch("gpt2")
    for folder in ("shards", "bare"):
        model = model_from_hf_config(tmp_path / folder / "config.json")
        ours = our_logits(model, filled_modules(Pretrained(tmp_path / folder, model), model), batch)
        assert torch.allclose(ours, their_logits(theirs, batch), rtol=0, atol=1e-5)


def test_old_names_and_tensors_that_nobody_needs(tmp_path: Path) -> None:
    """As google-bert/bert-base-uncased has them: gamma and beta, a pooler, position ids."""
    theirs = make_folder("bert", tmp_path)
    model = model_from_hf_config(tmp_path / "config.json")
    path = tmp_path / "model.safetensors"
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for key, tensor in load_file(path).items()
    }
    old["bert.pooler.dense.weight"] = torch.zeros(16, 16)
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, path)
    weights = Pretrained(tmp_path, model)
    batch = some_batch("bert")
    ours = our_logits(model, filled_modules(weights, model), batch)
    assert torch.allclose(ours, their_logits(theirs, batch), rtol=0, atol=1e-5)
    assert weights.unused == ["bert.embeddings.position_ids", "bert.pooler.dense.weight"]


Change = Callable[[Path], None]


def in_file(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Change the tensors of a folder's file."""

    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return changed


def in_config(**settings: Any) -> Change:
    def changed(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return changed


def indexed(name: object) -> Change:
    """Give the folder an index whose one file is called ``name``."""

    def changed(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        index = {"weight_map": {"transformer.wte.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return changed


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def torn(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


WTE = "transformer.wte.weight"
BAD: dict[str, tuple[str, Change, str]] = {
    "missing": (
        "gpt2",
        in_file(lambda tensors: tensors.pop("transformer.h.1.ln_2.bias")),
        "model.safetensors: transformer.h.1.ln_2.bias: is missing",
    ),
    "a layer too many": (
        "gpt2",
        in_file(lambda tensors: tensors.update({"transformer.h.2.ln_1.bias": torch.zeros(16)})),
        "model.safetensors: transformer.h.2.ln_1.bias: is not a tensor of a gpt model with 2 layers",
    ),
    "shape": (
        "gpt2",
        in_file(lambda tensors: tensors.update({"transformer.h.0.attn.c_attn.weight": torch.zeros(48, 16)})),
        "model.safetensors: transformer.h.0.attn.c_attn.weight: has shape [48, 16], expected [16, 48]",
    ),
    "quantised": (
        "llama",
        in_file(lambda tensors: tensors.update({"model.norm.weight": torch.zeros(16, dtype=torch.int8)})),
        (
            "model.safetensors: model.norm.weight: holds I8 numbers, expected F32, BF16 or F16; "
            "quantised weights cannot be trained"
        ),
    ),
    "float8": (
        "llama",
        in_file(lambda tensors: tensors.update({"model.norm.weight": torch.zeros(16, dtype=torch.float8_e4m3fn)})),
        (
            "model.safetensors: model.norm.weight: holds F8_E4M3 numbers, expected F32, BF16 or F16; "
            "quantised weights cannot be trained"
        ),
    ),
    "untied without a head": (
        "gpt2-untied",
        in_file(lambda tensors: tensors.pop("lm_head.weight")),
        (
            "model.safetensors: lm_head.weight: is missing, and the model's head is not tied to its embedding "
            "(tie_embeddings is false)"
        ),
    ),
    "tied with another head": (
        "gpt2",
        in_file(lambda tensors: tensors.update({"lm_head.weight": tensors[WTE] + 1})),
        (
            f"model.safetensors: lm_head.weight: differs from {WTE}, but the model has one tensor for both "
            "(tie_embeddings)"
        ),
    ),
    "twice": (
        "gpt2",
        in_file(lambda tensors: tensors.update({"wte.weight": tensors[WTE].clone()})),
        f"model.safetensors: wte.weight: is {WTE} under another name",
    ),
    "another model": (
        "gpt2",
        in_config(n_layer=3),
        (
            "config.json: describes another model than the plan: num_layers is 3, the plan's model has 2 "
            "(profile and plan with --model and this folder)"
        ),
    ),
    "pickle": (
        "gpt2",
        pickled,
        (
            "pytorch_model.bin: is a pickle, which could run any code when it is read; weights are read from "
            "safetensors alone (if you trust it: transformers' from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) "
            "writes safetensors, run by you)"
        ),
    ),
    "nothing": (
        "gpt2",
        lambda folder: (folder / "model.safetensors").unlink(),
        "holds neither model.safetensors nor model.safetensors.index.json",
    ),
    "a way out": (
        "gpt2",
        indexed("../part.safetensors"),
        (
            f"model.safetensors.index.json: weight_map.{WTE}: found '../part.safetensors', expected the name of a "
            ".safetensors file beside it"
        ),
    ),
    "a pickle in the index": (
        "gpt2",
        indexed("part.bin"),
        (
            f"model.safetensors.index.json: weight_map.{WTE}: found 'part.bin', expected the name of a .safetensors "
            "file beside it"
        ),
    ),
    "an index of what is not there": (
        "gpt2",
        indexed("gone.safetensors"),
        f"model.safetensors.index.json: weight_map.{WTE}: names gone.safetensors, which is not there",
    ),
    "torn": (
        "gpt2",
        torn,
        (
            "model.safetensors: is not a safetensors file: Error while deserializing header: incomplete metadata, "
            "file not fully covered"
        ),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, change, message = BAD[case]
    make_folder(name, tmp_path)
    model = model_from_hf_config(tmp_path / "config.json")
    change(tmp_path)
    with pytest.raises(ArtifactError) as refused, Pretrained(tmp_path, model) as weights:
        weights.check_copies(0, 1)
    assert str(refused.value).removeprefix(f"{tmp_path}").lstrip("/: ") == message


def test_what_is_no_folder(tmp_path: Path) -> None:
    make_folder("gpt2", tmp_path)
    model = model_from_hf_config(tmp_path / "config.json")
    with pytest.raises(ArtifactError, match=r"gone: no such folder \(give a folder with model\.safetensors\)"):
        Pretrained(tmp_path / "gone", model)
    with pytest.raises(ArtifactError, match=r"model\.safetensors: is a file, expected the folder it is in"):
        Pretrained(tmp_path / "model.safetensors", model)
