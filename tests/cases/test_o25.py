"""O25: misspelt or contradictory settings accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import cephalo

PLAN = "plans/laptop-mixed.json"
Change = Callable[[dict[str, Any]], object]

WRONG: dict[str, tuple[Change, str]] = {
    "misspelt key": (
        lambda plan: plan.update(golbal_batch_size=64),
        "golbal_batch_size: unknown key (did you mean 'global_batch_size'?)",
    ),
    "text for a number": (
        lambda plan: plan["settings"].update(microbatch_size="4"),
        'settings.microbatch_size: found "4", expected',
    ),
    "true for a number": (
        lambda plan: plan["ranks"][0]["microbatch_sizes"].insert(0, True),
        "ranks[0].microbatch_sizes[0]: found true, expected",
    ),
    "batches that do not sum": (
        lambda plan: plan.update(global_batch_size=33),
        "global_batch_size: found 33, expected 32, the sum of all microbatch sizes",
    ),
    "newer version": (
        lambda plan: plan.update(schema_version="2.0"),
        "schema_version: found version 2.0, expected at most 1.0 (upgrade cephalo)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_o25_a_wrong_setting_is_one_line_with_its_path(name: str, tmp_path: Path) -> None:
    """O25: exit code 3 and one line with file, key path, value and the nearest valid key; nothing taken silently."""
    change, message = WRONG[name]
    plan = json.loads(Path(PLAN).read_text(encoding="utf-8"))
    change(plan)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    ran = cephalo("simulate", str(path))
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"cephalo: error: {path}: {message}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ('{"kind": "pl', "is cut off: unterminated string")]
)
def test_o25_empty_and_cut_off_files(content: str, message: str, tmp_path: Path) -> None:
    """O25: an empty and a truncated file."""
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="utf-8")
    ran = cephalo("simulate", str(path))
    assert ran.code == 3
    assert ran.err.startswith(f"cephalo: error: {path}: {message}")
