"""O02: microbatch means averaged although they hold different numbers of tokens."""

import pytest

from tests.cases.scalar import Pairs, gradient, scalar_job
from tests.executor.ranks import Ranks

FEW, MANY, NONE = [(1, 1)] * 4 + [(1, -100)] * 2, [(1, 3)] * 60, [(7, -100)] * 3


def test_o02_one_count_of_tokens_over_microbatches_and_ranks(ranks: Ranks) -> None:
    """O02: 4 tokens of gradient 1 and 60 of gradient 3 make 2.875; the mean of means would be 2."""
    splits: dict[str, list[Pairs]] = {
        "inside one rank": [[FEW, MANY]],
        "over two ranks": [[FEW], [MANY]],
        "a microbatch without a counted token": [[FEW, NONE], [MANY]],
        "a rank without a counted token": [[FEW, MANY], [NONE]],
    }
    nothing = ranks.run([scalar_job([[NONE], [NONE]], squared=False)])[0]
    outcomes = ranks.run([scalar_job(pairs, squared=False) for pairs in splits.values()])
    for name, outcome in zip(splits, outcomes, strict=True):
        assert gradient(outcome) == pytest.approx(2.875, rel=1e-12), name
    assert gradient(nothing) == 0.0
