"""O22: memory peak measured before the optimizer state exists; estimate leaves terms out."""

import pytest

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Node
from cephalo_cli.errors import TrainingError
from cephalo_cli.executor import TrainOptions, run_training
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan
from tests.executor.ranks import Job, Ranks, make_engine
from tests.executor.test_engine import make_batch

OPTIONS = TrainOptions(data="random", num_steps=3, dtype="float32")
PLAN = make_plan(make_model(), [[2], [1]], [0.8, 0.2], dtype="float32")
BYTES_A_PARAMETER = 16


def test_o22_the_optimizer_state_is_there_before_the_first_step(ranks: Ranks) -> None:
    """O22: weights, gradients and both moments exist at the start, 16 bytes a parameter, and steps add none."""
    (found,) = ranks.run([Job(plan=PLAN, options=OPTIONS, run=count_state)])
    assert sum(before for before, _ in found) == BYTES_A_PARAMETER * PLAN.num_parameters
    for before, after in found:
        assert after == before


def count_state(context: ProcessContext, job: Job) -> tuple[int, int]:
    engine = make_engine(context, job)

    def state_bytes() -> int:
        shards = [shard.data for shard in engine.shards(to_write=False).values()]
        return sum(tensor.nbytes for tensor in (*shards, *(unit.grad for unit in engine.units)))

    before = state_bytes()
    for step in range(1, 4):
        engine.run_step(make_batch(job.plan, context.rank), num_tokens=36, step=step)
    after = state_bytes()
    engine.close()
    return before, after


def test_o22_a_rank_over_its_memory_says_what_was_planned_and_found() -> None:
    """O22: the message of a rank that ran out names its limit, every planned term, and what was found when."""
    small = DeviceType(backend="cpu", memory_bytes=64 * 2**20, emulated_speed=1.0)
    cluster = Cluster(
        name="small", device_types={"core": small}, nodes=(Node(name="host", devices=("core",)),), network="ideal"
    )
    with pytest.raises(TrainingError) as ended:
        run_training(make_plan(make_model(), [[1]], cluster=cluster), OPTIONS, use_cgroups=False)
    words = str(ended.value)
    assert ended.value.exit_code == 6
    assert words.startswith("rank 0 (core on host): an emulated device of 64.0 MiB is out of memory: ")
    assert "; planned: state 0 B, buffers 0 B, working 0 B, saved 0 B, reserve 0 B, together 0 B; found: " in words
    assert "after set-up (state and reserve: 0 B planned), before the first step had ended" in words
