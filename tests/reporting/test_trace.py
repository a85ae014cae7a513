"""Traces: readable names, lanes as threads, arrows that lead somewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.errors import ArtifactError
from cephalo_cli.reporting import write_trace
from cephalo_cli.reporting.trace import trace_events
from cephalo_cli.simulator import simulate
from cephalo_cli.timeline import Event, MemorySample, Timeline
from tests.simulator.plans import make_plan


def by_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def simulated() -> Timeline:
    options: dict[str, Any] = {"offload": [True, False], "host_rate": 1e8}
    return simulate(make_plan(["fast", "slow"], [[3, 1], [2]], **options)).timeline


def test_two_events_exactly() -> None:
    timeline = Timeline(
        rank_names=("rank 0 · p40 · node-a",),
        duration_s=0.003,
        events=(
            Event(rank=0, lane="gather", name="gather block.0", start_s=0.0, end_s=0.001, args={"bytes": 8}, flow=0),
            Event(rank=0, lane="compute", name="forward block.0 #0", start_s=0.002, end_s=0.003, waited_for=(0,)),
        ),
        memory=(MemorySample(rank=0, time_s=0.001, bytes_by_term={"state": 4, "working": 2}),),
    )
    events = list(trace_events(timeline))
    names = {"process_name": "rank 0 · p40 · node-a"}
    assert [event["args"]["name"] for event in events if event["name"] in names] == list(names.values())
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["compute", "gather"]
    assert by_phase(events, "X") == [
        {
            "ph": "X",
            "name": "gather block.0",
            "cat": "gather",
            "pid": 0,
            "tid": 1,
            "ts": 0.0,
            "dur": 1000.0,
            "args": {"bytes": 8},
        },
        {"ph": "X", "name": "forward block.0 #0", "cat": "compute", "pid": 0, "tid": 0, "ts": 2000.0, "dur": 1000.0},
    ]
    (start,), (finish,) = by_phase(events, "s"), by_phase(events, "f")
    assert (start["tid"], finish["tid"], start["id"] == finish["id"]) == (1, 0, True)
    assert start["ts"] == pytest.approx(1000.0, abs=0.01)
    assert finish["ts"] == 2000.0
    assert by_phase(events, "C")[0]["args"] == {"state": 4, "working": 2}


def test_every_arrow_leaves_a_span_and_ends_at_one() -> None:
    events = list(trace_events(simulated()))
    spans = by_phase(events, "X")
    starts, finishes = by_phase(events, "s"), by_phase(events, "f")
    assert len(starts) == len(finishes) > 20
    assert [each["id"] for each in starts] == [each["id"] for each in finishes] == list(range(len(starts)))
    for end in starts + finishes:
        inside = [
            span
            for span in spans
            if (span["pid"], span["tid"]) == (end["pid"], end["tid"])
            and span["ts"] <= end["ts"] <= span["ts"] + span["dur"] + 1e-6
        ]
        assert inside, end
    for start, finish in zip(starts, finishes, strict=True):
        assert start["ts"] <= finish["ts"] + 1e-3


def test_the_file_is_json_with_ranks_as_processes(tmp_path: Path) -> None:
    path = tmp_path / "step.trace.json"
    write_trace(simulated(), path)
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {0: "rank 0 · fast · node-a", 1: "rank 1 · slow · node-b"}
    lanes = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 0]
    assert lanes == ["compute", "gather", "reduce", "copy in", "copy out", "optimizer"]
    assert {event["name"] for event in by_phase(events, "X")} >= {
        "gather block.0",
        "reduce block.3",
        "forward block.2 #1",
        "recompute block.0 #0",
        "backward head #0",
        "fetch block.1 #0",
        "offload embedding #1",
        "optimizer",
    }


def test_a_trace_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        write_trace(simulated(), path)
    write_trace(simulated(), path, force=True)
    assert path.read_text().startswith("{")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_trace(simulated(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
