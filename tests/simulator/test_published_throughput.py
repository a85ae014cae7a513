"""Simulated steps of published training runs take what they were measured to take, and fit where they ran."""

import pytest

from cephalo_cli.units import num_parameters
from tests.benchmarks.published_runs import DATA, read
from tests.benchmarks.published_throughput import FITTING, MEDIAN, NINE_TENTHS, middle, nine_tenths, outcome


@pytest.mark.skipif(not DATA.exists(), reason="the shared reference data is not here")
def test_published_runs_come_true() -> None:
    outcomes = [outcome(run) for run in read()]
    assert len(outcomes) > 100
    assert middle(outcomes) <= MEDIAN
    assert nine_tenths(outcomes) <= NINE_TENTHS
    assert sum(each.fits for each in outcomes) >= FITTING * len(outcomes)


@pytest.mark.skipif(not DATA.exists(), reason="the shared reference data is not here")
def test_published_parameters_are_counted_to_a_thousandth() -> None:
    for run in read():
        assert num_parameters(run.model) == pytest.approx(run.num_parameters, rel=1e-3)
