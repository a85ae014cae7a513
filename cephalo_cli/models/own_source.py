"""What a model of one's own is made of: the function that gives its units and its loss, and its starting values."""

import functools
import hashlib
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from cephalo_cli.errors import UsageError

__all__ = ["Loss", "fill_own", "load_own", "refusal"]

HINT = "what units must be is in examples/own_model.md"
FEWEST_UNITS = 3

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Sums the losses of a microbatch, of the last unit's output and the targets."""


@functools.cache
def load_own(source: str) -> tuple[tuple[nn.Module, ...], Loss]:
    """Import and call the function with torch's default device being meta.

    Raises:
        UsageError: It cannot be imported, fails, or gives something else than modules and a loss.
    """
    module_name, _, function_name = source.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:
        raise refusal(source, f"cannot be imported: {type(error).__name__}: {error}") from error
    try:
        with unset_fake_temporarily(), torch.device("meta"):
            given = function()
            is_pair = isinstance(given, tuple) and len(given) == 2 and callable(given[1])
            listed = tuple(given[0].units() if hasattr(given[0], "units") else given[0]) if is_pair else ()
    except Exception as error:
        raise refusal(source, f"failed: {type(error).__name__}: {error}") from error
    if not is_pair:
        raise refusal(source, f"returns a {type(given).__name__}, expected two things: the units and the loss")
    for index, unit in enumerate(listed):
        if not isinstance(unit, nn.Module):
            raise refusal(source, f"unit {index} is a {type(unit).__name__}, expected a torch module")
    if len(listed) < FEWEST_UNITS:
        raise refusal(source, f"gives {len(listed)} units, expected a first, one or more in between, and a last")
    return listed, given[1]


@torch.no_grad()
def fill_own(source: str, index: int, unit: nn.Module, seed: int) -> None:
    """Give a unit's parameters memory on the CPU, and starting values through ``reset_parameters``.

    Raises:
        UsageError: A parameter is left without a value.
    """
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
            raise refusal(
                source,
                f"unit {index} does not fill {name}: the module that owns it has no reset_parameters that does",
            )


def refusal(source: str, message: str, *, hint: str = HINT) -> UsageError:
    """Name the model in an error about it."""
    return UsageError(message, where=f"--model {source}", hint=hint)
