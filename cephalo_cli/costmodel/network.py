"""Time of collectives over unequal shards.

Note: the busiest rank
    A collective over a unit of N bytes takes ``latency + N * w / bandwidth``, where w is the fraction of the unit that
    passes through the busiest rank in one direction. With n ranks and shares s_i:

    * direct (every rank sends its shard to every other): rank i receives ``1 - s_i`` and sends ``(n - 1) s_i``, so
      ``w = max_i (n - 1) s_i``: no rank receives more than the largest shard's owner sends;
    * ring (shards travel in small pieces, as in NCCL's grouped broadcasts): every link carries all but the shard of the
      rank it leads to, so ``w = 1 - min_i s_i``.

    Both are ``(n - 1) / n`` for equal shares. A reduce-scatter is a gather run backwards: the same w.

Note: rings over two levels
    A ring in rank order enters and leaves every node once. A node with several network adapters has as many rings, each
    with a part of every shard and an adapter of its own; all of them pass over every link inside the node. So a rank
    sends as fast as the slower of its link inside and its node's whole network, and a node is not slowed by having many
    devices. A shard's first byte passes all hops of the ring but one, and what it waits in them adds up (NCCL's own
    estimate, ``src/graph/tuning.cc``). Links reach 0.8 of their nominal rate in large collectives: nccl-tests report
    230 to 240 GB/s on the 300 of an A100's NVLink.
"""

from collections.abc import Sequence
from typing import Literal

from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.profile import CollectiveFit, NetworkProfile

__all__ = ["busiest_fraction", "collective_s", "handled_fraction", "network_from_links", "placed_fraction"]

LINK_EFFICIENCY = 0.8
Algorithm = Literal["direct", "ring"]


def busiest_fraction(algorithm: Algorithm, shares: Sequence[float]) -> float:
    """Fraction of a unit's bytes that passes through the busiest rank in one direction (0 for one rank)."""
    others = len(shares) - 1
    if others == 0:
        return 0.0
    return 1.0 - min(shares) if algorithm == "ring" else others * max(shares)


def handled_fraction(algorithm: Algorithm, num_ranks: int, share: float) -> float:
    """Bytes one rank handles in a collective, divided by the unit's bytes.

    Round a ring it receives and sends all but one shard. The direct algorithm is that of CPUs, where everything is
    copied by the cores: a rank receives ``1 - s``, sends ``(n - 1) s``, and its own part, s, is copied into its place.
    """
    if num_ranks == 1:
        return 0.0
    if algorithm == "ring":
        return 2.0 * (1.0 - share)
    return 1.0 + (num_ranks - 1) * share


def placed_fraction(algorithm: Algorithm, num_ranks: int, share: float) -> float:
    """Part of `handled_fraction` that does not travel: the rank's own part is put into its place."""
    return share if algorithm == "direct" and num_ranks > 1 else 0.0


def collective_s(fit: CollectiveFit, unit_bytes: float, busiest: float) -> float:
    """Seconds of one collective; 0 when nothing moves.

    Args:
        fit: Latency and bandwidth.
        unit_bytes: Bytes of the whole unit.
        busiest: What `busiest_fraction` gives for the shares.
    """
    if unit_bytes == 0 or busiest == 0:
        return 0.0
    return fit.latency_s + unit_bytes * busiest / fit.bandwidth_bytes_per_s


def network_from_links(cluster: Cluster) -> NetworkProfile | Literal["ideal"]:
    """Estimate collectives from the cluster's links: rings in rank order, see the note on rings over two levels.

    Rings are what NCCL's own collectives run, and so FSDP. Training here sends directly over every backend: as fast for
    equal shares within one node, slower for very unequal ones, and over several nodes with several devices each a
    shard crosses the network once for every device that is there. A measured profile has the direct algorithm's times.
    """
    if cluster.network == "ideal":
        return "ideal"
    links = [node.link for node in cluster.nodes if node.link is not None and len(node.devices) > 1]
    hops = [node.link for node in cluster.nodes if node.link is not None for _ in node.devices[1:]]
    if len(cluster.nodes) > 1:
        links.append(cluster.network)
        hops += [cluster.network] * len(cluster.nodes)
    else:
        hops += links
    latencies = [hop.latency_s for hop in hops] or [0.0]
    fit = CollectiveFit(
        latency_s=sum(latencies) - min(latencies),
        bandwidth_bytes_per_s=LINK_EFFICIENCY * min(link.bandwidth_bytes_per_s for link in links or [cluster.network]),
    )
    return NetworkProfile(method="estimated", algorithm="ring", all_gather=fit, reduce_scatter=fit)
