"""What all tests share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def in_project_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in the project's root, where the committed artifacts are found by their relative paths."""
    monkeypatch.chdir(ROOT)
