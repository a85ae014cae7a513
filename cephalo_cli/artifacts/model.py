"""The model artifact: the shape of a transformer, without its weights."""

import hashlib
import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import Envelope, NonNegativeInt, PositiveFloat, PositiveInt, Series, Value
from cephalo_cli.artifacts.faults import MisfitError

__all__ = ["Family", "Lora", "Model", "OwnUnits", "RopeScaling", "is_own_source", "own_digest"]

Family = Literal["gpt", "llama", "bert", "vit", "own"]

OF_LLAMA = frozenset({"rope_theta", "rope_scaling", "sliding_window", "num_kv_heads"})
"""Fields that only family llama uses."""
OWN_SOURCE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
OTHERS_ALONE = frozenset({"head_size", "activation", "norm_eps", "frozen", "lora", "linear_bias", "qkv_bias"})
"""Fields that units of one's own have no use for."""
SCALING_FIELDS = {
    "linear": (frozenset[str](), frozenset[str]()),
    "llama3": (frozenset({"original_max_seq_len", "low_freq_factor", "high_freq_factor"}), frozenset[str]()),
    "yarn": (frozenset({"original_max_seq_len"}), frozenset({"beta_fast", "beta_slow", "attention_factor"})),
}
"""Fields of `RopeScaling` that a type needs, and that it may have."""


class RopeScaling(Value):
    """How rotary positions reach further than the model was first trained, see `cephalo_cli.models.rotary`."""

    type: Literal["linear", "llama3", "yarn"]
    """linear: all frequencies slower. llama3 and yarn: the slow ones slower."""
    factor: Annotated[float, Field(ge=1.0)]
    """How much slower."""
    original_max_seq_len: PositiveInt | None = None
    """Longest sequence of the first training (llama3, yarn)."""
    low_freq_factor: PositiveFloat | None = None
    """Pairs that turn fewer times in the original length are slowed in full (llama3)."""
    high_freq_factor: PositiveFloat | None = None
    """Pairs that turn more often keep their frequency (llama3)."""
    beta_fast: PositiveFloat | None = None
    """Pairs that turn more often keep their frequency (yarn); 32 when absent."""
    beta_slow: PositiveFloat | None = None
    """Pairs that turn fewer times are slowed in full (yarn); 1 when absent."""
    attention_factor: PositiveFloat | None = None
    """What cosine and sine are multiplied by (yarn); 0.1 ln(factor) + 1 when absent."""

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        needed, optional = SCALING_FIELDS[self.type]
        for field in sorted(type(self).model_fields.keys() - {"type", "factor"}):
            is_given = getattr(self, field) is not None
            if field in needed and not is_given:
                raise MisfitError(f"is missing, type {self.type!r} needs it", at=(field,))
            if is_given and field not in needed | optional:
                raise MisfitError(f"is not for type {self.type!r}", at=(field,))
        low, high = self.low_freq_factor, self.high_freq_factor
        if low is not None and high is not None and low >= high:
            text = f"found {high}, expected more than low_freq_factor, which is {low}"
            raise MisfitError(text, at=("high_freq_factor",))
        return self


