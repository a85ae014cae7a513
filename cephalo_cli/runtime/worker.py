"""What a local rank's process runs: join the control group, become a rank, run the entry, report.

The process is started with the path of the job's folder (see `cephalo_cli.runtime.launch`), and with the signals held
back that end a job, so that it can say that it heard one. torch is loaded only after the process has joined its
control group, so that all its memory counts.
"""

import contextlib
import ctypes
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.errors import CephaloError, InterruptedRunError
from cephalo_cli.runtime.cgroup import DeviceCgroup
from cephalo_cli.runtime.memory_limit import MemoryLimitError
from cephalo_cli.runtime.peers import PeerLostError, is_peer_loss

__all__ = ["HELD_SIGNALS", "RankReport", "as_user_error", "call_entry", "hush_torch", "main", "read_report"]

HELD_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""Signals that end a job, and wait, where the entry wants it, until the entry is ready to hear them."""

PR_SET_PDEATHSIG = 1
"""prctl's request for a signal when the parent ends (Linux, prctl(2))."""


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """How a rank ended."""

    result: Any = None
    """What its entry returned."""
    error: CephaloError | None = None
    """Why it failed."""


def main(job: Path) -> None:
    """Run one rank of a job and end the process."""
    content = json.loads((job / "job.json").read_text())
    rank = int(os.environ["RANK"])
    _end_with_parent(content["parent_pid"])
    (job / f"pid-{rank}").write_text(str(os.getpid()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    hush_torch()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(content["num_threads"][rank])
    if content["cgroups"][rank] is not None:
        # Idle threads must sleep: spinning would eat the device's quota.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if content["cpus"] is not None:
        # Before torch starts threads, which inherit it.
        os.sched_setaffinity(0, {content["cpus"][rank]})
    report = _reported(lambda: _run(job, rank, content), job / f"report-{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    # An interrupted rank has done what it should. Threads that wait for lost ranks must not keep the process.
    os._exit(0 if report.error is None or isinstance(report.error, InterruptedRunError) else report.error.exit_code)


def hush_torch() -> None:
    """Keep torch's native log to fatal errors, unless the user chose otherwise; must come before torch is loaded.

    It tells of every lost connection with a stack, and we say in a line what happened.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def read_report(job: Path, rank: int) -> RankReport | None:
    """Read how a rank ended; None if it ended without saying."""
    try:
        content = (job / f"report-{rank}").read_bytes()
    except FileNotFoundError:
        return None
    report: RankReport = pickle.loads(content)  # noqa: S301 - our own process wrote it, in a folder only we can enter
    return report


def call_entry(entry: str, context: object, arguments: object) -> object:
    """Call ``module:function`` with a rank's context and the job's arguments."""
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)(context, arguments)


def _run(job: Path, rank: int, content: dict[str, Any]) -> RankReport:
    """Be a rank. The report is written before the process group is left, which the other ranks notice at once."""
    if not content["holds_signals"]:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
    cgroup = None
    if content["cgroups"][rank] is not None:
        cgroup = DeviceCgroup.from_json(content["cgroups"][rank])
        cgroup.join(os.getpid())
    from cephalo_cli.runtime.process import rank_process  # noqa: PLC0415 - loads torch, see above

    with (
        _events(job / f"events-{rank}") as emit,
        rank_process(
            Cluster.model_validate_json(json.dumps(content["cluster"])),
            rank,
            timeout=timedelta(seconds=content["timeout_s"]),
            emit=emit,
            cgroup=cgroup,
            enforce_memory=content["enforce_memory"],
        ) as context,
    ):
        return _reported(
            lambda: RankReport(result=call_entry(content["entry"], context, content["arguments"])),
            job / f"report-{rank}",
        )


def _reported(work: Callable[[], RankReport], path: Path) -> RankReport:
    """Turn whatever work raises into a report, and write it unless a report is there already."""
    try:
        report = work()
    except KeyboardInterrupt:
        report = RankReport(error=InterruptedRunError("interrupted"))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be reported
        report = RankReport(error=as_user_error(error))
    for number in HELD_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(report))
        part.rename(path)
    return report


def as_user_error(error: Exception) -> CephaloError:
    """Give an error for users: as it is, or with the loss of a peer or the lack of memory named.

    Anything else is a fault of ours and shows where it happened.
    """
    if isinstance(error, CephaloError):
        return error
    if is_peer_loss(error):
        return PeerLostError(f"a transfer between ranks failed: {error}")
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or "DefaultCPUAllocator: " in str(error):
        return MemoryLimitError(f"out of memory: {error}")
    traceback.print_exc()
    return CephaloError(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _events(path: Path) -> Iterator[Any]:
    with path.open("a", buffering=1) as file:
        yield lambda event: file.write(json.dumps(event) + "\n")


def _end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)
