"""A rank's records folded into the actions whose times the simulator works out.

Compute records with nothing in between become one action: a rank of 50 microbatches costs the simulator no more than a
rank of one, unless it offloads. Two ranks with as many microbatches and the same switches share one program.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from cephalo_cli.schedule import COLLECTIVES, Op, Phase, Record, StepStages, rank_records

__all__ = [
    "Action",
    "Boundary",
    "Collective",
    "Compute",
    "Copy",
    "Issue",
    "Optimize",
    "Program",
    "Reshard",
    "Switches",
    "programs",
]

Boundary: TypeAlias = tuple[int, int, Literal["activation", "gradient"]]
"""One tensor that is copied to and from host memory: unit, microbatch, activation or gradient."""

COMPUTE = frozenset({Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD})
NONE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective of a step, the same on every rank."""

    index: int
    """Position in the step's sequence of collectives."""
    op: Op
    unit: int

    @property
    def is_gather(self) -> bool:
        """Whether it unshards parameters; otherwise it reduces gradients."""
        return self.op is Op.UNSHARD


@dataclass(frozen=True, kw_only=True, slots=True)
class Issue:
    """Start a collective; the rank goes on at once."""

    collective: int
    after: int = NONE
    """Collective that must have ended first: a reduction waits for the one before it (two gradients are alive)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Forward, recompute and backward records of one unit in one phase, back to back."""

    unit: int
    phase: Phase
    records: tuple[tuple[Op, int], ...]
    """Kind and microbatch of each record."""
    after: int = NONE
    """Last gather it needs."""
    fetched: tuple[Boundary, ...] = ()
    """Boundaries that must be back on the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Start a copy between device and host memory; the rank goes on at once."""

    boundary: Boundary
    to_host: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Reshard:
    """Free a unit's whole parameters."""

    unit: int
    after: int = NONE
    """The gather that brought them: what is not there yet cannot be freed, also on a rank that never reads it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimize:
    """Update the local shards, after every reduction."""

    after: int = NONE
    """Last reduction of the step."""


Action: TypeAlias = Issue | Compute | Copy | Reshard | Optimize


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one rank does in a step."""

    actions: tuple[Action, ...]
    collectives: tuple[Collective, ...]
    """The step's collectives, the same for every rank's program."""


class Switches(NamedTuple):
    """What a rank's program depends on."""

    num_microbatches: int
    recompute: bool
    recompute_blocks: int | None
    offload: bool


def programs(step: StepStages, switches: list[Switches]) -> dict[Switches, Program]:
    """Fold the records of every distinct set of switches.

    Raises:
        AssertionError: Two programs issue different collectives, which no schedule may.
    """
    made: dict[Switches, Program] = {}
    for each in switches:
        if each not in made:
            made[each] = fold(step, rank_records(step, **each._asdict()))
    if len({program.collectives for program in made.values()}) > 1:
        raise AssertionError("ranks would issue different collectives")
    return made


def fold(step: StepStages, records: list[Record]) -> Program:
    """Fold one rank's records into actions."""
    return _Folder(step, records).program()


class _Folder:
    """Walks the records once, remembering what later ones wait for."""

    def __init__(self, step: StepStages, records: list[Record]) -> None:
        self.step, self.records = step, records
        self.collectives: list[Collective] = []
        self.gathered: dict[int, int] = {}
        self.reduced = NONE
        self.fetched: set[Boundary] = set()

    def program(self) -> Program:
        actions: list[Action] = []
        run: list[Record] = []
        for record in self.records:
            if run and not self._joins(run, record):
                actions.append(self._compute(run))
                run = []
            if record.op in COMPUTE:
                run.append(record)
            else:
                actions.append(self._other(record))
        return Program(actions=tuple(actions), collectives=tuple(self.collectives))

    def _joins(self, run: list[Record], record: Record) -> bool:
        if record.op not in COMPUTE or record.unit != run[0].unit:
            return False
        return self._phase(run) == "forward-backward" or (self._phase(run) == "forward") == (record.op is Op.FORWARD)

    def _phase(self, run: list[Record]) -> Phase:
        if run[0].op is not Op.FORWARD:
            return "backward"
        return "forward-backward" if run[0].unit == len(self.step.units) - 1 else "forward"

    def _compute(self, run: list[Record]) -> Compute:
        unit = self.step.units[_unit(run[0])]
        phase = self._phase(run)
        needs = [unit.index] if unit.borrows is None else [unit.index, unit.borrows]
        after = max(self.gathered.get(need, NONE) for need in needs)
        if phase == "backward" and not unit.backward_reads:
            after = NONE
        return Compute(
            unit=unit.index,
            phase=phase,
            records=tuple((record.op, record.microbatch or 0) for record in run),
            after=after,
            fetched=tuple(self._fetched(unit.index, phase, run)),
        )

    def _fetched(self, unit: int, phase: Phase, run: list[Record]) -> Iterator[Boundary]:
        for microbatch in sorted({record.microbatch or 0 for record in run}):
            below: Boundary = (unit - 1, microbatch, "activation")
            above: Boundary = (unit, microbatch, "gradient")
            if below in self.fetched:
                yield below
            if phase == "backward" and above in self.fetched:
                yield above

    def _other(self, record: Record) -> Action:
        if record.op in COLLECTIVES:
            return self._issue(record)
        if record.op is Op.RESHARD:
            return Reshard(unit=_unit(record), after=self.gathered.get(_unit(record), NONE))
        if record.op is Op.OPTIMIZER_STEP:
            return Optimize(after=self.reduced)
        if record.microbatch is None or record.tensor is None:
            raise AssertionError(f"{record} does not say what it copies")
        boundary: Boundary = (_unit(record), record.microbatch, record.tensor)
        if record.op is Op.FETCH:
            self.fetched.add(boundary)
        return Copy(boundary=boundary, to_host=record.op is Op.OFFLOAD)

    def _issue(self, record: Record) -> Issue:
        collective = Collective(index=len(self.collectives), op=record.op, unit=_unit(record))
        self.collectives.append(collective)
        if collective.is_gather:
            self.gathered[collective.unit] = collective.index
            return Issue(collective=collective.index)
        after, self.reduced = self.reduced, collective.index
        return Issue(collective=collective.index, after=after)


def _unit(record: Record) -> int:
    if record.unit is None:
        raise AssertionError(f"{record} names no unit")
    return record.unit
