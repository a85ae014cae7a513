"""Updates in backward: what ranks hold of the state is what a plan counts."""

from functools import partial

import torch

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.costmodel.memory import planned_state_bytes, state_bytes
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.sharded_unit import ShardedUnit
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Record, plan_stages
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine
from tests.executor.test_engine import count, make_batch

make_early = partial(make_plan, dtype="float32", settings=PlanSettings(optimizer_in_backward=True))
PLANS = {
    "unequal shares": make_early(make_model(), [[2, 1], [1]], [0.7, 0.3]),
    "tied, all on one rank": make_early(make_model(tie_embeddings=True), [[1], [2]], [0.0, 1.0]),
    "one rank": make_early(make_model(), [[2, 1]]),
    "replicated": make_early(make_model(), [[2], [1]], schedule="replicated"),
    "replicated, two rounds": make_early(make_model(), [[2, 1], [1]], schedule="replicated"),
    "microbatch-major": make_early(make_model(), [[2, 1], [1]], [0.6, 0.4], schedule="microbatch-major"),
}


def gradient_bytes(unit: ShardedUnit) -> int:
    """Bytes of a shard's gradient that is there; looking at ``grad`` would make it."""
    held = vars(unit)["_grad"]
    return held.nbytes if isinstance(held, torch.Tensor) else 0


def watch_state(context: ProcessContext, job: Job) -> tuple[int, int]:
    """The most bytes of state that are there after any record of two steps, and after the last."""
    seen: list[int] = []

    def on_record(_: Record) -> None:
        seen.append(sum(gradient_bytes(unit) for unit in engine.units))

    engine = make_engine(context, job, on_record=on_record)
    for step in (1, 2):
        engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=step)
    kept = sum(unit.master.nbytes for unit in engine.units)
    kept += sum(moment.nbytes for moments in engine.optimizer.moments.values() for moment in moments)
    engine.close()
    return kept + max(seen), kept + seen[-1]


def test_ranks_hold_the_gradients_that_the_plan_counts(ranks: Ranks) -> None:
    options = TrainOptions(data="random", num_steps=2, clip=None, optimizer_in_backward=True)
    outcomes = ranks.run([Job(plan=plan, options=options, run=watch_state) for plan in PLANS.values()])
    for (name, plan), outcome in zip(PLANS.items(), outcomes, strict=True):
        whole = planned_state_bytes(plan, plan.settings, step=plan_stages(plan), num_ranks=len(plan.ranks))
        weights_and_moments = state_bytes(plan, num_gradients=0)
        for rank, (most, after) in zip(plan.ranks, outcome, strict=True):
            rounding = 4 * 4 * len(plan_stages(plan).units)
            assert most <= rank.state_share * whole + rounding, name
            assert most > rank.state_share * weights_and_moments - rounding, name
            assert after <= rank.state_share * weights_and_moments + rounding, name
        if "replicated" not in name:
            assert sum(most for most, _ in outcome) > 0.9 * whole, name
        if name != "replicated, two rounds":
            assert whole < 0.97 * state_bytes(plan), name
