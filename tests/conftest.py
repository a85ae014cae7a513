"""What all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("no-clock", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("no-clock")


@pytest.fixture(autouse=True)
def in_project_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in the project's root, where the committed artifacts are found by their relative paths."""
    monkeypatch.chdir(ROOT)
