"""Memory over time: its peak is the plan's, at a moment that can be named."""

from typing import Any

import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.simulator import simulate
from tests.simulator.plans import make_plan

THREE: dict[str, Any] = {"devices": ["fast", "middle", "slow"], "sizes": [[4, 4], [4], [2]], "shares": [0.2, 0.5, 0.3]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recompute": False},
        {"recompute": [True, False, True]},
        {"recompute_blocks": [1, 3, None]},
        {"recompute_blocks": [0, 4, 2], "keep_unsharded": 2},
        {"keep_unsharded": 3, "dtype": "bfloat16"},
        {"tied": True},
        {"dtype": "bfloat16"},
        {"offload": True, "host_rate": 1e9},
        {"bandwidth": 1e6},
        {"schedule": "microbatch-major"},
        {"schedule": "replicated", "shares": None},
    ],
)
def test_the_peak_never_exceeds_the_plans_total_and_comes_close(options: dict[str, Any]) -> None:
    plan = make_plan(**(THREE | options))
    run = simulate(plan)
    for planned, rank in zip(plan.ranks, run.report.ranks, strict=True):
        assert rank.memory is not None
        assert rank.peak_memory_bytes == rank.memory.total_bytes <= planned.memory.total_bytes
        assert rank.peak_memory_bytes > 0.85 * planned.memory.total_bytes
        assert rank.memory.limit_bytes == planned.memory.limit_bytes


def test_terms_that_peak_together_give_the_plans_total_exactly() -> None:
    plan = make_plan(["fast"], [[4, 4]])
    assert simulate(plan).report.ranks[0].memory == plan.ranks[0].memory


def test_memory_returns_to_the_state_and_reserve() -> None:
    run = simulate(make_plan(**THREE))
    for rank in range(3):
        samples = [sample for sample in run.timeline.memory if sample.rank == rank]
        assert [sample.time_s for sample in samples] == sorted(sample.time_s for sample in samples)
        for term in ("buffers", "working", "saved"):
            assert samples[-1].bytes_by_term[term] == 0
            assert max(sample.bytes_by_term[term] for sample in samples) > 0
        peak = max(sum(sample.bytes_by_term.values()) for sample in samples)
        assert peak == run.report.ranks[rank].peak_memory_bytes


def test_state_and_reserve_are_there_before_a_late_rank_is_ready() -> None:
    plan = make_plan(**(THREE | {"schedule": "replicated", "shares": None}))
    optimizers = {
        name: each.model_copy(update={"optimizer_s_per_parameter": each.optimizer_s_per_parameter * factor})
        for factor, (name, each) in enumerate(plan.devices.items(), start=1)
    }
    run = simulate(plan.model_copy(update={"devices": optimizers}))
    begins = [min(event.start_s for event in run.timeline.events if event.rank == rank) for rank in range(3)]
    assert max(begins) > min(begins) == 0
    for rank in range(3):
        first = next(sample for sample in run.timeline.memory if sample.rank == rank)
        planned = plan.ranks[rank].memory
        assert first.time_s == 0
        assert first.bytes_by_term["state"] == planned.state_bytes
        assert first.bytes_by_term["reserve"] == planned.reserve_bytes


def test_a_plan_that_does_not_fit_says_where_when_and_by_how_much() -> None:
    plan = make_plan(**THREE, settings=PlanSettings(memory_fraction=0.01), memory_bytes=1_100_000_000)
    run = simulate(plan)
    assert run.shortfalls == (
        "rank 0 (fast on node-a) needs 11.0 MiB at forward-backward head, 561 KiB more than it may use",
        "rank 1 (middle on node-a) needs 11.4 MiB at forward-backward head, 972 KiB more than it may use",
    )


def test_a_plan_that_fits_has_no_shortfalls() -> None:
    assert simulate(make_plan(**THREE)).shortfalls == ()
