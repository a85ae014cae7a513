"""A model of one's own: ``package.module:function`` gives units and a loss; here they are checked, built and filled.

What the function must give is told in ``examples/own_model.md``; `describe_own` holds it to that, one unit at a time.
"""

import copy
import functools
import hashlib
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.model import Model, OwnUnits, own_digest
from cephalo_cli.errors import CephaloError, UsageError
from cephalo_cli.models.batch import IGNORED_TARGET, TextBatch

__all__ = ["build_own", "check_own", "describe_own", "filled_own"]

HINT = "what units must be is in examples/own_model.md"
TRIED_TOKENS = 16
"""Length of the samples that units are tried on with real numbers, at most."""
FEWEST_UNITS = 3
TOLERANCE = 1e-4
"""Relative difference of float32 results that the size of a microbatch may make."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def describe_own(source: str, seq_len: int, dtype: DType) -> Model:
    """Load a model of one's own, hold it to what units must be, and describe it.

    Args:
        source: ``package.module:function``; the current folder is searched too.
        seq_len: Tokens of one sample.
        dtype: Compute dtype.

    Raises:
        UsageError: It cannot be imported, or is not as it must be; the message names the unit.
    """
    units, loss = _load(source)
    vocab_size, longest = getattr(units[0], "vocab_size", None), getattr(units[0], "max_seq_len", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise _error(source, f"unit 0 has vocab_size {vocab_size!r}, expected the number of token ids as an attribute")
    if longest is not None and seq_len > longest:
        raise _error(source, f"unit 0 takes at most {longest} tokens (max_seq_len), asked for {seq_len}")
    layouts = [_layout(source, index, unit) for index, unit in enumerate(units)]
    _refuse_shared(source, units)
    hidden_size = _tried_without_numbers(source, units, loss, seq_len, getattr(torch, dtype))
    _try_with_numbers(source, units, loss, vocab_size, min(seq_len, TRIED_TOKENS))
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
    units, loss = _load(_own(model).source)
    if len(units) != model.num_layers + 2:
        raise _error(_own(model).source, f"gives {len(units)} units, the plan's model has {model.num_layers + 2}")
    made = {id(parameter): nn.Parameter(torch.empty(parameter.shape)) for parameter in units[index].parameters()}
    unit = copy.deepcopy(units[index], made)
    if index == 0:
        return _First(unit)
    return _Middle(unit) if index < len(units) - 1 else _Last(unit, loss)


def filled_own(model: Model, index: int, seed: int) -> nn.Module:
    """Make one unit with its starting values, on the CPU in float32; they depend on the seed and the index alone."""
    source = _own(model).source
    unit = build_own(model, index)
    _fill(source, index, unit, seed)
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


# Loading --------------------------------------------------------------------------------------------------------------


@functools.cache
def _load(source: str) -> tuple[tuple[nn.Module, ...], Loss]:
    """Import and call the function with torch's default device being meta."""
    module_name, _, function_name = source.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:
        raise _error(source, f"cannot be imported: {type(error).__name__}: {error}") from error
    try:
        with unset_fake_temporarily(), torch.device("meta"):
            given = function()
            is_pair = isinstance(given, tuple) and len(given) == 2 and callable(given[1])
            listed = tuple(given[0].units() if hasattr(given[0], "units") else given[0]) if is_pair else ()
    except Exception as error:
        raise _error(source, f"failed: {type(error).__name__}: {error}") from error
    if not is_pair:
        raise _error(source, f"returns a {type(given).__name__}, expected two things: the units and the loss")
    for index, unit in enumerate(listed):
        if not isinstance(unit, nn.Module):
            raise _error(source, f"unit {index} is a {type(unit).__name__}, expected a torch module")
    if len(listed) < FEWEST_UNITS:
        raise _error(source, f"gives {len(listed)} units, expected a first, one or more in between, and a last")
    return listed, given[1]


def _layout(source: str, index: int, unit: nn.Module) -> dict[str, tuple[int, ...]]:
    named = list(unit.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named):
        raise _error(source, f"unit {index} has one parameter under two names")
    for name, parameter in named:
        if not parameter.requires_grad:
            raise _error(source, f"unit {index} does not train {name}, which is not possible for models of one's own")
        if parameter.device.type != "meta":
            raise _error(source, f"unit {index} made {name} on {parameter.device} although the default device is meta")
    buffers = [name for name, _ in unit.named_buffers()]
    if buffers:
        raise _error(
            source,
            f"unit {index} has the buffer {buffers[0]}: what a forward changes (batch norm) would differ between plans",
            hint="make constants in the forward",
        )
    if not named:
        raise _error(source, f"unit {index} has no parameters; put it into its neighbour")
    return {name: tuple(parameter.shape) for name, parameter in named}


