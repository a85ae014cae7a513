import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(monkeypatch: pytest.MonkeyPatch) -> MakeCluster:
    """Make a cluster of CPU devices; also let ranks find `rank_entries`."""
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def make(speeds: list[float | None], memory_bytes: int = 2**30, nodes: int = 1) -> Cluster:
        types = {
            f"d{rank}": {"backend": "cpu", "memory_bytes": memory_bytes} | ({"emulated_speed": speed} if speed else {})
            for rank, speed in enumerate(speeds)
        }
        size = len(speeds) // nodes
        hosts = [{"name": f"n{node}", "devices": list(types)[node * size : (node + 1) * size]} for node in range(nodes)]
        content = {"kind": "cluster", "name": "c", "device_types": types, "nodes": hosts, "network": "ideal"}
        return Cluster.model_validate_json(json.dumps(content))

    return make
