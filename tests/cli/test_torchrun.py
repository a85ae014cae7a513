"""Training under torchrun: one report, planning again for what is there, and an end for all when a rank is lost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Report
from cephalo_cli.artifacts.profile import DeviceProfile, Profile, UnitProfile
from cephalo_cli.artifacts.store import dumps, read
from cephalo_cli.planner import make_plan as best_plan
from tests.executor.plans import make_model, make_plan

LIMIT_S = 240
CURVE = UnitProfile(microbatch=(1, 2), forward_s=(1e-3, 2e-3), backward_s=(2e-3, 4e-3), working_bytes=(1000, 2000))


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Five samples on three ranks."""
    base = make_plan(make_model(num_layers=1), [[1], [1], [1]])
    profile = Profile(
        cluster=base.cluster,
        model=base.model,
        seq_len=base.seq_len,
        dtype="float32",
        num_parameters=base.num_parameters,
        devices={"core": DeviceProfile(method="estimated", units=dict.fromkeys(("embedding", "block", "head"), CURVE))},
        network="ideal",
    )
    path = tmp_path / "plan.json"
    path.write_text(dumps(best_plan(profile, 5)))
    return path


def torchrun(num_ranks: int, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)),
            *("-m", "cephalo_cli", "train", *arguments, "--data", "random", "--timeout", "60"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
    )


def test_elastic_plans_again_for_fewer_devices_and_goes_on(plan: Path, tmp_path: Path) -> None:
    folder, report = tmp_path / "run", tmp_path / "report.json"
    options = (str(plan), "--checkpoint-dir", str(folder), "--elastic")
    for num_ranks, steps in ((3, 2), (2, 4)):
        job = torchrun(num_ranks, *options, "--steps", str(steps), "-o", str(report), "--force")
        out, err = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 0, err
        assert out.count("Measured step of") == 1
    assert "planned again for 2 core; the plan had 3 core" in err
    assert f"resumed from {folder / 'step-00000002'} after step 2" in err
    measured = read(report, Report)
    assert [step.step for step in measured.steps] == [3, 4]
    assert sum(rank.num_samples or 0 for rank in measured.ranks) == 5
    assert len(measured.ranks) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000004"]


def test_elastic_goes_on_when_hosts_are_lost_and_come(plan: Path, tmp_path: Path) -> None:
    """Three launchers with one rank each stand for three hosts: one is killed with its rank, later another comes."""
    folder, logs = tmp_path / "run", [tmp_path / f"host-{index}.log" for index in range(4)]
    port = free_port()
    hosts: list[subprocess.Popen[bytes]] = []

    def join() -> None:
        launcher = (
            *("--nnodes", "2:3", "--nproc-per-node", "1", "--max-restarts", "9", "--monitor-interval", "0.3"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic"),
            *("--local-addr", "localhost"),
            *("--rdzv-conf", "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"),
        )
        training = ("--data", "random", "--steps", "1000000", "--checkpoint-every", "5", "--elastic", "--keep", "2")
        with logs[len(hosts)].open("wb") as log:
            hosts.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "torch.distributed.run", *launcher),
                        *("-m", "cephalo_cli", "train", str(plan), "--checkpoint-dir", str(folder), *training),
                        *("--timeout", "60"),
                    ],
                    stdout=log,
                    stderr=log,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(Path.cwd()),
                        "OMP_NUM_THREADS": "1",
                        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # torch 2.13 lets no host join later without it
                    },
                )
            )

    try:
        join()
        wait_until(lambda: port_is_open(port))  # the first host keeps the store
        join()
        join()
        wait_until(lambda: list(folder.glob("step-*")))
        for pid in (hosts[1].pid, *children(hosts[1].pid)):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: newest(folder) > 10 and b"resumed from" in logs[0].read_bytes())
        join()
        wait_until(lambda: logs[0].read_bytes().count(b"resumed from") == 2)
        before = newest(folder)
        wait_until(lambda: newest(folder) > before)
    finally:
        for host in hosts:
            host.send_signal(signal.SIGTERM)
        for host in hosts:
            host.wait(LIMIT_S)
    told = logs[0].read_text()
    assert told.count("planned again for 2 core; the plan had 3 core") == 1  # with three ranks the plan is the file's
    stopped = re.search(r"stopped after step (\d+); a checkpoint is in", told)
    assert stopped is not None
    assert f"resumed from {folder / f'step-{int(stopped[1]):08d}'} after step {stopped[1]}" in told  # nothing was lost
    manifest = json.loads((folder / f"step-{newest(folder):08d}" / "manifest.json").read_text())
    assert manifest["position"] == 5 * manifest["step"]


def test_a_lost_rank_ends_the_others_with_its_name(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = torchrun(3, str(plan), "--steps", "1000000", "--checkpoint-dir", str(folder), "--checkpoint-every", "1")
    end = time.monotonic() + LIMIT_S
    while not list(folder.glob("step-*")) and time.monotonic() < end:
        time.sleep(0.1)
    ranks = children(job.pid)
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    _, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 1
    errors = set(re.findall(r"cephalo: error: (.*)", err))
    assert errors
    for error in errors:  # a survivor may also name the other survivor, which has left by then
        assert error.startswith("rank 1 (core on host) ") or " and rank 1 (core on host) " in error
        assert error.endswith("ended without a word, or did not answer for 60 s")
    assert sorted(re.findall(r"exitcode  : (\S+)", err)) == ["-9", "6", "6"]
    assert not any(Path("/proc", str(pid)).exists() for pid in ranks)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def wait_until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.2)


def newest(folder: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)


def children(pid: int) -> list[int]:
    """A process's children that run the command line, in the order they were started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = re.search(r"PPid:\s+(\d+)", status.read_text())
            words = (status.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent is not None and int(parent[1]) == pid and b"cephalo_cli" in words:
            found.append(int(status.parent.name))
    return sorted(found)
