"""Inside the engine, on real ranks: token counts, low precision, offloading, disagreement."""

from typing import Any

import pytest
import torch

from cephalo_cli.artifacts import Plan
from cephalo_cli.costmodel.memory import buffers_bytes
from cephalo_cli.errors import TrainingError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.agreement import compare_ranks, job_facts
from cephalo_cli.executor.engine import CephaloEngine
from cephalo_cli.models import IGNORED_TARGET, TextBatch
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record, plan_stages, rank_records
from cephalo_cli.timeline import Event
from cephalo_cli.units import boundary_bytes
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine
from tests.executor.reference import OneProcess

MODEL = make_model()
OPTIONS = TrainOptions(data="random", num_steps=3, learning_rate=3e-3)
MASKED = make_plan(MODEL, [[1, 1], [2]], [0.6, 0.4])
TIED = make_plan(make_model(tie_embeddings=True), [[1, 1], []], [0.6, 0.4])
OFFLOADED = make_plan(MODEL, [[2, 1, 1]], offload=True)
Outcome = list[tuple[float | None, float | None]]


def make_batch(plan: Plan, rank: int, *, all_ignored: bool = False) -> list[TextBatch]:
    """Microbatches with very different numbers of counted tokens."""
    start = sum(sum(before.microbatch_sizes) for before in plan.ranks[:rank])
    microbatches = []
    for size in plan.ranks[rank].microbatch_sizes:
        generator = torch.Generator().manual_seed(start)
        rows = torch.randint(260, (size, SEQ_LEN + 1), generator=generator)
        targets = rows[:, 1:].clone()
        targets[:, (start * 5) % SEQ_LEN + 1 :] = IGNORED_TARGET
        if all_ignored:
            targets.fill_(IGNORED_TARGET)
        samples = tuple(range(start, start + size))
        microbatches.append(TextBatch(samples=samples, tokens_BT=rows[:, :-1].contiguous(), targets_BT=targets))
        start += size
    return microbatches


def count(plan: Plan) -> int:
    batches = [make_batch(plan, rank.rank) for rank in plan.ranks]
    return sum(int((micro.targets != IGNORED_TARGET).sum()) for batch in batches for micro in batch)


def run_steps(context: ProcessContext, job: Job) -> Outcome:
    """Three steps on the same masked batch, then one without any counted token."""
    engine = make_engine(context, job)
    outcome = []
    for step in range(1, 5):
        batch = make_batch(job.plan, context.rank, all_ignored=step == 4)
        numbers, _ = engine.run_step(batch, num_tokens=0 if step == 4 else count(job.plan), step=step)
        outcome.append((numbers.loss, numbers.grad_norm))
    assert torch.isfinite(engine.units[0].master).all()
    engine.close()
    return outcome


def run_overflow(context: ProcessContext, job: Job) -> dict[str, Any]:
    """float16 with a scale that overflows at first."""
    engine = make_engine(context, job)
    engine.scale.value = 2.0**26
    before = [unit.master.clone() for unit in engine.units]
    norms, unchanged = [], []
    for step in range(1, 15):
        numbers, _ = engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=step)
        norms.append(numbers.grad_norm)
        unchanged.append(all(map(torch.equal, before, [unit.master for unit in engine.units])))
    found = {"norms": norms, "unchanged": unchanged, "scale": engine.scale.value, "updates": engine.num_updates}
    engine.close()
    return found


def run_broken(context: ProcessContext, job: Job) -> None:
    """A weight of one rank's shard turns into infinity."""
    engine = make_engine(context, job)
    try:
        if context.rank == 1:
            engine.units[1].master[0] = torch.inf
        engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=1)
    finally:
        engine.close()


def run_skipping(context: ProcessContext, job: Job) -> list[tuple[float | None, float | None, bool]]:
    """One rank's shard turns to infinity for one step, and back; gives numbers, and whether weights changed."""
    engine = make_engine(context, job)
    good = [unit.master.clone() for unit in engine.units]
    found = []
    for step in (1, 2):
        if context.rank == 1:
            engine.units[1].master[0] = torch.inf if step == 1 else good[1][0]
        before = [unit.master.clone() for unit in engine.units]
        numbers, _ = engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=step)
        changed = not all(map(torch.equal, before, [unit.master for unit in engine.units]))
        found.append((numbers.loss, numbers.grad_norm, changed))
    assert engine.num_updates == 1
    engine.close()
    return found


