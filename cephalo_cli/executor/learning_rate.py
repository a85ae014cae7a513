"""The learning rate of every step: a linear warm-up, then constant, cosine or linear to its floor.

It depends on the step's number and the options alone, so a resumed run goes on where it would have been.
Cosine: Loshchilov & Hutter, "SGDR", arXiv 1608.03983, without restarts.
"""

import math
from typing import Literal

__all__ = ["Schedule", "learning_rate_at"]

Schedule = Literal["constant", "cosine", "linear"]


def learning_rate_at(
    step: int, *, peak: float, schedule: Schedule, num_warmup_steps: int, floor: float, num_steps: int
) -> float:
    """Give the learning rate of one step.

    Args:
        step: Number of the step, from 1.
        peak: Reached with the last warm-up step.
        schedule: How it goes on from there.
        num_warmup_steps: Steps that climb in equal parts to the peak; step s of w has ``peak * s / w``.
        floor: What cosine and linear reach with the last step.
        num_steps: Number of the last step.
    """
    if step <= num_warmup_steps:
        return peak * step / num_warmup_steps
    if schedule == "constant":
        return peak
    done = min(1.0, (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps))
    left = 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return floor + (peak - floor) * left
