"""What a plan says: who does how much, whether it fits, and what else could have been done."""

from collections.abc import Mapping

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import Alternative, RankPlan
from cephalo_cli.quantities import format_percent
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Part, Sheet, Value, merged
from cephalo_cli.reporting.words import basis_facts, memory_sheet, microbatches, throughput, unit_flags

__all__ = ["describe_plan", "proof", "saves_memory_by", "with_chosen"]


SOLUTIONS = {"optimal": "optimal", "time-limit": "not proven best", "heuristic": "by a rule"}
"""How a plan was found, by the status of its proof."""

STATES = {
    "layer-major": "the state in shards",
    "microbatch-major": "the state in shards",
    "replicated": "the whole state on every rank",
}
"""Where the state is, by the order of work."""


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
            *_replicated(plan),
            *_kept(plan),
            *_updated(plan),
            Fact(key="status", label="solution", value=SOLUTIONS[plan.solver.status], more=f"({proof(plan)})"),
        ),
    )
    return [
        facts,
        _work(plan),
        memory_sheet([(rank.rank, rank.memory) for rank in plan.ranks]),
        *_alternatives(plan),
    ]


def _replicated(plan: Plan) -> list[Fact]:
    """That the state is not in shards, where it is not."""
    if plan.schedule != "replicated":
        return []
    return [Fact(key="schedule", label="state", value="whole on every rank", more="(only gradients travel)")]


def _kept(plan: Plan) -> list[Fact]:
    """Blocks whose parameters every rank keeps from forward to backward, where the plan says how many."""
    if plan.keep_unsharded is None:
        return []
    more = f"of {plan.model.num_layers} blocks from forward to backward, beside the last"
    return [Fact(key="keep_unsharded", label="unsharded", value=plan.keep_unsharded, more=more)]


def _updated(plan: Plan) -> list[Fact]:
    """When weights are updated, where that is not at the end of a step."""
    if not plan.settings.optimizer_in_backward:
        return []
    return [Fact(key="updates", label="updates", value="in backward", more="(gradients of one unit at a time)")]


def proof(plan: Plan) -> str:
    """Say how good a plan is under its own cost model."""
    kept, bound = plan.settings.keep_unsharded, plan.solver.bound_schedule
    if plan.solver.status == "time-limit":
        other = "" if bound is None else f", which may be a plan with {STATES[bound]}"
        return f"at most {format_percent(plan.solver.gap)} from the best possible{other}"
    if plan.solver.status == "optimal":
        which = f" that keeps {kept} block{'s' * (kept != 1)} unsharded" if isinstance(kept, int) else ""
        return f"no plan{which} is faster under this profile"
    if plan.strategy == "cephalo":
        return "the plan of another strategy, which is faster than all that were searched"
    return f"{plan.strategy} divides the work by a fixed rule and searches for nothing"


def _work(plan: Plan) -> Sheet:
    """Who does how much; below it what looked odd, or is assumed, in the times of the devices that do it."""
    used = dict.fromkeys(rank.device for rank in plan.ranks)
    return Sheet(
        name="ranks",
        title="Who does how much",
        columns=(
            Column(key="ranks", title="rank", kind="ranks"),
            Column(key="device", title="device"),
            Column(key="microbatch_sizes", title="microbatches"),
            Column(key="num_samples", title="samples", kind="count"),
            Column(key="state_share", title="state", kind="share"),
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
                    "extras": ", ".join(saves_memory_by(rank, plan.model.num_layers)) or None,
                    "compute_s": rank.expected.forward_s + rank.expected.backward_s + rank.expected.optimizer_s,
                }
                for rank in plan.ranks
            )
        ),
        notes=tuple(unit_flags({name: plan.devices[name] for name in used})),
    )


def saves_memory_by(rank: RankPlan, num_layers: int) -> list[str]:
    """Name what a rank does to need less memory, such as ``recompute 5/6`` where it recomputes 5 of 6 blocks."""
    count = rank.recompute_blocks
    again = "recompute" if count is None else f"recompute {count}/{num_layers}"
    return [again] * rank.recompute + ["offload"] * rank.offload


def with_chosen(plan: Plan) -> tuple[Alternative, ...]:
    """Return a plan's alternatives and, where it is not among them, the plan itself as the last."""
    if any(other.strategy == plan.strategy for other in plan.alternatives):
        return plan.alternatives
    memories = [rank.memory for rank in plan.ranks]
    totals = [memory.total_bytes / memory.limit_bytes for memory in memories if memory.limit_bytes]
    mine = Alternative(
        strategy=plan.strategy,
        feasible=all(memory.total_bytes <= memory.limit_bytes for memory in memories),
        step_s=plan.expected.step_s,
        samples_per_s=plan.expected.samples_per_s,
        peak_memory_fraction=max(totals, default=None),
    )
    return (*plan.alternatives, mine)


def _alternatives(plan: Plan) -> list[Part]:
    if not plan.alternatives:
        return []
    others = with_chosen(plan)
    rows: tuple[Mapping[str, Value], ...] = tuple(
        {
            "strategy": other.strategy,
            "feasible": other.feasible,
            "step_s": other.step_s,
            "step_ratio": other.step_s / plan.expected.step_s if other.step_s and plan.expected.step_s else None,
            "samples_per_s": other.samples_per_s,
            "peak_memory_fraction": other.peak_memory_fraction,
        }
        for other in others
    )
    bad = {number for number, other in enumerate(others) if not other.feasible}
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
            rows=rows,
            bad=frozenset((number, key) for number in bad for key in ("peak_memory_fraction", "feasible")),
            chosen=frozenset(number for number, other in enumerate(others) if other.strategy == plan.strategy),
            notes=tuple(f"{other.strategy}: {other.reason}" for other in others if other.reason),
        )
    ]
