"""The units of a model: what is gathered together, how many parameters each has, and what moves between them.

A model is an embedding, ``num_layers`` equal blocks and a head with the loss. Two units never share a parameter: a tied
head *borrows* the embedding's matrix, so the embedding must be gathered while the head runs.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Lora, Model, OwnUnits
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.errors import UsageError

__all__ = [
    "DTYPE_BYTES",
    "Unit",
    "adapted",
    "boundary_bytes",
    "is_frozen",
    "model_units",
    "num_frozen_parameters",
    "num_parameters",
    "projections",
    "trained_products",
    "trained_sizes",
    "unit_of_kind",
]

DTYPE_BYTES: dict[DType, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ADAPTERS = (".lora_a", ".lora_b")
"""How the names of adapters end."""
PRODUCTS = (*ADAPTERS, *(f"{name}.weight" for name in ("qkv", "out", "up", "dense", "classifier", "patches")))
"""How the names of matrices end that something is multiplied by, those of the vocabulary apart."""
NUM_TEXT_TYPES = 2
"""A sample of bert's family has at most two texts."""


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
    backward_reads: bool = True
    """Whether its backward reads its parameters. That of a lookup does not, nor that of a projection of what needs no
    gradient; only an embedding with a norm does (bert)."""

    @property
    def num_trained(self) -> int:
        """How many of its parameters are trained: those with a gradient."""
        return self.num_parameters - self.num_frozen


