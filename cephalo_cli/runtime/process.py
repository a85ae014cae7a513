"""One rank's process: its device, its process group, and how it is held to the device's speed and memory."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, RankPlace
from cephalo_cli.runtime.cgroup import DeviceCgroup
from cephalo_cli.runtime.device import TORCH_TYPES, torch_device
from cephalo_cli.runtime.emulate import Throttle
from cephalo_cli.runtime.heap import keep_heap
from cephalo_cli.runtime.places import backend_of, common_backend, device_index, num_threads

__all__ = ["ProcessContext", "process_group_backend", "rank_process"]


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """What the code of a rank is given."""

    cluster: Cluster
    """The cluster."""
    place: RankPlace
    """Its number and where it sits in the cluster."""
    device: torch.device
    """Its device."""
    world_size: int
    """How many ranks there are."""
    process_group: dist.ProcessGroup
    """All ranks; takes tensors of the device and of the CPU."""
    timeout: timedelta
    """How long one rank may wait for another."""
    emulation: Literal["cgroup", "cooperative"] | None
    """What holds an emulated device back."""
    emit: Callable[[Any], None]
    """Sends a JSON value to whoever started the ranks."""
    throttle: Throttle | None = None
    """Holds compute back where nothing else does."""

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self.place.rank

    @property
    def device_type(self) -> DeviceType:
        """The rank's device type."""
        return self.cluster.device_types[self.place.device]

    def compute(self) -> AbstractContextManager[None]:
        """Wrap every piece of compute in this, so that a cooperatively emulated device is as slow as it should be."""
        return contextlib.nullcontext() if self.throttle is None else self.throttle.compute()


@contextlib.contextmanager
def rank_process(
    cluster: Cluster,
    rank: int,
    *,
    timeout: timedelta,
    emit: Callable[[Any], None],
    cgroup: DeviceCgroup | None = None,
    enforce_memory: bool = True,
    store: Store | None = None,
) -> Iterator[ProcessContext]:
    """Make this process a rank: bind its device and join the process group; leave the group at the end.

    Args:
        cluster: The cluster, catalog facts filled in.
        rank: Which of its ranks this is.
        timeout: How long one rank may wait for another.
        emit: Where `ProcessContext.emit` sends.
        cgroup: The control group this process is in, if any; its CPU limit holds from when all ranks have met.
        enforce_memory: Whether an emulated device without a control group ends when it is over its memory limit.
        store: Where ranks meet; by default what RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.

    Raises:
        UsageError: The device does not exist here, or the cluster's devices have no common backend.
    """
    place = cluster.ranks[rank]
    device_type = cluster.device_types[place.device]
    backend = process_group_backend(cluster)
    device = torch_device(backend_of(cluster, place), device_index(cluster, place))
    if device.type == "cpu":
        keep_heap()
    speed = device_type.emulated_speed
    torch.set_num_threads(num_threads(cluster, place))
    dist.init_process_group(
        backend,
        timeout=timeout,
        rank=rank,
        world_size=len(cluster.ranks),
        store=store,
        init_method=None if store is not None else "env://",
        device_id=None if device.type == "cpu" else device,
    )
    try:
        if dist.group.WORLD is None:
            raise AssertionError("there is no process group although it was just made")
        if speed is not None and cgroup is not None:
            cgroup.limit_cpu(speed)
        cooperative = speed is not None and cgroup is None
        yield ProcessContext(
            cluster=cluster,
            place=place,
            device=device,
            world_size=len(cluster.ranks),
            process_group=dist.group.WORLD,
            timeout=timeout,
            emulation=None if speed is None else "cooperative" if cooperative else "cgroup",
            emit=emit,
            throttle=Throttle(speed, device_type.memory_bytes if enforce_memory else None)
            if speed is not None and cooperative
            else None,
        )
    finally:
        dist.destroy_process_group()


def process_group_backend(cluster: Cluster) -> str:
    """Choose torch's communication backends for a cluster: one for its devices, and Gloo for CPU tensors.

    Raises:
        UsageError: The devices have no common backend (NCCL and RCCL, for one, do not talk to each other).
    """
    backend = common_backend(cluster)
    if backend == "cpu":
        return "gloo"
    type_ = TORCH_TYPES.get(backend, backend)
    return f"cpu:gloo,{type_}:{dist.get_default_backend_for_device(type_)}"
