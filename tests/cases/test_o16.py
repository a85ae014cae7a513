"""O16: one card or vendor cannot do what the plan assumes."""

import json
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Cluster, Model
from cephalo_cli.errors import UsageError
from cephalo_cli.runtime.launch import RankEnvironment, run_ranks
from cephalo_cli.units import num_parameters
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


def test_o16_an_estimate_without_a_dtype_takes_one_that_all_cards_run(tmp_path: Path) -> None:
    """O16: the same as plan --gpus, and it says which."""
    profile = tmp_path / "profile.json"
    devices = ("--gpus", "a100-80gb,v100-16gb", "--model", MODEL, "--seq-len", "128", "--estimate")
    ran = cephalo("profile", *devices, "-o", str(profile))
    assert ran.code == 0
    assert "computed in float16, which all these devices run; --dtype names another" in ran.err
    assert json.loads(profile.read_text())["dtype"] == "float16"


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


@pytest.mark.parametrize(("backends", "dtype"), [(("cuda", "rocm"), "float32"), (("cuda", "cpu"), "float32")])
def test_o16_a_plan_for_devices_without_a_common_library_is_refused(
    tmp_path: Path, backends: tuple[str, str], dtype: str
) -> None:
    """O16: a profile may hold both (imported, or written by hand); the plan says that they cannot train together."""
    path = profile_of(tmp_path, {name: {"backend": name, "memory_bytes": 2**34} for name in backends}, dtype)
    ran = cephalo("plan", str(path), "--batch-size", "4")
    assert ran.code == 2
    first, second = backends
    assert f"{first!r} ({first}) and {second!r} ({second}) cannot be in one group of collectives" in ran.err


def test_o16_a_plan_in_a_dtype_that_a_device_cannot_run_is_refused(tmp_path: Path) -> None:
    """O16: the same for a dtype, where the peaks say what a device can do."""
    types = {
        name: {"backend": "cuda", "memory_bytes": 2**34, "peak_flops": dict.fromkeys(dtypes, 1e13)}
        for name, dtypes in {"old": ("float32", "float16"), "new": ("float32", "float16", "bfloat16")}.items()
    }
    ran = cephalo("plan", str(profile_of(tmp_path, types, "bfloat16")), "--batch-size", "4")
    assert ran.code == 2
    assert "'old' cannot run bfloat16" in ran.err
    assert "all devices of the cluster run float32 and float16" in ran.err


def profile_of(folder: Path, types: dict[str, dict[str, object]], dtype: str) -> Path:
    """A profile of one device of each type, as imported."""
    model = json.loads(Path(MODEL).read_text())
    unit = {"microbatch": [1, 2], "forward_s": [1e-3, 2e-3], "backward_s": [2e-3, 4e-3], "working_bytes": [1, 2]}
    cluster = {
        "kind": "cluster",
        "schema_version": "1.0",
        "name": "mixed",
        "device_types": types,
        "nodes": [{"name": "n", "devices": list(types)}],
        "network": "ideal",
    }
    content = {
        "kind": "profile",
        "schema_version": "1.0",
        "cluster": cluster,
        "model": model,
        "seq_len": 128,
        "dtype": dtype,
        "num_parameters": num_parameters(Model.model_validate_json(json.dumps(model))),
        "devices": {name: {"method": "imported", "units": {"block": unit}} for name in types},
        "network": "ideal",
    }
    path = folder / "profile.json"
    path.write_text(json.dumps(content))
    return path
