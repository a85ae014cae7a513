"""The spans of a played step on the lanes of every rank."""

from collections.abc import Iterator
from dataclasses import replace

from cephalo_cli.schedule import Op
from cephalo_cli.simulator.memory import Terms, moments
from cephalo_cli.simulator.parts import Setting, record_s
from cephalo_cli.simulator.play import PartPlay, StepPlay, slowed
from cephalo_cli.simulator.program import Boundary, Compute, Copy, Issue, Optimize
from cephalo_cli.timeline import LANE_OF, Event, MemorySample, Timeline, event_name

__all__ = ["busy", "timeline"]

MOST_EVENTS = 400_000
"""More spans of compute than a trace viewer is comfortable with."""


def busy(part_play: PartPlay) -> tuple[float, float, float]:
    """Seconds of forward, backward and optimizer, as played: with jitter and slowed by collectives."""
    forward = backward = optimizer = 0.0
    for index, action in enumerate(part_play.part.program.actions):
        seconds = part_play.end_s[index] - part_play.start_s[index]
        if isinstance(action, Compute):
            fraction = part_play.part.forward[index]
            forward += seconds * fraction
            backward += seconds * (1.0 - fraction)
        elif isinstance(action, Optimize):
            optimizer += seconds
    return forward, backward, optimizer


def timeline(setting: Setting, play: StepPlay, *, most_events: int = MOST_EVENTS) -> Timeline:
    """Lay out every rank's step, from the moment the first rank is ready; identical ranks have identical lanes.

    Args:
        setting: What was played.
        play: The step.
        most_events: Beyond so many, the microbatches of a unit become one event.
    """
    records = sum(
        len(part_play.part.ranks)
        * sum(len(each.records) for each in part_play.part.program.actions if isinstance(each, Compute))
        for part_play in play.parts
    )
    zero = min(part.ready_s for part in play.parts)
    events: list[Event] = []
    memory: list[MemorySample] = []
    for part_play in play.parts:
        spans = list(_Lanes(setting, play, part_play, zero, merge=records > most_events).events())
        samples = _memory(setting, play, part_play, zero)
        for rank in part_play.part.ranks:
            events += [replace(event, rank=rank) for event in spans]
            memory += [replace(sample, rank=rank) for sample in samples]
    places = setting.plan.ranks
    return Timeline(
        rank_names=tuple(f"rank {place.rank} · {place.device} · {place.node}" for place in places),
        duration_s=play.end_s - zero,
        events=tuple(sorted(events, key=lambda event: event.rank)),
        memory=tuple(sorted(memory, key=lambda sample: sample.rank)),
        limit_bytes=tuple(place.memory.limit_bytes for place in places),
    )


class _Lanes:
    """The spans of the first rank of one group."""

    def __init__(self, setting: Setting, play: StepPlay, part_play: PartPlay, zero: float, *, merge: bool) -> None:
        self.merge = merge
        self.setting, self.play, self.part_play, self.zero = setting, play, part_play, zero
        self.rank = part_play.part.ranks[0]
        self.names = [unit.name for unit in setting.step.units]
        self.copies: dict[tuple[Boundary, bool], int] = {}
        self.next_flow = len(setting.collectives)

    def events(self) -> Iterator[Event]:
        for index, action in enumerate(self.part_play.part.program.actions):
            if isinstance(action, Issue):
                yield self._collective(index, action)
            elif isinstance(action, Copy):
                yield self._copy(index, action)
            elif isinstance(action, Compute):
                yield from self._compute(index, action)
            elif isinstance(action, Optimize):
                yield Event(
                    rank=self.rank,
                    lane="optimizer",
                    name=event_name(Op.OPTIMIZER_STEP),
                    start_s=self.part_play.start_s[index] - self.zero,
                    end_s=self.part_play.end_s[index] - self.zero,
                    waited_for=_flows(action.after),
                )

    def _collective(self, index: int, action: Issue) -> Event:
        collective, times = self.setting.collectives[action.collective], self.setting.times
        num_bytes = (times.gather_bytes if collective.is_gather else times.reduce_bytes)[collective.unit]
        return Event(
            rank=self.rank,
            lane=LANE_OF[collective.op],
            name=event_name(collective.op, self.names[collective.unit]),
            start_s=self.play.collective_start_s[collective.index] - self.zero,
            end_s=self.play.collective_end_s[collective.index] - self.zero,
            args={"unit_bytes": num_bytes, "issued_s": self.part_play.start_s[index] - self.zero},
            flow=collective.index,
        )

    def _copy(self, index: int, action: Copy) -> Event:
        unit, microbatch, tensor = action.boundary
        op = Op.OFFLOAD if action.to_host else Op.FETCH
        flow = self.copies[action.boundary, action.to_host] = self.next_flow
        self.next_flow += 1
        came_from = self.copies.get((action.boundary, True), -1)
        return Event(
            rank=self.rank,
            lane=LANE_OF[op],
            name=event_name(op, self.names[unit], microbatch),
            start_s=self.part_play.start_s[index] - self.zero,
            end_s=self.part_play.end_s[index] - self.zero,
            args={"tensor": tensor},
            flow=flow,
            waited_for=() if action.to_host else _flows(came_from),
        )

    def _compute(self, index: int, action: Compute) -> Iterator[Event]:
        """Split a run of compute records at the moments where one ends and the next starts."""
        part = self.part_play.part
        sizes = [part.choice.microbatch_sizes[microbatch] for _, microbatch in action.records]
        seconds = [
            record_s(part.device, self.setting.step, action.unit, op, size)
            for (op, _), size in zip(action.records, sizes, strict=True)
        ]
        start, end = self.part_play.start_s[index], self.part_play.end_s[index]
        whole = sum(seconds)
        scale = self.part_play.seconds[index] / whole if whole else 0.0
        waited = _flows(action.after) + tuple(self.copies[boundary, False] for boundary in action.fetched)
        if self.merge:
            yield self._merged(action, start - self.zero, end - self.zero, waited)
            return
        now, done = start, 0.0
        for number, (op, microbatch) in enumerate(action.records):
            done += seconds[number] * scale
            then = end if number == len(seconds) - 1 else min(end, slowed(start, done, self.part_play.slow))
            yield Event(
                rank=self.rank,
                lane="compute",
                name=event_name(op, self.names[action.unit], microbatch),
                start_s=now - self.zero,
                end_s=then - self.zero,
                args={"samples": sizes[number]},
                waited_for=waited if number == 0 else (),
            )
            now = then

    def _merged(self, action: Compute, start: float, end: float, waited: tuple[int, ...]) -> Event:
        op = Op.FORWARD if action.phase == "forward" else Op.BACKWARD
        return Event(
            rank=self.rank,
            lane="compute",
            name=event_name(op, self.names[action.unit]),
            start_s=start,
            end_s=end,
            args={"microbatches": len({microbatch for _, microbatch in action.records})},
            waited_for=waited,
        )


def _flows(index: int) -> tuple[int, ...]:
    return (index,) if index >= 0 else ()


def _memory(setting: Setting, play: StepPlay, part_play: PartPlay, zero: float) -> list[MemorySample]:
    """Samples where memory changes; of several at one moment only the last counts."""
    samples: list[MemorySample] = []
    terms = Terms(setting, part_play.part)
    for moment in moments(setting, play, part_play):
        now, time_s = terms.at(moment), moment.time_s - zero
        if samples and samples[-1].time_s == time_s:
            samples.pop()
        if not samples or samples[-1].bytes_by_term != now:
            samples.append(MemorySample(rank=part_play.part.ranks[0], time_s=time_s, bytes_by_term=now))
    return samples
