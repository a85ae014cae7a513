"""Runs a step: the records of `cephalo_cli.schedule`, one after the other, each with its kernel.

What is kept between records lives in two places: boundaries (`boundaries.py`), and here for every unit and microbatch
the end of its autograd graph, from the forward that made it (or made it again) to its backward.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from cephalo_cli.executor.boundaries import Boundaries, Key
from cephalo_cli.executor.data import Microbatch
from cephalo_cli.executor.journal import Journal
from cephalo_cli.executor.numbers import LossScale, StepNumbers, step_numbers
from cephalo_cli.executor.optimizer import ShardOptimizer
from cephalo_cli.executor.sharded_unit import ShardedUnit
from cephalo_cli.models import DropoutKey
from cephalo_cli.runtime.collectives import Pending, ShardedCollectives
from cephalo_cli.schedule import Op, Record

__all__ = ["Hooks", "StepInterpreter"]


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the interpreter calls on its way."""

    throttle: Callable[[], contextlib.AbstractContextManager[None]]
    """Surrounds every piece of compute (emulated devices)."""
    sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]
    """Sums a small tensor over all ranks."""
    on_record: Callable[[Record], None]
    """Told of every record when it is run."""


@dataclass
class _Graph:
    """The end of one unit's graph for one microbatch."""

    end: GradientEdge
    input: torch.Tensor | None
    """The leaf whose gradient is the boundary's; None for the embedding."""


@dataclass
class _Step:
    """What belongs to the step being run."""

    number: int
    batch: Sequence[Microbatch]
    num_tokens: int
    loss_sum: torch.Tensor
    numbers: StepNumbers | None = None


