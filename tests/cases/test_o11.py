"""O11: recomputed dropout draws a new mask."""

from pathlib import Path

import pytest

from cephalo_cli.executor import TrainOptions
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import train_reference, write_text

MODEL = make_model(dropout=0.1, num_layers=2)


def test_o11_dropout_masks_belong_to_the_sample(ranks: Ranks, tmp_path: Path) -> None:
    """O11: recompute on and off agree to the bit; a split over microbatches and ranks agrees with one process."""
    text = write_text(tmp_path)
    plans = [
        make_plan(MODEL, [[2, 2, 1]]),
        make_plan(MODEL, [[2, 2, 1]], recompute=False),
        make_plan(MODEL, [[2, 1], [2]], [0.3, 0.7], recompute=[False, True]),
        make_plan(MODEL, [[1, 1], [], [1, 2]], [0.3, 0.3, 0.4], schedule="microbatch-major"),
    ]
    options = TrainOptions(data=str(text), num_steps=5, learning_rate=3e-3)
    found = [each[0] for each in ranks.run([Job(plan=plan, options=options, run=train_job) for plan in plans])]
    assert (found[0].losses, found[0].grad_norms) == (found[1].losses, found[1].grad_norms)
    reference = train_reference(MODEL, text, seq_len=SEQ_LEN, batch_size=5, num_steps=5, learning_rate=3e-3)
    for trained in found:
        assert trained.losses == pytest.approx(reference.losses, rel=1e-10, abs=0)
        assert trained.grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0)
