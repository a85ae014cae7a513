"""A rank over its memory: which term was planned, which was found."""

import pytest

from cephalo_cli.artifacts.plan import Memory
from cephalo_cli.executor.over_memory import MemoryLog, MemorySeen, explain_memory
from cephalo_cli.runtime.memory_limit import MemoryLimitError
from tests.executor.plans import make_model, make_plan

MIB = 2**20
MEMORY = Memory(
    state_bytes=100 * MIB,
    buffers_bytes=20 * MIB,
    working_bytes=30 * MIB,
    saved_bytes=40 * MIB,
    reserve_bytes=300 * MIB,
    total_bytes=490 * MIB,
    limit_bytes=540 * MIB,
)
BASE = make_plan(make_model(), [[1], [1]])
PLAN = BASE.model_copy(update={"ranks": tuple(rank.model_copy(update={"memory": MEMORY}) for rank in BASE.ranks)})
PLANNED = (
    "over; planned: state 100 MiB, buffers 20.0 MiB, working 30.0 MiB, saved 40.0 MiB, reserve 300 MiB, "
    "together 490 MiB; found: "
)
SETUP = "after set-up (state and reserve: 400 MiB planned)"
STEP = "(buffers, working and saved: 90.0 MiB planned)"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([], "it ended while state was made, so state and reserve need more than 400 MiB"),
        (
            [(0, 450 * MIB)],
            f"450 MiB {SETUP}, before the first step had ended {STEP}; more than planned: state and reserve",
        ),
        (
            [(0, 380 * MIB), (3, 520 * MIB)],
            f"380 MiB {SETUP}, 520 MiB by step 3 {STEP}; more than planned: buffers, working and saved",
        ),
    ],
)
def test_the_message_says_what_was_planned_and_found(told: list[tuple[int, int]], found: str) -> None:
    log = MemoryLog()
    log.note(0, 0, 1)
    for step, peak_bytes in told:
        log.note(1, step, peak_bytes)
    error = MemoryLimitError("over")
    explain_memory(error, PLAN, log)
    assert error.message == "over"
    error.rank = 1
    explain_memory(error, PLAN, log)
    assert error.message == PLANNED + found
    assert error.hint is None
    explain_memory(error, PLAN, log, compiles=True)
    assert error.hint == "torch.compile takes memory of its own: leave --compile out, or plan with a larger --reserve"


def test_a_peak_is_told_when_it_has_grown() -> None:
    seen = MemorySeen()
    told = [seen.has_grown(step, peak_bytes) for step, peak_bytes in enumerate((100, 101, 110, 111, 150))]
    assert told == [True, False, True, False, True]
    assert (seen.setup_bytes, seen.peak_bytes, seen.step) == (100, 150, 4)
