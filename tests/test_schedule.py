"""A step as data: what holds for every number of layers, ranks and microbatches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts.plan import FsdpOptions, ScheduleName
from cephalo_cli.schedule import (
    COLLECTIVES,
    Op,
    Record,
    StepStages,
    plan_stages,
    rank_records,
    resharding,
    step_stages,
)
from cephalo_cli.units import Unit
from tests.simulator.plans import make_plan

COMPUTE = (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD)
SHARDED: tuple[ScheduleName, ...] = ("layer-major", "microbatch-major")
EVERY: tuple[ScheduleName, ...] = (*SHARDED, "replicated")

switches = st.sampled_from([(False, False), (True, False), (True, True)])


def units(num_layers: int, *, tied: bool, normed: bool = False) -> tuple[Unit, ...]:
    """Units whose embedding is a lookup, or ends with a norm, which its backward reads."""
    last = num_layers + 1
    return (
        Unit(index=0, name="embedding", kind="embedding", num_parameters=70, backward_reads=normed),
        *(Unit(index=1 + i, name=f"block.{i}", kind="block", num_parameters=30) for i in range(num_layers)),
        Unit(index=last, name="head", kind="head", num_parameters=5, borrows=0 if tied else None),
    )


@dataclass(frozen=True)
class Case:
    """A step and the numbers of microbatches of its ranks."""

    step: StepStages
    counts: tuple[int, ...]


@st.composite
def cases(draw: st.DrawFn, *names: ScheduleName) -> Case:
    counts = draw(st.lists(st.one_of(st.sampled_from([0, 1, 50]), st.integers(0, 6)), min_size=2, max_size=4))
    model = units(draw(st.integers(1, 6)), tied=draw(st.booleans()), normed=draw(st.booleans()))
    return Case(step_stages(draw(st.sampled_from(names or EVERY)), model, max(counts)), tuple(sorted(set(counts))))


def records_of(step: StepStages, count: int, switch: tuple[bool, bool] = (True, False)) -> list[Record]:
    return rank_records(step, num_microbatches=count, recompute=switch[0], offload=switch[1])


def how_often(records: Sequence[Record], op: Op, unit: int) -> int:
    return sum(record.op is op and record.unit == unit for record in records)


@given(cases(), st.data())
def test_every_rank_issues_the_same_collectives(case: Case, data: st.DataObject) -> None:
    sequences = {
        tuple(
            (record.op, record.unit)
            for record in records_of(case.step, count, data.draw(switches))
            if record.op in COLLECTIVES
        )
        for count in case.counts
    }
    assert len(sequences) == 1


@given(cases(*SHARDED), switches)
def test_compute_finds_its_units_whole_and_all_are_freed(case: Case, switch: tuple[bool, bool]) -> None:
    for count in case.counts:
        whole: set[int] = set()
        for record in records_of(case.step, count, switch):
            if record.op is Op.UNSHARD:
                assert record.unit is not None
                assert record.unit not in whole, "gathered although it is whole"
                whole.add(record.unit)
            elif record.op is Op.RESHARD:
                assert record.unit in whole, "freed although it is not whole"
                whole.remove(record.unit)
            elif record.op in COMPUTE:
                assert record.unit is not None
                unit = case.step.units[record.unit]
                if record.op is Op.BACKWARD and not unit.backward_reads:
                    continue  # its gradient comes from the token ids alone
                assert {unit.index, unit.index if unit.borrows is None else unit.borrows} <= whole
        assert whole == set()


@given(cases("layer-major"), switches)
def test_layer_major_gathers_twice_at_most_and_reduces_once(case: Case, switch: tuple[bool, bool]) -> None:
    for count in case.counts:
        records = records_of(case.step, count, switch)
        for unit in case.step.units:
            has_three_uses = unit.index == 0 and unit.backward_reads and case.step.units[-1].borrows == 0
            assert 1 <= how_often(records, Op.UNSHARD, unit.index) <= (3 if has_three_uses else 2)
            assert how_often(records, Op.REDUCE_GRAD, unit.index) == 1
            assert how_often(records, Op.ALL_REDUCE, unit.index) == 0
        assert how_often(records, Op.UNSHARD, case.step.units[-1].index) == 1, "the head runs both ways at once"
        assert how_often(records, Op.UNSHARD, case.step.units[-2].index) == 1, "the last block is needed again at once"


@given(cases("layer-major"), st.integers(0, 50))
def test_layer_major_stages_do_not_depend_on_the_microbatches(case: Case, rounds: int) -> None:
    assert step_stages("layer-major", case.step.units, rounds) == case.step


@given(cases("microbatch-major"))
def test_microbatch_major_gathers_grow_with_the_rounds(case: Case) -> None:
    rounds = case.step.num_rounds
    assert rounds == max(1, *case.counts)
    for count in case.counts:
        records = records_of(case.step, count)
        for unit in case.step.units[1:-2]:
            assert how_often(records, Op.UNSHARD, unit.index) == 2 * rounds
        assert how_often(records, Op.UNSHARD, case.step.units[-1].index) == rounds
        for unit in case.step.units:
            assert how_often(records, Op.REDUCE_GRAD, unit.index) == 1, "it accumulates until the last round"


@given(cases("microbatch-major"), st.booleans(), st.booleans())
def test_fsdp_options_gather_once_a_round_and_reduce_in_every_round(case: Case, keeps: bool, reduces: bool) -> None:  # noqa: FBT001  (hypothesis passes both)
    rounds = case.step.num_rounds
    options = FsdpOptions(keeps_gathered=keeps, reduces_every_microbatch=reduces)
    step = step_stages("microbatch-major", case.step.units, rounds, options)
    for count in case.counts:
        records = records_of(step, count)
        whole: set[int] = set()
        for record in records:
            if record.op is Op.UNSHARD and record.unit is not None:
                assert record.unit not in whole
                whole.add(record.unit)
            elif record.op is Op.RESHARD and record.unit is not None:
                whole.remove(record.unit)
            elif record.op in COMPUTE and record.unit is not None:
                is_lookup = record.op is Op.BACKWARD and not step.units[record.unit].backward_reads
                assert is_lookup or record.unit in whole
        assert whole == set()
        for unit in step.units[1:-2]:
            assert how_often(records, Op.UNSHARD, unit.index) == (rounds if keeps else 2 * rounds)
        for unit in step.units:
            assert how_often(records, Op.REDUCE_GRAD, unit.index) == (rounds if reduces else 1)


def test_units_that_stay_whole_are_held_until_their_backward() -> None:
    model = units(2, tied=False)
    step = step_stages("microbatch-major", model, 2, FsdpOptions(keeps_gathered=True))
    half = len(step.stages) // 2
    assert [stage.unsharded for stage in step.stages[:half]] == [
        (0, 1),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3),
        (1, 2),
        (1,),
        (0,),
    ], "the embedding's backward reads nothing; in it the next round's embedding is gathered"
    assert step.stages[half].unsharded == (0, 1)


def test_a_plan_carries_its_fsdp_options_to_the_schedule() -> None:
    plan = make_plan(["fast", "slow"], [[1, 1], [1]], schedule="microbatch-major")
    options = FsdpOptions(keeps_gathered=True, reduces_every_microbatch=True, reduce_dtype="bfloat16")
    changed = plan.model_copy(update={"fsdp": options})
    assert plan_stages(changed) == step_stages("microbatch-major", plan_stages(plan).units, 2, options)
    assert plan_stages(changed).reduce_dtype == "bfloat16"


@given(cases("replicated"))
def test_replicated_state_is_all_reduced_once_a_unit_and_never_gathered(case: Case) -> None:
    for count in case.counts:
        records = records_of(case.step, count)
        assert Counter(record.unit for record in records if record.op in COLLECTIVES) == {
            unit.index: 1 for unit in case.step.units
        }
        assert {record.op for record in records if record.op in COLLECTIVES} == {Op.ALL_REDUCE}
        assert not any(record.op is Op.RESHARD for record in records)


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


@given(cases(), switches)
def test_a_gradient_is_reduced_after_its_last_contribution(case: Case, switch: tuple[bool, bool]) -> None:
    for count in case.counts:
        records = records_of(case.step, count, switch)
        for unit in case.step.units:
            reduced = [
                at for at, r in enumerate(records) if r.op in (Op.REDUCE_GRAD, Op.ALL_REDUCE) and r.unit == unit.index
            ]
            contributors = {unit.index} | {each.index for each in case.step.units if each.borrows == unit.index}
            contributed = [at for at, r in enumerate(records) if r.op is Op.BACKWARD and r.unit in contributors]
            assert len(reduced) == 1
            assert max(contributed, default=-1) < reduced[0]


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


@given(cases(*SHARDED))
def test_stages_tell_what_is_whole_as_the_records_do(case: Case) -> None:
    whole = set(case.step.first)
    for stage in case.step.stages:
        whole |= set(stage.unshard)
        assert set(stage.unsharded) == whole
        assert len(whole) <= 4, "the units of two stages, a borrowed one and one that is needed again"
        whole -= set(stage.reshard)
    assert whole == set()


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


@given(st.integers(2, 7), st.booleans(), st.data())
def test_kept_blocks_are_gathered_once_and_the_others_as_ever(num_layers: int, tied: bool, data: st.DataObject) -> None:  # noqa: FBT001  (hypothesis passes it)
    model = units(num_layers, tied=tied)
    keep = data.draw(st.integers(0, num_layers - 1))
    count = data.draw(st.integers(0, 3))
    usual, kept = (step_stages("layer-major", model, keep_unsharded=number) for number in (0, keep))
    before, now = records_of(usual, count), records_of(kept, count)
    for unit in model:
        stays = unit.kind == "block" and unit.index >= num_layers - keep
        expected = 1 if stays else how_often(before, Op.UNSHARD, unit.index)
        assert how_often(now, Op.UNSHARD, unit.index) == expected
        assert how_often(now, Op.RESHARD, unit.index) == expected
    moves = (Op.UNSHARD, Op.RESHARD)
    assert [each for each in now if each.op not in moves] == [each for each in before if each.op not in moves]
    assert resharding(kept) == usual


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


def test_no_kept_block_is_gathered_in_backward() -> None:
    step = step_stages("layer-major", units(4, tied=False), keep_unsharded=2)
    assert [stage.unshard for stage in step.stages] == [(1,), (2,), (3,), (4,), (5,), (), (), (), (1,), (), ()]
    assert step.stages[5].unsharded == (2, 3, 4, 5)
