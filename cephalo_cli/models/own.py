"""A model of one's own: ``package.module:function`` gives units and a loss; here they are checked, built and filled.

What the function must give is told in ``examples/own_model.md``; `describe_own` holds it to that, one unit at a time.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model, OwnUnits, own_digest
from cephalo_cli.errors import UsageError
from cephalo_cli.models.batch import TextBatch
from cephalo_cli.models.own_source import Loss, fill_own, load_own, refusal
from cephalo_cli.models.own_trial import try_with_numbers, width_without_numbers

__all__ = ["build_own", "check_own", "describe_own", "filled_own"]

TRIED_TOKENS = 16
"""Length of the samples that units are tried on with real numbers, at most."""


def describe_own(source: str, seq_len: int, dtype: DType) -> Model:
    """Load a model of one's own, hold it to what units must be, and describe it.

    Args:
        source: ``package.module:function``; the current folder is searched too.
        seq_len: Tokens of one sample.
        dtype: Compute dtype.

    Raises:
        UsageError: It cannot be imported, or is not as it must be; the message names the unit.
    """
    units, loss = load_own(source)
    vocab_size, longest = getattr(units[0], "vocab_size", None), getattr(units[0], "max_seq_len", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise refusal(source, f"unit 0 has vocab_size {vocab_size!r}, expected the number of token ids as an attribute")
    if longest is not None and seq_len > longest:
        raise refusal(source, f"unit 0 takes at most {longest} tokens (max_seq_len), asked for {seq_len}")
    layouts = [_layout(source, index, unit) for index, unit in enumerate(units)]
    _refuse_shared(source, units)
    hidden_size = width_without_numbers(source, units, loss, seq_len, getattr(torch, dtype))
    try_with_numbers(source, units, loss, vocab_size, min(seq_len, TRIED_TOKENS))
    distinct = [layout for index, layout in enumerate(layouts) if layout not in layouts[:index]]
    indices = tuple(distinct.index(layout) for layout in layouts)
    return Model(
        name=source,
        family="own",
        num_layers=len(units) - 2,
        hidden_size=hidden_size,
        num_heads=1,
        ffn_size=hidden_size,
        vocab_size=vocab_size,
        max_seq_len=longest,
        own=OwnUnits(
            source=source, layouts=tuple(distinct), units=indices, sha256=own_digest(tuple(distinct), indices)
        ),
    )


def check_own(model: Model, seq_len: int, dtype: DType) -> None:
    """Make sure that a plan's model of one's own is still what the plan was made for.

    Raises:
        UsageError: It is not, or `describe_own` refuses it.
    """
    own = _own(model)
    found = describe_own(own.source, seq_len, dtype)
    if found.own != own or (found.hidden_size, found.vocab_size) != (model.hidden_size, model.vocab_size):
        raise UsageError(
            f"the plan was made for {own.source} with parameters of digest {own.sha256[:12]}, "
            f"it has {_own(found).sha256[:12]} now",
            where="model.own",
            hint="profile and plan again",
        )


def build_own(model: Model, index: int) -> nn.Module:
    """Make one unit on the current default device, called as all units are; its parameters are empty."""
    units, loss = load_own(_own(model).source)
    if len(units) != model.num_layers + 2:
        raise refusal(_own(model).source, f"gives {len(units)} units, the plan's model has {model.num_layers + 2}")
    made = {id(parameter): nn.Parameter(torch.empty(parameter.shape)) for parameter in units[index].parameters()}
    unit = copy.deepcopy(units[index], made)
    if index == 0:
        return _First(unit)
    return _Middle(unit) if index < len(units) - 1 else _Last(unit, loss)


def filled_own(model: Model, index: int, seed: int) -> nn.Module:
    """Make one unit with its starting values, on the CPU in float32; they depend on the seed and the index alone."""
    source = _own(model).source
    unit = build_own(model, index)
    fill_own(source, index, unit, seed)
    return unit


class _First(nn.Module):
    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, batch: TextBatch, _: object = None) -> torch.Tensor:
        x_BTD: torch.Tensor = self.unit(batch.tokens_BT)
        return x_BTD


class _Middle(nn.Module):
    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x_BTD: torch.Tensor, _batch: TextBatch, _: object = None) -> torch.Tensor:
        y_BTD: torch.Tensor = self.unit(x_BTD)
        return y_BTD


class _Last(nn.Module):
    def __init__(self, unit: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.unit = unit
        self._loss = loss

    def forward(self, x_BTD: torch.Tensor, batch: TextBatch, _: object = None) -> torch.Tensor:
        loss = self._loss(self.unit(x_BTD), batch.targets_BT)
        return loss.to(torch.promote_types(loss.dtype, torch.float32))


def _layout(source: str, index: int, unit: nn.Module) -> dict[str, tuple[int, ...]]:
    named = list(unit.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named):
        raise refusal(source, f"unit {index} has one parameter under two names")
    for name, parameter in named:
        if not parameter.requires_grad:
            raise refusal(source, f"unit {index} does not train {name}, which is not possible for models of one's own")
        if parameter.device.type != "meta":
            raise refusal(source, f"unit {index} made {name} on {parameter.device} although the default device is meta")
    buffers = [name for name, _ in unit.named_buffers()]
    if buffers:
        raise refusal(
            source,
            f"unit {index} has the buffer {buffers[0]}: what a forward changes (batch norm) would differ between plans",
            hint="make constants in the forward",
        )
    if not named:
        raise refusal(source, f"unit {index} has no parameters; put it into its neighbour")
    return {name: tuple(parameter.shape) for name, parameter in named}


def _refuse_shared(source: str, units: Sequence[nn.Module]) -> None:
    owner: dict[int, int] = {}
    for index, unit in enumerate(units):
        for name, parameter in unit.named_parameters():
            if owner.setdefault(id(parameter), index) != index:
                raise refusal(source, f"units {owner[id(parameter)]} and {index} share the parameter {name}")


def _own(model: Model) -> OwnUnits:
    if model.own is None:
        raise AssertionError("only models of one's own have units of their own")
    return model.own
