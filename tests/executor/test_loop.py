"""Units and schedule in a loop of one's own: the numbers of one process, whatever the plan."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cephalo_cli
from cephalo_cli.artifacts.store import dumps
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.loop import ShardedModel
from cephalo_cli.models import IGNORED_TARGET, TextBatch
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import SEQ_LEN, make_model, make_plan
from tests.executor.ranks import Job, Ranks

MODEL = make_model(num_layers=2, tie_embeddings=True)
PLANS = [
    make_plan(MODEL, [[5]]),
    make_plan(MODEL, [[3, 1], [1]], [0.2, 0.8]),
    make_plan(MODEL, [[], [2, 2, 1], []], [0.5, 0.0, 0.5], recompute=False),
]
OPTIONS = TrainOptions(data="random", num_steps=1)
LIMIT_S = 120


def global_batch(step: int, num_samples: int = 5) -> TextBatch:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(260, (num_samples, SEQ_LEN), generator=generator)
    targets = tokens.clone()
    targets[0, :7] = IGNORED_TARGET
    return TextBatch(samples=tuple(range(num_samples)), tokens_BT=tokens, targets_BT=targets)


def loop(context: ProcessContext, job: Job) -> list[float | None]:
    found: list[float | None] = []
    with ShardedModel(
        job.plan, context.process_group, context.device, num_steps=4, learning_rate=3e-3, lr_schedule="cosine"
    ) as model:
        shard = sum(len(unit.master) for unit in model.units)
        assert abs(shard - job.plan.ranks[context.rank].state_share * job.plan.num_parameters) <= len(model.units)
        for step in range(1, 5):
            numbers = model.step(model.part_of(global_batch(step)))
            found += [numbers.loss, numbers.grad_norm]
        found.append(model.evaluate(model.part_of(global_batch(9))))
        with pytest.raises(UsageError, match="the batch has 4 samples, the plan's steps 5"):
            model.part_of(global_batch(1, 4))
        with pytest.raises(UsageError, match="7 microbatches, the plan gives rank"):
            model.step([global_batch(1)] * 7)
    return found


def test_a_loop_of_ones_own_has_the_numbers_of_one_process(ranks: Ranks) -> None:
    outcomes = ranks.run([Job(plan=plan, options=OPTIONS, run=loop) for plan in PLANS])
    alone = outcomes[0][0]
    assert alone[6] < alone[0]
    for outcome in outcomes[1:]:
        for found in outcome:
            assert found == pytest.approx(alone, rel=1e-9, abs=0)


def test_a_group_of_another_size_is_refused(ranks: Ranks) -> None:
    ((error,),) = ranks.run([Job(plan=PLANS[0], options=OPTIONS, run=_too_few)])
    assert isinstance(error, UsageError)
    assert error.message == "the process group has 1 ranks, the plan 2"


def _too_few(context: ProcessContext, _: Job) -> None:
    ShardedModel(PLANS[1], context.process_group, context.device, num_steps=1)


def test_the_package_loads_no_torch_until_it_is_asked() -> None:
    code = "import sys, cephalo_cli; assert 'torch' not in sys.modules; print(sorted(cephalo_cli.__all__))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert ran.stdout.strip() == str(sorted(cephalo_cli.__all__))
    for name in cephalo_cli.__all__:
        assert getattr(cephalo_cli, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cephalo_cli.nothing  # noqa: B018 - the access is what is refused


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}


def test_the_example_runs_on_two_ranks(tmp_path: Path) -> None:
    plan = make_plan(MODEL, [[3, 1], [1]], [0.2, 0.8], dtype="float32")
    (tmp_path / "plan.json").write_text(dumps(plan))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("examples/own_loop.py", str(tmp_path / "plan.json")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    stored = sorted(int(number) for number in re.findall(r"stores (\d+) of", ran.stdout))
    assert sum(stored) == plan.num_parameters
    assert stored[0] == pytest.approx(0.2 * plan.num_parameters, abs=10)
    losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", ran.stdout)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
