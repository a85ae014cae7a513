"""Floating-point operations of a unit, counted the way utilisation is reported.

A multiply-add counts two. Matrix products of the weights: 2 for each weight and position. Attention: scores and their
product with the values, 4 x positions x positions x width; half of it in causal families (gpt, llama), where half of
the scores are never needed. Norms, activations and lookups are not counted. Backward is twice forward.

Source: Chowdhery et al., PaLM (arXiv 2204.02311), appendix B; the causal half as in FlashAttention-2 (Dao, 2023).
"""

from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.units import adapted, projections

__all__ = ["forward_flops"]

CAUSAL = frozenset({"gpt", "llama"})


def forward_flops(model: Model, kind: UnitKind, seq_len: int) -> float:
    """Operations of one unit's forward on one sample; 0 for units of one's own, whose operations nobody counted.

    Args:
        model: The model's shape.
        kind: Kind of the unit.
        seq_len: Tokens of a sample (for vit ignored: it follows from the image).
    """
    if model.own is not None:
        return 0.0
    tokens = model.tokens_per_sample(seq_len)
    if kind == "block":
        return _block(model, tokens)
    return _embedding(model, tokens) if kind == "embedding" else _head(model, tokens)


def _block(model: Model, tokens: int) -> float:
    hidden = model.hidden_size
    width = model.num_heads * model.width_of_head
    keys_and_values = 2 * model.kv_heads * model.width_of_head
    matrices = 3 if model.family == "llama" else 2
    weights = hidden * (width + keys_and_values) + width * hidden + matrices * hidden * model.ffn_size
    if model.lora is not None:
        weights += sum(model.lora.rank * sum(projections(model)[name]) for name in adapted(model))
    attention = 4.0 * tokens * tokens * width
    return 2.0 * tokens * weights + (attention / 2 if model.family in CAUSAL else attention)


def _embedding(model: Model, tokens: int) -> float:
    if model.patch_size is None:
        return 0.0
    return 2.0 * (tokens - 1) * model.num_channels_or_default * model.patch_size**2 * model.hidden_size


def _head(model: Model, tokens: int) -> float:
    if model.family == "vit":
        return 2.0 * model.hidden_size * (model.num_classes or 0)
    dense = model.hidden_size**2 if model.family == "bert" else 0
    return 2.0 * tokens * (dense + model.hidden_size * (model.vocab_size or 0))
