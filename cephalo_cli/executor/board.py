"""Steps as TensorBoard scalars, where the optional package is installed."""

import contextlib
from pathlib import Path
from typing import Self

from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.errors import UsageError

__all__ = ["Board"]

SCALARS = (
    "loss",
    "validation_loss",
    "grad_norm",
    "learning_rate",
    "tokens_per_s",
    "model_flops_utilization",
    "step_s",
    "predicted_step_s",
    "peak_memory_bytes",
)
"""Fields of a step that become curves of their own."""


class Board:
    """Writes scalars into a folder that ``tensorboard --logdir`` opens.

    Raises:
        UsageError: The package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - loads torch and an optional package
        except ImportError as error:
            raise UsageError(
                "--tensorboard needs the package tensorboard, which is not installed",
                hint="pip install 'cephalo_cli[tensorboard]', or use --metrics, which needs nothing",
            ) from error
        self._writer = SummaryWriter(str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # `add` has told of it
            self._writer.close()

    def add(self, step: StepReport) -> None:
        """Write one step."""
        for name in SCALARS:
            value = getattr(step, name)
            if value is not None:
                self._writer.add_scalar(name, value, step.step)
        self._writer.flush()
