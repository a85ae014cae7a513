"""Names that scripts depend on: commands, options and exit codes. Adding is free; taking away breaks someone."""

import pytest
import typer

from cephalo_cli import errors
from cephalo_cli.cli import app, register_commands

OPTIONS = {
    "profile": {
        "--gpus",
        "--model",
        "--seq-len",
        "--dtype",
        "--max-microbatch",
        "--estimate",
        "--from-table",
        "--memory-table",
        "--lora",
    },
    "plan": {
        "--batch-size",
        "--strategy",
        "--memory-fraction",
        "--reserve",
        "--recompute",
        "--offload",
        "--microbatch-size",
        "--time-limit",
        "--explain",
        "--check",
        "--objective",
        "--drop-devices",
        "--max-batch-size",
        "--lora",
        "--optimizer",
        "--momentum",
    },
    "simulate": {"--trace", "--plot", "--set", "--sweep", "--jitter", "--straggler"},
    "train": {
        "--data",
        "--steps",
        "--engine",
        "--seed",
        "--lr",
        "--dtype",
        "--checkpoint-dir",
        "--checkpoint-every",
        "--resume",
        "--trace",
        "--metrics",
        "--optimizer",
        "--lr-schedule",
        "--warmup-steps",
        "--min-lr",
        "--momentum",
        "--on-nonfinite",
        "--compile",
        "--optimizer-in-backward",
        "--token-dtype",
        "--tokenizer",
        "--end-token",
        "--document-mask",
        "--mask-token",
        "--mask-rate",
        "--cache-dir",
        "--no-cache",
        "--data-mask",
        "--drop-last",
        "--validation-fraction",
        "--validate-every",
        "--validation-steps",
        "--tensorboard",
        "--dry-run",
        "--weights",
        "--export",
        "--export-dtype",
    },
    "show": {"--schema", "--plot"},
}
EVERYWHERE = {"--json", "--quiet", "--force"}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_stay(name: str) -> None:
    register_commands()
    commands = typer.main.get_group(app).commands
    known = {option for parameter in commands[name].params for option in parameter.opts}
    assert known >= OPTIONS[name] | EVERYWHERE
    assert name == "show" or "--output" in known


def test_exit_codes_stay() -> None:
    codes = {
        errors.CephaloError: 1,
        errors.UsageError: 2,
        errors.ArtifactError: 3,
        errors.InfeasibleError: 4,
        errors.TimeLimitError: 5,
        errors.TrainingError: 6,
        errors.ConditionError: 7,
        errors.InterruptedRunError: 130,
    }
    assert {kind: kind.exit_code for kind in codes} == codes
    assert errors.InterruptedRunError("stopped", signal_number=15).exit_code == 143
