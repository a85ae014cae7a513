"""Which tensors of a Hugging Face folder make up which parameter, family by family.

A parameter is made of one or more tensors, one under the other along the first dimension: Llama's queries, keys and
values are three tensors in a file and one matrix here, as are the gate and the wide part of its MLP. GPT-2's files keep
matrices the other way round (``Conv1D``: inputs x outputs), so they are turned. Where dimensions of size 1 or pixels of
a patch are laid out apart in the file, the elements have the same order all the same.

Names are those that ``transformers`` writes today; `ours` knows how older files spell them.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cephalo_cli.artifacts.model import Family, Model

__all__ = ["Part", "TensorMap", "ours", "tensor_map"]

PREFIX: Mapping[Family, str] = {"gpt": "transformer.", "llama": "model.", "bert": "bert.", "vit": "vit."}
"""What precedes the names of everything but the head; a file of the bare model leaves it out."""
HEADS = ("lm_head.", "cls.", "classifier.")
"""How names in a head begin."""
BUFFERS = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq|embeddings\.position_ids)$")
"""Tensors that follow from the configuration; old files hold them, and they may be of any dtype."""
UNUSED: Mapping[Family, re.Pattern[str]] = {
    "gpt": re.compile(r"(?!)"),
    "llama": re.compile(r"(?!)"),
    "bert": re.compile(r"bert\.pooler\.|cls\.seq_relationship\."),
    "vit": re.compile(r"vit\.pooler\."),
}
"""Tensors of heads that are not trained here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of a file, and how it lies in a parameter."""

    key: str
    """Its name in the file."""
    shape: tuple[int, ...]
    """Its shape in the file."""
    is_turned: bool = False
    """Whether the parameter has it transposed."""

    @property
    def num_elements(self) -> int:
        """Elements it has."""
        return math.prod(self.shape)

    @property
    def row_elements(self) -> int:
        """Elements of one row, as the parameter has it."""
        return self.shape[0] if self.is_turned else math.prod(self.shape[1:])


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """How a model's parameters are kept in files."""

    units: Mapping[str, Mapping[str, tuple[Part, ...]]]
    """By unit and parameter: the tensors it is made of, in order."""
    copies: Mapping[str, str]
    """Tensors that a file may hold a second time, by the name of the first: the matrix of a tied head."""
    repeats: Mapping[str, str]
    """Tensors that files hold beside the one that is used, by its name: BERT's bias of the vocabulary, where the head
    has a matrix of its own. They are written equal."""

    def parts(self) -> dict[str, Part]:
        """All tensors, by name, in the order of the units."""
        return {part.key: part for unit in self.units.values() for parts in unit.values() for part in parts}


def tensor_map(model: Model) -> TensorMap:
    """List the tensors that a model's files hold, by unit and parameter."""
    make = {"gpt": _gpt, "llama": _llama, "bert": _bert, "vit": _vit}[model.family]
    return make(model)


def ours(key: str, family: Family, known: Collection[str]) -> str | None:
    """Give the name that `tensor_map` uses for a tensor of a file.

    Args:
        key: Its name in the file.
        family: The model's family.
        known: Names that `tensor_map` uses.

    Returns:
        The name; the key itself where it is not known; None where the tensor is not needed: a buffer that follows from
        the configuration, or a head that is not trained here.
    """
    name = key
    if name not in known and not name.startswith((PREFIX[family], *HEADS)):
        name = PREFIX[family] + name
    if family == "bert":
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    if name in known:
        return name
    return None if BUFFERS.search(name) or UNUSED[family].match(name) else key


def _gpt(model: Model) -> TensorMap:
    hidden, vocab = model.hidden_size, model.vocab_size or 0
    width = model.num_heads * model.width_of_head
    units = {
        "embedding": {
            "matrix": _one("transformer.wte.weight", vocab, hidden),
            "positions": _one("transformer.wpe.weight", model.max_seq_len or 0, hidden),
        }
    }
    for layer in range(model.num_layers):
        at = f"transformer.h.{layer}."
        units[f"block.{layer}"] = {
            **_norm("attention_norm", f"{at}ln_1", hidden),
            **_turned("attention.qkv", f"{at}attn.c_attn", hidden, 3 * width),
            **_turned("attention.out", f"{at}attn.c_proj", width, hidden),
            **_norm("mlp_norm", f"{at}ln_2", hidden),
            **_turned("mlp.up", f"{at}mlp.c_fc", hidden, model.ffn_size),
            **_turned("mlp.out", f"{at}mlp.c_proj", model.ffn_size, hidden),
        }
    units["head"] = _norm("norm", "transformer.ln_f", hidden)
    return _with_matrix(model, units, "transformer.wte.weight", "lm_head.weight")


def _llama(model: Model) -> TensorMap:
    hidden, ffn = model.hidden_size, model.ffn_size
    queries, kept = model.num_heads * model.width_of_head, model.kv_heads * model.width_of_head
    bias = model.has_linear_bias
    units = {"embedding": {"matrix": _one("model.embed_tokens.weight", model.vocab_size or 0, hidden)}}
    for layer in range(model.num_layers):
        at = f"model.layers.{layer}."
        attention = [
            (f"{at}self_attn.{name}_proj", size) for name, size in zip("qkv", (queries, kept, kept), strict=True)
        ]
        wide = [(f"{at}mlp.{name}_proj", ffn) for name in ("gate", "up")]
        units[f"block.{layer}"] = {
            "attention_norm.weight": _one(f"{at}input_layernorm.weight", hidden),
            **_stacked("attention.qkv", attention, hidden, bias=model.has_qkv_bias),
            **_stacked(
                "attention.out", [(f"{at}self_attn.o_proj", hidden)], queries, bias=model.has_attention_out_bias
            ),
            "mlp_norm.weight": _one(f"{at}post_attention_layernorm.weight", hidden),
            **_stacked("mlp.up", wide, hidden, bias=bias),
            **_stacked("mlp.out", [(f"{at}mlp.down_proj", hidden)], ffn, bias=bias),
        }
    units["head"] = {"norm.weight": _one("model.norm.weight", hidden)}
    return _with_matrix(model, units, "model.embed_tokens.weight", "lm_head.weight")


