"""Watching local ranks to their end, and finding the reason when one fails.

Note: how a job ends
    Local ranks are started and supervised by torch's elastic agent, without restarts. When one ends with an error the
    agent sends the others SIGTERM; those that are stuck (on a device that waits for the lost rank) are killed after
    `STUCK_AFTER_S`. A signal to this process is passed on once, with time to save a checkpoint; a second one ends at
    once. Each rank reports how it ended in a file. The reason shown is the first of: a rank's own error, a rank that
    was killed or ended without a word, an interruption, a lost connection (which another rank caused).
"""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.errors import CephaloError, InterruptedRunError, TrainingError
from cephalo_cli.quantities import format_bytes
from cephalo_cli.runtime.cgroup import DeviceCgroup
from cephalo_cli.runtime.memory_limit import MemoryLimitError
from cephalo_cli.runtime.peers import PeerLostError
from cephalo_cli.runtime.worker import HELD_SIGNALS, RankReport, read_report

__all__ = ["JobEnd", "raise_reason", "supervise"]

STUCK_AFTER_S = 5.0
"""How long ranks may take to end after another one failed."""
GRACE_S = 60
"""How long ranks may take to end after a signal: they save a checkpoint."""
POLL_S = 0.1
"""How often ranks are looked at."""
BOOTSTRAP = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}); "
    "import json, pathlib, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cephalo_cli.runtime import worker; worker.main(pathlib.Path(sys.argv[2]))"
)
"""What a rank's interpreter runs: it finds modules where this process does. Signals wait until it can say something."""


@dataclass(kw_only=True)
class JobEnd:
    """How a job ended."""

    reports: list[RankReport | None] = field(default_factory=list)
    """What each rank reported; None for a rank that ended without a word."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    """Exit codes of ranks that failed; minus the signal's number when a signal ended them."""
    cut_short: dict[int, str] = field(default_factory=dict)
    """Ranks that were killed because they were stuck after another rank's end, and how they were found."""
    signal_number: int | None = None
    """The signal that ended the job, if one did."""


