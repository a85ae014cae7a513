"""O06: low-precision accumulation over many microbatches."""

import pytest

from tests.cases.scalar import gradient, scalar_job, weight
from tests.executor.ranks import Ranks


def test_o06_bfloat16_gradients_add_up_in_float32_and_weights_are_float32(ranks: Ranks) -> None:
    """O06: 256 + 1 is 257, a thousand ones are a thousand, and 100 steps of 6e-4 take 1.0 to 0.94."""
    two, many, weights, over_ranks = ranks.run(
        [
            scalar_job([[[(1, 256)], [(1, 1)]]], squared=False, dtype="bfloat16", num_tokens=1),
            scalar_job([[[(1, 1)]] * 1024], squared=False, dtype="bfloat16", num_tokens=1),
            scalar_job([[[(1, 1)]]], squared=False, dtype="bfloat16", num_steps=100, first_weight=1.0),
            scalar_job([[[(1, 256)]], [[(1, 1)]]], squared=False, dtype="bfloat16", num_tokens=1),
        ]
    )
    assert gradient(two) == gradient(over_ranks) == 257.0
    assert gradient(many) == 1024.0
    assert weight(weights) == pytest.approx(0.94, rel=1e-5)
