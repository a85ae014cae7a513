"""Counted memory is close to published peaks, and what plans set aside is never much below them."""

from statistics import median

import pytest

from tests.benchmarks.estimate_memory import DATA, LOWEST, MEDIAN, errors


@pytest.mark.skipif(not DATA.exists(), reason="the shared reference data is not here")
def test_published_working_memory_is_met() -> None:
    by_series = errors(DATA)
    assert sum(len(replayed) for replayed, _ in by_series.values()) > 100
    assert median(abs(error) for replayed, _ in by_series.values() for error in replayed) <= MEDIAN
    assert min(error for _, aside in by_series.values() for error in aside) >= LOWEST