class Lora(Value):
    """Low-rank adapters: the model's own parameters stay, ``scale * B A`` is trained beside some matrices.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
    """

    rank: PositiveInt
    """Rows of A and columns of B."""
    alpha: PositiveFloat | None = None
    """Adapters are scaled by ``alpha / rank``; ``rank`` when absent."""
    targets: Annotated[Series[str], Field(min_length=1)] = ("attention.*",)
    """Which matrices of every block get one: patterns with ``*`` for attention.qkv, attention.out, mlp.up, mlp.out."""

    @property
    def scale(self) -> float:
        """What an adapter's product is multiplied by."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


def own_digest(layouts: tuple[dict[str, tuple[int, ...]], ...], units: tuple[int, ...]) -> str:
    """SHA-256 of the names and shapes of all parameters, unit by unit."""
    lines = [
        f"{index} {name} {list(shape)}" for index, layout in enumerate(units) for name, shape in layouts[layout].items()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_own_source(text: str) -> bool:
    """Whether a text has the form ``package.module:function``."""
    return re.match(OWN_SOURCE, text) is not None


class OwnUnits(Value):
    """Units of one's own, by the shapes of their parameters."""

    source: Annotated[str, Field(pattern=OWN_SOURCE)]
    """``package.module:function``, which gives the units and the loss."""
    layouts: Annotated[Series[dict[str, Series[PositiveInt]]], Field(min_length=1)]
    """The different kinds of unit: names and shapes of parameters."""
    units: Annotated[Series[NonNegativeInt], Field(min_length=3)]
    """Which of ``layouts`` each unit has, in forward order: embedding, blocks, head."""
    sha256: str
    """Digest of names and shapes, see `own_digest`."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for index, layout in enumerate(self.units):
            if layout >= len(self.layouts):
                raise MisfitError(f"found {layout}, expected less than {len(self.layouts)}", at=("units", index))
        expected = own_digest(self.layouts, self.units)
        if self.sha256 != expected:
            raise MisfitError(f"found {self.sha256}, expected {expected}, the digest of the shapes", at=("sha256",))
        return self

    def sizes(self, unit: int) -> tuple[tuple[str, int], ...]:
        """Names and sizes of a unit's parameters."""
        return tuple((name, math.prod(shape)) for name, shape in self.layouts[self.units[unit]].items())


