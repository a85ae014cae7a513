"""From a folder to a folder as a user does it: plan, train with weights and adapters, export, export a checkpoint."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cephalo_cli.artifacts import Plan, Report, store
from cephalo_cli.artifacts.store import write
from cephalo_cli.catalog.huggingface import model_from_hf_config
from tests.cli.commands import cephalo
from tests.executor.plans import make_plan
from tests.models.hub import make_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything one training leaves behind."""
    place = tmp_path_factory.mktemp("weights")
    make_folder("gpt2", place / "in")
    (place / "in" / "tokenizer_config.json").write_text("{}")
    plan = make_plan(
        model_from_hf_config(place / "in" / "config.json"), [[2, 1], [2]], [0.8, 0.2], dtype="float32", strategy="fsdp"
    )
    write(plan, place / "plan.json")
    ran = cephalo(
        *(
            "train",
            str(place / "plan.json"),
            "--data",
            "random",
            "--steps",
            "2",
            "--checkpoint-dir",
            str(place / "run"),
        ),
        *("--weights", str(place / "in"), "--export", str(place / "out"), "-o", str(place / "report.json")),
        *("--export-dtype", "bfloat16"),
    )
    assert ran.code == 0, ran.err
    assert f"exported the weights to {place / 'out'}" in ran.err
    return place


def test_a_training_says_what_it_started_from(trained: Path) -> None:
    report = store.read(trained / "report.json", Report)
    assert [file.path for file in report.inputs] == [
        str(trained / "plan.json"),
        str(trained / "in" / "model.safetensors"),
    ]
    assert json.loads((trained / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (trained / "out" / "tokenizer_config.json").read_text() == "{}"


def test_a_checkpoint_is_exported_without_a_plan(trained: Path) -> None:
    ran = cephalo("export", str(trained / "run"), str(trained / "later"), "--dtype", "bfloat16", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["folder"], told["step"]) == (str(trained / "later"), 2)
    first, later = (load_file(trained / name / "model.safetensors") for name in ("out", "later"))
    assert first.keys() == later.keys()
    assert all(first[key].equal(later[key]) for key in first)
    again = cephalo("export", str(trained / "run"), str(trained / "later"))
    assert (again.code, again.err) == (
        3,
        f"cephalo: error: {trained / 'later'}: exists already (--force replaces it)\n",
    )
    assert cephalo("export", str(trained / "run"), str(trained / "later"), "--force", "-q").code == 0
    kept = cephalo("export", str(trained / "run"), str(trained / "third"), "--weights", str(trained / "in"))
    assert kept.code == 0, kept.err
    assert (trained / "third" / "config.json").read_bytes() == (trained / "in" / "config.json").read_bytes()
    nothing = cephalo("export", str(trained / "in"), str(trained / "fourth"))
    assert (nothing.code, nothing.err) == (
        3,
        f"cephalo: error: {trained / 'in'}: no checkpoint here (no checkpoint is complete)\n",
    )


def test_bad_weights_end_before_training_with_exit_code_3(trained: Path, tmp_path: Path) -> None:
    make_folder("gpt2", tmp_path / "bad", n_layer=1)
    plan = store.read(trained / "plan.json", Plan)
    assert plan.model.num_layers == 2
    ran = cephalo(
        *("train", str(trained / "plan.json"), "--data", "random", "--steps", "1"), "--weights", str(tmp_path / "bad")
    )
    assert ran.code == 3
    assert ran.err.splitlines()[-1] == (
        f"cephalo: error: {tmp_path / 'bad' / 'config.json'}: describes another model than the plan: num_layers is 1, "
        "the plan's model has 2 (profile and plan with --model and this folder)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=x", "--lora: rank is 'x', expected a whole number"),
        ("rank=0", "--lora: rank is '0', expected greater than or equal to 1"),
        ("alpha=8", "--lora: rank is missing"),
        ("rnk=8", "--lora: found 'rnk', expected one of rank, alpha, targets, base (did you mean 'rank'?)"),
        ("rank", "--lora: found 'rank', expected key=value (such as rank=8,alpha=16)"),
        ("rank=2,rank=3", "--lora: rank is given twice"),
        ("rank=2,base=int8", "--lora: base is 'int8', expected 'bfloat16' or 'float16'"),
        (
            "rank=2,targets=qkv",
            "lora.targets[0]: 'qkv' names no matrix of a block (attention.qkv, attention.out, mlp.up, mlp.out)",
        ),
    ],
)
def test_adapters_are_refused_in_one_line(text: str, message: str) -> None:
    ran = cephalo("plan", "--gpus", "l4:2", "--model", "gpt2-124m", "--seq-len", "64", "-b", "8", "--lora", text)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"cephalo: error: {message}")


def test_a_plan_with_adapters_keeps_them(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    ran = cephalo(
        *("plan", "--gpus", "l4:2", "--model", "gpt2-124m", "--seq-len", "64", "--dtype", "bfloat16", "-b", "8"),
        *("--lora", "rank=8,alpha=16,targets=attention.*+mlp.up,base=bfloat16", "-o", str(out)),
    )
    assert ran.code == 0, ran.err
    plan = store.read(out, Plan)
    assert plan.model.lora is not None
    assert (plan.model.lora.rank, plan.model.lora.scale) == (8, 2.0)
    assert plan.model.frozen_dtype == "bfloat16"
    adapters = plan.num_parameters - plan.num_frozen_parameters
    assert adapters == 12 * 8 * (768 + 3 * 768 + 768 + 768 + 768 + 4 * 768)
    for rank in plan.ranks:
        state = rank.state_share * (16 * adapters + 2 * plan.num_frozen_parameters)
        assert rank.memory.state_bytes == pytest.approx(state, abs=1)