def disagree(context: ProcessContext, job: Job) -> None:
    options = job.options.model_copy(update={"learning_rate": 1e-3 * (1 + context.rank)})
    compare_ranks(job_facts(job.plan, options), context.process_group)


def disagree_about_data(context: ProcessContext, _: Job) -> None:
    compare_ranks({"the training data": f"of rank {context.rank}"}, context.process_group)


def count_copies(context: ProcessContext, job: Job) -> tuple[Outcome, int, list[Event]]:
    """Run with offload, count what goes to the host in one step, and keep the events of the copies."""
    moved = 0
    engine: CephaloEngine = make_engine(context, job)
    host = engine._interpreter._boundaries._host  # noqa: SLF001 - the copies are what is counted
    assert host is not None
    save = host.save

    def counting_save(key: Any, tensor: torch.Tensor) -> torch.Event | None:
        nonlocal moved
        moved += tensor.nbytes
        return save(key, tensor)

    host.save = counting_save  # type: ignore[method-assign]
    _, times = engine.run_step(make_batch(job.plan, 0), num_tokens=count(job.plan), step=1)
    engine.close()
    return run_steps(context, job), moved, [event for event in times.events if event.lane.startswith("copy")]


def watch_buffers(context: ProcessContext, job: Job) -> int:
    """Most bytes of whole units and whole gradients after any record of two steps."""
    most = 0

    def on_record(_: Record) -> None:
        nonlocal most
        whole = sum(next(iter(unit.parameters.values())).untyped_storage().nbytes() for unit in engine.units)
        gradients = sum(unit.full_grad.nbytes for unit in engine.units if unit.full_grad is not None)
        most = max(most, whole + gradients)

    engine = make_engine(context, job, on_record=on_record)
    for step in (1, 2):
        engine.run_step(make_batch(job.plan, context.rank), num_tokens=count(job.plan), step=step)
    engine.close()
    return most


JOBS = {
    "masked": Job(plan=MASKED, options=OPTIONS, run=run_steps),
    "not offloaded": Job(plan=make_plan(MODEL, [[2, 1, 1]]), options=OPTIONS, run=run_steps),
    "offloaded": Job(plan=OFFLOADED, options=OPTIONS, run=count_copies),
    "bfloat16": Job(
        plan=MASKED, options=OPTIONS.model_copy(update={"dtype": "bfloat16", "learning_rate": 1e-4}), run=run_steps
    ),
    "bfloat16 without recompute": Job(
        plan=make_plan(MODEL, [[1, 1], [2]], [0.6, 0.4], recompute=False),
        options=OPTIONS.model_copy(update={"dtype": "bfloat16", "learning_rate": 1e-4}),
        run=run_steps,
    ),
    "bfloat16 on one rank": Job(
        plan=make_plan(MODEL, [[1, 1, 2]]),
        options=OPTIONS.model_copy(update={"dtype": "bfloat16", "learning_rate": 1e-4}),
        run=run_steps,
    ),
    "bfloat16 replicated": Job(
        plan=make_plan(MODEL, [[1, 1], [2]], schedule="replicated"),
        options=OPTIONS.model_copy(update={"dtype": "bfloat16", "learning_rate": 1e-4}),
        run=run_steps,
    ),
    "float16": Job(plan=MASKED, options=OPTIONS.model_copy(update={"dtype": "float16"}), run=run_overflow),
    "buffers": Job(plan=MASKED, options=OPTIONS, run=watch_buffers),
    "tied buffers": Job(plan=TIED, options=OPTIONS, run=watch_buffers),
    "broken": Job(plan=MASKED, options=OPTIONS, run=run_broken),
    "skipping": Job(plan=MASKED, options=OPTIONS.model_copy(update={"on_nonfinite": "skip"}), run=run_skipping),
    "disagree": Job(plan=MASKED, options=OPTIONS, run=disagree),
    "disagree about data": Job(plan=MASKED, options=OPTIONS, run=disagree_about_data),
}


@pytest.fixture(scope="module")
def outcomes(ranks: Ranks) -> dict[str, list[Any]]:
    return dict(zip(JOBS, ranks.run(list(JOBS.values())), strict=True))


def reference(dtype: torch.dtype, learning_rate: float) -> list[tuple[float, float]]:
    """The masked batch in one piece, in one process."""
    batch = [microbatch for rank in range(2) for microbatch in make_batch(MASKED, rank)]
    whole = TextBatch(
        samples=tuple(range(sum(len(micro.samples) for micro in batch))),
        tokens_BT=torch.cat([micro.tokens_BT for micro in batch]),
        targets_BT=torch.cat([micro.targets_BT for micro in batch]),
    )
    training = OneProcess(MODEL, dtype=dtype, learning_rate=learning_rate)
    return [training.step(whole) for _ in range(3)]


