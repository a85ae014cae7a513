"""Models of transformers and ours with the same weights, copied by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cephalo_cli.artifacts import Model
from cephalo_cli.catalog import model_from_hf_config
from cephalo_cli.models import ImageBatch, TextBatch, build_unit
from cephalo_cli.units import model_units

transformers: Any = pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ENCODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2: dict[str, Any] = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 with its own head, inner width and activation": (
        "GPT2",
        {
            **GPT2,
            "tie_word_embeddings": False,
            "n_inner": 40,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-3,
        },
    ),
    "llama": ("Llama", {**LLAMA, "rms_norm_eps": 1e-3}),
    "llama tied, with all biases": (
        "Llama",
        {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama with biases of attention alone": ("Llama", {**LLAMA, "attention_bias": True}),
    "llama with wide heads": ("Llama", {**LLAMA, "head_dim": 12, "hidden_act": "gelu"}),
    "llama with linear scaling": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}},
    ),
    "llama with llama3 scaling": ("Llama", {**LLAMA, "rope_parameters": LLAMA3}),
    "llama with yarn scaling": ("Llama", {**LLAMA, "rope_parameters": YARN}),
    "llama with yarn scaling, every parameter": (
        "Llama",
        {**LLAMA, "rope_parameters": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3}},
    ),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 5}),
    "mistral without a window": ("Mistral", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2", {**LLAMA, "tie_word_embeddings": True}),
    "qwen2 with windows": (
        "Qwen2",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
    ),
    "bert": ("Bert", {**ENCODER, "vocab_size": 61, "max_position_embeddings": 64}),
    "bert with its own decoder": (
        "Bert",
        {
            **ENCODER,
            "vocab_size": 61,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        },
    ),
    "vit": ("ViT", {**ENCODER, "image_size": 12, "patch_size": 4, "num_labels": 7}),
    "vit without qkv biases, gray": (
        "ViT",
        {**ENCODER, "image_size": 12, "patch_size": 3, "num_labels": 7, "num_channels": 1, "qkv_bias": False},
    ),
}
CLASSES = {
    "GPT2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "Mistral": "MistralForCausalLM",
    "Qwen2": "Qwen2ForCausalLM",
    "Bert": "BertForMaskedLM",
    "ViT": "ViTForImageClassification",
}


@dataclass
class Twins:
    """One model twice, with the same weights."""

    theirs: Any
    model: Model
    ours: list[Any]

    def logits(self, batch: TextBatch | ImageBatch) -> torch.Tensor:
        x_BTD = self.ours[0](batch)
        for block in self.ours[1:-1]:
            x_BTD = block(x_BTD, batch)
        found: torch.Tensor = self.ours[-1].logits(x_BTD, *self.tied())
        return found

    def loss(self, batch: TextBatch | ImageBatch) -> torch.Tensor:
        x_BTD = self.ours[0](batch)
        for block in self.ours[1:-1]:
            x_BTD = block(x_BTD, batch)
        total: torch.Tensor = self.ours[-1](x_BTD, batch, *self.tied())
        return total / batch.num_counted

    def tied(self) -> tuple[torch.Tensor, ...]:
        return (self.ours[0].matrix,) if self.model.tie_embeddings else ()


def make_twins(name: str, folder: Path, dtype: torch.dtype) -> Twins:
    """Make theirs from a configuration, read what they write of it, and copy the weights by name."""
    kind, settings = CASES[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{kind}Config")(**settings)
    theirs = getattr(transformers, CLASSES[kind])(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    config.save_pretrained(folder)
    model = model_from_hf_config(folder / "config.json")
    ours = [build_unit(model, unit.kind).to(dtype) for unit in model_units(model)]
    state = theirs.state_dict()
    for unit, module in zip(model_units(model), ours, strict=True):
        names = NAMES[model.family]
        for own, parameter in module.named_parameters():
            sources = names[f"{unit.kind}.{own}"]
            parts = [state[source.format(unit.index - 1)] for source in sources]
            if kind == "GPT2" and ".weight" in own and parts[0].ndim == 2 and unit.kind == "block":
                parts = [part.T for part in parts]
            parameter.data.copy_(torch.cat(parts).view(parameter.shape))
    return Twins(theirs, model, ours)


def _linears(unit: str, prefix: str, names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Names of weights and of biases; what a model does not have is never asked for."""
    return {
        f"{unit}.{own}.{leaf}": tuple(f"{prefix}{source}.{leaf}" for source in sources)
        for own, sources in names.items()
        for leaf in ("weight", "bias")
    }


NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt": {
        "embedding.matrix": ("transformer.wte.weight",),
        "embedding.positions": ("transformer.wpe.weight",),
        **_linears(
            "block",
            "transformer.h.{0}.",
            {
                "attention_norm": ("ln_1",),
                "attention.qkv": ("attn.c_attn",),
                "attention.out": ("attn.c_proj",),
                "mlp_norm": ("ln_2",),
                "mlp.up": ("mlp.c_fc",),
                "mlp.out": ("mlp.c_proj",),
            },
        ),
        **_linears("head", "transformer.", {"norm": ("ln_f",)}),
        "head.matrix": ("lm_head.weight",),
    },
    "llama": {
        "embedding.matrix": ("model.embed_tokens.weight",),
        **_linears(
            "block",
            "model.layers.{0}.",
            {
                "attention_norm": ("input_layernorm",),
                "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "attention.out": ("self_attn.o_proj",),
                "mlp_norm": ("post_attention_layernorm",),
                "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
                "mlp.out": ("mlp.down_proj",),
            },
        ),
        "head.norm.weight": ("model.norm.weight",),
        "head.matrix": ("lm_head.weight",),
    },
    "bert": {
        "embedding.matrix": ("bert.embeddings.word_embeddings.weight",),
        "embedding.positions": ("bert.embeddings.position_embeddings.weight",),
        "embedding.types": ("bert.embeddings.token_type_embeddings.weight",),
        **_linears("embedding", "bert.embeddings.", {"norm": ("LayerNorm",)}),
        **_linears(
            "block",
            "bert.encoder.layer.{0}.",
            {
                "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
                "attention.out": ("attention.output.dense",),
                "attention_norm": ("attention.output.LayerNorm",),
                "mlp.up": ("intermediate.dense",),
                "mlp.out": ("output.dense",),
                "mlp_norm": ("output.LayerNorm",),
            },
        ),
        **_linears("head", "cls.predictions.transform.", {"dense": ("dense",), "norm": ("LayerNorm",)}),
        "head.matrix": ("cls.predictions.decoder.weight",),
        "head.bias": ("cls.predictions.decoder.bias",),
    },
    "vit": {
        "embedding.class_token": ("vit.embeddings.cls_token",),
        "embedding.positions": ("vit.embeddings.position_embeddings",),
        **_linears("embedding", "vit.embeddings.", {"patches": ("patch_embeddings.projection",)}),
        **_linears(
            "block",
            "vit.layers.{0}.",
            {
                "attention_norm": ("layernorm_before",),
                "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
                "attention.out": ("attention.o_proj",),
                "mlp_norm": ("layernorm_after",),
                "mlp.up": ("mlp.fc1",),
                "mlp.out": ("mlp.fc2",),
            },
        ),
        **_linears("head", "", {"norm": ("vit.layernorm",), "classifier": ("classifier",)}),
    },
}
"""For every parameter of ours the tensors of theirs it is made of, as transformers 5 names them in memory."""
