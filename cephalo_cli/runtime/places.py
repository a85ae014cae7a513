"""What follows from a rank's place in the cluster: its backend, which of the host's devices it has, its threads."""

import math
import os
from collections.abc import Sequence

from cephalo_cli.artifacts.cluster import Backend, Cluster, RankPlace
from cephalo_cli.errors import UsageError

__all__ = ["backend_of", "common_backend", "cpus_of_ranks", "device_index", "num_threads"]

ROUNDING = 1e-9
"""Speeds such as 0.7 and 0.3 fill a CPU."""


def backend_of(cluster: Cluster, place: RankPlace) -> Backend:
    """Give the backend of a rank's device.

    Raises:
        UsageError: The device type has none.
    """
    backend = cluster.device_types[place.device].backend
    if backend is None:
        raise UsageError(
            f"device type {place.device!r} has no backend, so nothing can run on it",
            where=f"cluster {cluster.name}",
            hint="give it 'backend' or a catalog device",
        )
    return backend


def common_backend(cluster: Cluster) -> Backend:
    """Give the backend that all devices of a cluster have.

    Raises:
        UsageError: They have several (NCCL and RCCL, for one, do not talk to each other).
    """
    backends = {backend_of(cluster, place) for place in cluster.ranks}
    if len(backends) > 1:
        raise UsageError(
            f"devices of backends {' and '.join(sorted(backends))} cannot run in one job",
            where=f"cluster {cluster.name}",
            hint="no communication library connects them",
        )
    return backends.pop()


def device_index(cluster: Cluster, place: RankPlace) -> int:
    """Position of a rank's device among its node's devices of the same backend."""
    backend = backend_of(cluster, place)
    before = (other for other in cluster.ranks if other.node == place.node and other.local_rank < place.local_rank)
    return sum(backend_of(cluster, other) == backend for other in before)


def num_threads(cluster: Cluster, place: RankPlace) -> int:
    """Threads of a rank: as many as an emulated device has CPUs (at least 1), else its part of the host's CPUs."""
    speed = cluster.device_types[place.device].emulated_speed
    if speed is not None:
        return max(1, math.ceil(speed))
    on_host = sum(other.node == place.node for other in cluster.ranks)
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_cpus // on_host)


def cpus_of_ranks(cluster: Cluster, cpus: Sequence[int]) -> list[int] | None:
    """Give every emulated rank one CPU of this host, for itself or with ranks that fit beside it.

    Where the system places them, a rank's threads use its quota up on one CPU and stand still on another, because the
    kernel hands quota out CPU by CPU; and steps take as long as that happens to last.

    Args:
        cluster: The cluster.
        cpus: Numbers of the CPUs there are.

    Returns:
        A CPU for each rank: the fastest is placed first, each where most is free. None where a device is not emulated
        or has more than one CPU, or where they do not fit; then the system places threads.
    """
    speeds = {place.rank: cluster.device_types[place.device].emulated_speed or math.inf for place in cluster.ranks}
    free = dict.fromkeys(cpus, 1.0)
    chosen = {}
    for rank in sorted(speeds, key=lambda rank: -speeds[rank]):
        cpu = max(free, key=lambda each: free[each])
        if speeds[rank] > free[cpu] + ROUNDING:
            return None
        free[cpu] -= speeds[rank]
        chosen[rank] = cpu
    return [chosen[rank] for rank in sorted(chosen)]
