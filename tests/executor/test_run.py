"""A training from start to report, with ranks started the way users start them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Node
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.artifacts.store import dumps, loads
from cephalo_cli.errors import TrainingError
from cephalo_cli.executor import Callbacks, TrainOptions, run_training
from cephalo_cli.runtime.launch import run_ranks
from tests.executor.plans import MEMORY_BYTES, make_model, make_plan

NUM_STEPS = 4


def test_training_on_emulated_devices_reports_every_rank(tmp_path: Path) -> None:
    types = {
        "fast": DeviceType(backend="cpu", memory_bytes=MEMORY_BYTES, emulated_speed=0.9),
        "slow": DeviceType(backend="cpu", memory_bytes=MEMORY_BYTES, emulated_speed=0.4),
    }
    cluster = Cluster(
        name="emulated", device_types=types, nodes=(Node(name="host", devices=("fast", "slow")),), network="ideal"
    )
    base = make_plan(make_model(), [[3, 2], [1]], [0.3, 0.7], recompute=[True, False])
    plan = base.model_copy(
        update={
            "cluster": cluster,
            "devices": {"fast": base.devices["core"], "slow": base.devices["core"]},
            "ranks": tuple(
                rank.model_copy(update={"device": name}) for rank, name in zip(base.ranks, types, strict=True)
            ),
        }
    )
    steps: list[StepReport] = []
    checkpoints: list[str] = []
    result = run_training(
        plan,
        TrainOptions(data="python-stdlib", num_steps=NUM_STEPS, checkpoint_dir=f"{tmp_path}/run", dtype="float32"),
        Callbacks(on_step=steps.append, on_checkpoint=checkpoints.append),
        use_cgroups=False,
    )
    assert result is not None
    report, timeline = result.report, result.timeline
    assert tuple(steps) == report.steps
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert checkpoints == [f"{tmp_path}/run/step-00000004"]
    assert loads(dumps(report).encode(), where="report") == report
    assert (report.source, report.engine, report.emulation, report.dtype) == (
        "measured",
        "cephalo",
        "cooperative",
        "float32",
    )
    assert report.numerics == dict.fromkeys(
        ("compute", "gather", "master", "gradient", "reduction", "optimizer"), "float32"
    )
    assert report.collectives == "direct over gloo"
    assert [rank.num_samples for rank in report.ranks] == [5, 1]
    for rank in report.ranks:
        assert rank.forward_s is not None
        assert rank.backward_s is not None
        assert rank.optimizer_s is not None
        assert abs(rank.compute_s - rank.forward_s - rank.backward_s - rank.optimizer_s) < 1e-12
        assert rank.compute_s > 0
        assert rank.peak_memory_bytes > 50 * 2**20
    size = plan.num_parameters * 4
    gathered = [rank.gathered_bytes or 0 for rank in report.ranks]
    assert 0.6 * size < gathered[0] < 1.5 * size
    assert gathered[1] < gathered[0]
    assert timeline.rank_names == ("rank 0 · fast · host", "rank 1 · slow · host")
    for number in range(2):
        for lane in ("compute", "gather", "reduce", "optimizer"):
            spans = [event for event in timeline.events if event.rank == number and event.lane == lane]
            assert spans, (number, lane)
            assert all(event.end_s <= timeline.duration_s + 1e-9 for event in spans)
            for event, after in pairwise(spans):
                assert event.start_s <= event.end_s <= after.start_s
        memory = [sample for sample in timeline.memory if sample.rank == number]
        assert 0.0 == memory[0].time_s < memory[-1].time_s <= timeline.duration_s + 1e-9
        assert all(sample.time_s <= after.time_s for sample, after in pairwise(memory))
        used = [sample.bytes_by_term["allocated"] for sample in memory]
        assert min(used) > 12 * plan.ranks[number].state_share * plan.num_parameters
        assert max(used) > used[0]  # activations come and go
    assert timeline.limit_bytes == (MEMORY_BYTES, MEMORY_BYTES)
    flows = [{event.flow for event in timeline.events if event.rank == rank} - {None} for rank in range(2)]
    assert flows[0] == flows[1]
    waited = {flow for event in timeline.events for flow in event.waited_for}
    assert waited
    assert waited <= flows[0]


def test_a_killed_rank_ends_the_job_and_is_named(tmp_path: Path) -> None:
    plan = make_plan(make_model(), [[2], [1, 1]], [0.5, 0.5])
    options = TrainOptions(data="random", num_steps=1000, checkpoint_dir=str(tmp_path / "run"), checkpoint_every=1)
    arguments = {"plan": json.loads(dumps(plan)), "options": options.model_dump(mode="json"), "rank": 1, "after": 9}
    with pytest.raises(TrainingError) as ended:
        run_ranks("tests.executor.entries:killed_in_a_step", arguments, plan.cluster)
    assert ended.value.message == "rank 1 (core on host) was killed by SIGKILL"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step-00000001"]
