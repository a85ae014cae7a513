"""The played step: agrees with the closed form, conserves time and bytes, and says who waits for what."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cephalo_cli.artifacts import Plan, store
from cephalo_cli.artifacts.profile import CollectiveFit, NetworkProfile
from cephalo_cli.errors import UsageError
from cephalo_cli.layout import shard_ranges
from cephalo_cli.schedule import COLLECTIVES, Op, plan_stages, rank_records
from cephalo_cli.simulator import SimulatedRun, simulate
from cephalo_cli.simulator.lanes import timeline
from cephalo_cli.simulator.play import play_step, slowed
from cephalo_cli.timeline import event_name
from tests.simulator.plans import make_plan

THREE: dict[str, Any] = {"devices": ["fast", "middle", "slow"], "sizes": [[4, 4], [4], [2]], "shares": [0.2, 0.5, 0.3]}

VARIETY: dict[str, dict[str, Any]] = {
    "some blocks recompute": {
        "devices": ["fast", "middle", "slow"],
        "sizes": [[4, 4], [2], []],
        "recompute_blocks": [1, 3, 0],
    },
    "blocks stay whole": {"devices": ["fast", "slow"], "sizes": [[4, 4], [2]], "keep_unsharded": 2},
    "balanced": THREE,
    "one rank": {"devices": ["fast"], "sizes": [[3, 3, 1]]},
    "ragged, one without samples": {"devices": ["fast", "slow"], "sizes": [[3, 3, 1], []]},
    "one without state": {"devices": ["fast", "slow"], "sizes": [[2], [2]], "shares": [0.0, 1.0]},
    "recompute mixed": THREE | {"recompute": [True, False, True]},
    "tied": THREE | {"tied": True},
    "slow network": THREE | {"bandwidth": 1e7},
    "ring": THREE | {"algorithm": "ring", "bandwidth": 1e8},
    "ideal network": THREE | {"network": "ideal"},
    "cores that copy": THREE | {"moving": 2e-9, "bandwidth": 1e8},
    "cores that copy longer than the network": THREE | {"moving": 1e-7},
    "offload": THREE | {"offload": True, "host_rate": 1e8},
    "offload on one": THREE | {"offload": [False, True, False], "host_rate": 1e7},
    "microbatch-major": THREE | {"schedule": "microbatch-major", "strategy": "fsdp"},
    "replicated": THREE | {"schedule": "replicated", "strategy": "whale", "shares": None},
    "bfloat16": THREE | {"dtype": "bfloat16"},
}


@pytest.fixture(params=list(VARIETY))
def plan(request: pytest.FixtureRequest) -> Plan:
    return make_plan(**VARIETY[request.param])


def lanes(run: SimulatedRun) -> dict[tuple[int, str], list[tuple[float, float]]]:
    spans: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in run.timeline.events:
        spans.setdefault((event.rank, event.lane), []).append((event.start_s, event.end_s))
    return spans


@pytest.mark.parametrize(
    "name", ["balanced", "one rank", "recompute mixed", "tied", "ring", "ideal network", "cores that copy", "bfloat16"]
)
def test_agrees_with_the_closed_form_where_the_same_rank_is_slowest_throughout(name: str) -> None:
    run = simulate(make_plan(**VARIETY[name]))
    assert run.report.step_s == pytest.approx(run.report.predicted_step_s, rel=0.02)
    assert run.report.difference is None


def test_equals_a_step_worked_out_by_hand() -> None:
    """Two ranks, 2 blocks, everything but the network free of fixed costs; one rank sets the pace."""
    plan = make_plan(["fast", "middle"], [[2], [1]], [0.5, 0.5], num_layers=2, bandwidth=1e9)
    run = simulate(plan)
    network = 1e-5 + 4 * 24_576 * 0.5 / 1e9  # the embedding: gathered first, reduced last
    forward = 0.4e-3 + 2 * 2.2e-3
    head = 1.2e-3 + 2.2e-3
    backward = 2 * (2.2e-3 + 4.2e-3) + 0.6e-3  # blocks recompute their forward
    optimizer = 2e-8 * 0.5 * (24_576 + 2 * 49_984 + 16_512)
    assert run.report.step_s == pytest.approx(network + forward + head + backward + network + optimizer, rel=1e-12)
    assert run.report.ranks[1].compute_s == pytest.approx(forward + head + backward + optimizer, rel=1e-12)
    assert run.report.ranks[1].exposed_gather_s == pytest.approx(network)
    assert run.report.ranks[1].exposed_reduce_s == pytest.approx(network)


def test_lanes_never_overlap_themselves(plan: Plan) -> None:
    run = simulate(plan)
    for spans in lanes(run).values():
        for (start, end), (later, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert start <= end <= later + 1e-15
    for event in run.timeline.events:
        assert 0 <= event.start_s <= event.end_s <= run.timeline.duration_s + 1e-15


def test_busy_and_idle_fill_every_ranks_step(plan: Plan) -> None:
    run = simulate(plan)
    spans = lanes(run)
    for part in run.play.parts:
        own_end = run.play.end_s - part.done_s
        for number in part.part.ranks:
            rank = run.report.ranks[number]
            on_lanes = sum(
                end - start for lane in ("compute", "optimizer") for start, end in spans.get((number, lane), [])
            )
            assert rank.compute_s == pytest.approx(on_lanes, abs=1e-12)
            assert rank.compute_s + rank.wait_s == pytest.approx(run.report.step_s, rel=1e-12)
            starts_late = run.play.start_s - part.ready_s
            assert part.wait.total + own_end - starts_late == pytest.approx(rank.wait_s, abs=1e-12)
            parts = (rank.forward_s or 0) + (rank.backward_s or 0) + (rank.optimizer_s or 0)
            assert parts == pytest.approx(rank.compute_s, rel=1e-12)


def test_plays_exactly_the_records_of_the_schedule(plan: Plan) -> None:
    run = simulate(plan)
    step = plan_stages(plan)
    for rank in plan.ranks:
        records = rank_records(
            step,
            num_microbatches=len(rank.microbatch_sizes),
            recompute=rank.recompute,
            offload=rank.offload,
            recompute_blocks=rank.recompute_blocks,
        )
        names = [
            event_name(each.op, None if each.unit is None else step.units[each.unit].name, each.microbatch)
            for each in records
            if each.op is not Op.RESHARD
        ]
        assert [event.name for event in run.timeline.events if event.rank == rank.rank] == names


def test_every_rank_takes_part_in_every_collective_at_the_same_time(plan: Plan) -> None:
    run = simulate(plan)
    seen: dict[int, set[tuple[int, str, float, float]]] = {}
    for event in run.timeline.events:
        if event.lane in ("gather", "reduce"):
            seen.setdefault(event.rank, set()).add((event.flow or 0, event.name, event.start_s, event.end_s))
    assert len({frozenset(each) for each in seen.values()}) == 1


def test_nothing_starts_before_what_it_waited_for(plan: Plan) -> None:
    run = simulate(plan)
    ends = {(event.rank, event.flow): event.end_s for event in run.timeline.events if event.flow is not None}
    waits = 0
    for event in run.timeline.events:
        for flow in event.waited_for:
            waits += 1
            assert event.start_s >= ends[event.rank, flow] - 1e-15
        if event.lane in ("gather", "reduce"):
            assert event.start_s >= float(event.args["issued_s"])
    assert waits > 0


def test_received_bytes_are_those_of_the_layout() -> None:
    plan = make_plan(**THREE)
    run = simulate(plan)
    step = plan_stages(plan)
    records = rank_records(step, num_microbatches=1, recompute=True, offload=False)
    for rank in run.report.ranks:
        gathered = reduced = 0
        for record in records:
            if record.op in COLLECTIVES and record.unit is not None:
                whole = step.units[record.unit].num_parameters
                mine = len(shard_ranges(whole, [0.2, 0.5, 0.3])[rank.rank])
                gathered += 4 * (whole - mine) if record.op is Op.UNSHARD else 0
                reduced += 4 * 2 * mine if record.op is Op.REDUCE_GRAD else 0
        assert (rank.gathered_bytes, rank.reduced_bytes) == (gathered, reduced)
    total = sum(rank.reduced_bytes or 0 for rank in run.report.ranks)
    assert total == 4 * 2 * plan.num_parameters


def test_layer_major_moves_as_many_bytes_whatever_the_microbatches() -> None:
    few = simulate(make_plan(["fast", "slow"], [[8], [1]])).report
    many = simulate(make_plan(["fast", "slow"], [[1] * 8, [1]])).report
    assert [rank.gathered_bytes for rank in few.ranks] == [rank.gathered_bytes for rank in many.ranks]
    rounds = simulate(make_plan(["fast", "slow"], [[1] * 8, [1]], schedule="microbatch-major")).report
    assert (rounds.ranks[0].gathered_bytes or 0) > 4 * (many.ranks[0].gathered_bytes or 0)


def test_a_very_long_time_line_has_one_event_a_unit() -> None:
    run = simulate(make_plan(**THREE))
    merged = timeline(run.setting, run.play, most_events=10)
    compute = [event for event in merged.events if event.lane == "compute" and event.rank == 0]
    assert [event.name for event in compute[4:8]] == [
        "forward block.3",
        "backward head",
        "backward block.3",
        "backward block.2",
    ]
    assert {event.args["microbatches"] for event in compute} == {2}
    for rank in run.report.ranks:
        spans = [each for each in merged.events if each.lane in ("compute", "optimizer") and each.rank == rank.rank]
        assert sum(each.end_s - each.start_s for each in spans) == pytest.approx(rank.compute_s)


def test_the_same_plan_gives_the_same_file() -> None:
    plan = make_plan(**THREE)
    assert store.dumps(simulate(plan).report) == store.dumps(simulate(plan).report)
    noisy = [store.dumps(simulate(plan, jitter_sigma=0.1, seed=seed).report) for seed in (7, 7, 8)]
    assert noisy[0] == noisy[1] != noisy[2]


def test_a_step_repeats_itself(plan: Plan) -> None:
    run = simulate(plan)
    ready = [part.done_s if plan.schedule == "replicated" else run.play.end_s for part in run.play.parts]
    again = play_step(run.setting, ready)
    assert again.step_s == pytest.approx(run.report.step_s, rel=1e-9)


def test_identical_ranks_are_played_once_and_reported_each() -> None:
    run = simulate(make_plan(["fast"] * 8, [[2]] * 8))
    assert len(run.play.parts) == 1
    assert [rank.rank for rank in run.report.ranks] == list(range(8))
    assert {rank.node for rank in run.report.ranks} == {"node-a", "node-b"}
    assert {event.rank for event in run.timeline.events} == set(range(8))


def test_what_ranks_wait_for_is_told_apart_from_who_is_late() -> None:
    run = simulate(make_plan(["fast", "slow", "middle"], [[4], [4], []], bandwidth=1e8))
    fast, slow, empty = run.report.ranks
    assert (slow.late_s or 0) < 1e-9 < (slow.exposed_gather_s or 0)
    assert (fast.late_s or 0) > 0.5 * fast.wait_s
    assert empty.compute_s == pytest.approx(empty.optimizer_s)
    network = sum(run.setting.collective_s)
    waits = (empty.exposed_gather_s or 0) + (empty.exposed_reduce_s or 0)
    assert waits - (empty.late_s or 0) == pytest.approx(network)


def test_a_straggler_makes_the_others_wait() -> None:
    plan = make_plan(["fast", "fast"], [[4], [4]])
    even, late = simulate(plan), simulate(plan, stragglers={1: 1.5})
    assert late.report.ranks[1].compute_s == pytest.approx(1.5 * even.report.ranks[1].compute_s)
    assert late.report.ranks[0].compute_s == even.report.ranks[0].compute_s
    assert late.report.ranks[0].wait_s > late.report.ranks[1].wait_s
    assert "rank 1 (fast on node-b)" in (late.report.bottleneck or "")
    assert "slow or noisy ranks" in (late.report.difference or "")


def test_jitter_makes_steps_longer_because_the_slowest_rank_decides() -> None:
    plan = make_plan(["fast"] * 4, [[4]] * 4)
    run = simulate(plan, jitter_sigma=0.2, seed=3)
    assert run.report.step_s > simulate(plan).report.step_s
    assert len(set(run.all_step_s)) > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stragglers": {3: 1.3}}, "--straggler: there is no rank 3 (the plan has ranks 0 to 2)"),
        ({"stragglers": {0: 0.0}}, "--straggler: factor 0 of rank 0 must be between 1 and 1e+06 (such as 1.3)"),
        ({"jitter_sigma": -0.1}, "--jitter is -0.1, expected 0 to 2 (0.05 is a noisy machine)"),
        ({"jitter_sigma": float("nan")}, "--jitter is nan, expected 0 to 2 (0.05 is a noisy machine)"),
    ],
)
def test_refuses_disturbances_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        simulate(make_plan(**THREE), **options)
    assert str(refusal.value) == message


def test_moved_bytes_slow_compute_by_exactly_their_time_when_it_covers_the_collective() -> None:
    plain = simulate(make_plan(["fast", "fast"], [[8], [8]], network=None))
    moving = simulate(make_plan(["fast", "fast"], [[8], [8]], moving=1e-10))
    part = moving.play.parts[0]
    hidden_first = part.part.moving_s[0]
    hidden_last = part.part.moving_s[-1]
    assert part.moved_s == pytest.approx(sum(part.part.moving_s) - hidden_first - hidden_last, rel=1e-9)
    assert moving.report.ranks[0].compute_s == pytest.approx(plain.report.ranks[0].compute_s + part.moved_s, rel=1e-9)


def test_half_of_a_stall_is_compute_that_takes_longer_and_half_a_wait() -> None:
    plan = make_plan(["fast", "fast"], [[8], [8]], moving=1e-10)
    parts = {"collective_issue_part": 0.25, "collective_stall_part": 0.5}
    devices = {name: device.model_copy(update=parts) for name, device in plan.devices.items()}
    whole = simulate(plan).play.parts[0].part
    part = simulate(plan.model_copy(update={"devices": devices})).play.parts[0].part
    assert part.issue_s == pytest.approx([0.25 * each for each in whole.moving_s], rel=1e-9)
    assert part.stall_s == pytest.approx([0.25 * each for each in whole.moving_s], rel=1e-9)
    assert part.moving_s == pytest.approx([0.5 * each for each in whole.moving_s], rel=1e-9)


@given(
    start=st.floats(0, 10),
    seconds=st.floats(0, 10),
    stretches=st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 3), st.floats(0, 1)), max_size=6),
)
def test_slowed_compute_does_all_its_work(
    start: float, seconds: float, stretches: list[tuple[float, float, float]]
) -> None:
    slow, now = [], 0.0
    for gap, length, rate in stretches:
        slow.append((now + gap, now + gap + length, rate))
        now += gap + length
    end = slowed(start, seconds, slow)
    lost = sum(max(0.0, min(end, stop) - max(start, begin)) * (1 - rate) for begin, stop, rate in slow)
    assert end - start - lost == pytest.approx(seconds, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=3, max_size=3).filter(any),
    shares=st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any),
    bandwidth=st.sampled_from([1e6, 1e8, 1e10]),
    recompute=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_never_beats_what_no_order_could(
    sizes: list[list[int]], shares: list[int], bandwidth: float, recompute: list[bool]
) -> None:
    """No rank computes more than the step lasts, nor does the network; the barriers of the closed form only add."""
    whole = [share / sum(shares) for share in shares]
    plan = make_plan(["fast", "middle", "slow"], sizes, whole, bandwidth=bandwidth, recompute=recompute)
    run = simulate(plan)
    assert run.report.step_s >= max(rank.compute_s for rank in run.report.ranks) * (1 - 1e-12)
    assert run.report.step_s >= sum(run.setting.collective_s) * (1 - 1e-12)
    assert run.report.step_s <= plan.expected.step_s * (1 + 1e-9)


def test_small_sums_end_every_ranks_step_and_are_named() -> None:
    fit = CollectiveFit(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    network = NetworkProfile(method="measured", algorithm="direct", all_gather=fit, reduce_scatter=fit)
    without = simulate(make_plan(["fast", "slow"], [[4], [4]], network=network))
    late = without.report.step_s
    summing = network.model_copy(update={"small_sum_s": late / 20})
    run = simulate(make_plan(["fast", "slow"], [[4], [4]], network=summing))
    assert run.report.step_s == pytest.approx(1.1 * late)
    for rank, before in zip(run.report.ranks, without.report.ranks, strict=True):
        assert rank.compute_s == pytest.approx(before.compute_s)
        assert rank.wait_s == pytest.approx(before.wait_s + late / 10)
    assert "the sums over ranks of tokens, loss and gradient norm" in (run.report.difference or "")
    alone = simulate(make_plan(["fast"], [[4]], network=summing))
    assert alone.setting.sums_s == 0
