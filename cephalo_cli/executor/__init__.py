"""Training: the plan's schedule, run with real tensors on the plan's ranks.

`run_training` starts a training; in each rank's process `cephalo_cli.executor.trainer.train` does it.
"""

from cephalo_cli.executor.options import Callbacks, TrainingResult, TrainOptions
from cephalo_cli.executor.run import run_training

__all__ = ["Callbacks", "TrainOptions", "TrainingResult", "run_training"]
