"""A model as a Hugging Face ``config.json``: the way back of `cephalo_cli.catalog.huggingface`.

What is written is read again, and must give the same model; a model that no configuration describes is refused.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cephalo_cli.artifacts.model import Model, RopeScaling
from cephalo_cli.catalog.huggingface import model_from_hf_config
from cephalo_cli.errors import ArtifactError, UsageError

__all__ = ["hf_config", "same_shape", "shape_of"]

_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}
_NO_SHAPE = frozenset({"kind", "schema_version", "created_by", "inputs", "name", "frozen", "frozen_dtype", "lora"})


def hf_config(model: Model, dtype: str) -> dict[str, Any]:
    """Describe a model as ``transformers`` does.

    Args:
        model: The model.
        dtype: Dtype of the weights beside it.

    Raises:
        UsageError: No configuration describes it; the message names the field.
    """
    make = {"gpt": _gpt2, "llama": _llama, "bert": _bert, "vit": _vit}[model.family]
    settings = make(model) | {"dtype": dtype, "torch_dtype": dtype}
    here, there = shape_of(model), shape_of(_read_again(settings, model))
    for name, value in here.items():
        if there[name] != value and name != "dropout":
            raise UsageError(
                f"a {settings['model_type']} configuration gives {there[name]}, the model has {value}",
                where=f"--export: {name}",
                hint="this model has no Hugging Face form; checkpoints keep it",
            )
    return settings


def same_shape(model: Model, other: Model) -> str | None:
    """Name the first field in which two models differ for weights, if any."""
    here, there = shape_of(model), shape_of(other)
    return next((name for name in here if name != "dropout" and here[name] != there[name]), None)


def shape_of(model: Model) -> dict[str, Any]:
    """Everything the meaning of weights depends on, and dropout, with defaults filled in."""
    fields = model.model_dump(exclude=set(_NO_SHAPE))
    fields |= {
        "num_kv_heads": model.kv_heads,
        "head_size": model.width_of_head,
        "linear_bias": model.has_linear_bias,
        "qkv_bias": model.has_qkv_bias,
        "attention_out_bias": model.has_attention_out_bias,
        "norm_eps": model.eps,
        "activation": model.mlp_activation,
    }
    if model.family == "llama":
        fields["rope_theta"] = model.rope_theta or 10_000.0
    if model.family == "vit":
        fields["num_channels"] = model.num_channels_or_default
    return fields


def _read_again(settings: Mapping[str, Any], model: Model) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(settings))
        try:
            return model_from_hf_config(path)
        except ArtifactError as error:
            name = (error.where or "").removeprefix(f"{path}: ")
            raise UsageError(
                f"model {model.name} has no Hugging Face form: {name} {error.message}", where="--export"
            ) from error


def _gpt2(model: Model) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_head": model.num_heads,
        "n_inner": model.ffn_size,
        "vocab_size": model.vocab_size,
        "n_positions": model.max_seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "layer_norm_epsilon": model.eps,
        "activation_function": _ACTIVATIONS[model.mlp_activation],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
    }


def _llama(model: Model) -> dict[str, Any]:
    """Mistral has a sliding window, Qwen2 biases of queries, keys and values alone; all else is Llama."""
    settings: dict[str, Any] = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "rms_norm_eps": model.eps,
        "hidden_act": _ACTIVATIONS[model.mlp_activation],
        "rope_theta": model.rope_theta or 10_000.0,
        "attention_dropout": 0.0,
    }
    if model.head_size is not None:
        settings["head_dim"] = model.head_size
    if model.rope_scaling is not None:
        settings["rope_scaling"] = _scaling(model.rope_scaling)
    if model.has_qkv_bias and not model.has_attention_out_bias:
        window = model.sliding_window
        settings |= {"use_sliding_window": window is not None, "sliding_window": window}
        if window is not None:
            settings["max_window_layers"] = 0
        return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **settings}
    if model.sliding_window is not None:
        settings["sliding_window"] = model.sliding_window
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **settings}
    settings |= {"attention_bias": model.has_qkv_bias, "mlp_bias": model.has_linear_bias}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **settings}


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    names = {
        "original_max_seq_len": "original_max_position_embeddings",
        **{
            name: name for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
        },
    }
    given = {theirs: getattr(scaling, ours) for ours, theirs in names.items() if getattr(scaling, ours) is not None}
    return {"rope_type": scaling.type, "factor": scaling.factor, **given}


def _bert(model: Model) -> dict[str, Any]:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        **_encoder(model),
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "type_vocab_size": 2,
    }


def _vit(model: Model) -> dict[str, Any]:
    labels = {str(number): f"LABEL_{number}" for number in range(model.num_classes or 0)}
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **_encoder(model),
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_channels": model.num_channels_or_default,
        "qkv_bias": model.has_qkv_bias,
        "id2label": labels,
        "label2id": {label: int(number) for number, label in labels.items()},
    }


def _encoder(model: Model) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.ffn_size,
        "layer_norm_eps": model.eps,
        "hidden_act": _ACTIVATIONS[model.mlp_activation],
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), model.dropout),
    }
