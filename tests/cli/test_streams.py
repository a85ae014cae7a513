"""Standard streams that are full, closed, or read by nobody any more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import cephalo

ROOT = Path(__file__).resolve().parents[2]
PLAN = str(ROOT / "plans/laptop-mixed.json")


def shell(words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in which ``cephalo`` is the command and ``$PLAN`` a plan."""
    line = f'cephalo() {{ "$PYTHON" -m cephalo_cli "$@"; }}; {words}'
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "PLAN": PLAN}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", ["show $PLAN", "show $PLAN --json", "--help", "--version"])
def test_a_full_device(words: str, tmp_path: Path) -> None:
    ran = shell(f"cephalo {words} > /dev/full", tmp_path)
    assert ran.returncode == 3
    assert ran.stderr == "cephalo: error: what was to be printed cannot be written: no space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_nobody_listening(closed: str, tmp_path: Path) -> None:
    ran = shell(f"cephalo simulate $PLAN -o report.json {closed}", tmp_path)
    assert (ran.returncode, (tmp_path / "report.json").exists()) == (0, True)
    assert "error" not in ran.stderr + ran.stdout


@pytest.mark.parametrize("words", ["show $PLAN", "show $PLAN --json"])
def test_a_reader_that_leaves_is_no_fault(words: str, tmp_path: Path) -> None:
    ran = shell(f"(sleep 0.1; cephalo {words}; echo $? > code) | true; cat code", tmp_path)
    assert (ran.stdout, ran.stderr) == ("141\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_what_is_only_said_stops_nothing(tmp_path: Path) -> None:
    ran = shell("cephalo simulate $PLAN -o report.json 2> /dev/full; echo $?; cephalo show none 2> /dev/full", tmp_path)
    assert ran.returncode == 3
    assert ran.stdout.endswith("\n0\n")
    assert (tmp_path / "report.json").exists()


def test_no_next_command_for_what_came_from_standard_input(tmp_path: Path) -> None:
    ran = shell("cephalo simulate - < $PLAN", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", ["\x1b[31mred", "\x9b31mred", "bell\x07", "back\x08", "return\rover"])
def test_names_do_not_reach_into_the_terminal(name: str, tmp_path: Path) -> None:
    document = json.loads((ROOT / "examples/models/gpt-10m.json").read_text(encoding="utf-8"))
    file = tmp_path / "model.json"
    file.write_text(json.dumps(document | {"name": name}), encoding="utf-8")
    shown = cephalo("show", str(file))
    assert shown.code == 0
    assert name.translate(dict.fromkeys([*range(32), 0x9B])) in shown.out
    refused = cephalo("show", name)
    assert refused.code == 3
    for character in "\x1b\x9b\x07\x08\r":
        assert character not in shown.out + refused.err
