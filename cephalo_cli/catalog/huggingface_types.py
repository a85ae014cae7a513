"""The model types that can be read from a Hugging Face ``config.json``, setting by setting."""

from collections.abc import Mapping
from typing import Any

from cephalo_cli.catalog.huggingface_parts import REQUIRED, Layout, Settings, activation, dropout, refuse
from cephalo_cli.catalog.huggingface_rotary import ROTARY, layers_with_windows, rotary, windowed

__all__ = ["LAYOUTS"]

_ENCODER_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _gpt2(settings: Settings, where: str) -> Settings:
    hidden = settings.get("n_embd")
    inner = settings.get("n_inner")
    if settings.get("n_ctx", settings.get("n_positions")) != settings.get("n_positions"):
        raise refuse("differs from n_positions", where, "n_ctx")
    return {
        "ffn_size": 4 * hidden if inner is None and isinstance(hidden, int) else inner,
        "activation": activation(settings, "activation_function", "gelu_new", where),
        "dropout": dropout(settings, ("resid_pdrop", "embd_pdrop", "attn_pdrop"), where, default=0.1),
    }


def _llama(settings: Settings, where: str) -> Settings:
    attention, mlp = settings.get("attention_bias", False), settings.get("mlp_bias", False)
    biases = {"linear_bias": mlp or None}
    if attention != mlp:
        biases |= {"qkv_bias": attention, "attention_out_bias": attention}
    return {**biases, **_rotary(settings, where)}


def _mistral(settings: Settings, where: str) -> Settings:
    window = windowed(settings, settings.get("sliding_window", 4096), where)
    return {"sliding_window": window, **_rotary(settings, where)}


def _qwen2(settings: Settings, where: str) -> Settings:
    has_window = layers_with_windows(settings, where)
    window = windowed(settings, settings.get("sliding_window", 4096) if has_window else None, where)
    return {"qkv_bias": True, "sliding_window": window, **_rotary(settings, where)}


def _rotary(settings: Settings, where: str) -> Settings:
    return {"activation": activation(settings, "hidden_act", "silu", where), **rotary(settings, where)}


def _bert(settings: Settings, where: str) -> Settings:
    return {
        "activation": activation(settings, "hidden_act", "gelu", where),
        "dropout": dropout(settings, _ENCODER_DROPOUT, where, default=0.1),
    }


def _vit(settings: Settings, where: str) -> Settings:
    labels = settings.get("id2label")
    return {
        "activation": activation(settings, "hidden_act", "gelu", where),
        "dropout": dropout(settings, _ENCODER_DROPOUT, where, default=0.0),
        "num_classes": len(labels) if isinstance(labels, dict) else settings.get("num_labels", 2),
    }


_LLAMA_FIELDS: Mapping[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", REQUIRED),
    "hidden_size": ("hidden_size", REQUIRED),
    "num_heads": ("num_attention_heads", REQUIRED),
    "num_kv_heads": ("num_key_value_heads", None),
    "head_size": ("head_dim", None),
    "ffn_size": ("intermediate_size", REQUIRED),
    "vocab_size": ("vocab_size", REQUIRED),
    "max_seq_len": ("max_position_embeddings", REQUIRED),
    "tie_embeddings": ("tie_word_embeddings", False),
    "norm_eps": ("rms_norm_eps", 1e-6),
}
_ENCODER_FIELDS: Mapping[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", REQUIRED),
    "hidden_size": ("hidden_size", REQUIRED),
    "num_heads": ("num_attention_heads", REQUIRED),
    "ffn_size": ("intermediate_size", REQUIRED),
    "norm_eps": ("layer_norm_eps", 1e-12),
}
_ROTARY = ROTARY | {"hidden_act"}
_NO_DROPOUT: Mapping[str, tuple[Any, ...]] = {"attention_dropout": (0.0, None)}

LAYOUTS: Mapping[str, Layout] = {
    "gpt2": Layout(
        family="gpt",
        fields={
            "num_layers": ("n_layer", REQUIRED),
            "hidden_size": ("n_embd", REQUIRED),
            "num_heads": ("n_head", REQUIRED),
            "vocab_size": ("vocab_size", REQUIRED),
            "max_seq_len": ("n_positions", REQUIRED),
            "tie_embeddings": ("tie_word_embeddings", True),
            "norm_eps": ("layer_norm_epsilon", 1e-5),
        },
        only={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
        },
        neutral=frozenset(
            f"summary_{part}" for part in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
        ),
        special=_gpt2,
        special_names=frozenset({"n_inner", "n_ctx", "activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop"}),
    ),
    "llama": Layout(
        family="llama",
        fields=_LLAMA_FIELDS,
        only={**_NO_DROPOUT, "pretraining_tp": (1, None)},
        special=_llama,
        special_names=_ROTARY | {"attention_bias", "mlp_bias"},
    ),
    "mistral": Layout(
        family="llama",
        fields=_LLAMA_FIELDS,
        only=_NO_DROPOUT,
        special=_mistral,
        special_names=_ROTARY | {"sliding_window"},
    ),
    "qwen2": Layout(
        family="llama",
        fields=_LLAMA_FIELDS,
        only={**_NO_DROPOUT, "use_mrope": (False,)},
        special=_qwen2,
        special_names=_ROTARY | {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"},
    ),
    "bert": Layout(
        family="bert",
        fields={
            **_ENCODER_FIELDS,
            "vocab_size": ("vocab_size", REQUIRED),
            "max_seq_len": ("max_position_embeddings", REQUIRED),
            "tie_embeddings": ("tie_word_embeddings", True),
        },
        only={"position_embedding_type": ("absolute",), "type_vocab_size": (2,)},
        neutral=frozenset(
            {
                "classifier_dropout",
                "directionality",
                *(f"pooler_{part}" for part in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head")),
                "pooler_type",
            }
        ),
        special=_bert,
        special_names=frozenset({"hidden_act", *_ENCODER_DROPOUT}),
    ),
    "vit": Layout(
        family="vit",
        fields={
            **_ENCODER_FIELDS,
            "image_size": ("image_size", REQUIRED),
            "patch_size": ("patch_size", REQUIRED),
            "num_channels": ("num_channels", None),
            "qkv_bias": ("qkv_bias", None),
        },
        only={"problem_type": (None, "single_label_classification"), "tie_word_embeddings": (True, False)},
        neutral=frozenset({"encoder_stride", "pooler_act", "pooler_output_size"}),
        special=_vit,
        special_names=frozenset({"hidden_act", *_ENCODER_DROPOUT}),
    ),
}
"""By ``model_type``."""
