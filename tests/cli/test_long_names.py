"""Names that no file system takes, wherever one may be given, are bad input and fill no screen."""

import pytest

from tests.cli.commands import cephalo

CLUSTER = "examples/clusters/laptop-mixed.json"
MODEL = "examples/models/gpt-10m.json"
PLAN = "plans/laptop-mixed.json"
GPUS = ("--model", "gpt2", "--seq-len", "512", "--batch-size", "8")
TRAIN = ("--data", "random", "--steps", "2")
TOO_LONG = "x" * 5000
LONG_NAMES = (
    ("show", TOO_LONG),
    ("show", PLAN, "--plot", f"{TOO_LONG}.png"),
    ("show", PLAN, "--html", TOO_LONG),
    ("simulate", TOO_LONG),
    ("simulate", PLAN, "-o", TOO_LONG),
    ("simulate", PLAN, "--trace", TOO_LONG),
    ("plan", TOO_LONG, "--batch-size", "8"),
    ("plan", "--check", TOO_LONG),
    ("plan", "--gpus", TOO_LONG, *GPUS),
    ("plan", "--gpus", "l4", "--model", TOO_LONG, "--seq-len", "8", "-b", "8"),
    ("profile", TOO_LONG, "--model", MODEL, "--seq-len", "8"),
    ("profile", CLUSTER, "--model", MODEL, "--seq-len", "8", "--from-table", TOO_LONG, "--memory-table", TOO_LONG),
    ("train", TOO_LONG, *TRAIN),
    ("train", PLAN, "--steps", "1", "--data", TOO_LONG),
    *(
        ("train", PLAN, *TRAIN, option, TOO_LONG)
        for option in ("-o", "--trace", "--metrics", "--resume", "--weights", "--export", "--checkpoint-dir")
    ),
    ("export", TOO_LONG, "folder"),
    ("catalog", "models", TOO_LONG),
)


@pytest.mark.parametrize("words", LONG_NAMES, ids=lambda words: " ".join(word for word in words if len(word) < 40))
def test_a_name_longer_than_the_file_system_takes(words: tuple[str, ...]) -> None:
    ran = cephalo(*words)
    assert (ran.code, ran.out) == (3, "")
    said = ran.err.removeprefix("computed in bfloat16, which all these devices run; --dtype names another\n")
    assert said.count("\n") == 1
    assert len(said) < 700
    assert "a fault of cephalo's" not in said