def model_units(model: Model) -> tuple[Unit, ...]:
    """List a model's units in forward order."""
    if model.own is not None:
        return _own_units(model.own)
    sizes = [_size(model, kind) for kind in ("embedding", "block", "head")]
    last = model.num_layers + 1
    units = (
        Unit(
            index=0,
            name="embedding",
            kind="embedding",
            num_parameters=sizes[0],
            backward_reads=model.family == "bert",
        ),
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
    if model.frozen is None and model.lora is None:
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


def _own_units(own: OwnUnits) -> tuple[Unit, ...]:
    last = len(own.units) - 1
    sizes = [sum(size for _, size in own.sizes(index)) for index in range(last + 1)]
    return (
        Unit(index=0, name="embedding", kind="embedding", num_parameters=sizes[0]),
        *(
            Unit(index=index, name=f"block.{index - 1}", kind="block", num_parameters=sizes[index])
            for index in range(1, last)
        ),
        Unit(index=last, name="head", kind="head", num_parameters=sizes[last]),
    )


def unit_of_kind(model: Model, kind: UnitKind) -> int:
    """Index of the unit that stands for its kind: of blocks of one's own that differ the largest, else the first."""
    if kind != "block":
        return 0 if kind == "embedding" else model.num_layers + 1
    if model.own is None:
        return 1
    blocks = model_units(model)[1:-1]
    return max(blocks, key=lambda unit: unit.num_parameters).index


def is_frozen(model: Model, name: str) -> bool:
    """Say whether a parameter, such as ``block.0.attention.qkv.weight``, is not trained."""
    if model.lora is not None:
        return not name.endswith(ADAPTERS)
    return any(fnmatchcase(name, pattern) for pattern in model.frozen or ())


def trained_sizes(model: Model, kind: UnitKind) -> dict[str, int]:
    """Names and sizes of the parameters of a kind of unit that are trained, in one of the units at least.

    A profile has one curve for all blocks, so a parameter counts as frozen there where it is in every block.
    """
    units = [unit.name for unit in model_units(model) if unit.kind == kind]
    return {
        name: size
        for name, size in _named_sizes(model, kind)
        if not all(is_frozen(model, f"{unit}.{name}") for unit in units)
    }


def trained_products(model: Model, kind: UnitKind) -> float:
    """Fraction of the matrices of a unit's products, by elements, whose gradient is needed."""
    sizes, trained = dict(_named_sizes(model, kind)), trained_sizes(model, kind)
    matrices = {name: size for name, size in sizes.items() if name.endswith(PRODUCTS)}
    if kind == "head" and model.tie_embeddings:
        matrices["embedding.matrix"] = dict(_named_sizes(model, "embedding"))["matrix"]
        trained |= {f"embedding.{name}": size for name, size in trained_sizes(model, "embedding").items()}
    if kind == "head" and "matrix" in sizes:
        matrices["matrix"] = sizes["matrix"]
    whole = sum(matrices.values())
    return sum(size for name, size in matrices.items() if name in trained) / whole if whole else 1.0


def num_frozen_parameters(model: Model) -> int:
    """Count the parameters that are not trained.

    Raises:
        UsageError: A pattern of ``frozen`` or ``lora.targets`` names nothing, or nothing is left to train.
    """
    units = model_units(model)
    if model.frozen is None:
        return sum(unit.num_frozen for unit in units)
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
    if model.own is not None:
        return sum(unit.num_parameters for unit in _own_units(model.own))
    return _size(model, "embedding") + model.num_layers * _size(model, "block") + _size(model, "head")


def boundary_bytes(model: Model, seq_len: int, dtype: DType, num_samples: int) -> int:
    """Bytes of the activation between two units for ``num_samples`` samples: samples x tokens x hidden x dtype."""
    return num_samples * model.tokens_per_sample(seq_len) * model.hidden_size * DTYPE_BYTES[dtype]


def _size(model: Model, kind: UnitKind) -> int:
    return sum(size for _, size in _named_sizes(model, kind))


def _named_sizes(model: Model, kind: UnitKind) -> tuple[tuple[str, int], ...]:
    """Names and sizes of a unit's parameters, as `cephalo_cli.models` has them."""
    if model.own is not None:
        return model.own.sizes(unit_of_kind(model, kind))
    if kind == "embedding":
        return _embedding(model)
    return _block(model) if kind == "block" else _head(model)


def _embedding(model: Model) -> tuple[tuple[str, int], ...]:
    hidden = model.hidden_size
    if model.family == "vit":
        pixels = model.num_channels_or_default * (model.patch_size or 0) ** 2
        places = ("class_token", hidden), ("positions", model.tokens_per_sample(0) * hidden)
        return (*_linear("patches", pixels, hidden, bias=True), *places)
    matrix = ("matrix", (model.vocab_size or 0) * hidden)
    if model.family == "llama":
        return (matrix,)
    positions = ("positions", (model.max_seq_len or 0) * hidden)
    if model.family == "gpt":
        return matrix, positions
    return matrix, positions, ("types", NUM_TEXT_TYPES * hidden), *_norm("norm", hidden, bias=True)


def _block(model: Model) -> tuple[tuple[str, int], ...]:
    hidden, ffn = model.hidden_size, model.ffn_size
    is_llama = model.family == "llama"
    queries = model.num_heads * model.width_of_head
    qkv = queries + 2 * model.kv_heads * model.width_of_head
    adapters = () if model.lora is None else _adapters(model, model.lora)
    return (
        *_norm("attention_norm", hidden, bias=not is_llama),
        *_linear("attention.qkv", hidden, qkv, bias=model.has_qkv_bias),
        *_linear("attention.out", queries, hidden, bias=model.has_attention_out_bias),
        *_norm("mlp_norm", hidden, bias=not is_llama),
        *_linear("mlp.up", hidden, 2 * ffn if is_llama else ffn, bias=model.has_linear_bias),
        *_linear("mlp.out", ffn, hidden, bias=model.has_linear_bias),
        *adapters,
    )


def projections(model: Model) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the matrices of a block, by name."""
    hidden, ffn = model.hidden_size, model.ffn_size
    queries = model.num_heads * model.width_of_head
    return {
        "attention.qkv": (hidden, queries + 2 * model.kv_heads * model.width_of_head),
        "attention.out": (queries, hidden),
        "mlp.up": (hidden, 2 * ffn if model.family == "llama" else ffn),
        "mlp.out": (ffn, hidden),
    }


def adapted(model: Model) -> tuple[str, ...]:
    """Name the matrices of a block that have an adapter.

    Raises:
        UsageError: A pattern of ``lora.targets`` names none.
    """
    if model.lora is None:
        return ()
    names = tuple(projections(model))
    for number, pattern in enumerate(model.lora.targets):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"{pattern!r} names no matrix of a block", where=f"lora.targets[{number}]", hint=", ".join(names)
            )
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in model.lora.targets))


def _adapters(model: Model, lora: Lora) -> tuple[tuple[str, int], ...]:
    sizes = projections(model)
    return tuple(
        (f"{name}.{leaf}", lora.rank * size)
        for name in adapted(model)
        for leaf, size in zip(("lora_a", "lora_b"), sizes[name], strict=True)
    )


def _head(model: Model) -> tuple[tuple[str, int], ...]:
    hidden, vocab = model.hidden_size, model.vocab_size or 0
    norm = _norm("norm", hidden, bias=model.family != "llama")
    if model.family == "vit":
        return (*norm, *_linear("classifier", hidden, model.num_classes or 0, bias=True))
    matrix = () if model.tie_embeddings else (("matrix", vocab * hidden),)
    if model.family == "bert":
        return (*_linear("dense", hidden, hidden, bias=True), *norm, *matrix, ("bias", vocab))
    return (*norm, *matrix)


def _linear(name: str, num_in: int, num_out: int, *, bias: bool) -> tuple[tuple[str, int], ...]:
    weight = (f"{name}.weight", num_in * num_out)
    return (weight, (f"{name}.bias", num_out)) if bias else (weight,)


def _norm(name: str, size: int, *, bias: bool) -> tuple[tuple[str, int], ...]:
    return ((f"{name}.weight", size), (f"{name}.bias", size)) if bias else ((f"{name}.weight", size),)
