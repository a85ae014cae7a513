"""The optimizer's step against a clock that only compute moves."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from cephalo_cli.profiler.measure_device import optimizer_s_per_parameter
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.units import num_parameters
from tests.executor.plans import make_model


@pytest.mark.parametrize(("max_seconds", "steps"), [(0.0, 2), (5.0, 3), (100.0, 5)])
def test_the_optimizer_stops_at_its_share_of_the_time(max_seconds: float, steps: int) -> None:
    taken_s = iter([30.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])  # the first loads libraries
    now_s, runs = 0.0, 0

    @contextlib.contextmanager
    def compute() -> Iterator[None]:
        nonlocal now_s, runs
        yield
        now_s += next(taken_s)
        runs += 1

    stopwatch = Stopwatch(lambda: now_s)
    model = make_model()
    found = optimizer_s_per_parameter(
        model,
        dtype="float32",
        device=torch.device("cpu"),
        num_ranks=1,
        most_bytes=None,
        clock=lambda: now_s,
        stopwatch=stopwatch,
        compute=compute,
        max_seconds=max_seconds,
    )
    assert found == pytest.approx(2.0 / num_parameters(model))
    assert runs == 1 + steps
    assert stopwatch() == 2.0 * steps
