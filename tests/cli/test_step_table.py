"""The lines of a training on a terminal: a table whose columns fit, and a warm-up that is not held against the plan."""

import sys
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Plan, store
from cephalo_cli.artifacts.report import StepReport
from cephalo_cli.cli.step_table import StepTable
from cephalo_cli.cli.train_lines import StepTeller, step_line

PLAN = store.read(Path(__file__).resolve().parents[2] / "plans/laptop-mixed.json", Plan)


def step(number: int, step_s: float = 0.5) -> StepReport:
    return StepReport(
        step=number,
        loss=5.25 / number,
        grad_norm=1.5,
        learning_rate=3e-4,
        tokens=1000,
        step_s=step_s,
        tokens_per_s=12345.0,
        model_flops_utilization=0.413,
        predicted_step_s=0.4,
        peak_memory_bytes=2**30,
        slowest_rank=1,
        slowest_compute_s=0.45,
    )


def test_a_table_that_grows() -> None:
    table = StepTable(PLAN, 20, 100)
    assert table.lines(step(1, 0.9)) == [
        " step     loss     grad       lr   tok/s     MFU    memory     time   vs plan  slowest",
        " 1/20   5.2500      1.5  3.0e-04  12.3 k  41.3 %  1.00 GiB   900 ms   warm-up  1 cpu-50",
    ]
    assert table.lines(step(2)) == [
        " 2/20   2.6250      1.5  3.0e-04  12.3 k  41.3 %  1.00 GiB   500 ms   +25.0 %  1 cpu-50"
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_it_fits_whatever_the_width(width: int) -> None:
    head, line = StepTable(PLAN, 1000, width).lines(step(1))
    assert max(len(head), len(line)) <= width
    assert "loss" in head
    assert "warm-up" in line


def test_what_is_not_known_has_no_column() -> None:
    head, line = StepTable(PLAN, 3, 80).lines(StepReport(step=1, tokens=0, step_s=0.25, skipped=True))
    assert head.split() == ["step", "loss", "grad", "time"]
    assert line.split() == ["1/3", "none", "skipped", "250", "ms"]


def test_a_validation_has_a_line_of_its_own() -> None:
    _, line = StepTable(PLAN, 20, 80).lines(step(1).model_copy(update={"validation_loss": 5.5}))
    assert line.splitlines()[1].split() == ["validation", "loss", "5.5000"]


def test_a_log_has_whole_sentences_and_marks_the_warm_up() -> None:
    said: list[str] = []
    teller = StepTeller(PLAN, 20, said.append, lambda _fraction, _words: None)
    teller(step(6, 0.9))
    teller(step(7))
    assert "  900 ms (warm-up)  " in said[0]
    assert said[1] == step_line(step(7), PLAN, 20)
    assert "500 ms (400 ms planned, +25.0 %)" in said[1]


def test_a_terminal_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    said: list[str] = []
    StepTeller(PLAN, 20, said.append, lambda _fraction, _words: None)(step(1))
    assert [line.split()[0] for line in said] == ["step", "1/20"]
    assert max(map(len, said)) <= 80
