import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Cluster
from cephalo_cli.errors import CephaloError, InfeasibleError, InterruptedRunError, TrainingError, UsageError
from cephalo_cli.runtime.cgroup import find_home
from cephalo_cli.runtime.launch import RankEnvironment, external_launcher, run_ranks

MakeCluster = Callable[..., Cluster]
HERE = Path(__file__).parent
needs_cgroups = pytest.mark.skipif(find_home() is None, reason="control groups may not be made here")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("how", "kind", "exit_code", "message"),
    [
        ("own error", InfeasibleError, 4, "rank 1 (d1 on n0): rank 1 does not fit (give it more)"),
        ("bug", CephaloError, 1, "rank 1 (d1 on n0): ZeroDivisionError: a bug"),
        ("exit", TrainingError, 6, "rank 1 (d1 on n0) ended with exit code 9"),
        ("kill", TrainingError, 6, "rank 1 (d1 on n0) was killed by SIGKILL"),
        ("terminate", InterruptedRunError, 143, "rank 1 (d1 on n0) was stopped by SIGTERM"),
        ("stuck", TrainingError, 6, "rank 1 (d1 on n0) ended with exit code 9"),
    ],
)
def test_a_rank_that_ends_ends_the_job_with_its_reason(
    make_cluster: MakeCluster, how: str, kind: type[CephaloError], exit_code: int, message: str
) -> None:
    with pytest.raises(CephaloError) as caught:
        run_ranks("rank_entries:fail", how, make_cluster([None, None]))
    assert (type(caught.value), caught.value.exit_code, str(caught.value)) == (kind, exit_code, message)


@needs_cgroups
def test_a_rank_killed_for_its_memory_is_named_with_its_limit(make_cluster: MakeCluster) -> None:
    with pytest.raises(TrainingError) as caught:
        run_ranks("rank_entries:fail", "memory", make_cluster([1.0, 0.9], memory_bytes=600 * 2**20))
    assert caught.value.message == ("rank 1 (d1 on n0) was killed because it went over its memory limit of 600 MiB")


@needs_cgroups
def test_emulated_ranks_get_a_group_threads_and_a_way_to_speak(make_cluster: MakeCluster) -> None:
    events: list[tuple[int, object]] = []
    given = run_ranks(
        "rank_entries:describe", {}, make_cluster([0.5, 1.5]), on_event=lambda *event: events.append(event)
    )
    assert given == [[0, "d0", "cgroup", 1, True], [1, "d1", "cgroup", 2, True]]
    assert sorted(events) == [(0, {"hello": 0}), (1, {"hello": 1})]
    home = find_home()
    assert home is not None
    assert not list(home.cpu.glob(f"cephalo-{os.getpid()}-*"))


@needs_cgroups
def test_emulated_ranks_keep_to_one_cpu_each(make_cluster: MakeCluster) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    given = run_ranks("rank_entries:affinity", None, make_cluster([0.2, 0.5]))
    assert given == [[cpus[min(1, len(cpus) - 1)]], [cpus[0]]]


def test_without_control_groups_devices_hold_themselves_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster([0.5, 0.5], memory_bytes=600 * 2**20)
    given = run_ranks("rank_entries:describe", {}, cluster, use_cgroups=False)
    assert [rank[2] for rank in given] == ["cooperative", "cooperative"]
    with pytest.raises(TrainingError, match="an emulated device of 600 MiB is out of memory"):
        run_ranks("rank_entries:describe", {"num_elements": 200_000_000}, cluster, use_cgroups=False)


def test_a_listener_that_fails_is_heard_of_and_ranks_are_watched_all_the_same(make_cluster: MakeCluster) -> None:
    def on_event(_rank: int, _event: object) -> None:
        raise ValueError("nobody expected this")

    with pytest.raises(ValueError, match="nobody expected this"):
        run_ranks("rank_entries:describe", {}, make_cluster([0.5, 1.5]), on_event=on_event, use_cgroups=False)


HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell that starts the tests in the background has them, and what they start, ignore SIGINT."""


@contextlib.contextmanager
def started(
    code: str, *arguments: str, stdout: int | None = None, stderr: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run code in a process that hears Ctrl-C and does not outlive the test."""
    words = [sys.executable, "-c", HEAR_CTRL_C + code, *arguments]
    with subprocess.Popen(words, text=True, env=_environ(), stdout=stdout, stderr=stderr) as parent:
        try:
            yield parent
        finally:
            parent.kill()


