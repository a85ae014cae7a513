"""Steps for tests of the schedule: small models under every schedule, and what their ranks do."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from cephalo_cli.artifacts.plan import ScheduleName
from cephalo_cli.schedule import Op, Record, StepStages, rank_records, step_stages
from cephalo_cli.units import Unit

COMPUTE = (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD)
SHARDED: tuple[ScheduleName, ...] = ("layer-major", "microbatch-major")
EVERY: tuple[ScheduleName, ...] = (*SHARDED, "replicated")

switches = st.sampled_from([(False, False), (True, False), (True, True)])


def units(num_layers: int, *, tied: bool, normed: bool = False) -> tuple[Unit, ...]:
    """Units whose embedding is a lookup, or ends with a norm, which its backward reads."""
    last = num_layers + 1
    return (
        Unit(index=0, name="embedding", kind="embedding", num_parameters=70, backward_reads=normed),
        *(Unit(index=1 + i, name=f"block.{i}", kind="block", num_parameters=30) for i in range(num_layers)),
        Unit(index=last, name="head", kind="head", num_parameters=5, borrows=0 if tied else None),
    )


@dataclass(frozen=True)
class Case:
    """A step and the numbers of microbatches of its ranks."""

    step: StepStages
    counts: tuple[int, ...]


@st.composite
def cases(draw: st.DrawFn, *names: ScheduleName) -> Case:
    counts = draw(st.lists(st.one_of(st.sampled_from([0, 1, 50]), st.integers(0, 6)), min_size=2, max_size=4))
    model = units(draw(st.integers(1, 6)), tied=draw(st.booleans()), normed=draw(st.booleans()))
    return Case(step_stages(draw(st.sampled_from(names or EVERY)), model, max(counts)), tuple(sorted(set(counts))))


def records_of(step: StepStages, count: int, switch: tuple[bool, bool] = (True, False)) -> list[Record]:
    return rank_records(step, num_microbatches=count, recompute=switch[0], offload=switch[1])


def how_often(records: Sequence[Record], op: Op, unit: int) -> int:
    return sum(record.op is op and record.unit == unit for record in records)
