"""What ranks keep of parameters that are not trained."""

import torch

from cephalo_cli.runtime.process import ProcessContext
from tests.executor.ranks import Job, make_engine
from tests.executor.test_engine import count, make_batch

__all__ = ["watch_frozen"]


def watch_frozen(context: ProcessContext, job: Job) -> tuple[list[bool], int]:
    """Whether each unit's frozen shard stayed the same in all steps, and how many bytes of state there are."""
    engine = make_engine(context, job)
    before = [None if unit.frozen is None else unit.frozen.master.clone() for unit in engine.units]
    for step in range(1, job.options.num_steps + 1):
        engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=step)
    same, num_bytes = [], 0
    for unit, old in zip(engine.units, before, strict=True):
        num_bytes += unit.master.nbytes + unit.grad.nbytes
        if unit.frozen is not None and old is not None:
            same.append(torch.equal(unit.frozen.master, old))
            num_bytes += unit.frozen.master.nbytes
    num_bytes += sum(moment.nbytes for moments in engine.optimizer.moments.values() for moment in moments)
    engine.close()
    return same, num_bytes
