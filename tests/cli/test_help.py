"""Help: fits eighty columns, gives examples that parse, names what the environment changes, completes in a shell."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cephalo_cli.cli import app, catalog, export, plan, profile, register_commands, show, simulate, train
from tests.cli.commands import cephalo

COMMANDS = {module.NAME: module for module in (profile, plan, simulate, train, show, export, catalog)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_fits(name: str) -> None:
    ran = cephalo(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "2147483647" not in ran.out
    assert not re.search(r"<(float|int|integer|text|str|path)>", ran.out)
    shown = " ".join(ran.out.partition("Examples:")[2].replace("\\\n", " ").split())
    assert shown == " ".join(COMMANDS[name].EXAMPLES)


@pytest.mark.parametrize("example", [each for module in COMMANDS.values() for each in module.EXAMPLES])
def test_examples_parse(example: str) -> None:
    register_commands()
    name, *words = shlex.split(example.partition("cephalo ")[2])
    command = typer.main.get_group(app).commands[name]
    context = command.make_context(name, words)
    assert context.params


def test_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the commands that take seconds; the README's commands plan, measure, train and export."""
    shutil.copytree("plans", tmp_path / "plans")
    for name in ("old.json", "new.json"):
        shutil.copy("plans/laptop-mixed.json", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    simulated = ("simulate", "plans/laptop-mixed.json", "-q", "-o", "measured.json")
    assert cephalo(*simulated).code == 0
    for module in (simulate, show, catalog):
        for example in module.EXAMPLES:
            ran = cephalo(*shlex.split(example)[1:])
            assert (example, ran.code) == (example, 0), ran.err


def test_the_first_page_names_stages_environment_and_exit_codes() -> None:
    text = cephalo("--help").out
    for words in (*COMMANDS, "CEPHALO_DEBUG=1", "NO_COLOR", "WORLD_SIZE", "4 no plan", "cephalo plan --gpus"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "expected"),
    [("cephalo pl", "plan"), ("cephalo plan --str", "--strategy"), ("cephalo plan --strategy com", "compute-balanced")],
)
def test_the_shell_completes(line: str, expected: str) -> None:
    words = line.split()
    asked = {"_CEPHALO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "cephalo_cli"], capture_output=True, text=True, check=True, env=os.environ | asked
    )
    assert done.stdout.split() == [expected]


def test_debug_shows_where_an_error_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPHALO_DEBUG", "1")
    ran = cephalo("show", "nowhere.json")
    assert ran.code == 3
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.endswith("\ncephalo: error: nowhere.json: no such file\n")


def test_colours_only_on_a_terminal_and_never_under_no_color() -> None:
    """A pseudo-terminal stands for the terminal."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")

    def shown(**environment: str) -> bytes:
        leader, follower = pty.openpty()
        words = [sys.executable, "-m", "cephalo_cli", "show", "plans/laptop-mixed.json"]
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        running = subprocess.Popen(
            words, stdout=follower, stderr=follower, env=clean | {"TERM": "xterm-256color"} | environment
        )
        os.close(follower)
        said = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            said += part
        os.close(leader)
        assert running.wait() == 0
        return said

    coloured = re.compile(rb"\x1b\[(?:\d+;)*3[0-7]m")
    assert coloured.search(shown())
    assert not coloured.search(shown(NO_COLOR="1"))
    assert b"\x1b[" not in cephalo("show", "plans/laptop-mixed.json").out.encode()
