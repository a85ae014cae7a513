"""A unit's parameters in one flat buffer: matrices first, gains and biases after, so that each half is one piece.

Weight decay is for matrices only. With this order any range of the buffer is at most two pieces, one that decays and
one that does not, and the optimizer sees two tensors a unit instead of two a parameter.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["FlatLayout", "Slot", "flat_layout", "place_parameters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """Where one parameter lives in the flat buffer."""

    name: str
    """The parameter's name in its unit."""
    shape: tuple[int, ...]
    """Its shape."""
    start: int
    """Its first element."""
    stop: int
    """One beyond its last element."""

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter as a view of a flat buffer."""
        return flat[self.start : self.stop].view(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatLayout:
    """Where every parameter of a unit lives."""

    slots: tuple[Slot, ...]
    """Every parameter, in the order of the buffer."""
    num_elements: int
    """Length of the buffer."""
    num_decayed: int
    """Elements of the matrices, which come first."""


def flat_layout(module: nn.Module, includes: Callable[[str], bool] = lambda _: True) -> FlatLayout:
    """Lay a unit's parameters out, or those that ``includes`` names; a module on the meta device will do."""
    named = [item for item in module.named_parameters() if includes(item[0])]
    parameters = sorted(named, key=lambda item: item[1].ndim < 2)
    slots: list[Slot] = []
    start, decayed = 0, 0
    for name, parameter in parameters:
        stop = start + parameter.numel()
        slots.append(Slot(name=name, shape=tuple(parameter.shape), start=start, stop=stop))
        start = stop
        decayed = stop if parameter.ndim >= 2 else decayed
    return FlatLayout(slots=tuple(slots), num_elements=start, num_decayed=decayed)


def place_parameters(module: nn.Module, layout: FlatLayout, flat: torch.Tensor, *, trained: bool = True) -> None:
    """Replace a module's parameters by views of a flat buffer, with or without gradients."""
    for slot in layout.slots:
        owner, _, leaf = slot.name.rpartition(".")
        module.get_submodule(owner).register_parameter(leaf, nn.Parameter(slot.view(flat), requires_grad=trained))
