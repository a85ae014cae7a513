"""A step as data: what every rank runs, for every number of layers, ranks and microbatches."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts.plan import FsdpOptions, ScheduleName
from cephalo_cli.schedule import Op, plan_stages, rank_records, step_stages
from tests.simulator.plans import make_plan
from tests.steps import COMPUTE, EVERY, Case, cases, records_of, switches, units


def test_a_plan_carries_its_fsdp_options_to_the_schedule() -> None:
    plan = make_plan(["fast", "slow"], [[1, 1], [1]], schedule="microbatch-major")
    options = FsdpOptions(keeps_gathered=True, reduces_every_microbatch=True, reduce_dtype="bfloat16")
    changed = plan.model_copy(update={"fsdp": options})
    assert plan_stages(changed) == step_stages("microbatch-major", plan_stages(plan).units, 2, options)
    assert plan_stages(changed).reduce_dtype == "bfloat16"


@given(cases(), switches)
def test_every_microbatch_goes_forward_and_backward_once_in_every_unit(case: Case, switch: tuple[bool, bool]) -> None:
    for count in case.counts:
        ran = Counter((r.op, r.unit, r.microbatch) for r in records_of(case.step, count, switch) if r.op in COMPUTE)
        expected = Counter(
            (op, unit.index, microbatch)
            for op in COMPUTE
            for unit in case.step.units
            for microbatch in range(count)
            if op is not Op.RECOMPUTE or (switch[0] and unit.kind == "block")
        )
        assert ran == expected


@given(cases(), switches)
def test_a_microbatch_follows_the_model_down_and_up(case: Case, switch: tuple[bool, bool]) -> None:
    last = case.step.units[-1].index
    down = [(Op.FORWARD, unit) for unit in range(last + 1)]
    up = [
        (op, unit)
        for unit in range(last, -1, -1)
        for op in ((Op.RECOMPUTE, Op.BACKWARD) if switch[0] and 0 < unit < last else (Op.BACKWARD,))
    ]
    for count in case.counts:
        records = records_of(case.step, count, switch)
        for microbatch in range(count):
            mine = [(r.op, r.unit) for r in records if r.op in COMPUTE and r.microbatch == microbatch]
            assert mine == down + up


@given(cases())
def test_boundaries_are_offloaded_before_they_are_fetched_and_fetched_before_use(case: Case) -> None:
    last = case.step.units[-1].index
    for count in case.counts:
        out: set[tuple[object, ...]] = set()
        here: Counter[tuple[object, ...]] = Counter()
        for record in records_of(case.step, count, (True, True)):
            boundary = (record.tensor, record.unit, record.microbatch)
            if record.op is Op.OFFLOAD:
                assert boundary not in out, "offloaded twice"
                out.add(boundary)
            elif record.op is Op.FETCH:
                assert boundary in out, "fetched although it was never offloaded"
                here[boundary] += 1
            elif record.op in (Op.FORWARD, Op.RECOMPUTE) and record.unit:
                here["activation", record.unit - 1, record.microbatch] -= 1
            elif record.op is Op.BACKWARD and record.unit != last:
                here["gradient", record.unit, record.microbatch] -= 1
            assert min(here.values(), default=0) >= 0, "used before it was fetched"
        assert not any(here.values()), "fetched for nothing"
        assert out == {
            (tensor, unit, microbatch)
            for tensor in ("activation", "gradient")
            for unit in range(last)
            for microbatch in range(count)
        }


@given(cases(), st.sampled_from([(False, False), (True, False)]))
def test_without_offload_nothing_is_copied(case: Case, switch: tuple[bool, bool]) -> None:
    for count in case.counts:
        assert not {record.op for record in records_of(case.step, count, switch)} & {Op.OFFLOAD, Op.FETCH}


@given(cases())
def test_a_step_ends_with_one_optimizer_step(case: Case) -> None:
    for count in case.counts:
        records = records_of(case.step, count)
        assert [at for at, r in enumerate(records) if r.op is Op.OPTIMIZER_STEP] == [len(records) - 1]


def test_a_small_step_by_hand() -> None:
    step = step_stages("layer-major", units(2, tied=False))
    written = [f"{r.op} {r.unit}" + ("" if r.microbatch is None else f".{r.microbatch}") for r in records_of(step, 2)]
    assert written == [
        "UNSHARD 0",
        *("UNSHARD 1", "FORWARD 0.0", "FORWARD 0.1", "RESHARD 0"),
        *("UNSHARD 2", "FORWARD 1.0", "FORWARD 1.1", "RESHARD 1"),
        *("UNSHARD 3", "FORWARD 2.0", "FORWARD 2.1"),
        *("FORWARD 3.0", "BACKWARD 3.0", "FORWARD 3.1", "BACKWARD 3.1", "RESHARD 3"),
        *("UNSHARD 1", "REDUCE_GRAD 3"),
        *("RECOMPUTE 2.0", "BACKWARD 2.0", "RECOMPUTE 2.1", "BACKWARD 2.1", "RESHARD 2"),
        "REDUCE_GRAD 2",
        *("RECOMPUTE 1.0", "BACKWARD 1.0", "RECOMPUTE 1.1", "BACKWARD 1.1", "RESHARD 1"),
        *("REDUCE_GRAD 1", "BACKWARD 0.0", "BACKWARD 0.1"),
        *("REDUCE_GRAD 0", "OPTIMIZER_STEP None"),
    ]


def test_a_rank_without_microbatches_only_takes_part_in_collectives() -> None:
    step = step_stages("layer-major", units(2, tied=True))
    assert {record.op for record in records_of(step, 0)} == {
        Op.UNSHARD,
        Op.RESHARD,
        Op.REDUCE_GRAD,
        Op.OPTIMIZER_STEP,
    }


def test_fetches_start_one_microbatch_ahead() -> None:
    step = step_stages("layer-major", units(1, tied=False))
    forward = [
        f"{r.op} {r.unit}.{r.microbatch}"
        for r in records_of(step, 2, (True, True))
        if r.op in (Op.FORWARD, Op.FETCH, Op.OFFLOAD) and r.tensor != "gradient"
    ][4:10]
    assert forward == ["FETCH 0.0", "FETCH 0.1", "FORWARD 1.0", "OFFLOAD 1.0", "FORWARD 1.1", "OFFLOAD 1.1"]


@pytest.mark.parametrize("name", EVERY)
def test_a_plans_stages_follow_its_schedule_and_longest_rank(name: ScheduleName) -> None:
    plan = make_plan(["fast", "slow"], [[2, 1, 1], []], schedule=name)
    step = plan_stages(plan)
    assert step.name == name
    assert step.num_rounds == (1 if name == "layer-major" else 3)
    assert [unit.name for unit in step.units] == ["embedding", "block.0", "block.1", "block.2", "block.3", "head"]


@given(st.integers(1, 6), st.data())
def test_only_the_first_blocks_recompute(num_layers: int, data: st.DataObject) -> None:
    step = step_stages("layer-major", units(num_layers, tied=False))
    blocks = data.draw(st.integers(0, num_layers))
    records = rank_records(
        step, num_microbatches=2, recompute=blocks > 0, offload=False, recompute_blocks=blocks or None
    )
    again = [record.unit for record in records if record.op is Op.RECOMPUTE]
    assert again == [unit for unit in range(blocks, 0, -1) for _ in range(2)]
    forward = [record for record in records if record.op is Op.FORWARD]
    assert len(forward) == 2 * len(step.units)