class Model(Envelope):
    """Shape of a transformer. Fields a family does not use are refused, not ignored."""

    kind: Literal["model"] = "model"
    """Always ``model``."""
    name: Annotated[str, Field(min_length=1)]
    """What the model is called."""
    family: Family
    """gpt: learned positions, LayerNorm. llama: RoPE, RMSNorm, gated MLP. bert: text encoder. vit: images. own: units
    of one's own, for which ``num_heads`` is 1 and ``ffn_size`` is ``hidden_size``."""
    num_layers: PositiveInt
    """Number of transformer blocks."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_heads: PositiveInt
    """Number of query heads."""
    num_kv_heads: PositiveInt | None = None
    """Number of key and value heads; ``num_heads`` when absent."""
    head_size: PositiveInt | None = None
    """Width of one head; ``hidden_size / num_heads`` when absent."""
    ffn_size: PositiveInt
    """Width of the MLP's inner layer."""
    vocab_size: PositiveInt | None = None
    """Number of token ids (not for vit)."""
    max_seq_len: PositiveInt | None = None
    """Longest sequence; for gpt and bert the number of learned positions (not for vit)."""
    tie_embeddings: bool = False
    """Whether the head uses the embedding's matrix."""
    linear_bias: bool | None = None
    """Whether linear layers have biases; when absent, true except for llama."""
    qkv_bias: bool | None = None
    """Whether query, key and value projections have biases; ``linear_bias`` when absent."""
    attention_out_bias: bool | None = None
    """Whether attention's output projection has a bias; ``linear_bias`` when absent."""
    activation: Literal["gelu", "gelu-tanh", "silu"] | None = None
    """Activation of the MLP; when absent gelu-tanh for gpt, silu for llama, gelu for bert and vit."""
    norm_eps: PositiveFloat | None = None
    """Added to the variance; when absent 1e-5 (gpt), 1e-6 (llama, vit), 1e-12 (bert)."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary frequencies (llama); 10,000 when absent."""
    rope_scaling: RopeScaling | None = None
    """How rotary positions are stretched (llama); not at all when absent."""
    sliding_window: PositiveInt | None = None
    """How many tokens a token sees, itself included (llama); all before it when absent."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Probability of dropping an activation while training."""
    frozen: Annotated[Series[str], Field(min_length=1)] | None = None
    """Which parameters are not trained: patterns with ``*`` for names like ``block.0.attention.qkv.weight``."""
    lora: Lora | None = None
    """Low-rank adapters; they alone are trained."""
    frozen_dtype: Literal["bfloat16", "float16"] | None = None
    """Dtype in which parameters that are not trained are stored; that of the master weights when absent."""
    own: OwnUnits | None = None
    """The units (own)."""
    image_size: PositiveInt | None = None
    """Height and width of an image in pixels (vit)."""
    patch_size: PositiveInt | None = None
    """Height and width of a patch in pixels (vit)."""
    num_channels: PositiveInt | None = None
    """Colour channels (vit); 3 when absent."""
    num_classes: PositiveInt | None = None
    """Number of classes (vit)."""

    @model_validator(mode="after")
    def _is_a_transformer(self) -> Self:
        if self.head_size is None:
            self._expect_multiple("hidden_size", "num_heads")
        if self.num_kv_heads is not None:
            self._expect_multiple("num_heads", "num_kv_heads")
        image = {"image_size", "patch_size", "num_channels", "num_classes"}
        text = {"vocab_size", "max_seq_len"}
        needed = {"vit": image - {"num_channels"}, "own": {"vocab_size", "own"}}.get(self.family, text)
        for field in sorted(needed):
            if getattr(self, field) is None:
                raise MisfitError(f"is missing, family {self.family!r} needs it", at=(field,))
        foreign = text if self.family == "vit" else image
        foreign |= OTHERS_ALONE if self.family == "own" else {"own"}
        for field in sorted(foreign | (frozenset() if self.family == "llama" else OF_LLAMA)):
            if getattr(self, field) is not None:
                raise MisfitError(f"is not for family {self.family!r}", at=(field,))
        if self.tie_embeddings and self.family == "vit":
            raise MisfitError("found true, but family 'vit' has no embedding to tie", at=("tie_embeddings",))
        if self.image_size is not None:
            self._expect_multiple("image_size", "patch_size")
        return self

    @model_validator(mode="after")
    def _has_its_own_units(self) -> Self:
        if self.own is not None:
            if self.num_layers != len(self.own.units) - 2:
                text = f"found {self.num_layers}, but there are {len(self.own.units)} units"
                raise MisfitError(text, at=("num_layers",))
            if self.tie_embeddings or self.dropout > 0:
                raise MisfitError("models of one's own have no dropout and share nothing", at=("own",))
        return self

    @model_validator(mode="after")
    def _freezes_in_one_way(self) -> Self:
        if self.lora is not None and self.frozen is not None:
            raise MisfitError("is not for models with lora, which trains adapters alone", at=("frozen",))
        if self.frozen_dtype is not None and self.frozen is None and self.lora is None:
            raise MisfitError("is for models with lora or frozen parameters", at=("frozen_dtype",))
        return self

    def _expect_multiple(self, whole: str, part: str) -> None:
        size, divisor = getattr(self, whole), getattr(self, part)
        if size % divisor:
            raise MisfitError(f"found {size}, expected a multiple of {part}, which is {divisor}", at=(whole,))

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def width_of_head(self) -> int:
        """Width of one attention head."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def has_linear_bias(self) -> bool:
        """Whether linear layers have biases."""
        return self.family != "llama" if self.linear_bias is None else self.linear_bias

    @property
    def has_qkv_bias(self) -> bool:
        """Whether query, key and value projections have biases."""
        return self.has_linear_bias if self.qkv_bias is None else self.qkv_bias

    @property
    def has_attention_out_bias(self) -> bool:
        """Whether attention's output projection has a bias."""
        return self.has_linear_bias if self.attention_out_bias is None else self.attention_out_bias

    @property
    def eps(self) -> float:
        """The number added to variances in norms."""
        return self.norm_eps or {"gpt": 1e-5, "llama": 1e-6, "vit": 1e-6, "bert": 1e-12}.get(self.family, 1e-5)

    @property
    def mlp_activation(self) -> Literal["gelu", "gelu-tanh", "silu"]:
        """Activation of the MLP."""
        if self.activation is not None:
            return self.activation
        return "gelu-tanh" if self.family == "gpt" else "silu" if self.family == "llama" else "gelu"

    @property
    def num_channels_or_default(self) -> int:
        """Colour channels of an image."""
        return self.num_channels or 3

    def tokens_per_sample(self, seq_len: int) -> int:
        """Positions one sample occupies in a block: ``seq_len`` for text, patches plus the class token for images."""
        if self.image_size is not None and self.patch_size is not None:
            return (self.image_size // self.patch_size) ** 2 + 1
        return seq_len
