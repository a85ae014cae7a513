"""AdamW on the local shards: two tensors a unit, one that decays and one that does not.

Moments are made at the start, so that memory is what it will be before the first step. Weight decay touches matrices
only (embeddings included), never gains and biases. The norm for clipping is that of the whole gradient, over all ranks.
Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, as in torch.optim.AdamW.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cephalo_cli.executor.sharded_unit import ShardedUnit

__all__ = ["AdamSettings", "ShardOptimizer", "adamw", "clip_factor"]

FUSED_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})
"""Devices for which torch's AdamW has one kernel for everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamSettings:
    """Settings of AdamW."""

    learning_rate: float = 3e-4
    """Constant learning rate."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    clip: float | None = 1.0
    """Largest norm of the gradient; None never clips."""


def adamw(
    decayed: Sequence[torch.Tensor], plain: Sequence[torch.Tensor], settings: AdamSettings, device: torch.device
) -> torch.optim.AdamW:
    """Make AdamW over tensors that decay and tensors that do not; at least one tensor is needed."""
    groups = [
        {"params": list(decayed), "weight_decay": settings.weight_decay},
        {"params": list(plain), "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True if device.type in FUSED_DEVICES else None,
    )


def clip_factor(grad_norm: float, clip: float | None) -> float:
    """What to multiply a gradient with so that its norm is at most ``clip``."""
    return 1.0 if clip is None or grad_norm <= clip else clip / grad_norm


class ShardOptimizer:
    """AdamW over the shards of one rank, which may be empty."""

    def __init__(self, units: Sequence[ShardedUnit], settings: AdamSettings, device: torch.device) -> None:
        self._units = units
        self._settings = settings
        self._device = device
        self.first_moments = [torch.zeros_like(unit.master) for unit in units]
        self.second_moments = [torch.zeros_like(unit.master) for unit in units]
        self._steps: list[torch.Tensor] = []
        groups: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        for unit, first, second in zip(units, self.first_moments, self.second_moments, strict=True):
            border = min(max(unit.layout.num_decayed - unit.own.start, 0), len(unit.own))
            for group, piece in zip(groups, (slice(0, border), slice(border, len(unit.own))), strict=True):
                if piece.start < piece.stop:
                    parameter = unit.master[piece]
                    parameter.grad = unit.grad[piece]
                    steps = torch.zeros((), dtype=torch.float32, device=device)
                    state[parameter] = {"step": steps, "exp_avg": first[piece], "exp_avg_sq": second[piece]}
                    self._steps.append(steps)
                    group.append(parameter)
        self._adamw = adamw(*groups, settings, device) if state else None
        if self._adamw is not None:
            self._adamw.state.update(state)

    @torch.no_grad()
    def squared_norm(self) -> torch.Tensor:
        """Sum of squares of the local gradient, a float64 scalar (float32 where the device has no float64)."""
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        norms = [torch.linalg.vector_norm(unit.grad).to(dtype) for unit in self._units if len(unit.grad)]
        if not norms:
            return torch.zeros((), dtype=dtype, device=self._device)
        return torch.stack(norms).square().sum()

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
        if self._adamw is not None:
            self._adamw.step()

    def set_num_steps(self, num_steps: int) -> None:
        """Say how many steps the moments have seen, after loading them."""
        for steps in self._steps:
            steps.fill_(num_steps)
