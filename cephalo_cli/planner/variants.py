"""The same profile with something changed: memory, network, or which devices there are."""

from collections import Counter
from collections.abc import Mapping

from cephalo_cli.artifacts.cluster import Node
from cephalo_cli.artifacts.profile import Basis, CollectiveFit, NetworkProfile
from cephalo_cli.costmodel import network_from_links

__all__ = ["with_card", "with_devices", "with_faster_network", "with_memory", "with_nodes"]


def with_memory(basis: Basis, device: str, more_bytes: int) -> Basis:
    """Every device of a type with more memory."""
    types = dict(basis.cluster.device_types)
    old = types[device].memory_bytes
    types[device] = types[device].model_copy(update={"memory_bytes": (old or 0) + more_bytes})
    return basis.model_copy(update={"cluster": basis.cluster.model_copy(update={"device_types": types})})


def with_faster_network(basis: Basis, factor: float) -> Basis:
    """Collectives with a multiple of the bandwidth and a fraction of the latency."""
    network = basis.network
    if network == "ideal":
        return basis

    def faster(fit: CollectiveFit) -> CollectiveFit:
        return CollectiveFit(latency_s=fit.latency_s / factor, bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s * factor)

    fits = {"all_gather": faster(network.all_gather), "reduce_scatter": faster(network.reduce_scatter)}
    return basis.model_copy(update={"network": network.model_copy(update=fits)})


def with_card(basis: Basis, device: str) -> Basis:
    """One more node that holds one more device of a type."""
    cluster = basis.cluster
    names = {node.name for node in cluster.nodes}
    name = next(name for index in range(len(names) + 1) if (name := f"added-{index}") not in names)
    nodes = (*cluster.nodes, Node(name=name, devices=(device,)))
    return with_nodes(basis, nodes)


def with_devices(basis: Basis, counts: Mapping[str, int]) -> Basis:
    """Only so many devices of each type, the first in rank order."""
    left = Counter(counts)
    nodes = []
    for node in basis.cluster.nodes:
        kept = []
        for device in node.devices:
            if left[device] > 0:
                left[device] -= 1
                kept.append(device)
        if kept:
            nodes.append(node.model_copy(update={"devices": tuple(kept)}))
    return with_nodes(basis, tuple(nodes))


def with_nodes(basis: Basis, nodes: tuple[Node, ...]) -> Basis:
    """Another set of nodes; a network that was estimated from links is estimated again, a measured one is kept."""
    cluster = basis.cluster.model_copy(update={"nodes": nodes})
    network = basis.network
    if isinstance(network, NetworkProfile) and network.method == "estimated":
        network = network_from_links(cluster)
    used = {device for node in nodes for device in node.devices}
    devices = {name: device for name, device in basis.devices.items() if name in used}
    return basis.model_copy(update={"cluster": cluster, "network": network, "devices": devices})