@pytest.mark.parametrize(("entry", "num_signals"), [("wait_for_signal", 1), ("ignore_signals", 2)])
def test_ctrl_c_ends_every_rank_and_a_second_one_does_not_wait(
    make_cluster: MakeCluster, entry: str, num_signals: int
) -> None:
    code = (
        "import sys; from cephalo_cli.artifacts import Cluster; from cephalo_cli.runtime.launch import run_ranks\n"
        "from cephalo_cli.errors import InterruptedRunError\n"
        "try: run_ranks('rank_entries:' + sys.argv[2], None, Cluster.model_validate_json(sys.argv[1]),\n"
        "               on_event=lambda rank, pid: print(pid, flush=True))\n"
        "except InterruptedRunError as error: sys.exit(error.exit_code)\n"
    )
    cluster = make_cluster([None, None]).model_dump_json(exclude_none=True)
    with started(code, cluster, entry, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(alive, pids))
        for _ in range(num_signals):
            parent.send_signal(signal.SIGINT)
            time.sleep(1.0)
        assert parent.wait(30) == 130
    assert not any(map(alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_while_ranks_start_leaves_no_traceback(make_cluster: MakeCluster) -> None:
    code = (
        "import sys; from cephalo_cli.artifacts import Cluster; from cephalo_cli.runtime.launch import run_ranks\n"
        "from cephalo_cli.errors import InterruptedRunError\n"
        "try: run_ranks('rank_entries:wait_for_signal', None, Cluster.model_validate_json(sys.argv[1]))\n"
        "except InterruptedRunError as error: sys.exit(error.exit_code)\n"
    )
    cluster = make_cluster([None, None]).model_dump_json(exclude_none=True)
    with started(code, cluster, stderr=subprocess.PIPE) as parent:
        assert parent.stderr is not None
        while sum(map(holds_back_ctrl_c, children(parent.pid))) < 2:
            assert parent.poll() is None
            time.sleep(0.001)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(60) == 130
        assert not parent.stderr.read()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def holds_back_ctrl_c(pid: int) -> bool:
    """Whether a process has blocked SIGINT; False where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return bool(blocked >> (signal.SIGINT - 1) & 1)


def test_under_an_outer_launcher_each_process_is_one_rank(make_cluster: MakeCluster) -> None:
    code = (
        "import os, sys; from cephalo_cli.artifacts import Cluster; from cephalo_cli.runtime import launch\n"
        "print(launch.run_ranks('rank_entries:describe', {}, Cluster.model_validate_json(sys.argv[1]),\n"
        "                       external=launch.external_launcher(os.environ)))\n"
    )
    cluster = make_cluster([None, 1.0], nodes=2).model_dump_json(exclude_none=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, cluster],
            stdout=subprocess.PIPE,
            text=True,
            env=_environ(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert outputs[1] == "None\n"
    assert outputs[0].startswith("[[0, 'd0', None, ")


def test_an_outer_launcher_is_recognised_or_refused() -> None:
    complete = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    assert external_launcher({}) is None
    assert external_launcher({"MASTER_ADDR": "host"}) is None
    assert external_launcher(complete) == RankEnvironment(rank=1, world_size=4)
    with pytest.raises(UsageError, match="RANK and WORLD_SIZE are set but MASTER_ADDR and MASTER_PORT not"):
        external_launcher({"RANK": "0", "WORLD_SIZE": "2"})
    for name, value, expected in (
        ("RANK", "one", "RANK is 'one', expected a number from 0 to 3"),
        ("RANK", "4", "RANK is '4', expected a number from 0 to 3"),
        ("RANK", "-1", "RANK is '-1', expected a number from 0 to 3"),
        ("WORLD_SIZE", "0", "WORLD_SIZE is '0', expected a number from 1 to 1000000"),
        ("MASTER_PORT", "99999", "MASTER_PORT is '99999', expected a number from 1 to 65535"),
        ("MASTER_PORT", "", "MASTER_PORT is '', expected a number from 1 to 65535"),
        ("MASTER_ADDR", "", "MASTER_ADDR is empty, expected the host of rank 0"),
    ):
        with pytest.raises(UsageError) as refused:
            external_launcher(complete | {name: value})
        assert str(refused.value) == expected


def test_a_cluster_that_cannot_be_started_is_refused(make_cluster: MakeCluster) -> None:
    with pytest.raises(UsageError, match="the launcher started 3 processes, cluster 'c' has 2 devices"):
        run_ranks("rank_entries:describe", {}, make_cluster([None] * 2), external=RankEnvironment(rank=0, world_size=3))
    content = make_cluster([None] * 2, nodes=2).model_dump_json(exclude_none=True)
    two_hosts = Cluster.model_validate_json(content.replace('"backend":"cpu"', '"backend":"cuda"'))
    with pytest.raises(UsageError, match="has 2 nodes, but ranks can only be started on this one"):
        run_ranks("rank_entries:describe", {}, two_hosts)


def _environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **more}
