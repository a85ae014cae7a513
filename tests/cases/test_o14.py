"""O14: collectives with unequal sizes."""

from typing import Any

from cephalo_cli.executor import TrainOptions
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine
from tests.runtime.rank_entries import collectives, disagreement

OPTIONS = TrainOptions(data="random", num_steps=1)


def job(num_ranks: int, run: Any) -> Job:
    return Job(plan=make_plan(make_model(), [[1]] * num_ranks), options=OPTIONS, run=run)


def gather_and_sum(context: ProcessContext, _: Job) -> list[list[str]]:
    return collectives(context, None)


def disagree(context: ProcessContext, _: Job) -> list[str]:
    return disagreement(context, None)


def test_o14_a_gathered_shard_is_the_whole_and_sizes_are_compared_first(ranks: Ranks) -> None:
    """O14: 7 elements as 5/2, 7/0 and 4/3/0, in every dtype: exact shape, values and sums; wrong sizes are refused."""
    right, wrong = ranks.run([job(3, gather_and_sum), job(2, disagree)])
    assert right == [[[], [], []]] * 3
    for messages in wrong:
        assert len(set(messages)) == 1
        assert messages[0].startswith("rank 1 and rank 0 disagree about buffer 'block'")


def test_o14_no_padding_reaches_a_parameter(ranks: Ranks) -> None:
    """O14: a unit that no share divides evenly is cut so that the pieces are the whole, without an element more."""
    (cuts,) = ranks.run([Job(plan=make_plan(make_model(), [[1], [1], [1]], [0.7, 0.3, 0.0]), options=OPTIONS, run=cut)])
    for unit in cuts[0]:
        pieces = [each[unit] for each in cuts]
        size = pieces[0][2]
        assert [piece[:2] for piece in pieces] == [(0, pieces[0][1]), (pieces[0][1], size), (size, size)]


def cut(context: ProcessContext, given: Job) -> dict[str, tuple[int, int, int]]:
    engine = make_engine(context, given)
    cuts = {}
    for name, shard in engine.shards(to_write=True).items():
        assert shard.data.dim() == 1
        cuts[name] = (shard.start, shard.start + len(shard.data), shard.num_elements)
    engine.close()
    return cuts
