"""O09: gradient clipping from the local shard only."""

import math

import pytest
import torch

from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.optimizer import clip_factor
from cephalo_cli.executor.peers import sum_over_ranks
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine

OPTIONS = TrainOptions(data="random", num_steps=1, clip=1.0)


def clip(context: ProcessContext, job: Job) -> tuple[float, list[float]]:
    """Give the norm this rank sees, and what clipping left of its gradient."""
    engine = make_engine(context, job)
    with torch.no_grad():
        for value, owner in job.arguments:
            if owner == context.rank:
                engine.units[1].grad[0] += value
    norm = math.sqrt(sum_over_ranks(engine.optimizer.squared_norm(), context.process_group).item())
    engine.optimizer.step(norm, 1.0)
    left = engine.units[1].grad[engine.units[1].grad != 0].tolist()
    engine.close()
    return norm, left


def test_o09_the_norm_is_that_of_all_shards_on_every_rank(ranks: Ranks) -> None:
    """O09: shards with gradients 3 and 4 have norm 5 and factor 0.2, whatever the shares."""
    model = make_model(num_layers=1)
    for shares in ([0.9, 0.1], [0.5, 0.5], [0.6, 0.4, 0.0]):
        plan = make_plan(model, [[1]] * len(shares), shares)
        (found,) = ranks.run([Job(plan=plan, options=OPTIONS, run=clip, arguments=((3.0, 0), (4.0, 1)))])
        assert [norm for norm, _ in found] == [5.0] * len(shares)
        assert found[0][1] == pytest.approx([0.6])
        assert found[1][1] == pytest.approx([0.8])
        assert [left for _, left in found[2:]] == [[]] * (len(shares) - 2)
    assert clip_factor(5.0, 1.0) == 0.2
