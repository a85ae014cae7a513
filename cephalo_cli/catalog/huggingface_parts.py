"""Reading single settings of a Hugging Face ``config.json``; every refusal names the file and the setting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cephalo_cli.artifacts.model import Family
from cephalo_cli.errors import ArtifactError

__all__ = ["REQUIRED", "Layout", "Settings", "activation", "dropout", "refuse", "refuse_unsupported", "setting"]

Settings = dict[str, Any]
REQUIRED = object()
"""The default of a setting that a file must have."""
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
NEUTRAL = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cls_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "keys_to_ignore_at_inference",
        "label2id",
        "length_penalty",
        "mask_token_id",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
    }
)
"""Settings of tokenizers, of generating and of files, which training the model does not feel."""
REFUSED = {
    "add_cross_attention": "cross attention is not supported",
    "alibi": "ALiBi positions are not supported",
    "auto_map": "the model is code of its own, which is never run",
    "is_decoder": "encoders used as decoders are not supported",
    "is_encoder_decoder": "models of an encoder and a decoder are not supported",
    "n_routed_experts": "mixtures of experts are not supported",
    "num_experts": "mixtures of experts are not supported",
    "num_experts_per_tok": "mixtures of experts are not supported",
    "num_local_experts": "mixtures of experts are not supported",
    "pruned_heads": "pruned heads are not supported",
    "quantization_config": "quantised weights are not supported",
    "tie_encoder_decoder": "models of an encoder and a decoder are not supported",
    "use_alibi": "ALiBi positions are not supported",
}
"""Settings that are harmless only where they are false, empty or null, and what they would mean."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one ``model_type`` is read."""

    family: Family
    fields: Mapping[str, tuple[str, Any]]
    """For each field of the model artifact the setting's name and its default where the file may leave it out."""
    special: Callable[[Settings, str], Settings]
    """Reads what needs more than one setting."""
    special_names: frozenset[str]
    """Names of the settings that ``special`` reads."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings with the values that are supported; what a file leaves out has the first."""
    neutral: frozenset[str] = frozenset()
    """More settings that change nothing here."""


def refuse(message: str, where: str, name: str) -> ArtifactError:
    """Make the error for a setting."""
    return ArtifactError(message, where=f"{where}: {name}")


def refuse_unsupported(settings: Settings, layout: Layout, where: str) -> None:
    """Look at every setting of a file.

    Raises:
        ArtifactError: One is unknown, or has a value that is not supported.
    """
    known = {name for name, _ in layout.fields.values()} | layout.special_names | layout.neutral | NEUTRAL
    for name, value in settings.items():
        allowed = layout.only.get(name)
        if allowed is not None:
            if value not in allowed:
                raise refuse(f"{value!r} is not supported, expected {' or '.join(map(repr, allowed))}", where, name)
        elif name in REFUSED:
            if value:
                raise refuse(REFUSED[name], where, name)
        elif name not in known:
            raise refuse("is a setting this program does not know", where, name)


def setting(settings: Settings, name: str, default: Any, where: str) -> Any:
    """Give a setting, or its default.

    Raises:
        ArtifactError: It is missing and has no default.
    """
    if name in settings:
        return settings[name]
    if default is REQUIRED:
        raise refuse("is missing", where, name)
    return default


def activation(settings: Settings, name: str, default: str, where: str) -> str:
    """Give the activation by our name.

    Raises:
        ArtifactError: It is another one.
    """
    written = settings.get(name, default)
    if not isinstance(written, str) or written not in ACTIVATIONS:
        raise refuse(f"{written!r} is not supported, expected one of {', '.join(ACTIVATIONS)}", where, name)
    return ACTIVATIONS[written]


def dropout(settings: Settings, names: tuple[str, ...], where: str, *, default: float) -> Any:
    """Give the one dropout probability.

    Raises:
        ArtifactError: There are several.
    """
    values = [settings.get(name, default) for name in names]
    for name, value in zip(names, values, strict=True):
        if value != values[0]:
            text = f"{value!r} differs from {names[0]} {values[0]!r}; one dropout probability is supported"
            raise refuse(text, where, name)
    return values[0]
