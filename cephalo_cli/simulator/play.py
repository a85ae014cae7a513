"""Plays one step: when every action of every rank starts and ends.

Note: played collective by collective
    A collective starts when the last rank has issued it and the network is free; the network runs one at a time, in
    the order of issue, which is the same on all ranks. When a rank issues collective k depends only on collectives
    before k. So the clock need not jump from event to event over all ranks: for k = 0, 1, ... each rank is advanced to
    its issue of k, and then k's start and end are known. The result is that of an event queue, without the queue.

Note: moving bytes on the cores that compute
    On cpu devices a rank spends ``moving_s`` of its compute lane on a collective that lasts D, spread evenly: while the
    collective runs, its compute goes on at the rate ``1 - moving_s / D``. Compute that covers the whole collective thus
    takes ``moving_s`` longer, as in the closed form; a rank that idles meanwhile loses nothing, because D was measured
    with the moving inside. What is charged and what falls into idle time add up to ``moving_s``. Issuing the collective
    (its place is allocated, the rank's own part is copied there) comes before, for ``issue_s``; and for ``stall_s`` the
    rank stands still although the collective runs, because its threads get the cores in turns. Both are waits.

Note: sums that end a step
    Before the optimizer runs, ranks add up loss and gradient norm, and tokens before the next step. Where they were
    measured, they are waits before the optimizer, on every rank alike.

Note: what a wait is for
    A rank that stands still waits for a gather, a reduction, a copy, or at the end of the step for the slowest
    optimizer. That is what a measured run can tell as well. Beyond that, the part of the first two in which the
    network itself stood still is *late*: some other rank had not arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cephalo_cli.simulator.parts import Part, Setting, jitter
from cephalo_cli.simulator.program import Boundary, Compute, Copy, Issue, Optimize

__all__ = ["PartPlay", "StepPlay", "play_step", "steady_step"]

MAX_STEPS = 50
NUM_JITTERED_STEPS = 21
STEADY = 1e-12
BOUNDARIES_ON_THEIR_WAY_OUT = 2
"""The memory model gives offloading two buffers a direction: a third copy waits until the first has ended."""


@dataclass(kw_only=True, slots=True)
class Wait:
    """Seconds a rank waited, by what for."""

    gather: float = 0.0
    reduce: float = 0.0
    copy: float = 0.0
    late: float = 0.0
    """Part of gather and reduce in which no collective ran: another rank was late."""

    @property
    def total(self) -> float:
        """All of it, but for the end of the step."""
        return self.gather + self.reduce + self.copy


@dataclass(kw_only=True)
class PartPlay:
    """One step of one group of identical ranks. Times are absolute."""

    part: Part
    ready_s: float
    """When the rank began the step."""
    seconds: Sequence[float]
    """Seconds of each action, jitter included, before any slowing by collectives."""
    start_s: list[float]
    """When each action started; for an issue, when the rank issued."""
    end_s: list[float]
    """When each action ended."""
    slow: list[tuple[float, float, float]] = field(default_factory=list)
    """Start, end and rate of compute of every collective that slows it, see `slowed`."""
    wait: Wait = field(default_factory=Wait)
    moved_s: float = 0.0
    """Seconds its compute was longer for moving collectives' bytes."""

    @property
    def done_s(self) -> float:
        """When the rank finished the step's last action."""
        return self.end_s[-1]


@dataclass(kw_only=True)
class StepPlay:
    """One step of all ranks."""

    parts: tuple[PartPlay, ...]
    collective_start_s: list[float]
    collective_end_s: list[float]
    start_s: float
    """When the step began (the last rank was ready)."""
    end_s: float
    """When the last rank was done."""

    @property
    def step_s(self) -> float:
        """Seconds from the end of the step before to the end of this one."""
        return self.end_s - self.start_s


