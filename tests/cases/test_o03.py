"""O03: ragged last microbatch and short last window."""

from pathlib import Path

import pytest

from cephalo_cli.executor import TrainOptions
from tests.cases.scalar import gradient, scalar_job
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks, Trained, train_job
from tests.executor.reference import train_reference, write_text

SAMPLES = [(1 + (5 * place) % 7, 3 - (4 * place) % 9) for place in range(11)]


def test_o03_a_ragged_microbatch_weighs_what_its_samples_weigh(ranks: Ranks) -> None:
    """O03: 7 samples as 3, 3, 1 beside 4 samples as 2, 2."""
    pairs = [[SAMPLES[:3], SAMPLES[3:6], SAMPLES[6:7]], [SAMPLES[7:9], SAMPLES[9:]]]
    alone = [pairs[0]]
    both, seven = ranks.run([scalar_job(pairs, squared=False), scalar_job(alone, squared=False)])
    assert gradient(both) == pytest.approx(sum(x * y for x, y in SAMPLES) / 11, rel=1e-12)
    assert gradient(seven) == pytest.approx(sum(x * y for x, y in SAMPLES[:7]) / 7, rel=1e-12)


def test_o03_the_short_last_step_is_trained_with_its_true_count_or_dropped_by_name(
    ranks: Ranks, tmp_path: Path
) -> None:
    """O03: 25 samples, global batch 11: the third step has 3; the last window of the text is short as well."""
    text = write_text(tmp_path, 24 * SEQ_LEN + 6)
    model = make_model(num_layers=1)
    plan = make_plan(model, [[3, 3, 1], [2, 2]], [0.6, 0.4])
    keep = TrainOptions(data=str(text), num_steps=5, learning_rate=3e-3)
    drop = keep.model_copy(update={"drop_last": True})
    kept, dropped = ranks.run([Job(plan=plan, options=options, run=train_job) for options in (keep, drop)])
    reference = train_reference(model, text, seq_len=SEQ_LEN, batch_size=11, num_steps=5, learning_rate=3e-3)
    trained: Trained = kept[0]
    assert trained.losses == pytest.approx(reference.losses, rel=1e-10, abs=0)
    tokens = [step.tokens for step in trained.result.report.steps]
    assert sum(tokens[:3]) == 24 * SEQ_LEN + 5
    assert tokens[2] in (3 * SEQ_LEN, 2 * SEQ_LEN + 5)
    assert dropped[0].notices == ["--drop-last leaves out 3 samples of every epoch"]
    assert all(step.tokens >= 10 * SEQ_LEN for step in dropped[0].result.report.steps)
