"""Floating-point operations of a unit, counted the way utilisation is reported.

A multiply-add counts two. Matrix products of the weights: 2 for each weight and position. Attention: scores and their
product with the values, 4 x pairs x width, where pairs of T positions that see each other are

    T^2                     in bidirectional families (bert, vit)
    T^2 / 2                 in causal ones (gpt, llama), where half of the scores are never needed
    W T - W (W - 1) / 2     with a sliding window of W < T: position t sees min(t, W), counted exactly; T^2 / 2 at most

Packed documents see fewer still, but only the data knows how many: for them this is an upper bound. These are the
operations a step needs. A program may run more: the executor's attention computes what a window or a document hides
(see `profiler.roofline`). Norms, activations and lookups are not counted. Backward is twice forward.

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
    return 2.0 * tokens * weights + 4.0 * _pairs(model, tokens) * width


def _pairs(model: Model, tokens: int) -> float:
    """Positions of a sample that see each other."""
    if model.family not in CAUSAL:
        return float(tokens * tokens)
    window, causal = model.sliding_window, tokens * tokens / 2
    if window is None or window >= tokens:
        return causal
    return min(window * tokens - window * (window - 1) / 2, causal)


def _embedding(model: Model, tokens: int) -> float:
    if model.patch_size is None:
        return 0.0
    return 2.0 * (tokens - 1) * model.num_channels_or_default * model.patch_size**2 * model.hidden_size


def _head(model: Model, tokens: int) -> float:
    if model.family == "vit":
        return 2.0 * model.hidden_size * (model.num_classes or 0)
    dense = model.hidden_size**2 if model.family == "bert" else 0
    return 2.0 * tokens * (dense + model.hidden_size * (model.vocab_size or 0))
