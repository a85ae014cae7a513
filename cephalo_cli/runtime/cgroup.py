"""Control groups: Linux holds a process to a share of the CPUs and to a limit of memory.

Note: where groups are made
    A process is in one group per hierarchy: one for all controllers (version 2), or one per mounted set of controllers
    (version 1). ``/proc/self/cgroup`` names the groups, ``/proc/self/mountinfo`` says where hierarchies are mounted.
    Groups for devices are made below the caller's own group, so a limit that holds for the caller holds for them. In
    version 2 a group that holds processes cannot give controllers to its children, so there the nearest group above
    that gives them is used.

Note: quota
    A group may run ``speed * period`` CPU seconds in each period and sleeps for the rest. With a short period the
    work of some milliseconds takes ``cpu seconds / speed`` on the wall clock, which is what a slower device does. With
    5 ms, work of 8 ms or more took within 15 % and of 40 ms or more within 3 % of that, at speeds of 0.2 to 0.8.

Source: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, scheduler/sched-bwc.rst.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

__all__ = ["CgroupHome", "DeviceCgroup", "find_home"]

PERIOD_US = 5_000
"""Length of a quota period, longer only for the slowest devices."""
WEIGHT = 10
"""How many ordinary programs a group counts for when CPUs are short: a device is not shared with other programs."""
DEFAULT_WEIGHTS = {1: ("cpu.shares", 1024), 2: ("cpu.weight", 100)}
"""File and usual content by version."""
SMALLEST_QUOTA_US = 1_000
"""The kernel accepts no quota below this."""
PREFIX = "cephalo-"
"""Names of our groups start with this and the number of the process that made them."""
REMOVAL_TRIES = 100
"""How often a group is tried to be removed, 20 ms apart: the kernel needs a moment after its last process."""


@dataclass(frozen=True, kw_only=True)
class CgroupHome:
    """The directories below which groups may be made; the same one for both controllers in version 2."""

    version: Literal[1, 2]
    cpu: Path
    memory: Path


@dataclass(frozen=True, kw_only=True)
class DeviceCgroup:
    """The group of one emulated device."""

    version: Literal[1, 2]
    cpu: Path
    memory: Path

    @classmethod
    def create(cls, home: CgroupHome, name: str, memory_bytes: int | None) -> Self:
        """Make a group with a memory limit and no CPU limit yet.

        Args:
            home: Below which directories.
            name: Its name after our prefix and the process number.
            memory_bytes: Limit of its processes' memory; none when absent.

        Raises:
            OSError: The process may not make groups or set limits here.
        """
        folder = f"{PREFIX}{os.getpid()}-{name}"
        group = cls(version=home.version, cpu=home.cpu / folder, memory=home.memory / folder)
        try:
            for path in group._paths():
                path.mkdir()
            if memory_bytes is not None:
                group._limit_memory(memory_bytes)
        except OSError:
            group.remove()
            raise
        return group

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(version=content["version"], cpu=Path(content["cpu"]), memory=Path(content["memory"]))

    def to_json(self) -> dict[str, Any]:
        """Content for a JSON file."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    def join(self, pid: int) -> None:
        """Put a process in the group; what it allocates from now on counts."""
        for path in self._paths():
            (path / "cgroup.procs").write_text(str(pid))

    def leave(self, pid: int) -> None:
        """Put a process back in the group above."""
        for path in self._paths():
            (path.parent / "cgroup.procs").write_text(str(pid))

    def limit_cpu(self, speed: float) -> None:
        """Hold the group's processes together to ``speed`` CPUs, which they get before other programs do."""
        weight_file, usual = DEFAULT_WEIGHTS[self.version]
        (self.cpu / weight_file).write_text(str(WEIGHT * usual))
        period = max(PERIOD_US, math.ceil(SMALLEST_QUOTA_US / speed))
        quota = max(SMALLEST_QUOTA_US, round(speed * period))
        if self.version == 2:
            (self.cpu / "cpu.max").write_text(f"{quota} {period}")
        else:
            (self.cpu / "cpu.cfs_period_us").write_text(str(period))
            (self.cpu / "cpu.cfs_quota_us").write_text(str(quota))

    def num_throttled(self) -> int:
        """Quota periods in which the group had to sleep."""
        return _keyed(self.cpu / "cpu.stat", "nr_throttled")

    def num_oom_kills(self) -> int:
        """Processes of the group that were killed because the group went over its memory limit."""
        return _keyed(self.memory / ("memory.events" if self.version == 2 else "memory.oom_control"), "oom_kill")

    def remove(self) -> None:
        """Kill what still runs in the group and remove it."""
        for path in self._paths():
            for _ in range(REMOVAL_TRIES):
                if not path.exists():
                    break
                for pid in _processes(path):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    path.rmdir()
                    break
                time.sleep(0.02)

    def _paths(self) -> tuple[Path, ...]:
        return (self.cpu,) if self.cpu == self.memory else (self.cpu, self.memory)

    def _limit_memory(self, memory_bytes: int) -> None:
        names = ("memory.max", "memory.swap.max") if self.version == 2 else ("memory.limit_in_bytes",)
        (self.memory / names[0]).write_text(str(memory_bytes))
        swap = self.memory / ("memory.swap.max" if self.version == 2 else "memory.memsw.limit_in_bytes")
        if swap.exists():
            swap.write_text("0" if self.version == 2 else str(memory_bytes))


