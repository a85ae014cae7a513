"""Memory of a rank over the time of a step, by the terms of the cost model.

state and reserve are always there. buffers: a unit's whole parameters from the issue of its gather until they are
freed, and its gradient from the first backward until its reduction has ended. working: the live tensors of the largest
microbatch of a compute action. saved: boundaries (and, of blocks that are not recomputed, what autograd keeps) from the
forward that makes them to the backward that eats them. The sizes are those of `costmodel.memory`; only the moments are
new, so the peak never exceeds the plan's total and is smaller where the plan's terms peak at different moments.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cephalo_cli.artifacts.plan import Memory
from cephalo_cli.artifacts.profile import DeviceProfile, UnitKind
from cephalo_cli.costmodel.memory import (
    buffers_bytes,
    copies_bytes,
    gradient_bytes,
    limit_bytes,
    planned_state_bytes,
    working_bytes,
)
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.schedule import Op, resharding
from cephalo_cli.simulator.parts import Part, Setting
from cephalo_cli.simulator.play import PartPlay, StepPlay
from cephalo_cli.simulator.program import Compute, Issue, Optimize, Reshard
from cephalo_cli.units import DTYPE_BYTES, boundary_bytes

__all__ = ["Moment", "Terms", "moments", "peak"]

ROUNDING = 1e-6
"""Sums of interpolated bytes that miss a whole number by less than this are that number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Memory of a rank from one moment until the next."""

    time_s: float
    """Absolute time."""
    label: str
    """Where in the step, such as ``backward block.3``."""
    buffers_bytes: float
    working_bytes: float
    saved_bytes: float

    @property
    def changing_bytes(self) -> float:
        """The terms that change during a step."""
        return self.buffers_bytes + self.working_bytes + self.saved_bytes


def peak(setting: Setting, play: StepPlay, part_play: PartPlay) -> tuple[Memory, str]:
    """Find the moment with the most memory; return its terms and its label. Of equal moments the first is taken."""
    most = max(moments(setting, play, part_play), key=lambda moment: moment.changing_bytes)
    terms = Terms(setting, part_play.part).at(most)
    memory = Memory(
        state_bytes=terms["state"],
        buffers_bytes=terms["buffers"],
        working_bytes=terms["working"],
        saved_bytes=terms["saved"],
        reserve_bytes=terms["reserve"],
        total_bytes=sum(terms.values()),
        limit_bytes=limit_bytes(setting.plan, part_play.part.choice.device, setting.plan.settings),
    )
    return memory, most.label


class Terms:
    """The terms of a rank's memory in whole bytes, at any moment."""

    def __init__(self, setting: Setting, part: Part) -> None:
        plan = setting.plan
        whole = planned_state_bytes(plan, plan.settings, step=setting.step, num_ranks=len(plan.ranks))
        self.state = math.ceil(part.choice.state_share * whole)
        self.reserve = part.device.reserve_bytes if plan.settings.reserve_bytes is None else plan.settings.reserve_bytes

    def at(self, moment: Moment) -> dict[str, int]:
        """Bytes by term."""
        return {
            "state": self.state,
            "buffers": math.ceil(moment.buffers_bytes - ROUNDING),
            "working": math.ceil(moment.working_bytes - ROUNDING),
            "saved": math.ceil(moment.saved_bytes - ROUNDING),
            "reserve": self.reserve,
        }


def moments(setting: Setting, play: StepPlay, part_play: PartPlay) -> Iterator[Moment]:
    """Walk through a rank's step; every change of its memory is one moment, in order of time.

    The first is the moment when the first rank begins: state and reserve are there while a late rank is not ready yet.
    """
    part = part_play.part
    buffers = _Buffers(setting, part)
    saved = _Saved(setting, part)
    begins_s = min(each.ready_s for each in play.parts)
    yield Moment(
        time_s=begins_s,
        label="start",
        buffers_bytes=buffers.num_bytes(begins_s),
        working_bytes=0.0,
        saved_bytes=0.0,
    )
    for index, action in enumerate(part.program.actions):
        start, end = part_play.start_s[index], part_play.end_s[index]
        label = "optimizer"
        working, before, after = 0.0, saved.held, saved.held
        if isinstance(action, Issue):
            buffers.issue(setting.collectives[action.collective].unit, action.collective, play, start)
            collective = setting.collectives[action.collective]
            label = f"{'gather' if collective.is_gather else 'reduce'} {setting.step.units[collective.unit].name}"
        elif isinstance(action, Reshard):
            buffers.free(action.unit)
            label = f"free {setting.step.units[action.unit].name}"
        elif isinstance(action, Compute):
            buffers.compute(action)
            label = f"{action.phase} {setting.step.units[action.unit].name}"
            working, before, after = saved.run(action)
        elif not isinstance(action, Optimize):
            continue
        held = buffers.num_bytes(start)
        yield Moment(time_s=start, label=label, buffers_bytes=held, working_bytes=working, saved_bytes=before)
        if isinstance(action, Compute):
            held = buffers.num_bytes(end)
            yield Moment(time_s=end, label=label, buffers_bytes=held, working_bytes=0.0, saved_bytes=after)


