"""Time of a unit from first principles: what it must compute and move, over what the device can.

Symbols, for one unit and one microbatch of M tokens:

    G    operations of the matrix products forward, 2 M k n each; backward takes as many again for the gradient of the
         input, and T, those with trained matrices, for the gradient of the matrix
    A    bytes that products and elementwise operations read and write forward; backward twice as many
    S    bytes of the attention scores, where they are materialised; Q operations of attention forward
    W    bytes of the unit's gradients in float32; frozen parameters have none
    N    elements of the matrices in the unit's products
    R    peak rate, V peak memory bandwidth of the device; a..h its coefficients (`catalog.coefficients`)

    forward  = a G/R + c A/V + e S/V + (a plain | f fused) Q/R + g
    backward = b (G + T)/R + 2 c A/V + d W/V + 2 e S/V + (2 b plain | 2.5 f fused) Q/R + 2 g
    both     times q = 1 + 1.5 (1 - (1 + N / 8e8) ** (-h / 1.5)), then times (1 + (forward + backward) / 10 ms) ** k,
             k = 0.0275 h / (0.0275 + h)

Fused attention computes the scores a second time in its backward, hence 2.5 (Dao, FlashAttention-2, arXiv 2307.08691,
section 4.1).

Note: sustained load
    The last line is the loss of clock rate under load, in two parts. Wide matrices (N elements in the unit's products)
    keep the arithmetic units at the card's limit of power, which narrow ones never reach: q grows with N and stays
    below 2.5, since no clock falls further (NVIDIA L4: 2040 MHz at most, 795 MHz at least). What is left is heat: one
    long call is no more of it than many short ones, so 32 times the microbatch takes at most 10 % more a sample
    (32 ** 0.0275). Published series grow by more, up to 2.6 times, with the larger microbatches measured last; taken as
    the call's own length that made every estimate of large microbatches too slow.

Note: masks
    Q is what the operator computes, not what a step needs (`costmodel.flops`). A sliding window reaches
    `scaled_dot_product_attention` as a mask, and an operator with a mask computes every score and hides some, while the
    causal one leaves out the later half; f is fitted with the causal one, so a window counts Q twice where attention is
    fused. (Forward and backward of 2,048 tokens on a CPU core took 0.107 s causal, 0.228 s without a mask, and 0.209 s
    with a window of 256.) Packed documents are hidden by a mask as well, but whether a sample has several only the data
    knows: profiles are of samples that are one document each.
"""

from dataclasses import dataclass

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.catalog.coefficients import Coefficients
from cephalo_cli.profiler.attention import Attention
from cephalo_cli.units import DTYPE_BYTES, adapted, projections, trained_products, trained_sizes

__all__ = ["Work", "unit_seconds", "unit_work"]

