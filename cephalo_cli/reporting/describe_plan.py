"""What a plan says: who does how much, whether it fits, and what else could have been done."""

from collections.abc import Mapping, Sequence

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import RankPlan
from cephalo_cli.quantities import format_percent
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Part, Sheet, Value, merged
from cephalo_cli.reporting.words import basis_facts, memory_sheet, microbatches, throughput

__all__ = ["describe_plan"]


def describe_plan(plan: Plan) -> list[Part]:
    """Say what a plan decides and expects."""
    expected = plan.expected
    facts = Facts(
        name="plan",
        title=f"Plan {plan.strategy} for {plan.model.name} on {plan.cluster.name}",
        facts=(
            *basis_facts(plan),
            Fact(key="global_batch_size", label="batch", value=plan.global_batch_size, more="samples a step"),
            Fact(
                key="step_s",
                label="expected step",
                value=expected.step_s,
                kind="seconds",
                more=f"({throughput(expected.samples_per_s, expected.tokens_per_s)}), {expected.bound}-bound",
            ),
            Fact(key="status", label="solution", value=plan.solver.status, more=f"({_proof(plan)})"),
        ),
    )
    return [
        facts,
        _work(plan.ranks),
        memory_sheet([(rank.rank, rank.memory) for rank in plan.ranks]),
        *_alternatives(plan),
    ]


def _proof(plan: Plan) -> str:
    if plan.solver.status == "time-limit":
        return f"at most {format_percent(plan.solver.gap)} from the best possible"
    return "no plan is faster under this profile" if plan.solver.status == "optimal" else "a rule, not a search"


def _work(ranks: Sequence[RankPlan]) -> Sheet:
    return Sheet(
        name="ranks",
        title="Who does how much",
        columns=(
            Column(key="ranks", title="rank", kind="ranks"),
            Column(key="device", title="device"),
            Column(key="microbatch_sizes", title="microbatches"),
            Column(key="num_samples", title="samples", kind="count"),
            Column(key="state_share", title="state", kind="percent"),
            Column(key="extras", title="saves memory by"),
            Column(key="compute_s", title="compute", kind="seconds"),
        ),
        rows=tuple(
            merged(
                {
                    "ranks": [rank.rank],
                    "device": rank.device,
                    "microbatch_sizes": microbatches(rank.microbatch_sizes),
                    "num_samples": sum(rank.microbatch_sizes),
                    "state_share": rank.state_share,
                    "extras": _extras(rank),
                    "compute_s": rank.expected.forward_s + rank.expected.backward_s + rank.expected.optimizer_s,
                }
                for rank in ranks
            )
        ),
    )


def _extras(rank: RankPlan) -> str | None:
    words = ["recompute"] * rank.recompute + ["offload"] * rank.offload
    return ", ".join(words) or None


def _alternatives(plan: Plan) -> list[Part]:
    if not plan.alternatives:
        return []
    rows: list[Mapping[str, Value]] = []
    bad, chosen = set(), set()
    for number, other in enumerate(plan.alternatives):
        faster = None if other.step_s is None or not plan.expected.step_s else other.step_s / plan.expected.step_s
        rows.append(
            {
                "strategy": other.strategy,
                "feasible": other.feasible,
                "step_s": other.step_s,
                "step_ratio": faster,
                "samples_per_s": other.samples_per_s,
                "peak_memory_fraction": other.peak_memory_fraction,
                "reason": other.reason,
            }
        )
        if not other.feasible:
            bad |= {(number, "peak_memory_fraction"), (number, "feasible")}
        if other.strategy == plan.strategy:
            chosen.add(number)
    if not chosen:
        chosen.add(len(rows))
        totals = [rank.memory.total_bytes / rank.memory.limit_bytes for rank in plan.ranks if rank.memory.limit_bytes]
        rows.append(
            {
                "strategy": plan.strategy,
                "feasible": all(rank.memory.total_bytes <= rank.memory.limit_bytes for rank in plan.ranks),
                "step_s": plan.expected.step_s,
                "step_ratio": 1.0,
                "samples_per_s": plan.expected.samples_per_s,
                "peak_memory_fraction": max(totals, default=None),
            }
        )
    return [
        Sheet(
            name="alternatives",
            title="Against other strategies",
            columns=(
                Column(key="strategy", title="strategy"),
                Column(key="feasible", title="fits"),
                Column(key="step_s", title="step", kind="seconds"),
                Column(key="step_ratio", title="time", kind="ratio"),
                Column(key="samples_per_s", title="samples/s", kind="count"),
                Column(key="peak_memory_fraction", title="fullest rank", kind="percent"),
            ),
            rows=tuple(rows),
            bad=frozenset(bad),
            chosen=frozenset(chosen),
            notes=tuple(f"{other.strategy}: {other.reason}" for other in plan.alternatives if other.reason),
        )
    ]
