"""O07: tied input and output embedding silently untied."""

from pathlib import Path

import pytest

from cephalo_cli.executor import TrainOptions
from cephalo_cli.models import build_unit
from cephalo_cli.units import model_units, num_parameters
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, train_job
from tests.executor.reference import train_reference, write_text


def test_o07_a_tied_matrix_is_kept_once_and_gets_both_gradients(ranks: Ranks, tmp_path: Path) -> None:
    """O07: three ranks with shares 0.5, 0.3 and 0.2, 20 steps; the head has no matrix that could drift."""
    model = make_model(tie_embeddings=True, num_layers=2)
    untied = make_model(tie_embeddings=False, num_layers=2)
    head = model_units(model)[-1]
    assert "matrix" not in dict(build_unit(model, "head").named_parameters())
    assert head.borrows == 0
    assert num_parameters(untied) - num_parameters(model) == 260 * 16
    text = write_text(tmp_path)
    plan = make_plan(model, [[2], [1, 1], [1]], [0.5, 0.3, 0.2])
    options = TrainOptions(data=str(text), num_steps=20, learning_rate=3e-3)
    (trained,) = ranks.run([Job(plan=plan, options=options, run=train_job)])
    reference = train_reference(model, text, seq_len=SEQ_LEN, batch_size=5, num_steps=20, learning_rate=3e-3)
    assert trained[0].losses == pytest.approx(reference.losses, rel=1e-10, abs=0)
    assert trained[0].grad_norms == pytest.approx(reference.grad_norms, rel=1e-9, abs=0)
