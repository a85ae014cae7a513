"""Wrong command lines: one line on standard error that says what to do, and exit code 2 or 3."""

from pathlib import Path

import pytest

from tests.cli.commands import cephalo

ROOT = Path(__file__).resolve().parents[2]
LAPTOP = "examples/clusters/laptop-mixed.json"
GPT = "examples/models/gpt-10m.json"
PROFILE = ("profile", LAPTOP, "--model", GPT)

USAGE = {
    "no such command": (
        ("trian",),
        "No such command 'trian' (did you mean 'train'?)",
    ),
    "no such option": (
        ("plan", "p.json", "--batchsize", "3"),
        "--batchsize is no option of cephalo plan (did you mean --batch-size?)",
    ),
    "no model": (("profile", LAPTOP), "Missing option '--model' (cephalo profile --help lists the options)"),
    "batch of nothing": (("plan", "p.json", "--batch-size", "0"), "--batch-size is 0, expected at least 1"),
    "batch of words": (
        ("plan", "p.json", "--batch-size", "many"),
        "--batch-size is 'many', expected a whole number, auto or max",
    ),
    "batch beyond all bounds": (
        ("plan", "p.json", "-b", "99999999999"),
        "--batch-size is 99999999999, expected at most 2147483647",
    ),
    "microbatch beyond all bounds": (
        ("plan", "p.json", "-b", "8", "--microbatch-size", "99999999999999999999"),
        (
            "--microbatch-size is 99999999999999999999, expected at most 2147483647"
            " (cephalo plan --help lists the options)"
        ),
    ),
    "no time": (("plan", "p.json", "-b", "8", "--time-limit", "nan"), "--time-limit is nan, expected seconds above 0"),
    "standard input twice": (("show", "-", "-"), "standard input can be read once (give - once)"),
    "plans from standard input twice": (("simulate", "-", "-"), "standard input can be read once (give - once)"),
    "no batch": (("plan", "p.json"), "--batch-size is missing (a number, auto or max)"),
    "nothing to plan from": (
        ("plan", "-b", "8"),
        "no PROFILE given (or name devices: --gpus rtx-3090:2,p40)",
    ),
    "limit of a fixed batch": (
        ("plan", "p.json", "-b", "8", "--max-batch-size", "9"),
        "--max-batch-size goes with --batch-size auto or max (leave it out)",
    ),
    "model of a profile": (
        ("plan", "p.json", "-b", "8", "--model", GPT),
        "--model, --seq-len, --dtype and --lora go with --gpus; a profile has its own (leave them out)",
    ),
    "check and plan": (
        ("plan", "p.json", "--check", "q.json"),
        "--check stands alone (cephalo plan --check PLAN)",
    ),
    "sweep of several": (
        ("simulate", "p.json", "q.json", "--sweep", "a=1,2"),
        "--sweep takes one plan (sweep the plans one by one)",
    ),
    "straggler without factor": (
        ("simulate", "plans/laptop-mixed.json", "--straggler", "two"),
        "--straggler: 'two' is not RANK:FACTOR (write it like 3:1.3)",
    ),
    "json and quiet": (
        ("show", GPT, "--json", "--quiet"),
        "--json and --quiet exclude each other (leave one out)",
    ),
    "cluster twice": (
        (*PROFILE, "--seq-len", "8", "--gpus", "l4:2"),
        "CLUSTER and --gpus both say which devices there are (leave one out)",
    ),
    "two sources": (
        (*PROFILE, "--estimate", "--from-table", "a.csv", "--memory-table", "b.csv"),
        "--estimate and --from-table exclude each other (leave one out)",
    ),
    "half an import": (
        (*PROFILE, "--seq-len", "8", "--from-table", "a.csv"),
        "--from-table and --memory-table go together (give both or none)",
    ),
    "budget of an estimate": (
        (*PROFILE, "--seq-len", "8", "--estimate", "--max-seconds", "3"),
        "--max-seconds is the budget of measuring (leave it out)",
    ),
    "no devices": (
        ("profile", "--model", GPT, "--seq-len", "8", "--estimate"),
        "which devices? no CLUSTER and no --gpus given (such as --gpus rtx-3090:2,rtx-4090)",
    ),
    "measuring what is not here": (
        ("profile", "--gpus", "l4:2", "--model", GPT, "--seq-len", "8"),
        (
            "--gpus names devices of the catalog, which this machine need not have"
            " (add --estimate, or measure with a CLUSTER file)"
        ),
    ),
    "no length": (PROFILE, "--seq-len is missing: how many tokens has one sample? (such as --seq-len 1024)"),
    "too long": (
        (*PROFILE, "--seq-len", "512"),
        "--seq-len is 512, but gpt-10m takes at most 256 tokens (shorten it, or raise the model's max_seq_len)",
    ),
    "memory fraction": (
        ("plan", "p.json", "-b", "8", "--memory-fraction", "1.5"),
        "--memory-fraction is 1.5, expected a number above 0 and at most 1 (0.015 is 1.5 %)",
    ),
    "offload without recompute": (
        ("plan", "p.json", "-b", "8", "--recompute", "off", "--offload", "on"),
        "--offload on needs recompute (leave out --recompute off)",
    ),
    "offload with some blocks kept": (
        ("plan", "p.json", "-b", "8", "--recompute", "blocks", "--offload", "on"),
        "--offload on needs recompute of all blocks (leave out --recompute blocks)",
    ),
    "blocks kept by another strategy": (
        ("plan", "p.json", "-b", "8", "--keep-unsharded", "auto", "--strategy", "fsdp"),
        "--recompute blocks and --keep-unsharded are for strategy cephalo (leave them out)",
    ),
    "nothing to show": (("show",), "no file given (cephalo show FILE, or cephalo show --schema KIND)"),
    "schema and file": (("show", GPT, "--schema", "plan"), "--schema stands alone (leave out the rest)"),
    "kinds without a common ground": (
        ("show", GPT, LAPTOP),
        (
            "there is nothing to compare between these kinds: cluster, model"
            " (compare plans and reports with each other, or profiles with profiles)"
        ),
    ),
}

