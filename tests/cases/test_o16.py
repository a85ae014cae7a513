"""O16: one card or vendor cannot do what the plan assumes."""

import json
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Cluster
from cephalo_cli.errors import UsageError
from cephalo_cli.runtime.launch import RankEnvironment, run_ranks
from tests.cli.commands import cephalo

MODEL = "examples/models/gpt-10m.json"


def test_o16_a_dtype_that_a_card_cannot_run_is_refused_with_its_name(tmp_path: Path) -> None:
    """O16: bfloat16 with a V100 beside an A100: refused before anything runs, with what all of them can do."""
    devices = ("--gpus", "a100-80gb,v100-16gb", "--model", MODEL, "--seq-len", "128", "--estimate")
    profile = tmp_path / "profile.json"
    ran = cephalo("profile", *devices, "--dtype", "bfloat16", "-o", str(profile))
    assert ran.code == 2
    assert "'v100-16gb' cannot run bfloat16" in ran.err
    assert "all devices of the cluster run float32 and float16" in ran.err
    assert not profile.exists()


@pytest.mark.parametrize("external", [None, RankEnvironment(rank=0, world_size=2)])
def test_o16_vendors_without_a_common_library_are_refused_before_a_rank_starts(
    external: RankEnvironment | None,
) -> None:
    """O16: NCCL and RCCL do not talk to each other; no process is started to find that out."""
    types = {name: {"backend": name, "memory_bytes": 2**34} for name in ("cuda", "rocm")}
    node = {"name": "n", "devices": list(types)}
    content = {"kind": "cluster", "name": "both", "device_types": types, "nodes": [node], "network": "ideal"}
    cluster = Cluster.model_validate_json(json.dumps(content))
    with pytest.raises(UsageError) as refusal:
        run_ranks("no_such_module:entry", None, cluster, external=external)
    assert refusal.value.message == "devices of backends cuda and rocm cannot run in one job"
