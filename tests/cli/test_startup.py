"""A command line starts fast because it loads only what it needs."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "pandas", "matplotlib", "numpy")

PROBE = """
import sys
from cephalo_cli.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    code = end.code
print("loaded:", *[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
raise SystemExit(code)
"""


def run_and_list_loaded(arguments: list[str], heavy: tuple[str, ...] = HEAVY) -> tuple[int, list[str]]:
    code = PROBE.format(arguments=arguments, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    line = next(line for line in done.stderr.splitlines() if line.startswith("loaded:"))
    return done.returncode, line.split()[1:]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["profile", "--help"], ["plan", "--help"], ["train", "--help"], ["show", "--help"]],
    ids=" ".join,
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert run_and_list_loaded(arguments) == (0, [])


def test_show_loads_nothing_heavy() -> None:
    assert run_and_list_loaded(["show", "examples/models/gpt-10m.json", "--json"]) == (0, [])
