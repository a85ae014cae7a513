"""``show``: conditions that a job watches, other programs' models, schemas that people read, the same file twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.artifacts import Plan, Report, store
from cephalo_cli.artifacts.store import KINDS
from cephalo_cli.errors import UsageError
from cephalo_cli.reporting.conditions import Condition, parse_condition
from cephalo_cli.simulator import simulate
from tests.cli.commands import cephalo
from tests.reporting.test_tables import profile_of, small_plan, tight_plan
from tests.simulator.plans import make_plan

PLAN = "plans/laptop-mixed.json"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """An old report, one that is a quarter slower, one with an eighth more memory on rank 1, and plans and profiles."""
    plan = small_plan()
    old = simulate(plan).report
    slower = old.model_copy(update={"step_s": 1.25 * old.step_s})
    ranks = list(old.ranks)
    ranks[1] = ranks[1].model_copy(update={"peak_memory_bytes": ranks[1].peak_memory_bytes * 9 // 8})
    profile = profile_of(plan)
    block = profile.devices["slow"].units["block"]
    slow = profile.devices["slow"]
    units = {**slow.units, "block": block.model_copy(update={"backward_s": tuple(1.5 * s for s in block.backward_s)})}
    drifted = profile.model_copy(
        update={"devices": {**profile.devices, "slow": slow.model_copy(update={"units": units})}}
    )
    made = {
        "old": old,
        "slower": slower,
        "fuller": old.model_copy(update={"ranks": tuple(ranks)}),
        "plan": plan,
        "tight": tight_plan(),
        "other": make_plan(["fast"], [[4]]),
        "profile": profile,
        "drifted": drifted,
    }
    for name, artifact in made.items():
        store.write(artifact, tmp_path / f"{name}.json")
    return {name: f"{tmp_path}/{name}.json" for name in made}


CONDITIONS: dict[str, tuple[list[str], list[str], int, str]] = {
    "slower than allowed": (
        ["old", "slower"],
        ["slower:5%"],
        7,
        "{slower} is 25.0 % slower than {old}: a step of 209 ms instead of 167 ms (--fail-if slower:5%)",
    ),
    "as slow as allowed": (["old", "slower"], ["slower:25.1 %"], 0, ""),
    "faster": (["slower", "old"], ["slower:0", "memory", "infeasible"], 0, ""),
    "fuller": (
        ["old", "fuller"],
        ["memory:10%", "slower:10%"],
        7,
        (
            "rank 1 of {fuller} needs 12.5 % more memory than in {old}: 12.5 MiB instead of 11.1 MiB"
            " (--fail-if memory:10% --fail-if slower:10%)"
        ),
    ),
    "does not fit": (
        ["tight"],
        ["infeasible"],
        7,
        "{tight} does not fit: rank 1 (middle) is 1.27 MiB over its limit (--fail-if infeasible)",
    ),
    "fits": (["plan"], ["infeasible"], 0, ""),
    "drift of profiles": (
        ["profile", "drifted"],
        ["slower:5%"],
        7,
        (
            "{drifted} is 50.0 % slower than {profile} in the backward of block on slow, 8 samples: 96.6 ms instead of"
            " 64.4 ms (--fail-if slower:5%)"
        ),
    ),
    "other batch": (
        ["plan", "other"],
        ["slower:5%"],
        2,
        (
            "--fail-if slower:5%: the two files have different batches or sequence lengths, so their steps cannot be"
            " compared (plan both with one --batch-size)"
        ),
    ),
    "other devices": (
        ["plan", "other"],
        ["memory"],
        2,
        "--fail-if memory: the two files have different devices, so their memory cannot be compared rank by rank",
    ),
    "one file": (
        ["plan"],
        ["slower:5%"],
        2,
        (
            "--fail-if slower:5%: needs two files, the old one and the new one, found 1"
            " (cephalo show OLD NEW --fail-if slower:5%)"
        ),
    ),
    "memory of profiles": (
        ["profile", "drifted"],
        ["memory:5%"],
        2,
        "--fail-if memory:5%: is for plans and reports, found a profile",
    ),
    "no condition": (["plan"], ["slowr:5%"], 2, "--fail-if: 'slowr:5%' is no condition (did you mean 'slower'?)"),
    "no number": (
        ["plan"],
        ["slower:lots"],
        2,
        "--fail-if: 'slower:lots' is no condition (write it like slower:5%, memory:5% or infeasible)",
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(name: str, files: dict[str, str]) -> None:
    shown, conditions, code, message = CONDITIONS[name]
    watched = [word for condition in conditions for word in ("--fail-if", condition)]
    ran = cephalo("show", *(files[each] for each in shown), *watched, "--json")
    assert (ran.code, ran.err) == (code, f"cephalo: error: {message.format(**files)}\n" if message else "")
    if code in {0, 7}:
        assert json.loads(ran.out)  # what was shown is whole, whatever was found


def test_conditions_as_people_write_them() -> None:
    assert parse_condition(" Slower: 5 % ") == Condition(watched="slower", allowed=0.05, text="Slower: 5 %")
    assert parse_condition("memory:2.5").allowed == 0.025
    assert parse_condition("infeasible").allowed == 0.0
    with pytest.raises(UsageError):
        parse_condition("infeasible:5%")


def test_a_measured_report_without_limits_cannot_be_infeasible(files: dict[str, str], tmp_path: Path) -> None:
    report = store.read(files["old"], Report)
    bare = report.model_copy(update={"ranks": tuple(rank.model_copy(update={"memory": None}) for rank in report.ranks)})
    store.write(bare, tmp_path / "bare.json")
    assert cephalo("show", f"{tmp_path}/bare.json", "--fail-if", "infeasible", "-q").code == 0


HF = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}


def test_a_model_of_hugging_face_is_shown_as_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF))
    for path in (folder, folder / "config.json"):
        ran = cephalo("show", str(path))
        said = f"{folder / 'config.json'} is a Hugging Face configuration: --model {path} takes it as it is\n"
        assert (ran.code, ran.err) == (0, said)
        assert "parameters           124 M" in ran.out
        assert json.loads(cephalo("show", str(path), "--json").out)["kind"] == "model"


def test_an_unsupported_model_is_refused_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HF | {"model_type": "mamba"}))
    ran = cephalo("show", str(tmp_path))
    assert ran.code == 3
    assert "mamba" in ran.err
    assert "expected 'cluster'" not in ran.err


def undescribed(schema: Any, path: str = "") -> list[str]:
    if isinstance(schema, list):
        return [name for number, child in enumerate(schema) for name in undescribed(child, f"{path}[{number}]")]
    if not isinstance(schema, dict):
        return []
    own = [f"{path}.{name}" for name, value in schema.get("properties", {}).items() if not value.get("description")]
    return own + [name for key, child in schema.items() for name in undescribed(child, f"{path}.{key}")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described_without_marks_of_code(kind: str) -> None:
    ran = cephalo("show", "--schema", kind)
    assert ran.code == 0
    assert undescribed(json.loads(ran.out)) == []
    assert "``" not in ran.out


def test_a_file_given_twice_has_two_columns() -> None:
    rows = json.loads(cephalo("show", PLAN, PLAN, "--json").out)
    assert {"laptop-mixed#1", "laptop-mixed#2"} < set(rows["compute_s"][0])
    text = cephalo("show", "profiles/laptop-mixed.json", "profiles/laptop-mixed.json").out
    assert "0.0 %" in text
    assert "-0.0 %" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        (PLAN,),
        (PLAN, PLAN),
        ("profiles/home-lab.json",),
        ("profiles/home-lab.json", "profiles/home-lab.json"),
        ("examples/clusters/laptop-mixed.json",),
        ("examples/models/gpt-10m.json",),
    ],
    ids=" ".join,
)
def test_no_line_ends_in_spaces_and_nothing_goes_to_standard_error(arguments: tuple[str, ...]) -> None:
    ran = cephalo("show", *arguments)
    assert (ran.code, ran.err) == (0, "")
    assert [line for line in ran.out.splitlines() if line != line.rstrip()] == []
    ran = cephalo("show", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)


def test_what_a_plan_says_of_some_blocks(tmp_path: Path) -> None:
    """Fields that most plans leave out are shown where they are there."""
    plan = store.read(PLAN, Plan)
    ranks = [rank.model_copy(update={"recompute_blocks": 2}) if rank.recompute else rank for rank in plan.ranks]
    store.write(plan.model_copy(update={"ranks": tuple(ranks), "keep_unsharded": 3}), tmp_path / "plan.json")
    text = cephalo("show", f"{tmp_path}/plan.json").out
    assert "recompute 2/6" in text
    assert "3 of 6 blocks from forward to backward, beside the last" in text


def test_a_cluster_is_shown_with_what_the_catalog_knows_of_it(tmp_path: Path) -> None:
    text = Path("examples/clusters/home-lab.json").read_text()
    ran = cephalo("show", "examples/clusters/home-lab.json")
    assert "NVIDIA Tesla P40 24 GB" in ran.out
    assert "11.8 TFLOP/s" in ran.out
    unknown = tmp_path / "cluster.json"
    unknown.write_text(text.replace('"catalog": "p40"', '"catalog": "p400"'))
    ran = cephalo("show", str(unknown))
    assert ran.code == 3
    assert "device_types.p40.catalog: the catalog has no device 'p400' (did you mean 'p40'?)" in ran.err


def test_one_rank_is_not_ranks() -> None:
    ran = cephalo("plan", "--gpus", "a100", "--model", "gpt2", "--seq-len", "128", "--batch-size", "8")
    assert "1xa100-80gb (1 rank)\n" in ran.out
