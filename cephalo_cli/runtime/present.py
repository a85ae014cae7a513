"""Which devices an outer launcher's ranks really have, in the words of a cluster file.

Note: recognising devices
    Accelerators are recognised by what they say of themselves: their name and memory as in the profile, or else their
    memory alone. CPU devices all look alike, emulated ones included, so there the ranks of a host are taken for the
    first devices of its node in the cluster file. Hosts are matched with nodes in the order of their ranks.
"""

import json
import socket
from collections.abc import Mapping

from torch._C._distributed_c10d import Store

from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.profile import Basis, DeviceProfile, Identity
from cephalo_cli.errors import UsageError
from cephalo_cli.quantities import format_bytes
from cephalo_cli.runtime.device import device_identity, torch_device
from cephalo_cli.runtime.launch import RankEnvironment
from cephalo_cli.runtime.places import backend_of

__all__ = ["nodes_present", "share"]

MEMORY_TOLERANCE = 0.15
"""Devices report up to this fraction less, or more, than the size they are sold with."""


def share(store: Store, name: str, rank: int, value: object, num_ranks: int) -> list[object]:
    """Give every rank every rank's JSON value; the name may be used once."""
    store.set(f"cephalo/{name}/{rank}", json.dumps(value))
    return [json.loads(store.get(f"cephalo/{name}/{other}")) for other in range(num_ranks)]


def nodes_present(basis: Basis, external: RankEnvironment, store: Store) -> tuple[Node, ...]:
    """Say what is there as nodes of the profile's device types; every rank takes part and gets the same answer.

    Args:
        basis: The profile: cluster, and what each device type said of itself when it was measured.
        external: The outer launcher.
        store: Where its ranks meet.

    Raises:
        UsageError: A device is none of the profile's, or a host's ranks are not numbered in a row.
    """
    rank, num_ranks = external.rank, external.world_size
    hosts = share(store, "host", rank, socket.gethostname(), num_ranks)
    order = list(dict.fromkeys(hosts))
    if hosts != sorted(hosts, key=order.index):
        raise UsageError("the launcher numbered ranks across hosts", hint="let each host have consecutive ranks")
    local_rank = hosts[:rank].count(hosts[rank])
    planned = basis.cluster.nodes
    home = planned[min(order.index(hosts[rank]), len(planned) - 1)]
    mine = _device_type(basis, home, local_rank)
    devices = share(store, "device", rank, mine, num_ranks)
    nodes = []
    for index, host in enumerate(order):
        like = planned[min(index, len(planned) - 1)]
        own = tuple(str(device) for device, of in zip(devices, hosts, strict=True) if of == host)
        name = like.name if index < len(planned) else f"{like.name}-{index}"
        nodes.append(like.model_copy(update={"name": name, "devices": own}))
    return tuple(nodes)


def _device_type(basis: Basis, node: Node, local_rank: int) -> str:
    """The device type under this rank."""
    first = basis.cluster.ranks[0]
    backend = backend_of(basis.cluster, first)
    if backend == "cpu":
        return node.devices[min(local_rank, len(node.devices) - 1)]
    here = device_identity(torch_device(backend, local_rank), basis.cluster.device_types[first.device])
    known = recognise(here, basis.cluster.device_types, basis.devices)
    if known is None:
        raise UsageError(
            f"{here.name} with {format_bytes(here.memory_bytes)} is none of the profile's devices",
            where=f"local rank {local_rank} on {socket.gethostname()}",
            hint="profile a cluster that has it, and plan again",
        )
    return known


def recognise(here: Identity, types: Mapping[str, DeviceType], devices: Mapping[str, DeviceProfile]) -> str | None:
    """The device type that a device is: by name and memory where the profile knows them, else by memory."""
    fitting = []
    for name, profile in devices.items():
        known = profile.identity
        expected = known.memory_bytes if known is not None else types[name].memory_bytes or 0
        if abs(here.memory_bytes - expected) <= MEMORY_TOLERANCE * expected and known is not None:
            if known.name == here.name:
                return name
        elif abs(here.memory_bytes - expected) <= MEMORY_TOLERANCE * expected:
            fitting.append((abs(here.memory_bytes - expected), name))
    return min(fitting)[1] if fitting else None
