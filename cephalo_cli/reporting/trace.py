"""A time line as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Ranks are processes, lanes are threads, memory is a counter, and an arrow leads from a collective or copy to what waited
for it. The format is Chrome's Trace Event Format: times in microseconds, one object an event.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cephalo_cli.artifacts import store
from cephalo_cli.timeline import LANES, Event, Timeline

__all__ = ["trace_events", "write_trace"]

MICROSECONDS = 1e6


def write_trace(timeline: Timeline, path: str | Path, *, force: bool = False) -> None:
    """Write a time line as a trace.

    Raises:
        ArtifactError: The file exists and ``force`` is false, or it cannot be written.
    """
    rows = ",\n".join(json.dumps(event, ensure_ascii=False) for event in trace_events(timeline))
    text = '{"displayTimeUnit": "ms", "traceEvents": [\n' + rows + "\n]}\n"
    store.write_text(text, path, force=force)


def trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """List a time line's trace events: names first, then spans with their arrows, then memory."""
    lanes = [lane for lane in LANES if any(event.lane == lane for event in timeline.events)]
    for rank, name in enumerate(timeline.rank_names):
        yield _name("process_name", rank, 0, name)
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for number, lane in enumerate(lanes):
            yield _name("thread_name", rank, number, lane)
            yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": number, "args": {"sort_index": number}}
    sources = {(event.rank, event.flow): event for event in timeline.events if event.flow is not None}
    arrows = 0
    for event in timeline.events:
        thread = lanes.index(event.lane)
        yield {
            "ph": "X",
            "name": event.name,
            "cat": event.lane,
            "pid": event.rank,
            "tid": thread,
            "ts": event.start_s * MICROSECONDS,
            "dur": (event.end_s - event.start_s) * MICROSECONDS,
            **({"args": dict(event.args)} if event.args else {}),
        }
        for flow in event.waited_for:
            source = sources.get((event.rank, flow))
            if source is not None:
                yield from _arrow(arrows, source, lanes.index(source.lane), event, thread)
                arrows += 1
    for sample in timeline.memory:
        yield {
            "ph": "C",
            "name": "memory (bytes)",
            "pid": sample.rank,
            "ts": sample.time_s * MICROSECONDS,
            "args": dict(sample.bytes_by_term),
        }


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _arrow(number: int, source: Event, source_lane: int, target: Event, target_lane: int) -> Iterator[dict[str, Any]]:
    """Both ends of an arrow. It leaves inside the source's span and binds to the span that encloses its target."""
    common = {"name": "waited for", "cat": "wait", "id": number}
    leaves = max(source.start_s, source.end_s - 1e-9)
    yield {"ph": "s", **common, "pid": source.rank, "tid": source_lane, "ts": leaves * MICROSECONDS}
    yield {
        "ph": "f",
        "bp": "e",
        **common,
        "pid": target.rank,
        "tid": target_lane,
        "ts": target.start_s * MICROSECONDS,
    }
