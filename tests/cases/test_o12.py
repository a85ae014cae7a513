"""O12: asynchronous activation offload: reused too early, parameters moved too, slow."""

from typing import Any

import pytest

from cephalo_cli.executor import TrainOptions
from cephalo_cli.units import boundary_bytes
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks
from tests.executor.test_engine import count_copies, run_steps

MODEL = make_model()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_o12_offloading_changes_no_step_and_moves_boundaries_alone(ranks: Ranks, dtype: Any) -> None:
    """O12: equal losses and gradients in every step, and as many bytes as boundaries have, weights not among them."""
    options = TrainOptions(data="random", num_steps=3, learning_rate=3e-3, dtype=dtype)
    kept = Job(plan=make_plan(MODEL, [[2, 1, 1]], dtype=dtype), options=options, run=run_steps)
    moved = Job(plan=make_plan(MODEL, [[2, 1, 1]], dtype=dtype, offload=True), options=options, run=count_copies)
    ((steps,), ((again, moved_bytes, _),)) = ranks.run([kept, moved])
    assert again == steps
    num_boundaries = MODEL.num_layers + 1
    to_host_and_gradients = 2
    assert moved_bytes == to_host_and_gradients * num_boundaries * boundary_bytes(MODEL, SEQ_LEN, dtype, 4)