def _bert(model: Model) -> TensorMap:
    hidden, vocab = model.hidden_size, model.vocab_size or 0
    at, predictions = "bert.embeddings.", "cls.predictions."
    units = {
        "embedding": {
            "matrix": _one(f"{at}word_embeddings.weight", vocab, hidden),
            "positions": _one(f"{at}position_embeddings.weight", model.max_seq_len or 0, hidden),
            "types": _one(f"{at}token_type_embeddings.weight", 2, hidden),
            **_norm("norm", f"{at}LayerNorm", hidden),
        }
    }
    for layer in range(model.num_layers):
        at = f"bert.encoder.layer.{layer}."
        units[f"block.{layer}"] = _encoder_block(
            model,
            attention=[f"{at}attention.self.{name}" for name in ("query", "key", "value")],
            out=f"{at}attention.output.dense",
            mlp=(f"{at}intermediate.dense", f"{at}output.dense"),
            norms=(f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"),
        )
    is_tied = model.tie_embeddings
    bias, again = f"{predictions}bias", f"{predictions}decoder.bias"
    units["head"] = {
        **_stacked("dense", [(f"{predictions}transform.dense", hidden)], hidden, bias=True),
        **_norm("norm", f"{predictions}transform.LayerNorm", hidden),
        "bias": _one(bias if is_tied else again, vocab),
    }
    found = _with_matrix(model, units, "bert.embeddings.word_embeddings.weight", f"{predictions}decoder.weight")
    copies = {**found.copies, **({again: bias} if is_tied else {})}
    return TensorMap(units=found.units, copies=copies, repeats={} if is_tied else {bias: again})


def _vit(model: Model) -> TensorMap:
    hidden, patch = model.hidden_size, model.patch_size or 0
    at, classes = "vit.embeddings.", model.num_classes or 0
    patches = Part(
        key=f"{at}patch_embeddings.projection.weight", shape=(hidden, model.num_channels_or_default, patch, patch)
    )
    units = {
        "embedding": {
            "patches.weight": (patches,),
            "patches.bias": _one(f"{at}patch_embeddings.projection.bias", hidden),
            "class_token": _one(f"{at}cls_token", 1, 1, hidden),
            "positions": _one(f"{at}position_embeddings", 1, model.tokens_per_sample(0), hidden),
        }
    }
    for layer in range(model.num_layers):
        at = f"vit.encoder.layer.{layer}."
        units[f"block.{layer}"] = _encoder_block(
            model,
            attention=[f"{at}attention.attention.{name}" for name in ("query", "key", "value")],
            out=f"{at}attention.output.dense",
            mlp=(f"{at}intermediate.dense", f"{at}output.dense"),
            norms=(f"{at}layernorm_before", f"{at}layernorm_after"),
        )
    units["head"] = {
        **_norm("norm", "vit.layernorm", hidden),
        **_stacked("classifier", [("classifier", classes)], hidden, bias=True),
    }
    return TensorMap(units=units, copies={}, repeats={})


_Parameters = dict[str, tuple[Part, ...]]


def _encoder_block(
    model: Model, *, attention: list[str], out: str, mlp: tuple[str, str], norms: tuple[str, str]
) -> _Parameters:
    hidden, ffn, bias = model.hidden_size, model.ffn_size, model.has_linear_bias
    return {
        **_norm("attention_norm", norms[0], hidden),
        **_stacked("attention.qkv", [(name, hidden) for name in attention], hidden, bias=model.has_qkv_bias),
        **_stacked("attention.out", [(out, hidden)], hidden, bias=model.has_attention_out_bias),
        **_norm("mlp_norm", norms[1], hidden),
        **_stacked("mlp.up", [(mlp[0], ffn)], hidden, bias=bias),
        **_stacked("mlp.out", [(mlp[1], hidden)], ffn, bias=bias),
    }


def _with_matrix(model: Model, units: dict[str, _Parameters], embedding: str, matrix: str) -> TensorMap:
    """Give an untied head its matrix; of a tied one it is a copy."""
    if model.tie_embeddings:
        return TensorMap(units=units, copies={matrix: embedding}, repeats={})
    units["head"] |= {"matrix": _one(matrix, model.vocab_size or 0, model.hidden_size)}
    return TensorMap(units=units, copies={}, repeats={})


def _one(key: str, *shape: int) -> tuple[Part, ...]:
    return (Part(key=key, shape=shape),)


def _norm(name: str, key: str, size: int) -> _Parameters:
    return {f"{name}.{leaf}": _one(f"{key}.{leaf}", size) for leaf in ("weight", "bias")}


def _stacked(name: str, pieces: list[tuple[str, int]], num_in: int, *, bias: bool) -> _Parameters:
    weight = tuple(Part(key=f"{key}.weight", shape=(num_out, num_in)) for key, num_out in pieces)
    if not bias:
        return {f"{name}.weight": weight}
    return {
        f"{name}.weight": weight,
        f"{name}.bias": tuple(Part(key=f"{key}.bias", shape=(num_out,)) for key, num_out in pieces),
    }


def _turned(name: str, key: str, num_in: int, num_out: int) -> _Parameters:
    weight = Part(key=f"{key}.weight", shape=(num_in, num_out), is_turned=True)
    return {f"{name}.weight": (weight,), f"{name}.bias": _one(f"{key}.bias", num_out)}
