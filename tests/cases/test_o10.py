"""O10: starting weights differ per rank or depend on the sharding."""

import torch

from cephalo_cli.executor import TrainOptions
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine

MODEL = make_model(num_layers=2, tie_embeddings=True)


def starting_weights(context: ProcessContext, job: Job) -> list[list[float]]:
    engine = make_engine(context, job)
    weights = [unit.master.tolist() for unit in engine.units]
    engine.close()
    return weights


def test_o10_starting_weights_depend_on_the_seed_alone(ranks: Ranks) -> None:
    """O10: the full weights before step 1 are the same for 1, 2 and 3 ranks and any shares, to the last bit."""
    plans = [
        make_plan(MODEL, [[3]]),
        make_plan(MODEL, [[2], [1]], [0.17, 0.83]),
        make_plan(MODEL, [[1], [1], [1]], [0.5, 0.0, 0.5]),
    ]
    options = TrainOptions(data="random", num_steps=1, seed=7)
    other = options.model_copy(update={"seed": 8})
    jobs = [Job(plan=plan, options=options, run=starting_weights) for plan in plans]
    outcomes = ranks.run([*jobs, Job(plan=plans[0], options=other, run=starting_weights)])
    whole = [
        [torch.tensor([value for rank in outcome for value in rank[unit]]) for unit in range(4)] for outcome in outcomes
    ]
    for found in whole[1:3]:
        assert all(map(torch.equal, found, whole[0]))
    assert not torch.equal(whole[3][0], whole[0][0])