INPUT = {
    "no such file": (("plan", "p.json", "-b", "8"), "p.json: no such file"),
    "a neighbour's name": (
        ("show", "examples/models/gpt-10.json"),
        "examples/models/gpt-10.json: no such file (did you mean 'examples/models/gpt-10m.json'?)",
    ),
    "wrong kind": (
        ("plan", GPT, "-b", "8"),
        f"{GPT}: found a model, expected a profile (give a profile file here)",
    ),
    "unknown schema": (
        ("show", "--schema", "pln"),
        "found kind \"pln\", expected 'cluster', 'model', 'profile', 'plan' or 'report' (did you mean 'plan'?)",
    ),
    "existing output": (
        ("simulate", "plans/laptop-mixed.json", "-o", "pyproject.toml"),
        "pyproject.toml: exists already (--force overwrites it)",
    ),
    "a file as folder": (
        ("simulate", "plans/laptop-mixed.json", "-o", "pyproject.toml/report.json"),
        (
            f"pyproject.toml/report.json: cannot be written: {ROOT}/pyproject.toml is not a writable folder"
            " (give another path)"
        ),
    ),
}


@pytest.mark.parametrize("name", USAGE)
def test_usage(name: str) -> None:
    arguments, message = USAGE[name]
    ran = cephalo(*arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"cephalo: error: {message}\n")


@pytest.mark.parametrize("name", INPUT)
def test_input(name: str) -> None:
    arguments, message = INPUT[name]
    ran = cephalo(*arguments)
    assert (ran.code, ran.out, ran.err) == (3, "", f"cephalo: error: {message}\n")
