"""The first line a visitor types: devices by name, estimated, and a command that fits where this one does not."""

import json
import shlex
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.store import loads
from cephalo_cli.catalog import cluster_from_gpus
from cephalo_cli.cli.gpus import common_dtype, fitting_command
from tests.cli.commands import Ran, cephalo


def first_line(*more: str, gpus: str = "3090,p40", model: str = "gpt2") -> Ran:
    return cephalo("plan", "--gpus", gpus, "--model", model, "--seq-len", "128", "--batch-size", "8", *more)


def test_one_line_gives_a_plan_and_says_in_which_dtype() -> None:
    ran = first_line()
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    for words in ("Who does how much", "Memory at its fullest", "Against other strategies", "estimated (typically off"):
        assert words in ran.out
    assert ran.err == (
        "computed in float16, which all these devices run; --dtype names another\n"
        "--keep-unsharded auto may be faster: backward waits for the network and every rank has free memory\n"
        "next: add -o PLAN.json to keep the plan, then cephalo train PLAN.json --data SOURCE --steps N\n"
    )


def test_json_prints_the_plan_and_nothing_else() -> None:
    ran = first_line("--json", "--dtype", "float32")
    assert (ran.code, ran.err) == (0, "")
    plan = loads(ran.out.encode(), where="standard output")
    assert isinstance(plan, Plan)
    assert plan.dtype == "float32"


def test_an_explanation_comes_with_its_plan() -> None:
    told = json.loads(first_line("--json", "--explain").out)
    assert told["plan"]["kind"] == "plan"
    assert {"bindings", "gains"} < set(told)


@pytest.mark.parametrize(
    ("gpus", "dtype"),
    [("a100:2,l4", "bfloat16"), ("v100,a100", "float16"), ("p40", "float16"), ("gaudi-2", "bfloat16")],
)
def test_the_dtype_is_one_that_all_devices_run(gpus: str, dtype: str) -> None:
    assert common_dtype(cluster_from_gpus(gpus)) == dtype


def test_updates_in_backward_leave_out_float16() -> None:
    assert common_dtype(cluster_from_gpus("v100,a100"), scales_loss=False) == "float32"
    assert common_dtype(cluster_from_gpus("a100"), scales_loss=False) == "bfloat16"


REPAIRS = {
    "one more p40 fits": "cephalo plan --gpus 3090:2,p40:2 --model m.json --batch-size 64",
    "3 more rtx-3090 fit": "cephalo plan --gpus 3090:5,p40 --model m.json --batch-size 64",
    "2 more l4 fit": "cephalo plan --gpus 3090:2,p40,l4:2 --model m.json --batch-size 64",
    "--batch-size 12 fits": "cephalo plan --gpus 3090:2,p40 --model m.json --batch-size 12",
    "--recompute auto --offload auto fits": (
        "cephalo plan --gpus 3090:2,p40 --model m.json --batch-size 64 --recompute auto --offload auto"
    ),
    "--optimizer-in-backward fits": (
        "cephalo plan --gpus 3090:2,p40 --model m.json --batch-size 64 --optimizer-in-backward"
    ),
    "--dtype float32 --optimizer-in-backward fits": (
        "cephalo plan --gpus 3090:2,p40 --model m.json --dtype float32 --batch-size 64 --optimizer-in-backward"
    ),
    "512 more cards of a type do not suffice": None,
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_repair_as_a_command(repair: str) -> None:
    options = {"--model": "m.json", "--dtype": None, "--batch-size": "64"}
    assert fitting_command(repair, "3090:2, p40", options) == REPAIRS[repair]


def test_what_does_not_fit_ends_with_a_command_that_does() -> None:
    ran = first_line(gpus="p4", model="gpt2-large")
    assert (ran.code, ran.out) == (4, "")
    error = ran.err.splitlines()[-1]
    assert error.startswith("cephalo: error: no plan fits: state: the training state of 11.5 GiB")
    _, said, commands = error.partition(": cephalo ")
    assert said
    command, _, adapters = commands.removesuffix(")").partition("; or train adapters only, which fits: add ")
    assert cephalo(*shlex.split(command), "-q").code == 0
    assert adapters == "--lora rank=8"
    assert first_line(*adapters.split(), "-q", gpus="p4", model="gpt2-large").code == 0


def test_adapters_are_proposed_only_where_they_were_found_to_fit(tmp_path: Path) -> None:
    assert "--lora rank=8,base=float16)" in first_line(gpus="p4", model="bert-xlarge").err
    assert "--lora" not in first_line(gpus="p4", model="llama-65b").err
    assert "adapters" not in first_line("--lora", "rank=8", gpus="p4", model="bert-xlarge").err
    assert "--lora" not in cephalo("plan", "profiles/laptop-mixed.json", "-b", "8", "--memory-fraction", "0.5").err
    profile = str(tmp_path / "estimated.json")
    made = cephalo(
        *("profile", "--gpus", "p4", "--estimate", "--model", "gpt2-large", "--seq-len", "128", "-o", profile, "-q")
    )
    assert made.code == 0
    ran = cephalo("plan", profile, "-b", "8", "--recompute", "on")
    assert (ran.code, ran.err.count("profile again with --lora rank=8)")) == (4, 1)


def test_far_too_little_names_how_many_cards_it_takes() -> None:
    ran = first_line(gpus="p4", model="gpt2-xl")
    assert ran.code == 4
    assert "more p4 fit: cephalo plan --gpus p4:" in ran.err
