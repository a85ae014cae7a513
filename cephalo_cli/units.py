"""The units of a model: what is gathered together, how many parameters each has, and what moves between them.

A model is an embedding, ``num_layers`` equal blocks and a head with the loss. Two units never share a parameter: a tied
head *borrows* the embedding's matrix, so the embedding must be gathered while the head runs.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.errors import UsageError

__all__ = [
    "DTYPE_BYTES",
    "Unit",
    "boundary_bytes",
    "is_frozen",
    "model_units",
    "num_frozen_parameters",
    "num_parameters",
]

DTYPE_BYTES: dict[DType, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is gathered together."""

    index: int
    """Position in the model, from 0."""
    name: str
    """``embedding``, ``block.0`` ... ``block.N-1``, ``head``."""
    kind: UnitKind
    """Which curve of the profile it follows."""
    num_parameters: int
    """Parameters it owns."""
    num_frozen: int = 0
    """How many of them are not trained."""
    borrows: int | None = None
    """Index of the unit whose parameters it also needs (a tied head needs the embedding)."""


def model_units(model: Model) -> tuple[Unit, ...]:
    """List a model's units in forward order."""
    sizes = _embedding_size(model), _block_size(model), _head_size(model)
    last = model.num_layers + 1
    units = (
        Unit(index=0, name="embedding", kind="embedding", num_parameters=sizes[0]),
        *(
            Unit(index=layer + 1, name=f"block.{layer}", kind="block", num_parameters=sizes[1])
            for layer in range(model.num_layers)
        ),
        Unit(
            index=last,
            name="head",
            kind="head",
            num_parameters=sizes[2],
            borrows=0 if model.tie_embeddings else None,
        ),
    )
    if model.frozen is None:
        return units
    return tuple(
        replace(
            unit,
            num_frozen=sum(
                size for name, size in _named_sizes(model, unit.kind) if is_frozen(model, f"{unit.name}.{name}")
            ),
        )
        for unit in units
    )


def is_frozen(model: Model, name: str) -> bool:
    """Say whether a parameter, such as ``block.0.attention.qkv.weight``, is not trained."""
    return any(fnmatchcase(name, pattern) for pattern in model.frozen or ())


def num_frozen_parameters(model: Model) -> int:
    """Count the parameters that are not trained.

    Raises:
        UsageError: A pattern of ``frozen`` names no parameter, or nothing is left to train.
    """
    if model.frozen is None:
        return 0
    units = model_units(model)
    names = [f"{unit.name}.{name}" for unit in units for name, _ in _named_sizes(model, unit.kind)]
    for number, pattern in enumerate(model.frozen):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"{pattern!r} names no parameter of model {model.name}",
                where=f"frozen[{number}]",
                hint=f"names look like {names[-1]}, or block.*.attention.*",
            )
    frozen = sum(unit.num_frozen for unit in units)
    if frozen == num_parameters(model):
        raise UsageError(f"all parameters of model {model.name} are frozen, nothing is left to train", where="frozen")
    return frozen


def num_parameters(model: Model) -> int:
    """Count the parameters of the whole model; a tied matrix counts once."""
    return _embedding_size(model) + model.num_layers * _block_size(model) + _head_size(model)


def boundary_bytes(model: Model, seq_len: int, dtype: DType, num_samples: int) -> int:
    """Bytes of the activation between two units for ``num_samples`` samples: samples x tokens x hidden x dtype."""
    return num_samples * model.tokens_per_sample(seq_len) * model.hidden_size * DTYPE_BYTES[dtype]


def _named_sizes(model: Model, kind: UnitKind) -> tuple[tuple[str, int], ...]:
    """Names and sizes of a unit's parameters, as `cephalo_cli.models` has them (gpt, llama)."""
    hidden, ffn, is_gpt = model.hidden_size, model.ffn_size, model.family == "gpt"
    matrix = ("matrix", (model.vocab_size or 0) * hidden)
    if kind == "embedding":
        return (matrix, ("positions", (model.max_seq_len or 0) * hidden)) if is_gpt else (matrix,)
    if kind == "head":
        return (*_norm("norm", hidden, bias=is_gpt), *(() if model.tie_embeddings else (matrix,)))
    queries = model.num_heads * model.width_of_head
    qkv = queries + 2 * model.kv_heads * model.width_of_head
    up = ffn if is_gpt else 2 * ffn
    return (
        *_norm("attention_norm", hidden, bias=is_gpt),
        *_linear("attention.qkv", hidden, qkv, bias=model.has_qkv_bias),
        *_linear("attention.out", queries, hidden, bias=model.has_linear_bias),
        *_norm("mlp_norm", hidden, bias=is_gpt),
        *_linear("mlp.up", hidden, up, bias=model.has_linear_bias),
        *_linear("mlp.out", ffn, hidden, bias=model.has_linear_bias),
    )


def _linear(name: str, num_in: int, num_out: int, *, bias: bool) -> tuple[tuple[str, int], ...]:
    weight = (f"{name}.weight", num_in * num_out)
    return (weight, (f"{name}.bias", num_out)) if bias else (weight,)


def _norm(name: str, size: int, *, bias: bool) -> tuple[tuple[str, int], ...]:
    return ((f"{name}.weight", size), (f"{name}.bias", size)) if bias else ((f"{name}.weight", size),)


def _embedding_size(model: Model) -> int:
    hidden = model.hidden_size
    if model.family == "vit":
        patch = model.patch_size or 0
        patches = model.num_channels_or_default * patch * patch * hidden + hidden
        return patches + hidden + model.tokens_per_sample(0) * hidden
    tokens = (model.vocab_size or 0) * hidden
    if model.family == "llama":
        return tokens
    positions = (model.max_seq_len or 0) * hidden
    types_and_norm = 2 * hidden + 2 * hidden if model.family == "bert" else 0
    return tokens + positions + types_and_norm


def _block_size(model: Model) -> int:
    hidden, ffn = model.hidden_size, model.ffn_size
    queries = model.num_heads * model.width_of_head
    keys_and_values = 2 * model.kv_heads * model.width_of_head
    attention = hidden * (queries + keys_and_values) + queries * hidden
    biases = (queries + keys_and_values if model.has_qkv_bias else 0) + (hidden if model.has_linear_bias else 0)
    if model.family == "llama":
        mlp_biases = 2 * ffn + hidden if model.has_linear_bias else 0
        return attention + biases + 3 * hidden * ffn + mlp_biases + 2 * hidden
    mlp_biases = ffn + hidden if model.has_linear_bias else 0
    return attention + biases + 2 * hidden * ffn + mlp_biases + 4 * hidden


def _head_size(model: Model) -> int:
    hidden = model.hidden_size
    if model.family == "vit":
        classes = model.num_classes or 0
        return 2 * hidden + hidden * classes + classes
    vocab = model.vocab_size or 0
    matrix = 0 if model.tie_embeddings else vocab * hidden
    if model.family == "bert":
        return hidden * hidden + hidden + 2 * hidden + matrix + vocab
    return matrix + (hidden if model.family == "llama" else 2 * hidden)
