"""Ranks of an outer launcher meet apart from what former ranks left, and say which devices are there."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in its module's __all__

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Node
from cephalo_cli.errors import TrainingError, UsageError
from cephalo_cli.runtime.launch import RankEnvironment
from cephalo_cli.runtime.meeting import meet_in
from cephalo_cli.runtime.present import nodes_present
from tests.executor.plans import MEMORY_BYTES, make_model, make_plan

PATIENCE_S = 60.0
MEET_IN_VAIN = """
import os, signal
from cephalo_cli.errors import CephaloError
from cephalo_cli.runtime.launch import RankEnvironment
from cephalo_cli.runtime.worker import hush_torch
hush_torch()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from cephalo_cli.runtime.meeting import meet
for rank in (1, 0):
    try:
        meet(RankEnvironment(rank=rank, world_size=2), 0.5)
    except CephaloError as error:
        print(error.exit_code, error.message)
os.kill(os.getpid(), signal.SIGTERM)
try:
    meet(RankEnvironment(rank=1, world_size=2), 600)
except CephaloError as error:
    print(error.exit_code, error.message)
"""


def on_ranks(num_ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Do something on as many threads at once."""
    with ThreadPoolExecutor(num_ranks) as pool:
        return [future.result() for future in [pool.submit(work, rank) for rank in range(num_ranks)]]


def test_ranks_that_are_started_again_do_not_find_what_those_before_left() -> None:
    store = HashStore()
    for start, num_ranks in enumerate((3, 2, 2, 3)):

        def come(rank: int, num_ranks: int = num_ranks, start: int = start) -> list[str]:
            ours = meet_in(store, rank, num_ranks, PATIENCE_S)
            assert not ours.check([f"at {other}" for other in range(num_ranks)]) or start == 0 or rank > 0
            ours.set(f"at {rank}", f"start {start}")
            return [ours.get(f"at {other}").decode() for other in range(num_ranks)]

        assert on_ranks(num_ranks, come) == [[f"start {start}"] * num_ranks] * num_ranks


def test_a_rank_that_does_not_come_is_named() -> None:
    store = HashStore()

    def come(rank: int) -> str:
        with pytest.raises(TrainingError) as waited:
            meet_in(store, rank, 3, 0.3)
        return waited.value.message

    for message in on_ranks(2, come):
        assert message == "the 3 ranks did not meet within 0.3 s: nothing was heard of rank 2"


def test_a_foreign_service_on_the_port_keeps_nobody_and_neither_does_waiting_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        ranks = subprocess.run(
            [sys.executable, "-c", MEET_IN_VAIN],
            env={**os.environ, "PYTHONPATH": ".", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert ranks.stdout.splitlines() == [
        f"6 rank 1 had no answer from 127.0.0.1:{port} for 0.5 s",
        f"6 rank 0 cannot meet the others at 127.0.0.1:{port}: address already in use",
        "143 stopped while waiting for the other ranks; nothing was trained",
    ]
    assert not ranks.stderr


def present(hosts: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the ranks of some hosts find present, where the plan has two devices on a and another one on b."""
    types = {name: DeviceType(backend="cpu", memory_bytes=MEMORY_BYTES) for name in ("big", "small")}
    nodes = (Node(name="a", devices=("big", "big")), Node(name="b", devices=("small",)))
    plan = make_plan(make_model(), [[1]])
    cluster = Cluster(name="mixed", device_types=types, nodes=nodes, network="ideal")
    basis = plan.model_copy(update={"cluster": cluster, "devices": dict.fromkeys(types, plan.devices["core"])})
    own = threading.local()
    monkeypatch.setattr("socket.gethostname", lambda: own.host)
    store = HashStore()

    def find(rank: int) -> Any:
        own.host = hosts[rank]
        return nodes_present(basis, RankEnvironment(rank=rank, world_size=len(hosts)), store)

    return on_ranks(len(hosts), find)


def test_hosts_are_taken_for_the_nodes_of_the_plan_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for hosts, expected in (
        (["x", "x", "y"], [("a", ("big", "big")), ("b", ("small",))]),
        (["x", "y"], [("a", ("big",)), ("b", ("small",))]),
        (["x", "y", "z"], [("a", ("big",)), ("b", ("small",)), ("b-2", ("small",))]),
        (["x"], [("a", ("big",))]),
    ):
        for nodes in present(hosts, monkeypatch):
            assert [(node.name, node.devices) for node in nodes] == expected


def test_ranks_of_a_host_must_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="numbered ranks across hosts"):
        present(["x", "y", "x"], monkeypatch)
