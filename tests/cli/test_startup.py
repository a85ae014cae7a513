"""A command line starts fast because it loads only what it needs."""

import os
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


LEFT_BEHIND = """
import sys, threading
from torch.distributed import TCPStore
from cephalo_cli.cli import main

store = TCPStore("localhost", 0, is_master=True)

def wait_for_others():
    while True:
        store.check(["word"])

threading.Thread(target=wait_for_others, daemon=True).start()
sys.argv = ["cephalo", "show", "nothing.json"]
main()
"""


def test_a_rank_that_leaves_a_waiting_thread_behind_ends_with_its_exit_code() -> None:
    environment = {**os.environ, "RANK": "0"}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LEFT_BEHIND], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
