"""O23: the small card runs out while loading, before sharding."""

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.checkpoint import find_checkpoint, load_shards
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import model_units
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine, train_job

MODEL = make_model(num_layers=10, vocab_size=257, hidden_size=64, ffn_size=256)
SHARES = [0.25, 0.25, 0.5]
PLAN = make_plan(MODEL, [[1], [1], [1]], SHARES, dtype="float32")
UNITS = [unit.num_parameters for unit in model_units(MODEL)]
STATE_BYTES = 16
MARGIN_BYTES = 64 * 1024
"""Small tensors on the way: what a generator draws into, counters of the optimizer."""


@pytest.mark.parametrize("resumes", [False, True])
def test_o23_no_rank_holds_more_than_its_shard_and_one_unit_at_start_up(
    ranks: Ranks, tmp_path: Path, *, resumes: bool
) -> None:
    """O23: shares of 15, 15 and 30 sixtieths: the largest number of live bytes while weights are drawn or loaded."""
    options = TrainOptions(data="random", num_steps=1, checkpoint_dir=str(tmp_path / "run"))
    if resumes:
        ranks.run([Job(plan=PLAN, options=options, run=train_job)])
    (peaks,) = ranks.run([Job(plan=PLAN, options=options, run=watch_start_up, arguments=resumes)])
    largest = 4 * max(UNITS)
    assert largest + MARGIN_BYTES < 4 * sum(UNITS) / 4
    for share, peak in zip(SHARES, peaks, strict=True):
        shard = share * STATE_BYTES * sum(UNITS)
        assert shard < peak <= shard + largest + MARGIN_BYTES


def watch_start_up(context: ProcessContext, job: Job) -> int:
    with LiveBytes() as live:
        engine = make_engine(context, job, initialise=not job.arguments)
        if job.arguments:
            found, _ = find_checkpoint("latest", Path(job.options.checkpoint_dir or ""), context.process_group)
            assert found is not None
            load_shards(found, engine.shards(to_write=False), context.process_group)
    engine.close()
    return int(live.peak)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class
    """Adds up the storages of all tensors that are made while it watches and are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class
        self.peak = 0
        self._storages: weakref.WeakKeyDictionary[torch.UntypedStorage, None] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "meta":
            self._storages[result.untyped_storage()] = None
        self.peak = max(self.peak, sum(storage.nbytes() for storage in list(self._storages)))
        return result
