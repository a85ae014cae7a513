"""No option takes a number that is not finite: as a limit it would set none, and as a factor it spoils everything."""

from typing import get_type_hints

import pytest

from cephalo_cli.cli import catalog, export, plan, profile, show, simulate, train
from tests.cli.commands import cephalo

ARGUMENTS = {
    "profile": ("examples/clusters/laptop-mixed.json", "--model", "examples/models/gpt-10m.json", "--seq-len", "8"),
    "plan": ("profiles/laptop-mixed.json", "--batch-size", "8", "--optimizer", "sgd"),
    "simulate": ("plans/laptop-mixed.json",),
    "train": ("plans/laptop-mixed.json", "--data", "random", "--steps", "1", "--optimizer", "sgd"),
}
"""With which a command takes any of its numbers."""


def float_options() -> list[tuple[str, str]]:
    """Every command's options that take a floating-point number."""
    return [
        (module.NAME, f"--{name.replace('_', '-')}")
        for module in (profile, plan, simulate, train, show, export, catalog)
        for name, kind in get_type_hints(module.command).items()
        if kind in (float, float | None)
    ]


def test_the_commands_have_such_options() -> None:
    assert {("profile", "--max-seconds"), ("plan", "--time-limit"), ("train", "--timeout")} < set(float_options())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(("command", "option"), float_options())
def test_numbers_that_are_not_finite_are_refused(command: str, option: str, value: str) -> None:
    ran = cephalo(command, *ARGUMENTS[command], option, value)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    found = "inf" if value == "1e999" else value
    assert ran.err.startswith(f"cephalo: error: {option} is {found}, expected ")
