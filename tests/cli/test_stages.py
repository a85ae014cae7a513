"""The four stages, chained as a pipeline would chain them, and the promises about what is printed where."""

import json
from pathlib import Path

import pytest

from cephalo_cli import __version__
from cephalo_cli.artifacts import Cluster, Model, Plan, Profile, Report, store
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node
from tests.cli.commands import cephalo

LINK = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-4)
CLUSTER = Cluster(
    name="two-speeds",
    device_types={
        "fast": DeviceType(backend="cpu", memory_bytes=2**31, emulated_speed=0.8),
        "slow": DeviceType(backend="cpu", memory_bytes=2**31, emulated_speed=0.4),
    },
    nodes=(Node(name="here", devices=("fast", "slow"), link=LINK),),
    network=LINK,
)
MODEL = Model(
    name="tiny", family="gpt", num_layers=2, hidden_size=32, num_heads=2, ffn_size=64, vocab_size=256, max_seq_len=16
)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every stage has run once."""
    folder = tmp_path_factory.mktemp("stages")
    store.write(CLUSTER, folder / "cluster.json")
    store.write(MODEL, folder / "model.json")

    def run(*arguments: str) -> None:
        ran = cephalo(*arguments)
        assert (ran.code, ran.err.count("error")) == (0, 0), ran.err

    at = f"{folder}/"
    shape = ("--model", f"{at}model.json", "--seq-len", "16")
    run(
        "profile",
        f"{at}cluster.json",
        *shape,
        *("--max-microbatch", "2", "--max-seconds", "6", "-o", f"{at}profile.json", "-q"),
    )
    run("plan", f"{at}profile.json", "-b", "6", "-o", f"{at}plan.json", "-q")
    run("simulate", f"{at}plan.json", "-o", f"{at}simulated.json", "--trace", f"{at}trace.json", "-q")
    run(
        "train",
        f"{at}plan.json",
        *("--data", "random", "--steps", "3", "-o", f"{at}measured.json", "--metrics", f"{at}m.jsonl", "-q"),
    )
    return folder


def test_every_stage_names_what_it_was_made_from(stages: Path) -> None:
    profile = store.read(stages / "profile.json", Profile)
    plan = store.read(stages / "plan.json", Plan)
    measured = store.read(stages / "measured.json", Report)
    assert [source.path for source in profile.inputs] == [f"{stages}/cluster.json", f"{stages}/model.json"]
    assert plan.inputs == (store.input_file(stages / "profile.json"),)
    assert measured.inputs == (store.input_file(stages / "plan.json"),)
    assert all(artifact.created_by == f"cephalo {__version__}" for artifact in (profile, plan, measured))


def test_simulated_and_measured_reports_can_be_subtracted(stages: Path) -> None:
    simulated = store.read(stages / "simulated.json", Report)
    measured = store.read(stages / "measured.json", Report)
    assert (simulated.source, measured.source) == ("simulated", "measured")
    assert [rank.num_samples for rank in simulated.ranks] == [rank.num_samples for rank in measured.ranks]
    assert len(measured.steps) == 3


def test_metrics_are_one_json_line_a_step(stages: Path) -> None:
    lines = [json.loads(line) for line in (stages / "m.jsonl").read_text().splitlines()]
    measured = store.read(stages / "measured.json", Report)
    assert [line["loss"] for line in lines] == [step.loss for step in measured.steps]


def test_the_same_inputs_give_the_same_bytes(stages: Path, tmp_path: Path) -> None:
    cephalo("plan", f"{stages}/profile.json", "-b", "6", "-o", f"{tmp_path}/plan.json", "-q")
    cephalo("simulate", f"{stages}/plan.json", "-o", f"{tmp_path}/simulated.json", "-q")
    assert (tmp_path / "plan.json").read_bytes() == (stages / "plan.json").read_bytes()
    assert (tmp_path / "simulated.json").read_bytes() == (stages / "simulated.json").read_bytes()


@pytest.mark.parametrize("name", ["cluster", "model", "profile", "plan", "simulated", "measured"])
def test_show_json_is_the_file_itself(stages: Path, name: str) -> None:
    ran = cephalo("show", f"{stages}/{name}.json", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == json.loads((stages / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["cluster", "model", "profile", "plan", "simulated", "measured"])
def test_tables_fit_eighty_columns(stages: Path, name: str) -> None:
    ran = cephalo("show", f"{stages}/{name}.json")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80


def test_quiet_prints_nothing(stages: Path) -> None:
    ran = cephalo("simulate", f"{stages}/plan.json", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_json_prints_data_only(stages: Path) -> None:
    ran = cephalo("simulate", f"{stages}/plan.json", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["kind"] == "report"


def test_dash_writes_the_artifact_to_standard_output(stages: Path) -> None:
    ran = cephalo("plan", f"{stages}/profile.json", "-b", "4", "-o", "-")
    assert ran.code == 0
    assert json.loads(ran.out)["kind"] == "plan"
    assert "Who does how much" in ran.err


def test_the_hint_names_the_next_command_with_the_users_file(stages: Path) -> None:
    ran = cephalo("simulate", f"{stages}/plan.json")
    assert ran.err.startswith(f"next: cephalo train {stages}/plan.json ")


def test_an_existing_result_is_kept_unless_forced(stages: Path) -> None:
    before = (stages / "simulated.json").read_bytes()
    refused = cephalo("simulate", f"{stages}/plan.json", "-o", f"{stages}/simulated.json", "-q")
    assert (refused.code, refused.err) == (
        3,
        f"cephalo: error: {stages}/simulated.json: exists already (--force overwrites it)\n",
    )
    assert (stages / "simulated.json").read_bytes() == before
    assert cephalo("simulate", f"{stages}/plan.json", "-o", f"{stages}/simulated.json", "-q", "--force").code == 0


def test_infeasible_is_an_answer(stages: Path, tmp_path: Path) -> None:
    ran = cephalo("plan", f"{stages}/profile.json", "-b", "6", "--reserve", "3GiB", "-o", f"{tmp_path}/plan.json")
    assert ran.code == 4
    assert ran.out == ""
    assert "reserve" in ran.err
    assert not (tmp_path / "plan.json").exists()


def test_plan_and_reports_side_by_side(stages: Path) -> None:
    ran = cephalo("show", f"{stages}/plan.json", f"{stages}/simulated.json", f"{stages}/measured.json", "--json")
    assert ran.code == 0
    assert {row["what"] for row in json.loads(ran.out)["steps"]} >= {"planned", "simulated", "measured"}


def test_trace_is_what_perfetto_reads(stages: Path) -> None:
    trace = json.loads((stages / "trace.json").read_text())
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert len(names) == 2
