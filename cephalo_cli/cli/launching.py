"""The command that trains with a plan, as it must be typed."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cephalo_cli.artifacts import Plan

__all__ = ["training_commands", "unused"]


def unused(name: str) -> str:
    """Name a file that a proposed command may write: this one, or where it is there already ``plan-2.json``."""
    path, number = Path(name), 1
    while path.exists():
        number += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{number}")
    return str(path)


def training_commands(plan: "Plan", path: str, *, output: str | None = None) -> list[str]:
    """Give the command that trains with a plan; several for a cluster of several nodes, one to be run on each.

    Ranks of emulated and of CPU devices all start on this host, whatever nodes their cluster has. Every machine has
    text to train with; images are the user's own, and a comment says what stands for them.

    Args:
        plan: The plan.
        path: Its file.
        output: Where the report is to go.
    """
    needs_images = plan.model.family == "vit"
    train = f"cephalo train {shlex.quote(path)} --data {'IMAGES' if needs_images else 'python-stdlib'} --steps 20"
    if plan.model.own is not None:
        train += f" --model {plan.model.own.source}"
    if plan.settings.optimizer_in_backward:
        train += " --optimizer-in-backward --clip 0"
    if output is not None:
        train += f" -o {shlex.quote(output)}"
    if needs_images:
        train += "  # IMAGES: a folder of class folders"
    nodes = plan.cluster.nodes
    backends = {plan.cluster.device_types[device].backend for node in nodes for device in node.devices}
    if len(nodes) == 1 or backends == {"cpu"}:
        return [train]
    return [
        f"torchrun --nnodes {len(nodes)} --nproc-per-node {len(node.devices)} --node-rank {number} "
        f"--master-addr {shlex.quote(nodes[0].name)} --no-python {train}"
        for number, node in enumerate(nodes)
    ]
