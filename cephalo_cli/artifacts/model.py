"""The model artifact: the shape of a transformer, without its weights."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cephalo_cli.artifacts.base import Envelope, PositiveFloat, PositiveInt, Series
from cephalo_cli.artifacts.faults import MisfitError

__all__ = ["Family", "Model"]

Family = Literal["gpt", "llama", "bert", "vit"]

NOT_OF_FAMILY: dict[Family, frozenset[str]] = {
    "gpt": frozenset({"rope_theta", "num_kv_heads"}),
    "llama": frozenset(),
    "bert": frozenset({"rope_theta", "num_kv_heads", "frozen"}),
    "vit": frozenset({"rope_theta", "num_kv_heads", "frozen"}),
}
"""Fields a family does not use, beside those of images or text."""


class Model(Envelope):
    """Shape of a transformer. Fields a family does not use are refused, not ignored."""

    kind: Literal["model"] = "model"
    """Always ``model``."""
    name: Annotated[str, Field(min_length=1)]
    """What the model is called."""
    family: Family
    """gpt: learned positions, LayerNorm. llama: RoPE, RMSNorm, gated MLP. bert: text encoder. vit: images."""
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
    activation: Literal["gelu", "gelu-tanh", "silu"] | None = None
    """Activation of the MLP; when absent gelu-tanh for gpt, silu for llama, gelu for bert and vit."""
    norm_eps: PositiveFloat | None = None
    """Added to the variance; when absent 1e-5 (gpt), 1e-6 (llama, vit), 1e-12 (bert)."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary frequencies (llama); 10,000 when absent."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Probability of dropping an activation while training."""
    frozen: Annotated[Series[str], Field(min_length=1)] | None = None
    """Which parameters are not trained: patterns with ``*`` for names like ``block.0.attention.qkv.weight`` (gpt,
    llama)."""
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
        needed = image - {"num_channels"} if self.family == "vit" else text
        for field in sorted(needed):
            if getattr(self, field) is None:
                raise MisfitError(f"is missing, family {self.family!r} needs it", at=(field,))
        foreign = text if self.family == "vit" else image
        for field in sorted(foreign | NOT_OF_FAMILY[self.family]):
            if getattr(self, field) is not None:
                raise MisfitError(f"is not for family {self.family!r}", at=(field,))
        if self.tie_embeddings and self.family == "vit":
            raise MisfitError("found true, but family 'vit' has no embedding to tie", at=("tie_embeddings",))
        if self.image_size is not None:
            self._expect_multiple("image_size", "patch_size")
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
    def eps(self) -> float:
        """The number added to variances in norms."""
        return self.norm_eps or {"gpt": 1e-5, "llama": 1e-6, "vit": 1e-6, "bert": 1e-12}[self.family]

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
