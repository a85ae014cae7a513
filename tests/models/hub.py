"""Tiny Hugging Face folders, made by ``transformers`` with random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers

from cephalo_cli.artifacts import Model
from cephalo_cli.models import build_unit
from cephalo_cli.models.batch import ImageBatch, TextBatch
from cephalo_cli.units import model_units

VOCAB = 260
LENGTH = 12

TEXT = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
LLAMA = {**TEXT, "vocab_size": VOCAB, "max_position_embeddings": 16, "num_key_value_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 4,
    "n_inner": 24,
    "vocab_size": VOCAB,
    "n_positions": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
BERT = {**TEXT, **NO_DROPOUT, "vocab_size": VOCAB, "max_position_embeddings": 16}
VIT = {**TEXT, **NO_DROPOUT, "image_size": 8, "patch_size": 4, "num_labels": 3}

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2-untied": ("GPT2Config", "GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "llama-biased": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "bert": ("BertConfig", "BertForMaskedLM", BERT),
    "bert-untied": ("BertConfig", "BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "vit": ("ViTConfig", "ViTForImageClassification", VIT),
}
"""By name: configuration class, model class, settings."""


def make_folder(
    name: str, folder: Path, *, std: float = 0.2, dtype: torch.dtype = torch.float32, **changes: Any
) -> Any:
    """Save a model with random weights; gives the model."""
    config_class, model_class, settings = FAMILIES[name]
    config = getattr(transformers, config_class)(**(settings | changes))
    torch.manual_seed(0)
    model: Any = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    model = model.to(dtype).eval()
    model.save_pretrained(folder)
    return model


def load_folder(name: str, folder: Path) -> Any:
    """Load a folder with ``transformers``."""
    model = getattr(transformers, FAMILIES[name][1]).from_pretrained(folder)
    return model.eval()


def some_batch(name: str, *, seed: int = 1) -> TextBatch | ImageBatch:
    """Two samples of tokens or images."""
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        images = torch.randn(2, 3, 8, 8, generator=generator)
        return ImageBatch(samples=(0, 1), images_BCHW=images, labels_B=torch.zeros(2, dtype=torch.int64))
    tokens = torch.randint(0, VOCAB, (2, LENGTH), generator=generator)
    return TextBatch(samples=(0, 1), tokens_BT=tokens, targets_BT=tokens)


@torch.no_grad()
def their_logits(model: Any, batch: TextBatch | ImageBatch) -> torch.Tensor:
    """What ``transformers`` makes of a batch."""
    if isinstance(batch, ImageBatch):
        logits: torch.Tensor = model(pixel_values=batch.images_BCHW).logits
    else:
        logits = model(input_ids=batch.tokens_BT).logits
    return logits


def empty_modules(model: Model) -> list[Any]:
    """Every unit's module, without values."""
    return [build_unit(model, unit.kind) for unit in model_units(model)]


@torch.no_grad()
def our_logits(model: Model, modules: list[Any], batch: TextBatch | ImageBatch) -> torch.Tensor:
    """What our modules make of a batch."""
    x_BTD = modules[0](batch)
    for block in modules[1:-1]:
        x_BTD = block(x_BTD, batch)
    logits: torch.Tensor = modules[-1].logits(x_BTD, modules[0].matrix if model.tie_embeddings else None)
    return logits
