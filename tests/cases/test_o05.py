"""O05: all microbatches forward, then all backward."""

from collections import Counter
from typing import Any

from cephalo_cli.executor import TrainOptions
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine, train_job
from tests.executor.test_engine import count, make_batch

MODEL = make_model(num_layers=1)
OPTIONS = TrainOptions(data="random", num_steps=1)


def bytes_left(context: ProcessContext, job: Job) -> int:
    """Bytes of whole units and gradients after a step."""
    engine = make_engine(context, job)
    engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=1)
    whole = sum(each.untyped_storage().nbytes() for unit in engine.units for each in unit.parameters.values())
    gradients = sum(unit.full_grad.nbytes for unit in engine.units if unit.full_grad is not None)
    engine.close()
    return whole + gradients


def test_o05_gathers_do_not_depend_on_the_number_of_microbatches(ranks: Ranks) -> None:
    """O05: a unit is gathered as often for 3 microbatches as for 1, reduced once, and freed."""
    one, three = make_plan(MODEL, [[3], [3]], [0.7, 0.3]), make_plan(MODEL, [[1, 1, 1], [1, 1, 1]], [0.7, 0.3])
    few, many, left = ranks.run(
        [
            Job(plan=one, options=OPTIONS, run=train_job),
            Job(plan=three, options=OPTIONS, run=train_job),
            Job(plan=three, options=OPTIONS, run=bytes_left),
        ]
    )
    counts: Counter[Any] = Counter(few[0].collectives)
    assert counts == Counter(many[0].collectives)
    for unit in ("embedding", "block.0", "head"):
        assert counts["reduce_scatter", unit] == 1
        assert counts["all_gather", unit] == 1  # the only block is kept from its forward to its backward
    assert abs((few[0].losses[0] or 0) / (many[0].losses[0] or 1) - 1) < 1e-12
    assert left == [0, 0]
