"""Sweeps: the same rows as a table, as JSON, as CSV and as a picture."""

import csv
import io
from pathlib import Path

from rich.console import Console

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.reporting import Sweep
from cephalo_cli.simulator import sweep
from tests.simulator.plans import make_plan


def memory_sweep() -> Sweep:
    plan = make_plan(["fast", "slow"], [[4], [1]], settings=PlanSettings(memory_fraction=0.9), memory_bytes=2**25)
    runs = sweep(plan, "device_types.fast.memory_bytes=8MiB,16MiB,32MiB")
    return Sweep(changes=tuple(change for change, _ in runs), reports=tuple(run.report for _, run in runs))


def test_one_row_a_value_with_the_same_numbers_everywhere() -> None:
    swept = memory_sweep()
    rows = swept.rows["sweep"]
    assert isinstance(rows, list)
    assert [row["value"] for row in rows] == ["8MiB", "16MiB", "32MiB"]
    assert [row["step_ratio"] for row in rows] == [1.0, 1.0, 1.0]
    assert rows[0]["peak_memory_fraction"] > 1 > rows[1]["peak_memory_fraction"] > rows[2]["peak_memory_fraction"]
    read = list(csv.DictReader(io.StringIO(swept.csv())))
    assert [float(row["step_s"]) for row in read] == [row["step_s"] for row in rows]
    assert list(read[0]) == list(rows[0])


def test_the_table_fits_and_marks_what_does_not() -> None:
    out = io.StringIO()
    for renderable in memory_sweep().tables():
        Console(file=out, width=80).print(renderable)
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count(" !") == 1
    assert "Sweep of device_types.fast.memory_bytes" in text
    assert text.count("Compute of rank 1\n") == 3


def test_a_row_is_a_line_whatever_the_step_is_bound_by() -> None:
    swept = memory_sweep()
    sentences = (
        "Compute of 12 of 1024 ranks, such as rank 0 (rtx-3090 on tower): 90.0 % of the step, and so on.",
        "Copies to and from host memory: rank 1 (p40 on tower) waits for them 60.0 % of the step.",
        "The network: even rank 1 (p40 on tower) waits for it 55.0 % of the step, mostly for parameters.",
    )
    reports = tuple(
        report.model_copy(update={"bottleneck": words, "step_s": 123.456, "samples_per_s": 1234.5})
        for report, words in zip(swept.reports, sentences, strict=True)
    )
    wide = Sweep(changes=tuple(f"x.y={value}" for value in (12_500_000_000, 1, 2)), reports=reports)
    out = io.StringIO()
    for renderable in wide.tables():
        Console(file=out, width=80).print(renderable)
    rows = out.getvalue().splitlines()
    assert len(rows) == 3 + len(reports)
    assert [row.rpartition("%")[2].strip(" !") for row in rows[3:]] == [
        "Compute of 12 ranks",
        "Host copies",
        "The network",
    ]


def test_the_picture_names_values_and_units(tmp_path: Path) -> None:
    memory_sweep().plot(tmp_path / "sweep.svg")
    text = (tmp_path / "sweep.svg").read_text()
    for word in ("8MiB", "32MiB", "one step (ms)", "memory of the fullest rank (% of limit)"):
        assert word in text
