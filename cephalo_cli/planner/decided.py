"""Decisions of all ranks under one schedule, priced and weighed by the cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.plan import (
    Alternative,
    ExpectedRank,
    ExpectedStep,
    Memory,
    Plan,
    PlanSettings,
    RankPlan,
    ScheduleName,
    SolverProof,
    Strategy,
)
from cephalo_cli.artifacts.profile import Basis
from cephalo_cli.costmodel import RankChoice, StepEstimate, rank_memory, step_estimate
from cephalo_cli.planner.groups import startup_bytes
from cephalo_cli.quantities import format_bytes
from cephalo_cli.schedule import StepStages, step_stages
from cephalo_cli.units import model_units

__all__ = ["Decided"]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What every rank does, under one schedule."""

    basis: Basis
    settings: PlanSettings
    strategy: Strategy
    schedule: ScheduleName
    choices: tuple[RankChoice, ...]
    """One a rank."""
    keep_unsharded: int = 0
    """How many blocks before the last one stay unsharded between their phases."""

    @cached_property
    def step(self) -> StepStages:
        """The stages of the step."""
        rounds = max(len(choice.microbatch_sizes) for choice in self.choices)
        return step_stages(self.schedule, model_units(self.basis.model), rounds, keep_unsharded=self.keep_unsharded)

    @cached_property
    def estimate(self) -> StepEstimate:
        """What the step takes."""
        return step_estimate(self.basis, self.choices, self.step)

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """Memory of every rank."""
        known: dict[RankChoice, Memory] = {}
        for choice in self.choices:
            if choice not in known:
                known[choice] = rank_memory(
                    self.basis, self.settings, choice, step=self.step, num_ranks=len(self.choices)
                )
        return tuple(known[choice] for choice in self.choices)

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return sum(sum(choice.microbatch_sizes) for choice in self.choices)

    @property
    def misfit(self) -> str | None:
        """The rank that is furthest over its limit, in words; None where every rank fits."""
        over = [memory.total_bytes - memory.limit_bytes for memory in self.memories]
        rank = max(range(len(over)), key=lambda rank: over[rank])
        if over[rank] <= 0:
            return self._start_misfit()
        memory = self.memories[rank]
        return (
            f"rank {rank} ({self.choices[rank].device}) needs {format_bytes(memory.total_bytes)}, "
            f"{format_bytes(over[rank])} over its limit; its largest term is {_largest_term(memory)}"
        )

    def _start_misfit(self) -> str | None:
        """The first rank that fits while it trains but cannot start."""
        for rank, (choice, memory) in enumerate(zip(self.choices, self.memories, strict=True)):
            over = startup_bytes(self.basis, choice.state_share) + memory.reserve_bytes - memory.limit_bytes
            if over > 0:
                shortage = f"its shard and one whole unit are {format_bytes(over)} over its limit"
                return f"rank {rank} ({choice.device}) cannot start: {shortage}"
        return None

    def alternative(self) -> Alternative:
        """The line a plan shows of another strategy."""
        step_s = self.estimate.step_s
        return Alternative(
            strategy=self.strategy,
            feasible=self.misfit is None,
            reason=self.misfit,
            step_s=step_s,
            samples_per_s=self.batch_size / step_s if step_s > 0 else None,
            peak_memory_fraction=max(memory.total_bytes / memory.limit_bytes for memory in self.memories),
        )

    def plan(
        self, proof: SolverProof, alternatives: Sequence[Alternative] = (), inputs: Sequence[InputFile] = ()
    ) -> Plan:
        """The plan artifact."""
        basis, estimate = self.basis, self.estimate
        samples_per_s = self.batch_size / estimate.step_s if estimate.step_s > 0 else 0.0
        ranks = tuple(
            RankPlan(
                rank=place.rank,
                node=place.node,
                device=place.device,
                microbatch_sizes=choice.microbatch_sizes,
                state_share=choice.state_share,
                recompute=choice.recompute,
                recompute_blocks=choice.recompute_blocks,
                offload=choice.offload,
                memory=memory,
                expected=ExpectedRank(
                    forward_s=seconds.forward_s, backward_s=seconds.backward_s, optimizer_s=seconds.optimizer_s
                ),
            )
            for place, choice, memory, seconds in zip(
                basis.cluster.ranks, self.choices, self.memories, estimate.ranks, strict=True
            )
        )
        return Plan(
            inputs=tuple(inputs),
            cluster=basis.cluster,
            model=basis.model,
            seq_len=basis.seq_len,
            dtype=basis.dtype,
            num_parameters=basis.num_parameters,
            num_frozen_parameters=basis.num_frozen_parameters,
            devices=basis.devices,
            network=basis.network,
            strategy=self.strategy,
            schedule=self.schedule,
            global_batch_size=self.batch_size,
            settings=self.settings,
            keep_unsharded=self.keep_unsharded or None,
            ranks=ranks,
            expected=ExpectedStep(
                step_s=estimate.step_s,
                samples_per_s=samples_per_s,
                tokens_per_s=samples_per_s * basis.model.tokens_per_sample(basis.seq_len),
                bound=estimate.bound,
            ),
            solver=proof,
            alternatives=tuple(alternatives),
        )

    def renamed(self, strategy: Strategy) -> "Decided":
        """The same decisions under another strategy's name."""
        return replace(self, strategy=strategy)


def _largest_term(memory: Memory) -> str:
    """Name and size of the largest of a rank's memory terms."""
    terms = {
        "state": memory.state_bytes,
        "buffers": memory.buffers_bytes,
        "working": memory.working_bytes,
        "saved": memory.saved_bytes,
        "reserve": memory.reserve_bytes,
    }
    name = max(terms, key=lambda term: terms[term])
    return f"{name} ({format_bytes(terms[name])})"
