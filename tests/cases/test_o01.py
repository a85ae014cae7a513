"""O01: ranks with different batch sizes averaged as if equal."""

import pytest

from tests.cases.scalar import Pairs, gradient, scalar_job
from tests.executor.ranks import Ranks

SPLITS: dict[str, list[Pairs]] = {
    "3 + 1": [[[(1, 1), (2, 2), (3, 3)]], [[(4, 8)]]],
    "2 + 2": [[[(1, 1), (2, 2)]], [[(3, 3), (4, 8)]]],
    "4 + 0": [[[(1, 1), (2, 2), (3, 3), (4, 8)]], []],
    "one by one": [[[(1, 1)], [(2, 2)], [(3, 3)]], [[(4, 8)]]],
    "one rank": [[[(1, 1), (2, 2), (3, 3), (4, 8)]]],
}


def test_o01_the_gradient_is_that_of_all_samples_whatever_the_split(ranks: Ranks) -> None:
    """O01: right is -23; the plain mean of the ranks' means would be -36.67."""
    outcomes = ranks.run([scalar_job(pairs) for pairs in SPLITS.values()])
    for name, outcome in zip(SPLITS, outcomes, strict=True):
        assert gradient(outcome) == pytest.approx(-23.0, rel=1e-12), name
