"""A step as data: what is gathered, held, reduced and freed, for every number of layers, ranks and microbatches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts.plan import FsdpOptions
from cephalo_cli.schedule import COLLECTIVES, Op, resharding, step_stages
from tests.steps import COMPUTE, SHARDED, Case, cases, how_often, records_of, switches, units


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


@given(cases(*SHARDED))
def test_stages_tell_what_is_whole_as_the_records_do(case: Case) -> None:
    whole = set(case.step.first)
    for stage in case.step.stages:
        whole |= set(stage.unshard)
        assert set(stage.unsharded) == whole
        assert len(whole) <= 4, "the units of two stages, a borrowed one and one that is needed again"
        whole -= set(stage.reshard)
    assert whole == set()


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


def test_no_kept_block_is_gathered_in_backward() -> None:
    step = step_stages("layer-major", units(4, tied=False), keep_unsharded=2)
    assert [stage.unshard for stage in step.stages] == [(1,), (2,), (3,), (4,), (5,), (), (), (), (1,), (), ()]
    assert step.stages[5].unsharded == (2, 3, 4, 5)
