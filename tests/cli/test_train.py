"""What ``cephalo train`` says without training, and the line it says a step."""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Plan, store
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.cli.train_lines import StepTeller, json_line, numerics_line, step_line
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.board import Board
from cephalo_cli.layout import shard_ranges
from cephalo_cli.schedule import plan_stages, rank_records
from tests.cli.commands import cephalo

PLAN = "plans/laptop-mixed.json"
STEP = StepReport(
    step=3,
    loss=5.25,
    grad_norm=1.5,
    learning_rate=3e-4,
    tokens=1000,
    step_s=0.5,
    tokens_per_s=2000.0,
    model_flops_utilization=0.25,
    predicted_step_s=0.4,
    peak_memory_bytes=2**30,
    slowest_rank=1,
    slowest_compute_s=0.45,
    validation_loss=5.5,
)


def test_dry_run_says_what_every_rank_would_keep_and_do() -> None:
    plan = store.read(Path(PLAN), Plan)
    ran = cephalo("train", PLAN, "--dry-run", "--json", "--optimizer", "sgd", "--momentum", "0.9")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    steps = plan_stages(plan)
    for rank in plan.ranks:
        shards = [row for row in found["shards"] if row["ranks"] == [rank.rank]]
        expected = shard_ranges(steps.units[1].num_parameters, [each.state_share for each in plan.ranks])[rank.rank]
        block = next(row for row in shards if row["units"].startswith("block.0"))
        assert (block["start"], block["stop"]) == (expected.start, expected.stop)
        assert block["state_bytes"] == 12 * len(expected)
        records = rank_records(
            steps,
            num_microbatches=len(rank.microbatch_sizes),
            recompute=rank.recompute,
            offload=rank.offload,
            recompute_blocks=rank.recompute_blocks,
        )
        assert len(found["records"][rank.rank]) == len(records)
        assert found["records"][rank.rank][0] == "gather embedding"
        assert found["memory"]
    assert sum(row["num_elements"] for row in found["ranks"]) == plan.num_parameters
    assert len(found["stages"]) == len(steps.stages)


def test_dry_run_for_people_and_for_nobody() -> None:
    ran = cephalo("train", PLAN, "--dry-run", "--dtype", "bfloat16")
    assert (ran.code, ran.err) == (0, "")
    assert "not started" in ran.out
    assert "bfloat16 (parameters as gathered, activations)" in ran.out
    assert "forward-backward  head" in ran.out
    assert re.search(r"^forward +block\.0-\d+ +block\.1-\d+ ", ran.out, re.MULTILINE)  # alike stages share a row
    assert cephalo("train", PLAN, "--dry-run", "-q").out == ""


REFUSED = {
    ("--dry-run", "-o", "report.json"): "--dry-run trains nothing, so there is nothing for -o to write",
    ("--dry-run", "--engine", "ddp"): "--dry-run shows what --engine cephalo does, ddp decides for itself",
    ("--steps", "3"): "Missing option '--data' (cephalo train --help lists the options)",
    ("--data", "random"): "Missing option '--steps' (cephalo train --help lists the options)",
    ("--dry-run", "--momentum", "0.9"): "--momentum is for --optimizer sgd",
    ("--dry-run", "--steps", "4", "--warmup-steps", "4"): "--warmup-steps is 4, which leaves none of the 4 steps",
    ("--dry-run", "--min-lr", "1e-5"): ("--min-lr needs --lr-schedule cosine or linear, a constant rate has no floor"),
    ("--dry-run", "--lr-schedule", "cosine", "--min-lr", "1"): "--min-lr is 1, above --lr 0.0003",
    ("--dry-run", "--validate-every", "2"): "--validate-every needs --validation-fraction: there is no validation data",
    ("--dry-run", "--data", "x.npy", "--token-dtype", "uint32"): (
        "--token-dtype is for .bin files; other data says its own dtype"
    ),
    ("--dry-run", "--data", "x.txt", "--data-mask", "m.npy"): "--data-mask needs a token file (.bin or .npy)",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_refused(arguments: tuple[str, ...]) -> None:
    ran = cephalo("train", PLAN, *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"cephalo: error: {REFUSED[arguments]}\n")


def test_a_checkpoint_folder_that_is_a_file_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    file.write_text("")
    options = ("--data", "random", "--steps", "1", "--checkpoint-dir", str(file))
    ran = cephalo("train", "plans/laptop-mixed.json", *options)
    assert ran.code == 2
    assert f"{file} is a file, expected a folder" in ran.err


def test_one_line_a_step() -> None:
    plan = store.read(Path(PLAN), Plan)
    assert step_line(STEP, plan, 20) == (
        "step 3/20  loss 5.2500  gradient 1.500  lr 0.0003  2000 tokens/s  MFU 25.0 %  1.00 GiB  "
        "500 ms (400 ms planned, +25.0 %)  slowest rank 1 (cpu-50) 450 ms  validation loss 5.5000"
    )
    bare = StepReport(step=1, skipped=True, tokens=0, step_s=0.25)
    assert step_line(bare, plan, 2) == "step 1/2  loss none  gradient none (update left out)  250 ms"
    assert StepReport.model_validate_json(json_line(STEP)) == STEP


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_ends_the_lines_of_steps_but_not_the_training() -> None:
    said: list[str] = []
    with ExitStack() as stack:
        teller = StepTeller(store.read(Path(PLAN), Plan), 2, said.append, lambda *_: None)
        teller.write_to("/dev/full", None, stack)
        for number in (1, 2):
            teller(StepReport(step=number, loss=1.0, tokens=64, step_s=1.0))
    assert [line for line in said if "loss" not in line] == [
        "training goes on although /dev/full cannot be written any more: No space left on device"
    ]
    assert sum("loss" in line for line in said) == 2


def test_numerics_in_one_line() -> None:
    found = numerics_line({"compute": "bfloat16", "gather": "bfloat16", "master": "float32", "gradient": "float32"})
    assert found == "dtypes: compute, gather bfloat16; master, gradient float32"


def test_tensorboard_is_optional_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="--tensorboard needs the package tensorboard, which is not installed"):
        Board(tmp_path)


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Board(tmp_path) as board:
        board.add(STEP)
        board.add(STEP.model_copy(update={"step": 4, "loss": None, "grad_norm": 0.5}))
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 5.25)]
    assert [event.step for event in events.Scalars("grad_norm")] == [3, 4]
    assert events.Scalars("learning_rate")[0].value == pytest.approx(3e-4)
    assert {"tokens_per_s", "step_s", "predicted_step_s", "peak_memory_bytes"} <= set(events.Tags()["scalars"])
