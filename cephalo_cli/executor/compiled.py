"""Blocks through torch.compile.

Note: what is compiled, and when
    Blocks hold nearly all of the work; embedding and head are a lookup and one product with a loss of our own. A block
    is traced as a whole, so that a part the compiler cannot see into is an error instead of a slow path nobody notices.
    All blocks of a rank share what was compiled: their weights are inputs. Where a rank has microbatches of several
    sizes the number of samples stays open, so ragged ones share it too (a single sample is a case of its own). The
    first steps of a run are as without: the first warms up, the second tells how fast blocks are uncompiled, and the
    third compiles. The steps after those count.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cephalo_cli.errors import UsageError
from cephalo_cli.executor.sharded_unit import ShardedUnit

__all__ = ["COMPILING_STEP", "BlockCompiler"]

COMPILING_STEP = 3
"""Which step of a run compiles."""


class BlockCompiler:
    """Has the blocks of one rank compiled when it is time.

    Args:
        units: The units of this rank.
        sizes: Sizes of its microbatches.
        device: Where they run.
    """

    def __init__(self, units: Sequence[ShardedUnit], sizes: Sequence[int], device: torch.device) -> None:
        self._blocks = [unit.module for unit in units if unit.unit.kind == "block"]
        self._has_open_size = len(set(sizes)) > 1
        self._device = device
        self._num_steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround every step of a run; from `COMPILING_STEP` on a call of a block compiles what is not compiled yet.

        Raises:
            UsageError: There is no compiler, or it cannot do it.
        """
        self._num_steps += 1
        if self._num_steps < COMPILING_STEP:
            yield
            return
        from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 - takes memory that others need not hold

        if self._num_steps == COMPILING_STEP:
            self._start()
        try:
            yield
        except TorchDynamoException as error:
            raise UsageError(
                f"torch.compile failed: {str(error).strip().splitlines()[0]}",
                where="--compile",
                hint="leave --compile out; on CPU devices it needs a C++ compiler, on GPUs Triton",
            ) from error

    def _start(self) -> None:
        """Have the next call of every block compile it."""
        if self._device.type == "cpu":
            import torch._inductor.config as inductor  # noqa: PLC0415 - as above

            inductor.compile_threads = 1  # helpers would be processes as large as this one
        for block in self._blocks:
            block.compile(fullgraph=True, dynamic=self._has_open_size)