class StepInterpreter:
    """One rank's part of every step.

    Args:
        records: What this rank does in a step.
        units: The units on this rank.
        seed: Seed of dropout.
        collectives: Gathers and reductions.
        optimizer: Updates the shards.
        boundaries: What passes between units.
        journal: Times everything.
        scale: Scale of the loss.
        on_nonfinite: What to do with a step that is not finite.
        updates_early: Whether a unit is updated as soon as its gradient is reduced, instead of all at the end.
        make_room: Called before every piece of compute with the bytes that arriving units and gradients may take.
        hooks: What to call on the way.
    """

    def __init__(
        self,
        *,
        records: Sequence[Record],
        units: Sequence[ShardedUnit],
        seed: int,
        collectives: ShardedCollectives,
        optimizer: ShardOptimizer,
        boundaries: Boundaries,
        journal: Journal,
        scale: LossScale,
        on_nonfinite: Literal["stop", "skip"],
        updates_early: bool,
        make_room: Callable[[int], None],
        hooks: Hooks,
    ) -> None:
        self._records = records
        self._units = units
        self._run_twice = frozenset(record.unit for record in records if record.op is Op.RECOMPUTE)
        self._seed = seed
        self._collectives = collectives
        self._optimizer = optimizer
        self._boundaries = boundaries
        self._journal = journal
        self._scale = scale
        self._on_nonfinite: Literal["stop", "skip"] = on_nonfinite
        self._updates_early = updates_early
        self._make_room = make_room
        self._hooks = hooks
        self._replicated = any(record.op is Op.ALL_REDUCE for record in records)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._gather_flows: dict[int, int] = {}
        self._copy_flows: dict[Key, int] = {}
        self._reducing: deque[tuple[ShardedUnit, Pending, int]] = deque()

    def run(self, batch: Sequence[Microbatch], *, num_tokens: int, step: int) -> StepNumbers:
        """Run one step.

        Args:
            batch: This rank's microbatches, on its device.
            num_tokens: Valid tokens of the global batch.
            step: Number of the step.

        Returns:
            Loss and gradient norm of the global batch.

        Raises:
            TrainingError: Either is not finite.
        """
        device = self._journal.device
        accumulator = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        state = _Step(step, batch, num_tokens, accumulator)
        run = {
            Op.UNSHARD: self._unshard,
            Op.RESHARD: self._reshard,
            Op.FORWARD: self._forward,
            Op.RECOMPUTE: self._forward_again,
            Op.BACKWARD: self._backward,
            Op.REDUCE_GRAD: self._reduce,
            Op.ALL_REDUCE: self._reduce,
            Op.OFFLOAD: self._offload,
            Op.FETCH: self._fetch,
            Op.OPTIMIZER_STEP: self._optimizer_step,
        }
        for record in self._records:
            run[record.op](record, state)
            self._hooks.on_record(record)
        if state.numbers is None or self._graphs or not self._boundaries.is_empty:
            raise AssertionError("a step ends with the optimizer and leaves nothing behind")
        return state.numbers

    # Compute ----------------------------------------------------------------------------------------------------------

    def _forward(self, record: Record, step: _Step) -> None:
        unit, microbatch = self._unit(record), _index(record.microbatch)
        below = Key("activation", unit.unit.index - 1, microbatch)
        self._compute(record, [below], lambda: self._run_forward(unit, microbatch, below, step))
        if unit.unit.kind == "block":
            (self._boundaries.leave if self._runs_twice(unit) else self._boundaries.drop)(below)

    def _run_forward(self, unit: ShardedUnit, microbatch: int, below: Key, step: _Step) -> None:
        kind, batch = unit.unit.kind, step.batch[microbatch]
        output = Key("activation", unit.unit.index, microbatch)
        if kind == "embedding":
            y_BTD = unit.module(batch, self._key(unit, microbatch, step))
            self._keep_graph(unit, microbatch, None, y_BTD)
            self._boundaries.put(output, y_BTD.detach())
        elif kind == "block" and self._runs_twice(unit):
            with torch.no_grad():
                y_BTD = unit.module(self._boundaries.get(below), batch, self._key(unit, microbatch, step))
            self._boundaries.put(output, y_BTD)
        elif kind == "block":
            self._boundaries.put(output, self._run_block(unit, microbatch, below, step).detach())
        else:
            x_BTD = _leaf(self._boundaries.get(below))
            tied = () if unit.unit.borrows is None else (self._units[unit.unit.borrows].parameters["matrix"],)
            loss = unit.module(x_BTD, batch, *tied)
            step.loss_sum += loss.detach()
            self._graphs[unit.unit.index, microbatch] = _Graph(get_gradient_edge(loss), x_BTD)

    def _forward_again(self, record: Record, step: _Step) -> None:
        unit, microbatch = self._unit(record), _index(record.microbatch)
        below = Key("activation", unit.unit.index - 1, microbatch)
        self._compute(record, [below], lambda: self._run_block(unit, microbatch, below, step))

    def _run_block(self, unit: ShardedUnit, microbatch: int, below: Key, step: _Step) -> torch.Tensor:
        """Run a block's forward and keep its graph; gives its output."""
        x_BTD = _leaf(self._boundaries.get(below))
        y_BTD: torch.Tensor = unit.module(x_BTD, step.batch[microbatch], self._key(unit, microbatch, step))
        self._keep_graph(unit, microbatch, x_BTD, y_BTD)
        return y_BTD

    def _keep_graph(self, unit: ShardedUnit, microbatch: int, x_BTD: torch.Tensor | None, y_BTD: torch.Tensor) -> None:
        """Keep the graph's end, not its last tensor, which may leave the device; a frozen embedding has no graph."""
        if y_BTD.requires_grad:
            self._graphs[unit.unit.index, microbatch] = _Graph(get_gradient_edge(y_BTD), x_BTD)

    def _backward(self, record: Record, step: _Step) -> None:
        unit, microbatch = self._unit(record), _index(record.microbatch)
        index = unit.unit.index
        gradient = Key("gradient", index, microbatch)
        self._compute(record, [gradient], lambda: self._run_backward(unit, microbatch, gradient, step))
        self._boundaries.drop(gradient)
        self._boundaries.drop(Key("activation", index - 1, microbatch))

    def _run_backward(self, unit: ShardedUnit, microbatch: int, gradient: Key, step: _Step) -> None:
        graph = self._graphs.pop((unit.unit.index, microbatch), None)
        if graph is None:
            return
        above = self._loss_gradient(step) if unit.unit.kind == "head" else self._boundaries.get(gradient)
        for needed in self._with_borrowed(unit):
            needed.hold_gradient()
        torch.autograd.backward((graph.end,), (above,))
        for needed in self._with_borrowed(unit):
            needed.fold_gradient()
        if graph.input is not None:
            if graph.input.grad is None:
                raise AssertionError("a unit's output depends on its input")
            self._boundaries.put(Key("gradient", unit.unit.index - 1, microbatch), graph.input.grad)

    def _loss_gradient(self, step: _Step) -> torch.Tensor:
        """One over the count of the global batch, so that gradients add up to that of the mean loss."""
        dtype = torch.promote_types(next(iter(self._units[-1].parameters.values())).dtype, torch.float32)
        value = self._scale.value / max(step.num_tokens, 1)
        return torch.full((), value, dtype=dtype, device=self._journal.device)

    def _compute(self, record: Record, boundaries: Sequence[Key], work: Callable[[], object]) -> None:
        """Wait for what a record needs, then run it."""
        unit = self._unit(record)
        flows: list[int] = []
        if record.op is not Op.BACKWARD or unit.unit.backward_reads:
            for needed in self._with_borrowed(unit):
                flows += self._wait_whole(needed)
        for key in boundaries:
            start = self._journal.mark()
            if self._boundaries.wait(key):
                flows.append(self._copy_flows.pop(key))
                self._journal.stood_still("copy in", start, flows[-1])
        start = self._journal.mark()
        self._make_room(self._coming_bytes(record))
        with self._hooks.throttle():
            work()
        self._journal.worked(record, start, tuple(flows))

    def _coming_bytes(self, record: Record) -> int:
        """Memory that units on their way take while a record runs, and gradients that its backward is the first of."""
        coming = sum(self._units[index].whole_bytes for index in self._gather_flows)
        if record.op is Op.BACKWARD:
            needed = self._with_borrowed(self._unit(record))
            coming += sum(unit.gradient_bytes for unit in needed if unit.full_grad is None)
        return coming

    def _optimizer_step(self, record: Record, step: _Step) -> None:
        flows = self._finish_reductions()
        start = self._journal.mark()
        with self._hooks.throttle():
            squares = self._optimizer.squared_norm()
        self._journal.worked(record, start, tuple(flows))
        if self._replicated and self._collectives.rank > 0:
            squares = torch.zeros_like(squares)
        loss_sum, squared_norm = self._hooks.sum_over_ranks(torch.stack((step.loss_sum, squares))).tolist()
        scale = self._scale.value
        step.numbers = step_numbers(
            loss_sum=loss_sum,
            squared_norm=squared_norm,
            num_tokens=step.num_tokens,
            scale=self._scale,
            step=step.number,
            on_nonfinite=self._on_nonfinite,
        )
        if step.numbers.grad_norm is None or self._updates_early:
            return
        start = self._journal.mark()
        with self._hooks.throttle():
            self._optimizer.step(step.numbers.grad_norm, scale)
            for unit in self._units:
                unit.refresh()
        self._journal.worked(record, start)

    # Collectives and copies -------------------------------------------------------------------------------------------

    def _unshard(self, record: Record, _: _Step) -> None:
        unit = self._unit(record)
        if self._collectives.world_size > 1:
            self._gather_flows[unit.unit.index] = self._journal.started(record)
        unit.unshard(self._collectives)

    def _wait_whole(self, unit: ShardedUnit) -> list[int]:
        flow = self._gather_flows.pop(unit.unit.index, None)
        if flow is None:
            return []
        start = self._journal.mark()
        unit.wait_whole()
        self._journal.stood_still("gather", start, flow)
        return [flow]

    def _reshard(self, record: Record, _: _Step) -> None:
        unit = self._unit(record)
        self._wait_whole(unit)
        unit.reshard()

    def _reduce(self, record: Record, _: _Step) -> None:
        """Start a reduction. The one before has had a stage's time; it is finished first, so that two never pile up."""
        self._finish_reductions()
        unit = self._unit(record)
        pending = unit.reduce(self._collectives)
        if pending is None:
            self._reduced(unit)
        else:
            self._reducing.append((unit, pending, self._journal.started(record)))

    def _finish_reductions(self) -> list[int]:
        flows = []
        while self._reducing:
            unit, pending, flow = self._reducing.popleft()
            start = self._journal.mark()
            pending.wait()
            self._journal.stood_still("reduce", start, flow)
            self._reduced(unit)
            flows.append(flow)
        return flows

    def _reduced(self, unit: ShardedUnit) -> None:
        """Let go of a gradient that is reduced; where updates are early nothing reads the unit's weights again."""
        unit.release_gradient()
        if not self._updates_early:
            return
        start = self._journal.mark()
        with self._hooks.throttle():
            self._optimizer.step_unit(unit.unit.index)
            unit.refresh()
        self._journal.worked(Record(op=Op.OPTIMIZER_STEP, unit=unit.unit.index), start)

    def _offload(self, record: Record, _: _Step) -> None:
        flow = self._journal.started(record)
        self._journal.ended(flow, self._boundaries.offload(_key(record)))

    def _fetch(self, record: Record, _: _Step) -> None:
        key = _key(record)
        self._copy_flows[key] = flow = self._journal.started(record)
        self._journal.ended(flow, self._boundaries.fetch(key))

    # Small things -----------------------------------------------------------------------------------------------------

    def _unit(self, record: Record) -> ShardedUnit:
        return self._units[_index(record.unit)]

    def _runs_twice(self, unit: ShardedUnit) -> bool:
        """Whether a block keeps only its input between forward and backward, where its forward runs again."""
        return unit.unit.index in self._run_twice

    def _with_borrowed(self, unit: ShardedUnit) -> tuple[ShardedUnit, ...]:
        return (unit,) if unit.unit.borrows is None else (unit, self._units[unit.unit.borrows])

    def _key(self, unit: ShardedUnit, microbatch: int, step: _Step) -> DropoutKey:
        return DropoutKey(
            seed=self._seed, step=step.number, unit=unit.unit.index, samples=step.batch[microbatch].samples
        )


def _index(value: int | None) -> int:
    return cast("int", value)


def _key(record: Record) -> Key:
    if record.tensor is None:
        raise AssertionError("a copy says what it copies")
    return Key(record.tensor, _index(record.unit), _index(record.microbatch))


def _leaf(x_BTD: torch.Tensor) -> torch.Tensor:
    return x_BTD.detach().requires_grad_()
