"""The numbers of a step that all ranks must agree on: loss, gradient norm, and the scale that float16 needs."""

import math
from dataclasses import dataclass
from typing import Literal

from cephalo_cli.errors import TrainingError

__all__ = ["LossScale", "StepNumbers", "step_numbers"]

FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
"""Good steps before the scale doubles; both numbers are those of torch.amp.GradScaler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepNumbers:
    """Equal on all ranks."""

    loss: float | None
    """Mean over the step's valid tokens; None when it had none, or was not finite."""
    grad_norm: float | None
    """Norm of the whole gradient before clipping; None when it was not finite and the update was left out."""


@dataclass
class LossScale:
    """Scale of the loss in float16, whose small gradients would vanish; 1, for good, in every other dtype.

    It is halved whenever a gradient overflows, and that step's update is left out.
    Source: Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
    """

    is_dynamic: bool
    value: float = 1.0
    good_steps: int = 0

    def __post_init__(self) -> None:
        if self.is_dynamic and self.value == 1.0:
            self.value = FIRST_SCALE

    def update(self, *, overflowed: bool) -> None:
        """Learn from a step."""
        if not self.is_dynamic:
            return
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.value = max(self.value / 2, 1.0)
        elif self.good_steps == GROWTH_INTERVAL:
            self.value, self.good_steps = self.value * 2, 0


def step_numbers(
    *,
    loss_sum: float,
    squared_norm: float,
    num_tokens: int,
    scale: LossScale,
    step: int,
    on_nonfinite: Literal["stop", "skip"] = "stop",
) -> StepNumbers:
    """Make sense of a step's sums over all ranks, and adapt the scale.

    Args:
        loss_sum: Sum of token losses.
        squared_norm: Sum of squares of the scaled gradient.
        num_tokens: Tokens that counted.
        scale: Scale of the gradient.
        step: Number of the step, for messages.
        on_nonfinite: Whether a loss or gradient that is not finite ends the training, or the step is left out.

    Raises:
        TrainingError: The loss or the gradient is not finite and ``on_nonfinite`` is stop; every rank raises it.
    """
    hint = "a lower --lr, or --dtype float32, may help; checkpoints saved before this step are good"
    is_broken = not math.isfinite(loss_sum)
    overflowed = is_broken or not math.isfinite(squared_norm)
    if on_nonfinite == "stop" and is_broken:
        raise TrainingError(f"the loss of step {step} is not finite ({loss_sum})", hint=hint)
    if on_nonfinite == "stop" and overflowed and (not scale.is_dynamic or scale.value < 2):
        raise TrainingError(f"the gradient norm of step {step} is not finite", hint=hint)
    grad_norm = None if overflowed else math.sqrt(squared_norm) / scale.value
    scale.update(overflowed=overflowed)
    return StepNumbers(loss=loss_sum / num_tokens if num_tokens and not is_broken else None, grad_norm=grad_norm)
