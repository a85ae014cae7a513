"""What larger search a plan gives reason to try, seen from the plan alone: nothing is searched here."""

from dataclasses import replace

from cephalo_cli.artifacts.plan import Plan, PlanSettings
from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.planner.explain import phases_that_wait, plan_choices
from cephalo_cli.planner.groups import partial_counts
from cephalo_cli.schedule import StepStages, plan_stages, step_stages

__all__ = ["worth_trying"]


def worth_trying(plan: Plan) -> str | None:
    """Say in one line which options of ``cephalo plan`` may make a plan faster; None where none is likely to.

    ``--recompute blocks`` where a rank recomputes all blocks though its memory holds what one of them keeps, and
    ``--keep-unsharded auto`` where backward waits for the network though every rank has room for one more whole block.
    """
    settings = plan.settings
    if plan.strategy != "cephalo" or plan.schedule != "layer-major":
        return None
    waits = "backward" in phases_that_wait(plan)
    reasons: dict[str, str] = {}
    if settings.recompute == "auto" and not waits and _could_keep_a_block(plan):
        reasons["--recompute blocks"] = "ranks that recompute have free memory"
    if settings.keep_unsharded is None and waits and plan.model.num_layers > 1 and _could_hold_a_block(plan):
        reasons["--keep-unsharded auto"] = "backward waits for the network and every rank has free memory"
    if not reasons:
        return None
    return f"{' '.join(reasons)} may be faster: {', and '.join(reasons.values())}"


def _could_keep_a_block(plan: Plan) -> bool:
    """Whether a rank that recomputes all its blocks fits with one block less."""
    num_blocks, step = plan.model.num_layers, plan_stages(plan)
    wider = plan.settings.model_copy(update={"recompute": "blocks"})
    return any(
        _fits(plan, wider, replace(choice, recompute_blocks=num_blocks - 1, recompute=num_blocks > 1), step)
        for choice in dict.fromkeys(plan_choices(plan))
        if choice.microbatch_sizes
        and choice.num_recomputed(num_blocks) == num_blocks
        and not choice.offload
        and partial_counts(plan, wider, choice.device)
    )


def _could_hold_a_block(plan: Plan) -> bool:
    """Whether every rank fits with one block more that stays unsharded."""
    step = step_stages("layer-major", plan_stages(plan).units, keep_unsharded=1)
    return all(_fits(plan, plan.settings, choice, step) for choice in dict.fromkeys(plan_choices(plan)))


def _fits(plan: Plan, settings: PlanSettings, choice: RankChoice, step: StepStages) -> bool:
    """Whether a rank of a plan would fit if it did this."""
    memory = rank_memory(plan, settings, choice, step=step, num_ranks=len(plan.ranks))
    return memory.total_bytes <= memory.limit_bytes
