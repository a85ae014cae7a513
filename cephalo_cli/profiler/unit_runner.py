"""A unit as training has it, on one device, ready to be run and timed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.models import DropoutKey, build_unit, initialise_
from cephalo_cli.profiler.inputs import random_batch
from cephalo_cli.units import trained_sizes, unit_of_kind

__all__ = ["UnitRunner", "UnitWorkload"]

SEED = 0
"""Weights and inputs are random; their values do not matter."""


class UnitRunner:
    """One unit's module on flat buffers, as training has it.

    The module's parameters are views of one buffer in the compute dtype. Gradients of those that are trained accumulate
    in one buffer in the state dtype (at least float32): in place where the dtypes agree, else by an addition after
    every microbatch.
    """

    def __init__(self, model: Model, kind: UnitKind, dtype: torch.dtype, device: torch.device) -> None:
        self.kind = kind
        self._model = model
        self._device = device
        self._dtype = dtype
        with torch.device("meta"):
            self.module = build_unit(model, kind)
        self.tied: nn.Parameter | None = None
        if kind == "head" and model.tie_embeddings:
            self.tied = nn.Parameter(torch.empty(model.vocab_size or 0, model.hidden_size, device=device, dtype=dtype))
        self._grads: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._place()

    @torch.no_grad()
    def _place(self) -> None:
        shapes = {name: parameter.shape for name, parameter in self.module.named_parameters()}
        trained = trained_sizes(self._model, self.kind)
        size = sum(shape.numel() for shape in shapes.values())
        self.flat = flat = torch.empty(size, dtype=self._dtype, device=self._device)
        state_dtype = torch.promote_types(self._dtype, torch.float32)
        self.flat_grad = torch.zeros(sum(trained.values()), dtype=state_dtype, device=self._device)
        start = grad_start = 0
        for name, shape in shapes.items():
            stop = start + shape.numel()
            owner, _, leaf = name.rpartition(".")
            parameter = nn.Parameter(flat[start:stop].view(shape), requires_grad=name in trained)
            self.module.get_submodule(owner).register_parameter(leaf, parameter)
            if name in trained:
                grad_stop = grad_start + shape.numel()
                self._grads.append((parameter, self.flat_grad[grad_start:grad_stop].view(shape)))
                grad_start = grad_stop
            start = stop
        initialise_(self.module, self._model, unit_of_kind(self._model, self.kind), SEED)
        if self.tied is not None:
            self.tied.normal_(std=0.02)
            self.tied.requires_grad_("matrix" in trained_sizes(self._model, "embedding"))
            if self.tied.requires_grad:
                self._grads.append((self.tied, torch.zeros_like(self.tied, dtype=state_dtype)))
        for parameter, grad in self._grads:
            if grad.dtype == parameter.dtype:
                parameter.grad = grad

    def inputs(self, microbatch: int, seq_len: int) -> tuple[tuple[Any, ...], torch.Tensor]:
        """What the unit is called with, and the gradient of its output."""
        model, device = self._model, self._device
        batch = random_batch(model, microbatch, seq_len, device)
        key = DropoutKey(seed=SEED, step=0, unit=0, samples=batch.samples) if model.dropout else None
        shape = (microbatch, model.tokens_per_sample(seq_len), model.hidden_size)
        if self.kind == "embedding":
            return (batch, key), torch.randn(shape, dtype=self._dtype, device=device)
        x_BTD = torch.randn(shape, dtype=self._dtype, device=device).requires_grad_()
        if self.kind == "block":
            return (x_BTD, batch, key), torch.randn(shape, dtype=self._dtype, device=device)
        loss_dtype = torch.promote_types(self._dtype, torch.float32)
        scale = torch.full((), 1.0 / batch.targets.numel(), dtype=loss_dtype, device=device)
        return (x_BTD, batch) if self.tied is None else (x_BTD, batch, self.tied), scale

    @property
    def num_bytes(self) -> int:
        """Bytes of weights and gradients."""
        return self.flat.nbytes + sum(grad.nbytes for grad in self.gradients())

    def gradients(self) -> list[torch.Tensor]:
        """Where gradients accumulate."""
        return [grad for _, grad in self._grads]

    @torch.no_grad()
    def fold_gradients(self) -> None:
        """Add what a backward left in the compute dtype to the gradients."""
        for parameter, grad in self._grads:
            if parameter.grad is not grad and parameter.grad is not None:
                grad.add_(parameter.grad)
                parameter.grad = None


@dataclass
class UnitWorkload:
    """A unit and what it is called with."""

    runners: Iterator[UnitRunner]
    """The unit's copies, of which each run uses the next."""
    arguments: tuple[Any, ...]
    gradient: torch.Tensor
    compute: Callable[[], AbstractContextManager[None]]

    on_close: Callable[[], None]
    runner: UnitRunner | None = None
    output: torch.Tensor | None = None

    def forward(self) -> None:
        """Run the forward pass, keeping what backward needs."""
        self.runner = next(self.runners)
        with self.compute():
            self.output = self.runner.module(*self.arguments)

    def backward(self) -> None:
        """Run the backward pass of the last forward and add to the gradients."""
        if self.output is None or self.runner is None:
            raise AssertionError("a backward follows a forward")
        with self.compute():
            if self.output.requires_grad:  # that of a frozen embedding does not
                torch.autograd.backward((self.output,), (self.gradient,))
            self.runner.fold_gradients()
            self.output = None
            if isinstance(self.arguments[0], torch.Tensor):
                self.arguments[0].grad = None

    def close(self) -> None:
        """Take note of the memory it took."""
        self.on_close()
