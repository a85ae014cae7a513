"""Any plan trains like one process: losses, gradient norms, records and collectives."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Model, Plan
from cephalo_cli.executor import TrainOptions
from cephalo_cli.schedule import COLLECTIVES, Op, plan_stages, rank_records
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, train_job
from tests.executor.reference import train_reference, write_text

NUM_STEPS = 10
LEARNING_RATE = 3e-3
GPT = make_model(tie_embeddings=False)
TIED = make_model(tie_embeddings=True, num_layers=2)
LLAMA = make_model("llama", num_kv_heads=2, qkv_bias=True)
TIED_LLAMA = make_model("llama", tie_embeddings=True, num_layers=1)

PLANS = {
    "one rank": make_plan(GPT, [[7]]),
    "one rank, ragged microbatches, no recompute": make_plan(GPT, [[3, 3, 1]], recompute=False),
    "two ranks, unequal everything": make_plan(GPT, [[3, 1], [2, 1]], [0.83, 0.17]),
    "ragged microbatches": make_plan(GPT, [[3, 3, 1], [2, 2]], [0.4, 0.6]),
    "a rank without samples": make_plan(GPT, [[2, 2, 1], []], [0.25, 0.75]),
    "a rank without state": make_plan(GPT, [[1, 2], [2]], [1.0, 0.0]),
    "work here, state there": make_plan(GPT, [[1] * 5, []], [0.0, 1.0]),
    "recompute off": make_plan(GPT, [[3, 1], [2, 1]], [0.3, 0.7], recompute=False),
    "recompute mixed": make_plan(GPT, [[3, 1], [2], [1]], [0.5, 0.3, 0.2], recompute=[True, False, True]),
    "recompute some blocks": make_plan(GPT, [[3, 1], [2], [1]], [0.5, 0.3, 0.2], recompute_blocks=[1, 0, 3]),
    "one rank, recompute the first block": make_plan(GPT, [[3, 3, 1]], recompute_blocks=[1]),
    "keep one block unsharded": make_plan(GPT, [[3, 1], [2, 1]], [0.3, 0.7], keep_unsharded=1),
    "keep all blocks unsharded, recompute some": make_plan(
        GPT, [[3, 1], [2], []], [0.3, 0.5, 0.2], keep_unsharded=2, recompute_blocks=[2, 0, 1]
    ),
    "tied, keep unsharded": make_plan(TIED, [[2, 1], [2]], [0.0, 1.0], keep_unsharded=1, recompute=False),
    "three ranks, one with nothing at all": make_plan(GPT, [[2, 1], [], [4]], [0.6, 0.0, 0.4]),
    "four ranks": make_plan(GPT, [[3], [1, 1], [], [2]], [0.1, 0.2, 0.3, 0.4]),
    "tied, one rank": make_plan(TIED, [[2, 2, 1]]),
    "tied, three ranks": make_plan(TIED, [[2], [1, 1], [1]], [0.5, 0.3, 0.2]),
    "tied, recompute off": make_plan(TIED, [[2, 1], [2]], [0.5, 0.5], recompute=False),
    "llama, one rank": make_plan(LLAMA, [[4, 1]]),
    "llama, three ranks": make_plan(LLAMA, [[3], [1], [1]], [0.2, 0.7, 0.1]),
    "tied llama": make_plan(TIED_LLAMA, [[3, 1], [1]], [0.35, 0.65], recompute=[False, True]),
    "microbatch-major": make_plan(GPT, [[2, 2, 1], [2]], [0.5, 0.5], schedule="microbatch-major"),
    "microbatch-major, tied, no recompute": make_plan(
        TIED, [[2, 1], [1, 1]], [0.3, 0.7], schedule="microbatch-major", recompute=False
    ),
    "microbatch-major, a rank without samples": make_plan(TIED, [[2, 1], []], [0.3, 0.7], schedule="microbatch-major"),
    "replicated": make_plan(GPT, [[2, 1], [3]], schedule="replicated"),
    "replicated, tied, one with nothing": make_plan(TIED, [[2, 1], [], [1]], schedule="replicated"),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data"))


def make_jobs(plans: Sequence[Plan], text: Path) -> list[Job]:
    options = TrainOptions(data=str(text), num_steps=NUM_STEPS, learning_rate=LEARNING_RATE)
    return [Job(plan=plan, options=options, run=train_job) for plan in plans]


def test_every_plan_trains_like_one_process(ranks: Ranks, text: Path) -> None:
    outcomes = dict(zip(PLANS, ranks.run(make_jobs(list(PLANS.values()), text)), strict=True))
    references = {}
    for name, plan in PLANS.items():
        key = (plan.model.model_dump_json(), plan.global_batch_size)
        if key not in references:
            references[key] = train_reference(
                plan.model,
                text,
                seq_len=SEQ_LEN,
                batch_size=plan.global_batch_size,
                num_steps=NUM_STEPS,
                learning_rate=LEARNING_RATE,
            )
        trained: list[Trained] = outcomes[name]
        assert trained[0].losses == pytest.approx(references[key].losses, rel=1e-10, abs=0), name
        assert trained[0].grad_norms == pytest.approx(references[key].grad_norms, rel=1e-9, abs=0), name
        assert trained[0].losses[-1] is not None
        assert trained[0].losses[-1] < references[key].losses[0] - 0.1, name
        check_records(name, plan, trained)
        check_collectives(name, plan, trained)


def check_records(name: str, plan: Plan, trained: Sequence[Trained]) -> None:
    """What was run is what the schedule says, in every step."""
    for planned, rank in zip(plan.ranks, trained, strict=True):
        expected = rank_records(
            plan_stages(plan),
            num_microbatches=len(planned.microbatch_sizes),
            recompute=planned.recompute,
            offload=planned.offload,
            recompute_blocks=planned.recompute_blocks,
        )
        assert rank.records == expected * NUM_STEPS, name


def check_collectives(name: str, plan: Plan, trained: Sequence[Trained]) -> None:
    """Ranks start the same collectives; their number a unit does not depend on the microbatches."""
    assert all(rank.collectives == trained[0].collectives for rank in trained), name
    in_records = [record for record in trained[0].records if record.op in COLLECTIVES]
    if len(trained) == 1:
        assert trained[0].collectives == []
        return
    assert len(trained[0].collectives) == len(in_records), name
    if plan.schedule == "layer-major":
        counts = Counter(trained[0].collectives)
        for unit in plan_stages(plan).units:
            assert counts["all_gather", unit.name] <= 2 * NUM_STEPS, (name, unit.name)
            assert counts["reduce_scatter", unit.name] == NUM_STEPS, (name, unit.name)
            last_kept = plan.model.num_layers - plan.num_kept_unsharded
            if unit.kind == "block" and unit.index >= last_kept:
                assert counts["all_gather", unit.name] == NUM_STEPS, (name, unit.name)
    assert Counter(record.op for record in trained[0].records)[Op.OPTIMIZER_STEP] == NUM_STEPS


def units_moved(plan: Plan, trained: Sequence[Trained]) -> dict[str, float]:
    """What a step moved of every unit, in whole units: a gather or a reduction over any shares moves one."""
    moved: Counter[str] = Counter()
    for rank in trained:
        for (_, name), received in zip(rank.collectives, rank.received_bytes, strict=True):
            moved[name] += received
    one = {unit.name: 8 * unit.num_parameters * (len(plan.ranks) - 1) for unit in plan_stages(plan).units}
    return {name: moved[name] / NUM_STEPS / one[name] for name in one}


def test_eight_microbatches_move_three_units_where_fsdp_moves_seventeen(ranks: Ranks, text: Path) -> None:
    split, shares = [[1] * 8, [1] * 8, []], [0.3, 0.6, 0.1]
    plans = [
        make_plan(GPT, split, shares, schedule="layer-major"),
        make_plan(GPT, split, shares, schedule="layer-major", keep_unsharded=2),
        make_plan(GPT, split, shares, schedule="microbatch-major"),
    ]
    layered, kept, fsdp = (
        units_moved(plan, trained) for plan, trained in zip(plans, ranks.run(make_jobs(plans, text)), strict=True)
    )
    assert layered == {"embedding": 2, "block.0": 3, "block.1": 3, "block.2": 2, "head": 2}
    assert kept == {"embedding": 2, "block.0": 2, "block.1": 2, "block.2": 2, "head": 2}
    assert fsdp["block.0"] == fsdp["block.1"] == 17


def test_units_updated_in_the_backward_train_like_one_process(ranks: Ranks, text: Path) -> None:
    names = (
        "one rank, ragged microbatches, no recompute",
        "a rank without state",
        "tied, three ranks",
        "microbatch-major, tied, no recompute",
        "replicated",
    )
    early = {"clip": None, "optimizer_in_backward": True}
    jobs = [
        replace(job, options=job.options.model_copy(update=early))
        for job in make_jobs([PLANS[name] for name in names], text)
    ]
    for name, trained in zip(names, ranks.run(jobs), strict=True):
        plan = PLANS[name]
        reference = train_reference(
            plan.model,
            text,
            seq_len=SEQ_LEN,
            batch_size=plan.global_batch_size,
            num_steps=NUM_STEPS,
            learning_rate=LEARNING_RATE,
            clip=None,
        )
        assert trained[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0), name
        assert trained[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0), name
        check_records(name, plan, trained)
        updates = [event for event in trained[0].result.timeline.events if event.lane == "optimizer"]
        if name != "a rank without state":
            assert {event.name.partition(" ")[2] for event in updates} >= {"embedding", "block.0", "head"}, name


def test_dropout_depends_on_neither_recompute_nor_the_split(ranks: Ranks, text: Path) -> None:
    model = GPT.model_copy(update={"dropout": 0.2})
    plans = [
        make_plan(model, [[5]]),
        make_plan(model, [[5]], recompute=False),
        make_plan(model, [[2, 1], [2]], [0.3, 0.7]),
        make_plan(model, [[1, 1], [], [1, 2]], [0.3, 0.3, 0.4], recompute=[False, True, False]),
    ]
    on, off, *split = (trained[0].losses for trained in ranks.run(make_jobs(plans, text)))
    assert on == off
    reference = train_reference(
        model, text, seq_len=SEQ_LEN, batch_size=5, num_steps=NUM_STEPS, learning_rate=LEARNING_RATE
    )
    without = train_reference(
        GPT, text, seq_len=SEQ_LEN, batch_size=5, num_steps=NUM_STEPS, learning_rate=LEARNING_RATE
    )
    for losses in (on, *split):
        assert losses == pytest.approx(reference.losses, rel=1e-10, abs=0)
    assert abs(reference.losses[0] - without.losses[0]) > 1e-6


def test_torch_engines_train_like_one_process(ranks: Ranks, text: Path) -> None:
    models: dict[str, Model] = {"gpt": GPT, "tied": TIED, "llama": LLAMA}
    jobs, expected = [], []
    for model in models.values():
        plan = make_plan(model, [[2, 1], [1, 1]], [0.7, 0.3], recompute=[True, False])
        uneven = make_plan(model, [[2, 1, 1], []], [0.7, 0.3])
        reference = train_reference(
            model, text, seq_len=SEQ_LEN, batch_size=5, num_steps=NUM_STEPS, learning_rate=LEARNING_RATE
        )
        short = train_reference(
            model, text, seq_len=SEQ_LEN, batch_size=4, num_steps=NUM_STEPS, learning_rate=LEARNING_RATE
        )
        for engine in ("fsdp2", "ddp"):
            options = TrainOptions(data=str(text), num_steps=NUM_STEPS, learning_rate=LEARNING_RATE, engine=engine)
            even = options.model_copy(update={"even_split": True})
            jobs += [Job(plan=plan, options=options, run=train_job), Job(plan=uneven, options=even, run=train_job)]
            expected += [reference, short]
    for job, trained, reference in zip(jobs, ranks.run(jobs), expected, strict=True):
        name = (job.options.engine, job.plan.model.name, job.options.even_split)
        assert trained[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0), name
        assert trained[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0), name
