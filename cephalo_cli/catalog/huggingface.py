"""Hugging Face ``config.json`` as a model: every setting is understood, or known not to matter, or refused by name.

Note: what is read otherwise than written
    * A sliding window changes nothing up to its own length, so it becomes the longest sequence.
    * ``attn_pdrop`` and its like may equal the other dropout probabilities; attention probabilities are never dropped
      here (see `models.dropout`), the other two places are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.model import Family, Model
from cephalo_cli.errors import ArtifactError

__all__ = ["model_from_hf_config"]

_Settings = dict[str, Any]
_REQUIRED = object()
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
_NEUTRAL = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "gradient_checkpointing",
        "initializer_range",
        "keys_to_ignore_at_inference",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
"""Settings of tokenizers, of generating and of files, which training the model does not feel."""


@dataclass(frozen=True, kw_only=True)
class _Type:
    """How one ``model_type`` is read."""

    family: Family
    fields: Mapping[str, tuple[str, Any]]
    """For each field of the model artifact the setting's name and its default where the file may leave it out."""
    special: Callable[[_Settings, str], _Settings]
    """Reads what needs more than one setting."""
    special_names: frozenset[str]
    """Names of the settings that ``special`` reads."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings with the values that are supported; what a file leaves out has the first."""
    neutral: frozenset[str] = frozenset()
    """More settings that change nothing here."""


def model_from_hf_config(path: str | Path) -> Model:
    """Read a Hugging Face ``config.json`` of type gpt2, llama, mistral, qwen2, bert or vit.

    Args:
        path: The file.

    Raises:
        ArtifactError: The file cannot be read, or has a setting that is unknown, missing or not supported; the message
            names the file and the setting.
    """
    where = str(path)
    settings = store.read_object(path)
    kind = settings.pop("model_type", None)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ArtifactError(
            f"model type {kind!r} is not supported, expected one of {', '.join(_TYPES)}", where=f"{where}: model_type"
        )
    layout = _TYPES[kind]
    _refuse_unsupported(settings, layout, where)
    fields = {name: _setting(settings, *source, where) for name, source in layout.fields.items()}
    fields |= layout.special(settings, where)
    values = {name: value for name, value in fields.items() if value is not None}
    document = {"kind": "model", "name": _name(settings, Path(path)), "family": layout.family, **values}
    try:
        return cast("Model", store.loads(json.dumps(document).encode(), where=where))
    except ArtifactError as error:
        ours = (error.where or where).removeprefix(f"{where}: ")
        theirs = layout.fields[ours][0] if ours in layout.fields else ours
        raise ArtifactError(error.message, where=f"{where}: {theirs}") from error


def _refuse_unsupported(settings: _Settings, layout: _Type, where: str) -> None:
    known = {name for name, _ in layout.fields.values()} | layout.special_names | layout.neutral | _NEUTRAL
    for key, value in settings.items():
        allowed = layout.only.get(key)
        if allowed is not None and value not in allowed:
            shown = " or ".join(map(repr, allowed))
            raise ArtifactError(f"{value!r} is not supported, expected {shown}", where=f"{where}: {key}")
        if allowed is None and key not in known:
            raise ArtifactError("is a setting this program does not know", where=f"{where}: {key}")


def _setting(settings: _Settings, name: str, default: Any, where: str) -> Any:
    if name in settings:
        return settings[name]
    if default is _REQUIRED:
        raise ArtifactError("is missing", where=f"{where}: {name}")
    return default


def _name(settings: _Settings, path: Path) -> str:
    written = settings.get("_name_or_path")
    if isinstance(written, str) and written.strip("/. "):
        return written
    return path.resolve().parent.name or "model"


def _activation(settings: _Settings, name: str, default: str, where: str) -> str:
    written = settings.get(name, default)
    if written not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ArtifactError(f"{written!r} is not supported, expected one of {known}", where=f"{where}: {name}")
    return _ACTIVATIONS[written]


def _dropout(settings: _Settings, names: tuple[str, ...], where: str, *, default: float) -> Any:
    values = [settings.get(name, default) for name in names]
    for name, value in zip(names, values, strict=True):
        if value != values[0]:
            raise ArtifactError(
                f"{value!r} differs from {names[0]} {values[0]!r}; one dropout probability is supported",
                where=f"{where}: {name}",
            )
    return values[0]


def _gpt2(settings: _Settings, where: str) -> _Settings:
    hidden = settings.get("n_embd")
    inner = settings.get("n_inner")
    if settings.get("n_ctx", settings.get("n_positions")) != settings.get("n_positions"):
        raise ArtifactError("differs from n_positions", where=f"{where}: n_ctx")
    return {
        "ffn_size": 4 * hidden if inner is None and isinstance(hidden, int) else inner,
        "activation": _activation(settings, "activation_function", "gelu_new", where),
        "dropout": _dropout(settings, ("resid_pdrop", "embd_pdrop", "attn_pdrop"), where, default=0.1),
    }


def _llama(settings: _Settings, where: str) -> _Settings:
    bias = settings.get("attention_bias", False)
    if bias != settings.get("mlp_bias", False):
        raise ArtifactError(f"{bias!r} is supported together with an equal mlp_bias", where=f"{where}: attention_bias")
    return {"linear_bias": bias or None, **_rotary(settings, where)}


def _mistral(settings: _Settings, where: str) -> _Settings:
    window = settings.get("sliding_window", 4096)
    return {**_rotary(settings, where), **_windowed(settings, window, where)}


def _qwen2(settings: _Settings, where: str) -> _Settings:
    window = settings.get("sliding_window", 4096) if settings.get("use_sliding_window", False) else None
    return {"qkv_bias": True, **_rotary(settings, where), **_windowed(settings, window, where)}


