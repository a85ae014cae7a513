"""The cluster this machine is: its accelerators, or its CPU."""

import os
import platform
import re

import torch

from cephalo_cli.artifacts import Cluster
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node

__all__ = ["local_cluster"]

NOMINAL_LINK = Link(bandwidth_bytes_per_s=16e9 * 16 * (128 / 130) / 8, latency_s=1e-5)
"""PCI Express 4.0 with 16 lanes (16 GT/s a lane, 128b/130b coding; PCI-SIG). It stands in the cluster until collectives
are measured; a measured profile carries what they really do."""


def local_cluster() -> Cluster:
    """Describe this machine: one node with every accelerator torch sees, or with its CPU as the only device."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    node = platform.node() or "localhost"
    if accelerator is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cpu = DeviceType(backend="cpu", memory_bytes=memory, description=f"CPU of {node}")
        nodes = (Node(name=node, devices=("cpu",)),)
        return Cluster(name=node, device_types={"cpu": cpu}, nodes=nodes, network="ideal")
    backend = "rocm" if torch.version.hip is not None else accelerator.type
    types: dict[str, DeviceType] = {}
    devices: list[str] = []
    for index in range(torch.accelerator.device_count()):
        properties = torch.get_device_module(accelerator).get_device_properties(index)
        name = re.sub(r"[^a-z0-9]+", "-", str(properties.name).lower()).strip("-")
        devices.append(name)
        types[name] = DeviceType.model_validate(
            {"backend": backend, "memory_bytes": int(properties.total_memory), "description": str(properties.name)}
        )
    nodes = (Node(name=node, devices=tuple(devices), link=NOMINAL_LINK),)
    return Cluster(name=node, device_types=types, nodes=nodes, network=NOMINAL_LINK)
