"""When what happened in a step, on the device's own clock.

Note: two clocks
    On the CPU work is done when the call returns, so the wall clock is right. An accelerator runs behind the host:
    there every mark is an event queued between the work, and the seconds are read once the step is over. So a wait
    that the host passes at once still shows as the time the device stood still.

Note: memory over time
    On request a step's memory is read where its records begin and end. What lives within one kernel is not seen.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from cephalo_cli.runtime.device import MemoryMeter
from cephalo_cli.schedule import Op, Record
from cephalo_cli.timeline import LANE_OF, Event, Lane, MemorySample, event_name

__all__ = ["Journal", "Mark", "StepTimes"]

Mark = float | torch.Event
"""A moment: wall-clock seconds, or an event on the device's stream."""

COPIES = frozenset({Op.OFFLOAD, Op.FETCH})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """One step of one rank, in seconds."""

    step_s: float
    forward_s: float
    backward_s: float
    """Recomputed forwards included."""
    optimizer_s: float
    exposed_gather_s: float
    """Standing still for gathered parameters."""
    exposed_reduce_s: float
    """Standing still for reduced gradients."""
    exposed_copy_s: float
    """Standing still for copies from the host."""
    events: tuple[Event, ...]
    """What happened when, from the step's start."""
    memory: tuple[MemorySample, ...] = ()
    """Memory in the step, where it was asked for."""

    @property
    def compute_s(self) -> float:
        """All compute."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(slots=True)
class _Span:
    record: Record
    start: Mark
    end: Mark | None = None
    flow: int | None = None
    waited_for: tuple[int, ...] = ()


@dataclass(slots=True)
class _Stop:
    lane: Lane
    start: Mark
    end: Mark


@dataclass
class Journal:
    """Writes down one step after the other.

    Args:
        rank: This rank.
        device: Whose clock counts.
        unit_names: Names of the units, for events.
        num_collectives: Collectives of a step; copies are numbered from there on.
    """

    rank: int
    device: torch.device
    unit_names: Sequence[str]
    num_collectives: int
    _start: Mark = 0.0
    _spans: list[_Span] = field(default_factory=list)
    _stops: list[_Stop] = field(default_factory=list)
    _next_collective: int = 0
    _next_copy: int = 0
    _meter: MemoryMeter | None = None
    _memory: list[tuple[Mark, int]] = field(default_factory=list)

    def begin(self, *, samples_memory: bool = False) -> None:
        """Start a step; ``samples_memory`` has its memory written down too."""
        self._spans, self._stops, self._memory = [], [], []
        self._meter = MemoryMeter(self.device) if samples_memory else None
        self._next_collective, self._next_copy = 0, self.num_collectives
        self._start = self.mark()
        self._sample(self._start)

    def mark(self) -> Mark:
        """Note this moment."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def worked(self, record: Record, start: Mark, waited_for: tuple[int, ...] = ()) -> None:
        """Say that a record of compute ran from ``start`` until now."""
        end = self.mark()
        self._spans.append(_Span(record, start, end, waited_for=waited_for))
        self._sample(end)

    def started(self, record: Record) -> int:
        """Say that a collective or a copy starts; gives its flow number."""
        if record.op in COPIES:
            flow, self._next_copy = self._next_copy, self._next_copy + 1
        else:
            flow, self._next_collective = self._next_collective, self._next_collective + 1
        start = self.mark()
        self._spans.append(_Span(record, start, flow=flow))
        self._sample(start)
        return flow

    def ended(self, flow: int, end: Mark | None) -> None:
        """Say when a copy ends; None where it is over already."""
        now = self.mark() if end is None else end
        for span in self._spans:
            if span.flow == flow:
                span.end = now

    def stood_still(self, lane: Lane, start: Mark, flow: int | None) -> None:
        """Say that this rank waited from ``start`` until now for a collective or a copy, which is now over."""
        now = self.mark()
        self._stops.append(_Stop(lane, start, now))
        for span in self._spans:
            if flow is not None and span.flow == flow and span.end is None:
                span.end = now

    def finish(self) -> StepTimes:
        """End the step and read the clock."""
        end = self.mark()
        if isinstance(end, torch.Event):
            end.synchronize()
        compute = {op: self._sum([span for span in self._spans if span.record.op is op]) for op in Op}
        stops = {
            lane: self._sum([stop for stop in self._stops if stop.lane == lane])
            for lane in ("gather", "reduce", "copy in")
        }
        return StepTimes(
            step_s=self._seconds(end),
            forward_s=compute[Op.FORWARD],
            backward_s=compute[Op.RECOMPUTE] + compute[Op.BACKWARD],
            optimizer_s=compute[Op.OPTIMIZER_STEP],
            exposed_gather_s=stops["gather"],
            exposed_reduce_s=stops["reduce"],
            exposed_copy_s=stops["copy in"],
            events=self._events(),
            memory=tuple(
                MemorySample(rank=self.rank, time_s=self._seconds(mark), bytes_by_term={"allocated": num_bytes})
                for mark, num_bytes in self._memory
            ),
        )

    def _sample(self, mark: Mark) -> None:
        num_bytes = None if self._meter is None else self._meter.now_bytes()
        if num_bytes is not None:
            self._memory.append((mark, num_bytes))

    def _sum(self, spans: Sequence[_Span] | Sequence[_Stop]) -> float:
        return sum(self._seconds(span.end) - self._seconds(span.start) for span in spans if span.end is not None)

    def _events(self) -> tuple[Event, ...]:
        """Spans as events; on the lanes of collectives and copies one starts when the one before it has ended."""
        lane_end: dict[Lane, float] = {}
        events = []
        for span in self._spans:
            if span.end is None or span.record.op not in LANE_OF:
                continue
            lane = LANE_OF[span.record.op]
            start = max(self._seconds(span.start), lane_end.get(lane, 0.0))
            lane_end[lane] = end = max(self._seconds(span.end), start)
            unit = None if span.record.unit is None else self.unit_names[span.record.unit]
            events.append(
                Event(
                    rank=self.rank,
                    lane=lane,
                    name=event_name(span.record.op, unit, span.record.microbatch),
                    start_s=start,
                    end_s=end,
                    flow=span.flow,
                    waited_for=span.waited_for,
                )
            )
        return tuple(events)

    def _seconds(self, mark: Mark) -> float:
        if isinstance(mark, torch.Event) and isinstance(self._start, torch.Event):
            return float(self._start.elapsed_time(mark)) / 1000.0
        if isinstance(mark, float) and isinstance(self._start, float):
            return mark - self._start
        raise AssertionError("marks of one journal come from one clock")
