"""AdamW or SGD on the local shards: two tensors a unit, one that decays and one that does not.

Moments are made at the start, so that memory is what it will be before the first step. Weight decay touches matrices
only (embeddings included), never gains and biases. The norm for clipping is that of the whole gradient, over all ranks.
Sources: AdamW is torch.optim.AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101);
SGD is torch.optim.SGD, whose weight decay is added to the gradient, after clipping, and whose momentum is not damped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cephalo_cli.executor.options import OptimizerName
from cephalo_cli.executor.sharded_unit import ShardedUnit

__all__ = ["OptimizerSettings", "ShardOptimizer", "clip_factor", "make_optimizer", "set_learning_rate"]

FUSED_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})
"""Devices for which torch's optimizers have one kernel for everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """Settings of the optimizer."""

    name: OptimizerName = "adamw"
    """Which one."""
    learning_rate: float = 3e-4
    """Learning rate until `set_learning_rate` gives another."""
    weight_decay: float = 0.1
    """Decay of matrices."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    eps: float = 1e-8
    """Added to the root of AdamW's second moment."""
    momentum: float = 0.0
    """Momentum of SGD."""
    clip: float | None = 1.0
    """Largest norm of the gradient; None never clips."""

    @property
    def moments(self) -> dict[str, str]:
        """What is kept for every parameter: its name in checkpoints, and in torch's optimizer."""
        if self.name == "adamw":
            return {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
        return {"momentum": "momentum_buffer"} if self.momentum else {}


def make_optimizer(
    decayed: Sequence[torch.Tensor], plain: Sequence[torch.Tensor], settings: OptimizerSettings, device: torch.device
) -> torch.optim.Optimizer:
    """Make torch's optimizer over tensors that decay and tensors that do not; at least one tensor is needed."""
    groups = [
        {"params": list(decayed), "weight_decay": settings.weight_decay},
        {"params": list(plain), "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    fused = True if device.type in FUSED_DEVICES else None
    if settings.name == "sgd":
        return torch.optim.SGD(used, lr=settings.learning_rate, momentum=settings.momentum, fused=fused)
    return torch.optim.AdamW(used, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Have the next steps use another learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_factor(grad_norm: float, clip: float | None) -> float:
    """What to multiply a gradient with so that its norm is at most ``clip``."""
    return 1.0 if clip is None or grad_norm <= clip else clip / grad_norm


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a shard that decays, or does not."""

    parameter: torch.Tensor
    range: slice
    """Which part."""
    decays: bool
    state: dict[str, torch.Tensor]


class ShardOptimizer:
    """The optimizer over the shards of one rank, which may be empty.

    Args:
        units: The units; their masters and gradients are what it updates.
        settings: Which optimizer.
        device: Where the shards live.
        by_unit: Whether units are updated one by one, each as soon as its gradient is there, or all at once.
    """

    def __init__(
        self,
        units: Sequence[ShardedUnit],
        settings: OptimizerSettings,
        device: torch.device,
        *,
        by_unit: bool = False,
    ) -> None:
        self._units = units
        self._settings = settings
        self._device = device
        self.moments = {name: [torch.zeros_like(unit.master) for unit in units] for name in settings.moments}
        self._steps: list[torch.Tensor] = []
        self._by_unit = by_unit
        self._squares: list[torch.Tensor] = []
        """By unit: squared norms of the gradients that are gone."""
        of_units = {index: self._pieces(index, unit) for index, unit in enumerate(units)}
        self._pieces_of = of_units if by_unit else {}
        together = {None: [piece for pieces in of_units.values() for piece in pieces]}
        self._optimizers = {
            key: self._make(pieces) for key, pieces in (of_units if by_unit else together).items() if pieces
        }

    @torch.no_grad()
    def squared_norm(self) -> torch.Tensor:
        """Sum of squares of the local gradient, a float64 scalar (float32 where the device has no float64)."""
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        if self._by_unit:
            squares, self._squares = self._squares, []
        else:
            squares = [self._squared(unit) for unit in self._units if len(unit.own)]
        if not squares:
            return torch.zeros((), dtype=dtype, device=self._device)
        return torch.stack(squares).sum()

    def _squared(self, unit: ShardedUnit) -> torch.Tensor:
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        norm: torch.Tensor = torch.linalg.vector_norm(unit.grad).to(dtype)
        return norm.square()

    @torch.no_grad()
    def step(self, grad_norm: float, scale: float) -> None:
        """Update the shards.

        Args:
            grad_norm: Norm of the whole gradient, for clipping.
            scale: What the gradient was multiplied with.
        """
        factor = clip_factor(grad_norm, self._settings.clip) / scale
        if factor != 1.0:
            for unit in self._units:
                unit.grad.mul_(factor)
        for optimizer in self._optimizers.values():
            optimizer.step()

    @torch.no_grad()
    def step_unit(self, index: int) -> None:
        """Update one unit's shard with its gradient as it is, and let go of the gradient (``by_unit``)."""
        unit = self._units[index]
        if index in self._optimizers:
            self._squares.append(self._squared(unit))
            for piece in self._pieces_of[index]:
                piece.parameter.grad = unit.grad[piece.range]
            self._optimizers[index].step()
            for piece in self._pieces_of[index]:
                piece.parameter.grad = None
        unit.release_shard_gradient()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Have the next steps use another learning rate."""
        for optimizer in self._optimizers.values():
            set_learning_rate(optimizer, learning_rate)

    def set_num_steps(self, num_steps: int) -> None:
        """Say how many steps the moments have seen, after loading them."""
        for steps in self._steps:
            steps.fill_(num_steps)

    def _pieces(self, index: int, unit: ShardedUnit) -> list[_Piece]:
        """A unit's shard as what decays and what does not."""
        border = min(max(unit.layout.num_decayed - unit.own.start, 0), len(unit.own))
        pieces = []
        for part in (slice(0, border), slice(border, len(unit.own))):
            if part.start < part.stop:
                parameter = unit.master[part]
                if not self._by_unit:
                    parameter.grad = unit.grad[part]
                decays = part.start == 0 and border > 0
                pieces.append(_Piece(parameter, part, decays=decays, state=self._state(index, part)))
        return pieces

    def _make(self, pieces: Sequence[_Piece]) -> torch.optim.Optimizer:
        decayed, plain = ([piece.parameter for piece in pieces if piece.decays is decays] for decays in (True, False))
        optimizer = make_optimizer(decayed, plain, self._settings, self._device)
        optimizer.state.update({piece.parameter: piece.state for piece in pieces})
        return optimizer

    def _state(self, index: int, piece: slice) -> dict[str, torch.Tensor]:
        """What torch's optimizer keeps for one piece of a unit's shard: views of the moments."""
        kept = {key: self.moments[name][index][piece] for name, key in self._settings.moments.items()}
        if self._settings.name == "adamw":
            kept["step"] = torch.zeros((), dtype=torch.float32, device=self._device)
            self._steps.append(kept["step"])
        return kept