def _refuse_shared(source: str, units: Sequence[nn.Module]) -> None:
    owner: dict[int, int] = {}
    for index, unit in enumerate(units):
        for name, parameter in unit.named_parameters():
            if owner.setdefault(id(parameter), index) != index:
                raise _error(source, f"units {owner[id(parameter)]} and {index} share the parameter {name}")


# Trying ---------------------------------------------------------------------------------------------------------------


def _tried_without_numbers(
    source: str, units: Sequence[nn.Module], loss: Loss, seq_len: int, dtype: torch.dtype
) -> int:
    """Run all units on the meta device; gives the width of what passes between them."""
    tokens_BT = torch.empty((2, seq_len), dtype=torch.int64, device="meta")
    x: Any = tokens_BT
    shape: tuple[int, ...] | None = None
    for index, unit in enumerate(units):
        x = _called(source, index, lambda unit=unit, x=x: copy.deepcopy(unit).to(dtype)(x))  # type: ignore[misc]  # mypy and defaults of lambdas
        if not isinstance(x, torch.Tensor):
            raise _error(source, f"unit {index} returns a {type(x).__name__}, expected one tensor")
        if index == len(units) - 1:
            break
        if x.dtype != dtype:
            raise _error(source, f"unit {index} returns {x.dtype} where its parameters are {dtype}")
        if x.ndim != 3 or tuple(x.shape[:2]) != (2, seq_len) or (shape is not None and tuple(x.shape) != shape):
            wanted = f"{[2, seq_len, 'width'] if shape is None else list(shape)}"
            raise _error(source, f"unit {index} returns shape {list(x.shape)}, expected {wanted}")
        shape = tuple(x.shape)
    total = _called(source, len(units) - 1, lambda: loss(x, tokens_BT))
    if not isinstance(total, torch.Tensor) or total.ndim > 0 or not total.requires_grad:
        raise _error(source, "the loss is not one number that depends on the last unit's output")
    if shape is None:
        raise AssertionError("there are units before the last")
    return shape[2]


def _try_with_numbers(source: str, units: Sequence[nn.Module], loss: Loss, vocab_size: int, num_tokens: int) -> None:
    """Run every unit three times: twice the same, and on one sample alone; only one unit has numbers at a time."""
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (3, num_tokens), generator=generator)
    x: torch.Tensor = tokens_BT
    for index, unit in enumerate(units):
        real = copy.deepcopy(unit)
        _fill(source, index, real, 0)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            first, second, alone = (_called(source, index, lambda x=part: real(x)) for part in (x, x, x[1:2]))  # type: ignore[misc]  # noqa: B023 - called at once
        if not torch.equal(first, second):
            raise _error(
                source,
                f"unit {index} gives another result the second time: recompute would not find the first again",
                hint="leave dropout out, and anything drawn anew in each call",
            )
        if index < len(units) - 1 and not _close(first[1:2], alone):
            raise _error(source, f"unit {index} gives a sample another result in another microbatch (batch norm?)")
        x = first
    with torch.no_grad():
        whole, parts = loss(x, tokens_BT), [loss(x[row : row + 1], tokens_BT[row : row + 1]) for row in range(3)]
        nothing = loss(x, torch.full_like(tokens_BT, IGNORED_TARGET))
    if not _close(whole, torch.stack(parts).sum()):
        raise _error(source, "the loss of three samples is not the sum of their losses", hint='use reduction="sum"')
    if nothing.item() != 0.0:
        raise _error(source, f"the loss counts targets of {IGNORED_TARGET}, which stand for nothing")


def _called(source: str, index: int, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CephaloError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise _error(source, f"unit {index} failed on a tensor of the unit before: {reason}") from error


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


# Filling --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _fill(source: str, index: int, unit: nn.Module, seed: int) -> None:
    """Give a unit's parameters memory on the CPU, and starting values through ``reset_parameters``."""
    unit.to_empty(device="cpu")
    for parameter in unit.parameters():
        parameter.fill_(math.nan)
    digest = hashlib.blake2b(f"{seed}/{index}/own".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        for module in reversed(list(unit.modules())):  # a module has the last word on those it is made of
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                reset()
    for name, parameter in unit.named_parameters():
        if parameter.isnan().any():
            raise _error(
                source,
                f"unit {index} does not fill {name}: the module that owns it has no reset_parameters that does",
            )


def _own(model: Model) -> OwnUnits:
    if model.own is None:
        raise AssertionError("only models of one's own have units of their own")
    return model.own


def _error(source: str, message: str, *, hint: str = HINT) -> UsageError:
    return UsageError(message, where=f"--model {source}", hint=hint)
