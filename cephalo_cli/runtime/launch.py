"""Starting ranks: all of a cluster's on this host, or this process as one of those an outer launcher started."""

import contextlib
import functools
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.errors import UsageError
from cephalo_cli.runtime.cgroup import DeviceCgroup, find_home
from cephalo_cli.runtime.memory_limit import MemoryLimitError
from cephalo_cli.runtime.places import common_backend, cpus_of_ranks, num_threads
from cephalo_cli.runtime.supervise import raise_reason, supervise
from cephalo_cli.runtime.worker import HELD_SIGNALS, as_user_error, call_entry, hush_torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["RankEnvironment", "external_launcher", "run_ranks"]

MOST_RANKS = 1_000_000
MOST_PORTS = 65535


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """What an outer launcher (torchrun, Slurm, SkyPilot, ...) tells a process."""

    rank: int
    """Number of this process's rank."""
    world_size: int
    """How many ranks it started."""
    store: "Store | None" = None
    """Where the ranks have met already."""


def external_launcher(environ: Mapping[str, str]) -> RankEnvironment | None:
    """Find out whether an outer launcher started this process as one rank of several.

    Args:
        environ: The environment variables.

    Raises:
        UsageError: It told only a part of what is needed, or something that is not a number.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        raise UsageError(
            f"RANK and WORLD_SIZE are set but {' and '.join(missing)} not",
            hint="use torchrun, or unset RANK and WORLD_SIZE to start local ranks",
        )
    if not environ["MASTER_ADDR"]:
        raise UsageError("MASTER_ADDR is empty, expected the host of rank 0")
    world_size = _number(environ, "WORLD_SIZE", 1, MOST_RANKS)
    _number(environ, "MASTER_PORT", 1, MOST_PORTS)
    return RankEnvironment(rank=_number(environ, "RANK", 0, world_size - 1), world_size=world_size)


def _number(environ: Mapping[str, str], name: str, least: int, most: int) -> int:
    """A number that an outer launcher gave."""
    text = environ[name]
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise UsageError(f"{name} is {text!r}, expected a number from {least} to {most}")
    return int(text)


def run_ranks(
    entry: str,
    arguments: Any,
    cluster: Cluster,
    *,
    external: RankEnvironment | None = None,
    on_event: Callable[[int, Any], None] | None = None,
    enforce_memory: bool = True,
    use_cgroups: bool = True,
    timeout_s: float = 600.0,
    holds_signals: bool = False,
) -> Any:
    """Run a function on every rank of a cluster and return what it returned on rank 0.

    Args:
        entry: ``module:function``; it is called with a `ProcessContext` and ``arguments`` and returns a JSON value.
            On all ranks it should end at about the same time: a rank that fails ends the others.
        arguments: A JSON value.
        cluster: The cluster, catalog facts filled in.
        external: The outer launcher, if any: then only its rank runs, in this process.
        on_event: Called with a rank and a JSON value it emitted; in another thread when ranks are local.
        enforce_memory: Whether emulated devices are held to their memory.
        use_cgroups: Whether control groups may hold emulated devices; otherwise they hold themselves back.
        timeout_s: How long one rank may wait for another.
        holds_signals: Whether signals that end a job wait until the entry unblocks them: it saves before it leaves.

    Returns:
        Rank 0's value; None in the other ranks of an outer launcher.

    Raises:
        CephaloError: A rank's own error, with its class and message. `TrainingError` when a rank was killed or ended
            without a word, `InterruptedRunError` after a signal, `UsageError` when the cluster cannot be started here.
    """
    _check_startable(cluster, external)
    ours = None if external is None else external.rank
    with _device_cgroups(cluster, ours, enforce_memory=enforce_memory, use_cgroups=use_cgroups) as cgroups:
        if external is None:
            job = {
                "entry": entry,
                "arguments": arguments,
                "cluster": cluster.model_dump(mode="json", exclude_none=True),
                "num_threads": [num_threads(cluster, place) for place in cluster.ranks],
                "cpus": _cpus(cluster, cgroups),
                "cgroups": [None if cgroup is None else cgroup.to_json() for cgroup in cgroups],
                "enforce_memory": enforce_memory,
                "timeout_s": timeout_s,
                "holds_signals": holds_signals,
                "parent_pid": os.getpid(),
            }
            with tempfile.TemporaryDirectory(prefix="cephalo-") as folder:
                Path(folder, "job.json").write_text(json.dumps(job))
                end = supervise(Path(folder), len(cluster.ranks), on_event)
            raise_reason(end, cluster, cgroups, timeout_s)
            return None if end.reports[0] is None else end.reports[0].result
        with _joined(cgroups[external.rank]) as cgroup:
            result = _run_here(
                entry,
                arguments,
                cluster,
                external,
                on_event=on_event or _ignore,
                cgroup=cgroup,
                enforce_memory=enforce_memory,
                timeout_s=timeout_s,
                holds_signals=holds_signals,
            )
        return result if external.rank == 0 else None


def _run_here(
    entry: str,
    arguments: Any,
    cluster: Cluster,
    external: RankEnvironment,
    *,
    on_event: Callable[[int, Any], None],
    cgroup: DeviceCgroup | None,
    enforce_memory: bool,
    timeout_s: float,
    holds_signals: bool,
) -> Any:
    """Be one of an outer launcher's ranks."""
    if holds_signals:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    hush_torch()
    from torch._C._distributed_c10d import PrefixStore  # noqa: PLC0415 - loads torch

    from cephalo_cli.runtime.meeting import meet  # noqa: PLC0415 - loads torch
    from cephalo_cli.runtime.process import rank_process  # noqa: PLC0415 - loads torch
    from cephalo_cli.runtime.roll_call import answer_roll_call  # noqa: PLC0415 - loads torch

    rank = external.rank
    try:
        with rank_process(
            cluster,
            rank,
            timeout=timedelta(seconds=timeout_s),
            emit=functools.partial(on_event, rank),
            cgroup=cgroup,
            enforce_memory=enforce_memory,
            store=PrefixStore("run", external.store or meet(external, timeout_s)),
        ) as context:
            try:
                return call_entry(entry, context, arguments)
            except Exception as error:
                # The launcher ends the others when one ends: first they say why.
                for number in HELD_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                named = as_user_error(error)
                if isinstance(named, MemoryLimitError):
                    named.rank = rank
                raise answer_roll_call(named, rank, cluster, timeout_s) from error
    except Exception as error:
        raise as_user_error(error) from error
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