POWER_LIMIT = 1.5
"""What the limit of power adds to the time at most."""
POWER_ELEMENTS = 8e8
HEAT_EXPONENT = 0.0275
HEAT_S = 0.01
GRADIENT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one unit computes and moves in the forward pass of one microbatch."""

    products_flops: float
    """G."""
    trained_flops: float
    """T."""
    moved_bytes: float
    """A."""
    scores_bytes: float
    """S; 0 where attention is fused."""
    plain_flops: float
    """Q where attention is plain."""
    fused_flops: float
    """Q where attention is fused."""
    gradients_bytes: float
    """W."""
    matrix_elements: float
    """N."""


def unit_work(
    model: Model, *, kind: UnitKind, tokens: int, dtype: DType, microbatch: int, attention: Attention
) -> Work:
    """Count what a unit computes and moves.

    Args:
        model: The model.
        kind: Which unit.
        tokens: Tokens of one sample.
        dtype: Compute dtype.
        microbatch: Samples.
        attention: How attention is computed.
    """
    if kind == "block":
        return _block(model, (microbatch, tokens), DTYPE_BYTES[dtype], attention)
    count = _embedding if kind == "embedding" else _head
    return count(model, tokens * microbatch, DTYPE_BYTES[dtype])


def unit_seconds(work: Work, peak_flops: float, bandwidth: float, fit: Coefficients) -> tuple[float, float]:
    """Seconds of a unit's forward and backward.

    Args:
        work: What it computes and moves.
        peak_flops: R, operations a second.
        bandwidth: V, bytes a second.
        fit: The device type's coefficients.
    """
    products_s = work.products_flops / peak_flops
    attention_s = work.fused_flops * fit.fused_attention / peak_flops
    plain_s = work.plain_flops / peak_flops
    moved_s = fit.passes * work.moved_bytes / bandwidth + fit.scores * work.scores_bytes / bandwidth
    forward_s = fit.forward_products * (products_s + plain_s) + moved_s + attention_s + fit.launch_s
    backward_s = (
        fit.backward_products * (products_s + work.trained_flops / peak_flops + 2 * plain_s)
        + 2 * moved_s
        + fit.gradients * work.gradients_bytes / bandwidth
        + 2.5 * attention_s
        + 2 * fit.launch_s
    )
    limited = 1 + POWER_LIMIT * (1 - (1 + work.matrix_elements / POWER_ELEMENTS) ** (-fit.sustained / POWER_LIMIT))
    exponent = HEAT_EXPONENT * fit.sustained / (HEAT_EXPONENT + fit.sustained)
    slower = limited * (1 + limited * (forward_s + backward_s) / HEAT_S) ** exponent
    return forward_s * slower, backward_s * slower


def _block(model: Model, shape: tuple[int, int], size: int, attention: Attention) -> Work:
    """Count a block as published implementations run it, one operator after another.

    Passes over activations, each reading and writing: llama's norm converts to float32, squares, averages, scales and
    converts back (14 elements moved a value, two norms), turns queries and keys (10 each), adds two branches (3 each)
    and gates the wide part (5); the others' norms are one operator (2 and a bias, twice), with additions and dropout;
    gelu is one operator (2 on the wide part). The programs whose attention is plain write gpt's tanh-gelu as a chain of
    elementwise operators (10).
    """
    microbatch, tokens = shape
    hidden, ffn, heads = model.hidden_size, model.ffn_size, model.num_heads * model.width_of_head
    kept = model.kv_heads * model.width_of_head
    if model.family == "llama":
        products = [(hidden, heads), (hidden, kept), (hidden, kept), (heads, hidden), (hidden, ffn), (hidden, ffn)]
        elements = (2 * 14 + 2 * 10 + 2 * 3) * hidden + 5 * ffn
    else:
        products = [(hidden, heads + 2 * kept), (heads, hidden), (hidden, ffn)]
        is_chain = model.family == "gpt" and attention == "plain" and model.mlp_activation == "gelu-tanh"
        elements = (2 * 3 + 2 * 3 + 2 * 2) * hidden + (10 if is_chain else 2) * ffn
    products.append((ffn, hidden))
    sizes, lora_rank = projections(model), 0 if model.lora is None else model.lora.rank
    for name in adapted(model):
        products += [(sizes[name][0], lora_rank), (lora_rank, sizes[name][1])]
    rows = microbatch * tokens
    is_plain = attention == "plain"
    core_flops = 4.0 * microbatch * tokens**2 * heads
    if model.sliding_window is not None and model.sliding_window < tokens and not is_plain:
        core_flops *= 2
    return Work(
        products_flops=_flops(rows, products),
        trained_flops=_flops(rows, products) * trained_products(model, "block"),
        moved_bytes=float(size * (rows * elements + _moved(rows, products))),
        scores_bytes=float(size * microbatch * model.num_heads * tokens**2) if is_plain else 0.0,
        plain_flops=core_flops if is_plain else 0.0,
        fused_flops=0.0 if is_plain else core_flops,
        gradients_bytes=float(GRADIENT_BYTES * sum(trained_sizes(model, "block").values())),
        matrix_elements=float(_elements(products)),
    )


def _embedding(model: Model, rows: int, size: int) -> Work:
    """Look rows up and add positions (image patches: one product); the gradient is written whole."""
    products: list[tuple[int, int]] = []
    if model.family == "vit" and model.patch_size is not None:
        products.append((model.num_channels_or_default * model.patch_size**2, model.hidden_size))
    return _dense(model, "embedding", (rows, size), products, 5 * model.hidden_size)


def _head(model: Model, rows: int, size: int) -> Work:
    """Norm, logits, and the loss in float32: logits are converted, and their logarithmic softmax read and written.

    A tied head adds its gradient to the embedding's. A ViT's head sees one token in each image.
    """
    width = model.vocab_size or model.num_classes or 0
    if model.family == "vit":
        rows //= model.tokens_per_sample(0)
    products = [(model.hidden_size, width)]
    if model.family == "bert":
        products.append((model.hidden_size, model.hidden_size))
    return _dense(model, "head", (rows, size), products, 6 * model.hidden_size + 6 * width * 4 // size)


def _dense(
    model: Model, kind: UnitKind, shape: tuple[int, int], products: list[tuple[int, int]], elements: int
) -> Work:
    """Count a unit of rows that are looked up or multiplied; ``shape`` is rows and bytes of an element."""
    rows, size = shape
    parameters = sum(trained_sizes(model, kind).values())
    if kind == "head" and model.tie_embeddings:
        parameters += trained_sizes(model, "embedding").get("matrix", 0)
    return Work(
        products_flops=_flops(rows, products),
        trained_flops=_flops(rows, products) * trained_products(model, kind),
        moved_bytes=float(size * (rows * elements + _moved(rows, products))),
        scores_bytes=0.0,
        plain_flops=0.0,
        fused_flops=0.0,
        gradients_bytes=float(GRADIENT_BYTES * parameters),
        matrix_elements=float(_elements(products)),
    )


def _flops(rows: int, products: list[tuple[int, int]]) -> float:
    return 2.0 * rows * _elements(products)


def _elements(products: list[tuple[int, int]]) -> int:
    return sum(wide * narrow for wide, narrow in products)


def _moved(rows: int, products: list[tuple[int, int]]) -> int:
    return sum(rows * (wide + narrow) for wide, narrow in products) + _elements(products)
