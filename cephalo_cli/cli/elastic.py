"""Planning again for the devices that an outer launcher found: some are lost, or new ones came."""

import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cephalo_cli.errors import CephaloError, InfeasibleError

if TYPE_CHECKING:
    from cephalo_cli.artifacts import Plan
    from cephalo_cli.artifacts.cluster import Node
    from cephalo_cli.runtime.launch import RankEnvironment

__all__ = ["plan_for_present"]


def plan_for_present(
    plan: "Plan", external: "RankEnvironment", timeout_s: float
) -> "tuple[Plan, RankEnvironment, str | None]":
    """Give the plan for the devices that are there, where they are others than the plan's.

    Rank 0 plans, with the profile in the plan, its batch, strategy and settings; the others take what it found.

    Returns:
        The plan; the launcher, with the store where its ranks have met; and a sentence about what changed.

    Raises:
        InfeasibleError: No plan fits the devices that are there.
        UsageError: A device is none of the profile's.
    """
    from cephalo_cli.artifacts.store import dumps, loads
    from cephalo_cli.planner import make_plan
    from cephalo_cli.planner.variants import with_nodes
    from cephalo_cli.runtime.worker import HELD_SIGNALS, hush_torch

    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)  # before torch starts threads, which would hear them
    hush_torch()
    from cephalo_cli.runtime.meeting import meet
    from cephalo_cli.runtime.present import nodes_present, share

    store = meet(external, timeout_s)
    met = replace(external, store=store)
    nodes = nodes_present(plan, external, store)
    if [node.devices for node in nodes] == [node.devices for node in plan.cluster.nodes]:
        return plan, met, None
    answer: dict[str, Any] = {}
    if external.rank == 0:
        try:
            basis = with_nodes(_profile_of(plan), nodes)
            found = make_plan(basis, plan.global_batch_size, strategy=plan.strategy, settings=plan.settings)
            answer = {"plan": dumps(found)}
        except CephaloError as error:
            answer = {"message": error.message, "hint": error.hint}
    answer = cast("dict[str, Any]", share(store, "plan", external.rank, answer, external.world_size)[0])
    if "plan" not in answer:
        raise InfeasibleError(
            f"no plan for the devices that are there ({_counted(nodes)}): {answer['message']}", hint=answer["hint"]
        )
    again = cast("Plan", loads(answer["plan"].encode(), where="the plan of rank 0"))
    return again, met, f"planned again for {_counted(nodes)}; the plan had {_counted(plan.cluster.nodes)}"


def _profile_of(plan: "Plan") -> Any:
    from cephalo_cli.artifacts import Profile
    from cephalo_cli.artifacts.base import Envelope
    from cephalo_cli.artifacts.profile import Basis

    names = Basis.model_fields.keys() - Envelope.model_fields.keys()
    return Profile(**{name: getattr(plan, name) for name in names})


def _counted(nodes: "tuple[Node, ...]") -> str:
    counts = Counter(device for node in nodes for device in node.devices)
    return ", ".join(f"{count} {device}" for device, count in sorted(counts.items()))