def _ignore(rank: int, event: Any) -> None:
    """Do nothing with an event."""


def _check_startable(cluster: Cluster, external: RankEnvironment | None) -> None:
    if external is not None and external.world_size != len(cluster.ranks):
        error = UsageError(
            f"the launcher started {external.world_size} processes, cluster {cluster.name!r} has "
            f"{len(cluster.ranks)} devices",
            hint="start one process per device; train --elastic plans again for what is there",
        )
        error.is_of_every_rank = True
        raise error
    on_accelerators = common_backend(cluster) != "cpu"
    if external is None and len(cluster.nodes) > 1 and on_accelerators:
        raise UsageError(
            f"cluster {cluster.name!r} has {len(cluster.nodes)} nodes, but ranks can only be started on this one",
            hint="start one process per device with torchrun on every node; cephalo profile --estimate starts none",
        )


@contextlib.contextmanager
def _device_cgroups(
    cluster: Cluster, ours: int | None, *, enforce_memory: bool, use_cgroups: bool
) -> Iterator[list[DeviceCgroup | None]]:
    """Make a control group for every emulated rank that this process starts (``ours``, or all), and remove them.

    All or none: where one cannot be made, every emulated device holds itself back.
    """
    cgroups: list[DeviceCgroup | None] = [None] * len(cluster.ranks)
    emulated = [
        (place.rank, cluster.device_types[place.device].memory_bytes if enforce_memory else None)
        for place in cluster.ranks
        if cluster.device_types[place.device].emulated_speed is not None and ours in (None, place.rank)
    ]
    home = find_home() if use_cgroups and emulated else None
    try:
        if home is not None:
            with contextlib.suppress(OSError):
                for rank, memory_bytes in emulated:
                    cgroups[rank] = DeviceCgroup.create(home, str(rank), memory_bytes)
        complete = all(cgroups[rank] is not None for rank, _ in emulated)
        yield cgroups if complete else [None] * len(cluster.ranks)
    finally:
        for cgroup in cgroups:
            if cgroup is not None:
                cgroup.remove()


def _cpus(cluster: Cluster, cgroups: Sequence[DeviceCgroup | None]) -> list[int] | None:
    """The CPU each rank is to keep to; None where control groups do not hold them all, or they do not fit."""
    if None in cgroups or not hasattr(os, "sched_getaffinity"):
        return None
    return cpus_of_ranks(cluster, sorted(os.sched_getaffinity(0)))


@contextlib.contextmanager
def _joined(cgroup: DeviceCgroup | None) -> Iterator[DeviceCgroup | None]:
    """Have this process in a control group for a while."""
    if cgroup is None:
        yield None
        return
    cgroup.join(os.getpid())
    try:
        yield cgroup
    finally:
        cgroup.leave(os.getpid())
