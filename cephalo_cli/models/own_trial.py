"""Units of one's own are tried before they are trained: without numbers for their shapes, with numbers for the rest."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cephalo_cli.errors import CephaloError
from cephalo_cli.models.batch import IGNORED_TARGET
from cephalo_cli.models.own_source import Loss, fill_own, refusal

__all__ = ["try_with_numbers", "width_without_numbers"]

TOLERANCE = 1e-4
"""Relative difference of float32 results that the size of a microbatch may make."""


def width_without_numbers(source: str, units: Sequence[nn.Module], loss: Loss, seq_len: int, dtype: torch.dtype) -> int:
    """Run all units on the meta device; gives the width of what passes between them.

    Raises:
        UsageError: A unit fails, or gives no tensor ``[B, T, D]`` of the compute dtype; or the loss is no number.
    """
    tokens_BT = torch.empty((2, seq_len), dtype=torch.int64, device="meta")
    x: Any = tokens_BT
    shape: tuple[int, ...] | None = None
    for index, unit in enumerate(units):
        x = _called(source, index, lambda unit=unit, x=x: copy.deepcopy(unit).to(dtype)(x))  # type: ignore[misc]  # mypy and defaults of lambdas
        if not isinstance(x, torch.Tensor):
            raise refusal(source, f"unit {index} returns a {type(x).__name__}, expected one tensor")
        if index == len(units) - 1:
            break
        if x.dtype != dtype:
            raise refusal(source, f"unit {index} returns {x.dtype} where its parameters are {dtype}")
        if x.ndim != 3 or tuple(x.shape[:2]) != (2, seq_len) or (shape is not None and tuple(x.shape) != shape):
            wanted = f"{[2, seq_len, 'width'] if shape is None else list(shape)}"
            raise refusal(source, f"unit {index} returns shape {list(x.shape)}, expected {wanted}")
        shape = tuple(x.shape)
    total = _called(source, len(units) - 1, lambda: loss(x, tokens_BT))
    if not isinstance(total, torch.Tensor) or total.ndim > 0 or not total.requires_grad:
        raise refusal(source, "the loss is not one number that depends on the last unit's output")
    if shape is None:
        raise AssertionError("there are units before the last")
    return shape[2]


def try_with_numbers(source: str, units: Sequence[nn.Module], loss: Loss, vocab_size: int, num_tokens: int) -> None:
    """Run every unit three times: twice the same, and on one sample alone; only one unit has numbers at a time.

    Raises:
        UsageError: A result depends on more than the sample, or the loss is not a sum over samples.
    """
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (3, num_tokens), generator=generator)
    x: torch.Tensor = tokens_BT
    for index, unit in enumerate(units):
        real = copy.deepcopy(unit)
        fill_own(source, index, real, 0)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            first, second, alone = (_called(source, index, lambda x=part: real(x)) for part in (x, x, x[1:2]))  # type: ignore[misc]  # noqa: B023 - called at once
        if not torch.equal(first, second):
            raise refusal(
                source,
                f"unit {index} gives another result the second time: recompute would not find the first again",
                hint="leave dropout out, and anything drawn anew in each call",
            )
        if index < len(units) - 1 and not _close(first[1:2], alone):
            raise refusal(source, f"unit {index} gives a sample another result in another microbatch (batch norm?)")
        x = first
    with torch.no_grad():
        whole, parts = loss(x, tokens_BT), [loss(x[row : row + 1], tokens_BT[row : row + 1]) for row in range(3)]
        nothing = loss(x, torch.full_like(tokens_BT, IGNORED_TARGET))
    if not _close(whole, torch.stack(parts).sum()):
        raise refusal(source, "the loss of three samples is not the sum of their losses", hint='use reduction="sum"')
    if nothing.item() != 0.0:
        raise refusal(source, f"the loss counts targets of {IGNORED_TARGET}, which stand for nothing")


def _called(source: str, index: int, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CephaloError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise refusal(source, f"unit {index} failed on a tensor of the unit before: {reason}") from error


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
