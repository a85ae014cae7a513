"""Before it computes, a rank says how much memory is coming, so that gaps of the heap can be given back first."""

from cephalo_cli.executor import TrainOptions
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.units import DTYPE_BYTES, model_units
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine
from tests.executor.test_engine import count, make_batch

MODEL = make_model()
PLAN = make_plan(MODEL, [[1, 1], [2]], [0.6, 0.4], dtype="bfloat16")
ALONE = make_plan(MODEL, [[2, 1]])


def note_room(context: ProcessContext, job: Job) -> list[int]:
    """What one step announces."""
    engine = make_engine(context, job)
    announced: list[int] = []
    engine._interpreter._make_room = announced.append  # noqa: SLF001 - what it is told is what is tested
    engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=1)
    engine.close()
    return announced


def test_the_next_unit_and_a_first_gradient_are_announced(ranks: Ranks) -> None:
    options = TrainOptions(data="random", num_steps=1)
    by_rank, (alone, *_) = ranks.run([Job(plan=plan, options=options, run=note_room) for plan in (PLAN, ALONE)])
    sizes = [unit.num_parameters for unit in model_units(MODEL)]
    whole = [DTYPE_BYTES["bfloat16"] * size for size in sizes]
    gradients = [4 * size for size in sizes]
    forward = [*whole[1:], 0]
    arriving = [0, 0, *whole[1:-2], 0]  # the embedding's weights are not read again, the last block's are still there
    first_backward = [gradient + below for gradient, below in zip(gradients, arriving, strict=True)]
    for announced, num_microbatches in zip(by_rank, (2, 1), strict=True):
        assert announced[: len(sizes) * num_microbatches : num_microbatches] == forward
        assert max(announced) == max(first_backward)
        assert set(first_backward) <= set(announced)
    assert set(alone) == {0}