def steady_step(setting: Setting) -> tuple[StepPlay, list[float]]:
    """Play steps until they repeat; with jitter play a fixed number and choose the median one.

    Returns:
        The step, and the seconds of every step played.
    """
    jittered = setting.disturbance.jitter_sigma > 0
    ready = [0.0] * len(setting.parts)
    plays: list[StepPlay] = []
    for number in range(NUM_JITTERED_STEPS if jittered else MAX_STEPS):
        play = play_step(setting, ready, number)
        plays.append(play)
        done = [each.done_s for each in play.parts]
        if _starts_together(setting):
            done = [max(done)] * len(done)
        ahead_before, ahead = _ahead(ready), _ahead(done)
        ready = done
        drift = max(abs(now - then) for now, then in zip(ahead, ahead_before, strict=True))
        if not jittered and drift <= STEADY * max(play.step_s, STEADY):
            break
    all_s = [each.step_s for each in plays]
    if not jittered:
        return plays[-1], all_s
    return sorted(plays[1:], key=lambda each: each.step_s)[len(plays[1:]) // 2], all_s


def play_step(setting: Setting, ready: Sequence[float], number: int = 0) -> StepPlay:
    """Play one step from the times at which the groups of ranks are ready for it."""
    players = [_Player(setting, part, at, number) for part, at in zip(setting.parts, ready, strict=True)]
    starts: list[float] = []
    ends: list[float] = []
    free = 0.0
    for collective, seconds in zip(setting.collectives, setting.collective_s, strict=True):
        issued = max(player.advance(starts, ends) for player in players)
        start = max(issued, free)
        free = start + seconds
        starts.append(start)
        ends.append(free)
        for player in players:
            player.hear(collective.index, start, free)
    for player in players:
        player.advance(starts, ends)
    parts = tuple(player.play for player in players)
    return StepPlay(
        parts=parts,
        collective_start_s=starts,
        collective_end_s=ends,
        start_s=max(ready),
        end_s=max(part.done_s for part in parts),
    )


def _starts_together(setting: Setting) -> bool:
    """Whether the first thing every rank does is a gather, so that no rank can begin a step before all are ready."""
    return isinstance(setting.parts[0].program.actions[0], Issue)


def _ahead(times: Sequence[float]) -> list[float]:
    return [max(times) - time for time in times]


class _Player:
    """One group of ranks on its way through its program."""

    def __init__(self, setting: Setting, part: Part, ready: float, number: int) -> None:
        self.setting = setting
        self.actions = part.program.actions
        seconds: Sequence[float] = part.seconds
        if setting.disturbance.jitter_sigma:
            factors = jitter(part, setting.disturbance, number)
            seconds = [one * factor for one, factor in zip(seconds, factors, strict=True)]
        self.play = PartPlay(part=part, ready_s=ready, seconds=seconds, start_s=[], end_s=[])
        self.now = ready
        self.cursor = 0
        self.slow = self.play.slow
        self.first_slow = 0
        self.lane_in = self.lane_out = ready
        self.on_device: dict[Boundary, float] = {}
        self.on_host: dict[Boundary, float] = {}
        self.going_out: list[float] = []

    def hear(self, collective: int, start: float, end: float) -> None:
        """Remember a collective that slows this rank's compute."""
        moving = self.play.part.moving_s[collective]
        if moving and end > start:
            self.slow.append((start, end, 1.0 - moving / (end - start)))

    def advance(self, starts: Sequence[float], ends: Sequence[float]) -> float:
        """Go on until the next collective is issued, or to the end of the step; return when that was.

        Args:
            starts: When each collective so far started.
            ends: When each collective so far ended.
        """
        start_s, end_s = self.play.start_s, self.play.end_s
        while self.cursor < len(self.actions):
            action = self.actions[self.cursor]
            seconds = self.play.seconds[self.cursor]
            self.cursor += 1
            if not isinstance(action, Copy) and action.after >= 0:
                self._wait(action.after, starts, ends)
            start = self.now
            if isinstance(action, Compute):
                if action.fetched:
                    self._wait_for_copies(max(self.on_device[boundary] for boundary in action.fetched))
                    start = self.now
                self.now = self._finish(start, seconds)
                self.play.moved_s += self.now - start - seconds if self.slow else 0.0
            elif isinstance(action, Copy):
                start, end = self._copy(action, seconds)
                start_s.append(start)
                end_s.append(end)
                continue
            elif isinstance(action, Optimize):
                start = self.now = start + self.setting.sums_s
                self.play.wait.reduce += self.setting.sums_s
                self.now += seconds
            elif isinstance(action, Issue):
                start = self._issue(action.collective)
            start_s.append(start)
            end_s.append(self.now)
            if isinstance(action, Issue):
                return start
        return self.now

    def _issue(self, collective: int) -> float:
        """Issue a collective and stand still as long as it takes; return when it is issued."""
        begin, part = self.now, self.play.part
        issued = self._finish(begin, part.issue_s[collective])
        self.now = self._finish(issued, part.stall_s[collective])
        if self.setting.collectives[collective].is_gather:
            self.play.wait.gather += self.now - begin
        else:
            self.play.wait.reduce += self.now - begin
        return issued

    def _wait(self, collective: int, starts: Sequence[float], ends: Sequence[float]) -> None:
        """Wait for a collective's end."""
        until = ends[collective]
        if until <= self.now:
            return
        wait, waited = self.play.wait, until - self.now
        if self.setting.collectives[collective].is_gather:
            wait.gather += waited
        else:
            wait.reduce += waited
        for index in range(collective, -1, -1):
            if ends[index] <= self.now:
                break
            waited -= max(0.0, min(until, ends[index]) - max(self.now, starts[index]))
        wait.late += max(0.0, waited)
        self.now = until

    def _wait_for_copies(self, until: float) -> None:
        if until > self.now:
            self.play.wait.copy += until - self.now
            self.now = until

    def _copy(self, action: Copy, seconds: float) -> tuple[float, float]:
        if not action.to_host:
            start = max(self.now, self.lane_in, self.on_host.get(action.boundary, 0.0))
            end = self.lane_in = self.on_device[action.boundary] = start + seconds
            return start, end
        if len(self.going_out) >= BOUNDARIES_ON_THEIR_WAY_OUT:
            self._wait_for_copies(self.going_out[-BOUNDARIES_ON_THEIR_WAY_OUT])
        start = max(self.now, self.lane_out)
        end = self.lane_out = self.on_host[action.boundary] = start + seconds
        self.going_out.append(end)
        return start, end

    def _finish(self, start: float, seconds: float) -> float:
        """When ``seconds`` of compute end that start at ``start``, slowed by the collectives that run meanwhile."""
        while self.first_slow < len(self.slow) and self.slow[self.first_slow][1] <= start:
            self.first_slow += 1
        return slowed(start, seconds, self.slow[self.first_slow :])


def slowed(start: float, seconds: float, slow: Sequence[tuple[float, float, float]]) -> float:
    """When compute ends that goes on at a lower rate in some stretches of time.

    Args:
        start: When it starts.
        seconds: How long it takes at full rate.
        slow: Start, end and rate (0 to 1) of each stretch, in order, none overlapping another.
    """
    now, left = start, seconds
    for begin, end, rate in slow:
        if end <= now:
            continue
        if begin >= now + left:
            break
        if begin > now:
            left -= begin - now
            now = begin
        if (end - now) * rate >= left:
            return now + left / rate
        left -= (end - now) * rate
        now = end
    return now + left