def _rotary(settings: _Settings, where: str) -> _Settings:
    """Read the two spellings of rotary positions: ``rope_theta`` with ``rope_scaling``, or ``rope_parameters``."""
    theta = settings.get("rope_theta")
    for name in ("rope_scaling", "rope_parameters"):
        given = settings.get(name)
        if given is None:
            continue
        kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, dict) else given
        if kind != "default":
            raise ArtifactError(f"{kind!r} is not supported, expected unscaled positions", where=f"{where}: {name}")
        theta = given.get("rope_theta", theta)
    activation = _activation(settings, "hidden_act", "silu", where)
    return {"rope_theta": float(theta) if isinstance(theta, int) else theta, "activation": activation}


def _windowed(settings: _Settings, window: Any, where: str) -> _Settings:
    longest = _setting(settings, "max_position_embeddings", _REQUIRED, where)
    if window is None:
        return {}
    if not isinstance(window, int) or not isinstance(longest, int):
        raise ArtifactError(f"found {window!r}, expected a number of tokens", where=f"{where}: sliding_window")
    return {"max_seq_len": min(longest, window)}


def _bert(settings: _Settings, where: str) -> _Settings:
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    activation = _activation(settings, "hidden_act", "gelu", where)
    return {"activation": activation, "dropout": _dropout(settings, names, where, default=0.1)}


def _vit(settings: _Settings, where: str) -> _Settings:
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    labels = settings.get("id2label")
    return {
        "activation": _activation(settings, "hidden_act", "gelu", where),
        "dropout": _dropout(settings, names, where, default=0.0),
        "num_classes": len(labels) if isinstance(labels, dict) else settings.get("num_labels", 2),
    }


_LLAMA_FIELDS: Mapping[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", _REQUIRED),
    "hidden_size": ("hidden_size", _REQUIRED),
    "num_heads": ("num_attention_heads", _REQUIRED),
    "num_kv_heads": ("num_key_value_heads", None),
    "head_size": ("head_dim", None),
    "ffn_size": ("intermediate_size", _REQUIRED),
    "vocab_size": ("vocab_size", _REQUIRED),
    "max_seq_len": ("max_position_embeddings", _REQUIRED),
    "tie_embeddings": ("tie_word_embeddings", False),
    "norm_eps": ("rms_norm_eps", 1e-6),
}
_ENCODER_FIELDS: Mapping[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", _REQUIRED),
    "hidden_size": ("hidden_size", _REQUIRED),
    "num_heads": ("num_attention_heads", _REQUIRED),
    "ffn_size": ("intermediate_size", _REQUIRED),
    "norm_eps": ("layer_norm_eps", 1e-12),
}
_ROTARY = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "hidden_act"})
_DROPPED = frozenset({"hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"})
_NO_DROPOUT: Literal["attention_dropout"] = "attention_dropout"

_TYPES: Mapping[str, _Type] = {
    "gpt2": _Type(
        family="gpt",
        fields={
            "num_layers": ("n_layer", _REQUIRED),
            "hidden_size": ("n_embd", _REQUIRED),
            "num_heads": ("n_head", _REQUIRED),
            "vocab_size": ("vocab_size", _REQUIRED),
            "max_seq_len": ("n_positions", _REQUIRED),
            "tie_embeddings": ("tie_word_embeddings", True),
            "norm_eps": ("layer_norm_epsilon", 1e-5),
        },
        only={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
            "add_cross_attention": (False,),
        },
        neutral=frozenset(
            f"summary_{part}" for part in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
        ),
        special=_gpt2,
        special_names=frozenset({"n_inner", "n_ctx", "activation_function", "resid_pdrop", "embd_pdrop", "attn_pdrop"}),
    ),
    "llama": _Type(
        family="llama",
        fields=_LLAMA_FIELDS,
        only={_NO_DROPOUT: (0.0,), "pretraining_tp": (1,)},
        special=_llama,
        special_names=_ROTARY | {"attention_bias", "mlp_bias"},
    ),
    "mistral": _Type(
        family="llama",
        fields=_LLAMA_FIELDS,
        only={_NO_DROPOUT: (0.0,)},
        special=_mistral,
        special_names=_ROTARY | {"sliding_window"},
    ),
    "qwen2": _Type(
        family="llama",
        fields=_LLAMA_FIELDS,
        only={_NO_DROPOUT: (0.0,), "use_mrope": (False,)},
        neutral=frozenset({"max_window_layers", "layer_types"}),
        special=_qwen2,
        special_names=_ROTARY | {"sliding_window", "use_sliding_window"},
    ),
    "bert": _Type(
        family="bert",
        fields={
            **_ENCODER_FIELDS,
            "vocab_size": ("vocab_size", _REQUIRED),
            "max_seq_len": ("max_position_embeddings", _REQUIRED),
            "tie_embeddings": ("tie_word_embeddings", True),
        },
        only={
            "position_embedding_type": ("absolute",),
            "type_vocab_size": (2,),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        neutral=frozenset({"classifier_dropout", "id2label", "label2id"}),
        special=_bert,
        special_names=_DROPPED,
    ),
    "vit": _Type(
        family="vit",
        fields={
            **_ENCODER_FIELDS,
            "image_size": ("image_size", _REQUIRED),
            "patch_size": ("patch_size", _REQUIRED),
            "num_channels": ("num_channels", None),
            "qkv_bias": ("qkv_bias", None),
        },
        neutral=frozenset({"label2id", "encoder_stride", "pooler_act", "pooler_output_size"}),
        special=_vit,
        special_names=_DROPPED | {"id2label", "num_labels"},
    ),
}