def test_one_count_of_tokens_over_microbatches_and_ranks(outcomes: dict[str, list[Any]]) -> None:
    counts = [int((micro.targets != IGNORED_TARGET).sum()) for rank in range(2) for micro in make_batch(MASKED, rank)]
    assert len(set(counts)) == 3
    for rank in outcomes["masked"]:
        for found, expected in zip(rank, reference(torch.float64, 3e-3), strict=False):
            assert found == pytest.approx(expected, rel=1e-10)


def test_a_step_without_tokens_has_no_loss_and_no_gradient(outcomes: dict[str, list[Any]]) -> None:
    for name in ("masked", "bfloat16", "not offloaded"):
        assert outcomes[name][0][3] == (None, 0.0)


def test_offloading_changes_nothing_and_moves_boundaries_alone(outcomes: dict[str, list[Any]]) -> None:
    ((steps, moved_bytes, events),) = outcomes["offloaded"]
    assert steps == outcomes["not offloaded"][0]
    one_boundary = boundary_bytes(MODEL, SEQ_LEN, "float64", 4)
    num_boundaries = MODEL.num_layers + 1
    assert moved_bytes == 2 * num_boundaries * one_boundary
    plan = JOBS["offloaded"].plan
    records = rank_records(plan_stages(plan), num_microbatches=3, recompute=True, offload=True)
    for lane, op in (("copy out", Op.OFFLOAD), ("copy in", Op.FETCH)):
        assert sum(event.lane == lane for event in events) == sum(record.op is op for record in records)
    assert len({event.flow for event in events}) == len(events)


def test_buffers_are_what_the_memory_model_says(outcomes: dict[str, list[Any]]) -> None:
    for name in ("buffers", "tied buffers"):
        expected = buffers_bytes(plan_stages(JOBS[name].plan), num_ranks=2, dtype="float64")
        with_samples, other = outcomes[name]
        assert with_samples == expected
        assert other <= expected


def test_bfloat16_stays_close_to_float32(outcomes: dict[str, list[Any]]) -> None:
    expected = reference(torch.float32, 1e-4)
    names = [name for name in JOBS if name.startswith("bfloat16")]
    assert len(names) == 4
    for name in names:
        for found, right in zip(outcomes[name][0], expected, strict=False):
            assert found == pytest.approx(right, rel=0.02), name
    assert outcomes["bfloat16"][0] == outcomes["bfloat16 without recompute"][0]


def test_float16_finds_its_scale(outcomes: dict[str, list[Any]]) -> None:
    first, second = outcomes["float16"]
    assert first["norms"] == second["norms"]
    good = [norm for norm in first["norms"] if norm is not None]
    skipped = len(first["norms"]) - len(good)
    assert 0 < skipped < 14
    assert first["scale"] == 2.0 ** (26 - skipped)
    assert first["updates"] == len(good)
    leading = next(index for index, norm in enumerate(first["norms"]) if norm is not None)
    assert first["unchanged"][:leading] == [True] * leading
    assert not first["unchanged"][leading]
    assert good[0] == pytest.approx(reference(torch.float64, 3e-3)[0][1], rel=0.02)


def test_all_ranks_stop_when_something_is_not_finite(outcomes: dict[str, list[Any]]) -> None:
    for error in outcomes["broken"]:
        assert isinstance(error, TrainingError)
        assert error.message == "the loss of step 1 is not finite (nan)"


def test_all_ranks_leave_out_what_is_not_finite_and_go_on(outcomes: dict[str, list[Any]]) -> None:
    one, other = outcomes["skipping"]
    assert one == other
    assert one[0] == (None, None, False)
    loss, norm, changed = one[1]
    assert (loss, norm) == pytest.approx(reference(torch.float64, 3e-3)[0], rel=1e-10)
    assert changed


def test_ranks_that_would_do_different_things_do_not_start(outcomes: dict[str, list[Any]]) -> None:
    for error in outcomes["disagree"]:
        assert isinstance(error, TrainingError)
        assert error.message.startswith("rank 1 and rank 0 disagree about the options: ")
    for error in outcomes["disagree about data"]:
        assert error.message == "rank 1 and rank 0 disagree about the training data: of rank 1 and of rank 0"