def find_home(proc: Path = Path("/proc/self"), root: Path = Path("/")) -> CgroupHome | None:
    """Find where this process may make groups with CPU and memory limits; None where it may not.

    Groups left behind by processes that no longer exist are removed on the way.

    Args:
        proc: The process's directory in procfs.
        root: What mount points are relative to.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = _mounts((proc / "mountinfo").read_text(), root)
    except OSError:
        return None
    own = {name: path for _, names, path in groups for name in (names.split(",") if names else [""])}
    home = None
    if "cpu" in own and "memory" in own:
        cpu, memory = _directory(mounts, "cpu", own["cpu"]), _directory(mounts, "memory", own["memory"])
        if cpu is not None and memory is not None:
            home = CgroupHome(version=1, cpu=cpu, memory=memory)
    elif "" in own:
        unified = _giving_controllers(_directory(mounts, "", own[""]))
        if unified is not None:
            home = CgroupHome(version=2, cpu=unified, memory=unified)
    if home is None or not (os.access(home.cpu, os.W_OK) and os.access(home.memory, os.W_OK)):
        return None
    _remove_abandoned(home)
    return home


def _mounts(mountinfo: str, root: Path) -> dict[str, tuple[str, Path]]:
    """Controller ("" for version 2) to (root of the mount within the hierarchy, mount point)."""
    mounts = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        fields = before.split(" ")
        place = (fields[3], root / fields[4].lstrip("/"))
        if kind == "cgroup2":
            mounts[""] = place
        elif kind == "cgroup":
            mounts |= dict.fromkeys(options.split(","), place)
    return mounts


def _directory(mounts: Mapping[str, tuple[str, Path]], controller: str, group: str) -> Path | None:
    """Where a group's directory is; inside a container the mount may show only a part of the hierarchy."""
    if controller not in mounts:
        return None
    shown, point = mounts[controller]
    path = point / os.path.relpath(group, shown)
    return path if path.is_dir() else point


def _giving_controllers(group: Path | None) -> Path | None:
    """The nearest group, upwards, whose children have both controllers."""
    while group is not None and (group / "cgroup.subtree_control").exists():
        if {"cpu", "memory"} <= set((group / "cgroup.subtree_control").read_text().split()):
            return group
        group = group.parent
    return None


def _remove_abandoned(home: CgroupHome) -> None:
    for path in {*home.cpu.glob(f"{PREFIX}*"), *home.memory.glob(f"{PREFIX}*")}:
        maker = path.name.removeprefix(PREFIX).partition("-")[0]
        if maker.isdecimal() and not Path("/proc", maker).exists() and not _processes(path):
            with contextlib.suppress(OSError):
                path.rmdir()


def _processes(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _keyed(file: Path, key: str) -> int:
    """Value of one line of a ``key value`` file; 0 when it is not there."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(value) for name, value in lines if name == key), 0)