def supervise(job: Path, num_ranks: int, on_event: Callable[[int, Any], None] | None) -> JobEnd:
    """Start a job's ranks on this host and return when all have ended.

    Args:
        job: The job's folder, with ``job.json`` in it.
        num_ranks: How many ranks.
        on_event: Called in another thread with a rank and the JSON value it emitted.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException  # noqa: PLC0415 - torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415 - torch
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415 - torch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=job.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=POLL_S,
        local_addr="127.0.0.1",
        logs_specs=DefaultLogsSpecs(log_dir=str(job / "logs")),
        shutdown_timeout=GRACE_S,
        signals_to_handle=",".join(number.name for number in _heard()),
    )
    end = JobEnd()
    watch = _Watch(job, num_ranks, on_event)
    with _quiet_agent(), watch:
        try:
            elastic_launch(config, sys.executable)("-c", BOOTSTRAP, json.dumps(sys.path), str(job))
        except ChildFailedError as failed:
            end.exit_codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        except SignalException as received:
            end.signal_number = int(received.sigval)
    if watch.error is not None:
        raise watch.error
    end.cut_short = watch.cut_short
    end.reports = [read_report(job, rank) for rank in range(num_ranks)]
    return end


def raise_reason(end: JobEnd, cluster: Cluster, cgroups: Sequence[DeviceCgroup | None], timeout_s: float) -> None:
    """Raise the error that ended a job; return when every rank did what it should.

    Args:
        end: How the job ended.
        cluster: The cluster, to name ranks.
        cgroups: Each rank's control group, still in place.
        timeout_s: How long one rank could wait for another.
    """
    errors = {rank: report.error for rank, report in enumerate(end.reports) if report and report.error}
    lost = {rank: error for rank, error in errors.items() if isinstance(error, PeerLostError)}
    stopped = {rank: error for rank, error in errors.items() if isinstance(error, InterruptedRunError)}
    for rank in sorted(errors.keys() - lost.keys() - stopped.keys()):
        raise _with_rank(errors[rank], cluster, rank)
    for rank in range(len(end.reports)):
        if end.reports[rank] is None and rank not in end.cut_short:
            reason = _unreported(end.exit_codes.get(rank), cluster, rank, cgroups[rank])
            if reason is not None:
                raise reason
    if lost:
        _raise_hung(end, cluster, timeout_s)
    for interruption in stopped.values():
        raise interruption
    _raise_interruption(end, cluster)
    for rank, error in lost.items():
        raise _with_rank(error, cluster, rank)
    if end.exit_codes:
        raise TrainingError(f"ranks ended with exit codes {end.exit_codes}")


def _raise_interruption(end: JobEnd, cluster: Cluster) -> None:
    """Say which signal ended the job, or a rank that had no time to say so itself."""
    if end.signal_number is not None:
        name = signal.Signals(end.signal_number).name
        raise InterruptedRunError(f"stopped by {name}", signal_number=end.signal_number)
    terminated = [rank for rank, code in end.exit_codes.items() if code == -signal.SIGTERM and not end.reports[rank]]
    if terminated:
        names = " or ".join(_name(cluster, rank) for rank in sorted(terminated))
        raise InterruptedRunError(f"{names} was stopped by SIGTERM", signal_number=int(signal.SIGTERM))


def _raise_hung(end: JobEnd, cluster: Cluster, timeout_s: float) -> None:
    """Name the ranks that others waited for in vain."""
    hung = [rank for rank in sorted(end.cut_short) if end.reports[rank] is None]
    if hung:
        names = " and ".join(f"{_name(cluster, rank)} {end.cut_short[rank]}" for rank in hung)
        raise TrainingError(
            f"{names} and did not answer for {timeout_s:g} s", hint="--timeout allows longer; what holds it up?"
        )


def _unreported(
    exit_code: int | None, cluster: Cluster, rank: int, cgroup: DeviceCgroup | None
) -> TrainingError | None:
    """Why a rank ended without a word; None for SIGTERM, which the agent sends too."""
    if exit_code is None or exit_code == -signal.SIGTERM:
        return None
    name = _name(cluster, rank)
    if cgroup is not None and cgroup.num_oom_kills() > 0:
        limit = cluster.device_types[cluster.ranks[rank].device].memory_bytes or 0
        error = MemoryLimitError(
            f"{name} was killed because it went over its memory limit of {format_bytes(limit)}",
            hint="profile with a smaller --max-microbatch; plan with a smaller --memory-fraction or a larger --reserve",
        )
        error.rank = rank
        return error
    if exit_code < 0:
        return TrainingError(f"{name} was killed by {signal.Signals(-exit_code).name}")
    return TrainingError(f"{name} ended with exit code {exit_code}")


def _name(cluster: Cluster, rank: int) -> str:
    place = cluster.ranks[rank]
    return f"rank {rank} ({place.device} on {place.node})"


def _with_rank(error: CephaloError, cluster: Cluster, rank: int) -> CephaloError:
    """The error with the rank named, unless it says already where it happened."""
    if error.where is None:
        error.where = _name(cluster, rank)
    if isinstance(error, MemoryLimitError):
        error.rank = rank
    return error


class _Watch(contextlib.AbstractContextManager["_Watch"]):
    """A thread that passes events on, and kills ranks that are stuck after another rank's failure."""

    def __init__(self, job: Path, num_ranks: int, on_event: Callable[[int, Any], None] | None) -> None:
        self.cut_short: dict[int, str] = {}
        self.error: Exception | None = None
        """What went wrong when an event was passed on; ranks are watched all the same."""
        self._job = job
        self._num_ranks = num_ranks
        self._on_event = on_event
        self._read_bytes = [0] * num_ranks
        self._polls_since_failure = 0
        self._num_signals = 0
        self._wakeup_before = -1
        self._heard_fd, self._told_fd = os.pipe()
        for descriptor in (self._heard_fd, self._told_fd):
            os.set_blocking(descriptor, False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cephalo-watch", daemon=True)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._told_fd, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup_before)
        for descriptor in (self._heard_fd, self._told_fd):
            os.close(descriptor)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._pass_on_events()
            self._end_the_stuck()
            self._obey_a_second_signal()
        self._pass_on_events()

    def _pass_on_events(self) -> None:
        for rank in range(self._num_ranks):
            path = self._job / f"events-{rank}"
            if self._on_event is None or not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read_bytes[rank])
                complete, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes[rank] += len(complete) + len(newline)
            try:
                for line in complete.splitlines():
                    self._on_event(rank, json.loads(line))
            except Exception as error:  # noqa: BLE001 - raised again when the ranks have ended
                self.error, self._on_event = error, None

    def _end_the_stuck(self) -> None:
        reports = [read_report(self._job, rank) for rank in range(self._num_ranks)]
        alive = self._alive()
        started = [(self._job / f"pid-{rank}").exists() for rank in range(self._num_ranks)]
        failed = any(
            (report is None and started[rank] and rank not in alive)
            or (report is not None and report.error is not None and not isinstance(report.error, InterruptedRunError))
            for rank, report in enumerate(reports)
        )
        self._polls_since_failure += failed
        if self._polls_since_failure * POLL_S > STUCK_AFTER_S:
            self._kill(alive)

    def _obey_a_second_signal(self) -> None:
        """The agent waits for ranks after the first signal; after a second one there is nothing to wait for."""
        with contextlib.suppress(BlockingIOError):
            self._num_signals += sum(number in HELD_SIGNALS for number in os.read(self._heard_fd, 64))
        if self._num_signals > 1:
            self._kill(self._alive())

    def _kill(self, alive: Mapping[int, int]) -> None:
        for rank, pid in alive.items():
            self.cut_short.setdefault(rank, "was stopped (SIGSTOP)" if _is_stopped(pid) else "hung")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _alive(self) -> dict[int, int]:
        """Processes of the ranks that have started and not ended."""
        return {rank: pid for rank in range(self._num_ranks) if (pid := self._living(rank)) is not None}

    def _living(self, rank: int) -> int | None:
        """The rank's process, if it has started and not ended."""
        try:
            pid = int((self._job / f"pid-{rank}").read_text() or "0")
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pid or None


def _is_stopped(pid: int) -> bool:
    """Whether a signal made a process stand still; False where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _heard() -> list[signal.Signals]:
    """Signals that end the job: those that are ignored stay so (nohup ignores SIGHUP)."""
    return [number for number in HELD_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Keep the agent's log to ourselves (we say what happened), and put back what it changes in this process."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {name: logging.getLogger(name).level for name in names}
    environ = dict(os.environ)
    handlers: Mapping[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in HELD_SIGNALS}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for variable in os.environ.keys() - environ.keys():
            del os.environ[variable]
        for number, handler in handlers.items():
            signal.signal(number, handler)
