"""Every command block of the README runs as printed, in order, in one folder."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.examples.commands import commands_environment

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "./examples/quickstart.sh",  # continuous integration runs both
    "./tests/run.sh",
    ". .venv/bin/activate",  # the commands are those of this environment
}
LIMIT_S = 400


def readme_commands() -> list[str]:
    """Commands of the README, each in one line, without comments."""
    text = Path("README.md").read_text().replace("\\\n", " ")
    lines = [line.split("  #")[0] for block in BLOCK.findall(text) for line in block.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def test_the_first_screen_has_the_two_commands() -> None:
    first_screen = "\n".join(Path("README.md").read_text().splitlines()[:50])
    for command in ("./examples/quickstart.sh", "./tests/run.sh"):
        assert command in readme_commands()
        assert command in first_screen


def test_no_block_hides_a_command_from_this_test() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", Path("README.md").read_text(), re.MULTILINE | re.DOTALL)
    for language, block in blocks:
        assert language in {"sh", "text", "python"}
        if language == "text":
            assert not re.search(r"^(\$ )?(cephalo|torchrun|python|pip|\./) ", block, re.MULTILINE)


def test_the_two_commands_install_what_the_others_need() -> None:
    """Weights are read and written by the extra `hf`, which the one installs and the other's extra holds."""
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["hf"]) <= set(extras["dev"])
    for script, extra in (("examples/quickstart.sh", "hf"), ("tests/run.sh", "dev")):
        assert f"\n. examples/setup.sh {extra}\n" in Path(script).read_text()


def test_every_command_runs(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("examples", "plans", "profiles"):
        shutil.copytree(name, folder / name)
    environment = commands_environment(tmp_path / "bin")
    commands = [command for command in readme_commands() if command not in ELSEWHERE]
    assert len(commands) > 15
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if done.returncode != 0:
            pytest.fail(f"{command}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}")
