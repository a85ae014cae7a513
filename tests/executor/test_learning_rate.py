"""Warm-up and schedules, by numbers worked out on paper."""

from functools import partial
from itertools import pairwise

import pytest

from cephalo_cli.executor.learning_rate import learning_rate_at

SCHEDULE = partial(learning_rate_at, peak=1.0, num_warmup_steps=2, floor=0.1, num_steps=10)


def test_warm_up_climbs_in_equal_parts() -> None:
    for schedule in ("constant", "cosine", "linear"):
        assert [SCHEDULE(step, schedule=schedule) for step in (1, 2)] == [0.5, 1.0]


def test_schedules_end_at_their_floor() -> None:
    assert [SCHEDULE(step, schedule="constant") for step in (3, 10, 99)] == [1.0, 1.0, 1.0]
    assert [SCHEDULE(step, schedule="linear") for step in (4, 6, 10, 11)] == pytest.approx([0.775, 0.55, 0.1, 0.1])
    assert [SCHEDULE(step, schedule="cosine") for step in (6, 10, 11)] == pytest.approx([0.55, 0.1, 0.1])
    assert SCHEDULE(4, schedule="cosine") == pytest.approx(0.1 + 0.9 * (1 + 0.5**0.5) / 2)
    falling = [SCHEDULE(step, schedule="cosine") for step in range(2, 11)]
    assert all(after < before for before, after in pairwise(falling))


def test_without_warm_up_the_first_step_is_the_schedules() -> None:
    first = learning_rate_at(1, peak=1.0, schedule="linear", num_warmup_steps=0, floor=0.0, num_steps=4)
    assert first == 0.75