class _Buffers:
    """Unsharded parameters and gradients, with the exceptions that the cost model makes."""

    def __init__(self, setting: Setting, part: Part) -> None:
        plan, step = setting.plan, setting.step
        self.sizes = [unit.num_parameters for unit in step.units]
        self.trained = [unit.num_trained for unit in step.units]
        self.borrows = [unit.borrows for unit in step.units]
        self.collectives = setting.collectives
        self.per_gradient = float(gradient_bytes(step, plan.dtype))
        self.per_parameter = float(DTYPE_BYTES[plan.dtype])
        keeps_all = len(plan.ranks) == 1 or step.name == "replicated"
        self.always = 0.0
        self.within = 0
        """Bytes of buffers that an imported table's working memory has inside."""
        if keeps_all or (part.device.method == "imported" and not step.keep_unsharded):
            self.per_gradient = self.per_parameter = 0.0
        elif part.device.method == "imported":
            self.within = buffers_bytes(resharding(step), num_ranks=len(plan.ranks), dtype=plan.dtype)
        if part.device.method != "imported":
            if keeps_all:
                self.always += copies_bytes(step, plan.dtype, plan.model.frozen_dtype)
            sizes = part.choice.microbatch_sizes
            if part.choice.offload and sizes:
                self.always += 4 * boundary_bytes(plan.model, plan.seq_len, plan.dtype, max(sizes))
        self.whole: set[int] = set()
        self.accumulating: set[int] = set()
        self.reducing: dict[int, float] = {}

    def issue(self, unit: int, collective: int, play: StepPlay, now: float) -> None:
        self.reducing = {each: end for each, end in self.reducing.items() if end > now}
        if self.collectives[collective].is_gather:
            self.whole.add(unit)
        else:
            self.accumulating.discard(unit)
            self.reducing[unit] = play.collective_end_s[collective]

    def compute(self, action: Compute) -> None:
        if any(op is Op.BACKWARD for op, _ in action.records):
            borrowed = self.borrows[action.unit]
            self.accumulating |= {action.unit} if borrowed is None else {action.unit, borrowed}

    def free(self, unit: int) -> None:
        self.whole.discard(unit)

    def num_bytes(self, now: float) -> float:
        gradients = self.accumulating | {unit for unit, end in self.reducing.items() if end > now}
        return max(
            0.0,
            self.always
            - self.within
            + self.per_parameter * sum(self.sizes[unit] for unit in self.whole)
            + self.per_gradient * sum(self.trained[unit] for unit in gradients),
        )


class _Saved:
    """What lives from forward to backward, and the working memory on top of it."""

    def __init__(self, setting: Setting, part: Part) -> None:
        plan = setting.plan
        self.kinds: list[UnitKind] = [unit.kind for unit in setting.step.units]
        self.device: DeviceProfile = part.device
        self.sizes = part.choice.microbatch_sizes
        self.offload = part.choice.offload
        self.num_recomputed = part.choice.num_recomputed(plan.model.num_layers)
        self.boundary = [boundary_bytes(plan.model, plan.seq_len, plan.dtype, size) for size in self.sizes]
        self.working = {
            (kind, again): self._working(kind, again=again) for kind in part.device.units for again in (False, True)
        }
        self.autograd = {kind: [self._kept(kind, size) for size in self.sizes] for kind in part.device.units}
        self.held = 0.0

    def run(self, action: Compute) -> tuple[float, float, float]:
        """Bytes of working memory during an action, saved bytes at its fullest moment, saved bytes after it.

        The working memory is that of the rank's largest microbatch; it is laid on the fullest moment.
        """
        kind = self.kinds[action.unit]
        most = self.held
        for op, microbatch in action.records:
            if op is Op.FORWARD and action.phase == "forward":
                self.held += self._kept_over_time(action.unit, kind, microbatch)
            most = max(most, self.held)
            if op is Op.BACKWARD and action.phase == "backward":
                self.held -= self._kept_over_time(action.unit, kind, microbatch)
        self.held = max(0.0, self.held)
        again = kind == "block" and action.unit <= self.num_recomputed
        return self.working.get((kind, again), 0.0), most, self.held

    def _kept_over_time(self, unit: int, kind: UnitKind, microbatch: int) -> float:
        """Bytes of one unit and microbatch that live from its forward to its backward.

        What a block that is not recomputed needs of its input is in its own graph; one boundary is there in any case.
        """
        keeps = unit <= self.num_recomputed and not self.offload
        return self._graph(unit, kind, microbatch) + (self.boundary[microbatch] if keeps else 0)

    def _graph(self, unit: int, kind: UnitKind, microbatch: int) -> float:
        """What autograd keeps of a unit between forward and backward."""
        if kind == "head" or kind not in self.autograd or (kind == "block" and unit <= self.num_recomputed):
            return 0.0
        return self.autograd[kind][microbatch]

    def _kept(self, kind: UnitKind, size: int) -> float:
        unit = self.device.units[kind]
        return 0.0 if unit.saved_bytes is None else interpolate(unit.microbatch, unit.saved_bytes, size)

    def _working(self, kind: UnitKind, *, again: bool) -> float:
        """Working memory of one kind of unit, as the cost model counts it for a device that has no other kind."""
        alone = self.device.model_copy(update={"units": {kind: self.device.units[kind]}})
        return float(working_bytes(alone, self.sizes, recompute=again))
