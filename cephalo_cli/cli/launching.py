"""The command that trains with a plan, as it must be typed."""

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cephalo_cli.artifacts import Plan

__all__ = ["training_commands"]


def training_commands(plan: "Plan", path: str) -> list[str]:
    """Give the command that trains with a plan; several for a cluster of several nodes, one to be run on each.

    Ranks of emulated and of CPU devices all start on this host, whatever nodes their cluster has.

    Args:
        plan: The plan.
        path: Its file.
    """
    train = f"cephalo train {shlex.quote(path)} --data python-stdlib --steps 20"
    if plan.model.own is not None:
        train += f" --model {plan.model.own.source}"
    nodes = plan.cluster.nodes
    backends = {plan.cluster.device_types[device].backend for node in nodes for device in node.devices}
    if len(nodes) == 1 or backends == {"cpu"}:
        return [train]
    return [
        f"torchrun --nnodes {len(nodes)} --nproc-per-node {len(node.devices)} --node-rank {number} "
        f"--master-addr {shlex.quote(nodes[0].name)} --no-python {train}"
        for number, node in enumerate(nodes)
    ]
