"""Clusters of measured cards: the tables others published, read here by a few lines of its own."""

import csv
from pathlib import Path

import pytest

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Node
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import DeviceProfile, Profile, UnitProfile
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.planner import make_plan

DATA = Path(__file__).parents[2].parent / "shared" / "data"
MEMORY_GIB = {"l4": 22.5, "a6000": 47.99, "p40": 22.5, "p100": 12.0}
MEMBERS = ("l4", "l4", "a6000", "p40", "p40", "p40", "p100", "p100")
SETTINGS = PlanSettings(memory_fraction=0.75, reserve_bytes=2 * 2**30, recompute="on", offload="on")

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published tables are not on this machine")


def rows(name: str, **wanted: str) -> list[dict[str, str]]:
    with (DATA / name).open() as lines:
        return [row for row in csv.DictReader(lines) if all(row[key] == value for key, value in wanted.items())]


def mixed_cluster(model_name: str, setup: str) -> Profile:
    shape = rows("model_shapes.csv", model=model_name)[0]
    model = Model.model_validate(
        {
            "name": model_name,
            "family": shape["family"],
            "vocab_size": int(shape["vocab_size"]),
            "max_seq_len": 512,
            **{key: int(shape[key]) for key in ("num_layers", "hidden_size", "num_heads", "ffn_size")},
        }
    )
    memory = rows("measured_working_memory.csv", cluster=setup, model=model_name, dtype="float32")
    points = [int(row["microbatch"]) for row in memory]
    working = [int(row["working_bytes"]) for row in memory]
    devices = {}
    for device in MEMORY_GIB:
        times = {
            int(row["microbatch"]): row
            for row in rows(
                "measured_block_latency.csv", model=model_name, device=device, dtype="float32", seq_len="512"
            )
        }
        unit = UnitProfile(
            microbatch=tuple(sorted(times)),
            forward_s=tuple(float(times[size]["forward_ms"]) / 1e3 for size in sorted(times)),
            backward_s=tuple(float(times[size]["backward_ms"]) / 1e3 for size in sorted(times)),
            working_bytes=tuple(round(interpolate(points, working, size)) for size in sorted(times)),
        )
        devices[device] = DeviceProfile(method="imported", units={"block": unit})
    types = {name: DeviceType(memory_bytes=round(gib * 2**30)) for name, gib in MEMORY_GIB.items()}
    return Profile(
        cluster=Cluster(name="mixed", device_types=types, nodes=(Node(name="node", devices=MEMBERS),), network="ideal"),
        model=model,
        seq_len=512,
        dtype="float32",
        num_parameters=int(memory[0]["parameters"]),
        devices=devices,
        network="ideal",
    )


@pytest.mark.parametrize("batch", [32, 64, 128, 256, 512])
@pytest.mark.parametrize(
    ("model_name", "setup"), [("bert_large", "paper"), ("gpt_1.3b", "paper"), ("gpt_6.7b", "aws-16gpu")]
)
def test_the_optimum_is_proven(model_name: str, setup: str, batch: int) -> None:
    plan = make_plan(mixed_cluster(model_name, setup), batch, settings=SETTINGS)
    assert plan.solver.status == "optimal"
    assert plan.solver.gap == 0
    assert plan.solver.lower_bound_s == pytest.approx(plan.expected.step_s, rel=1e-9)
    assert all(
        other.step_s is None or other.step_s >= plan.expected.step_s * (1 - 1e-9)
        for other in plan.alternatives
        if other.feasible
    )
