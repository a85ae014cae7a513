import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cephalo_cli.errors import TrainingError
from cephalo_cli.runtime.cgroup import CgroupHome, DeviceCgroup, find_home
from cephalo_cli.runtime.emulate import Throttle
from cephalo_cli.runtime.heap import anonymous_bytes, peak_anonymous_bytes, reset_peak_anonymous_bytes, trim_heap

V1_MOUNTS = """\
23 1 0:2 / / rw - ext4 /dev/root rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 /box /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


class FakeTime:
    """A wall clock and a CPU clock that move as told."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds


def throttle_on(fake: FakeTime, speed: float, **limit: object) -> Throttle:
    occupied = limit.get("occupied", 0)
    memory = limit.get("memory_bytes")
    assert isinstance(occupied, int)
    assert memory is None or isinstance(memory, int)
    return Throttle(
        speed,
        memory,
        wall_clock=lambda: fake.wall_s,
        cpu_clock=lambda: fake.cpu_s,
        sleep=fake.sleep,
        occupied=lambda: occupied,
    )


@pytest.mark.parametrize(
    ("speed", "wall_s", "cpu_s", "expected_s"),
    [(0.25, 1.0, 1.0, 4.0), (0.5, 3.0, 1.0, 3.0), (2.0, 1.0, 2.0, 1.0), (2.0, 1.0, 4.0, 2.0)],
)
def test_compute_takes_its_cpu_time_divided_by_the_speed(
    speed: float, wall_s: float, cpu_s: float, expected_s: float
) -> None:
    fake = FakeTime()
    with throttle_on(fake, speed).compute():
        fake.wall_s += wall_s
        fake.cpu_s += cpu_s
    assert fake.wall_s == expected_s


def test_a_process_over_its_limit_is_ended() -> None:
    with throttle_on(FakeTime(), 1.0, memory_bytes=2**20, occupied=2**20).compute():
        pass
    with (
        pytest.raises(TrainingError, match=r"an emulated device of 1\.00 MiB is out of memory: .* occupies 2\.00 MiB"),
        throttle_on(FakeTime(), 1.0, memory_bytes=2**20, occupied=2**21).compute(),
    ):
        pass


def test_the_peak_of_memory_counts_what_was_freed_again_and_starts_anew() -> None:
    trim_heap()
    reset = reset_peak_anonymous_bytes()
    before = anonymous_bytes()
    assert before > 0
    held = torch.ones(50_000_000)
    del held
    assert peak_anonymous_bytes() - before > 190_000_000
    if reset:
        reset_peak_anonymous_bytes()
        assert peak_anonymous_bytes() - before < 100_000_000


@pytest.fixture
def version_1(tmp_path: Path) -> tuple[Path, Path]:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(V1_MOUNTS)
    (proc / "cgroup").write_text("4:memory:/box/mine\n1:cpu:/\n0::/\n")
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/mine").mkdir(parents=True)
    return proc, tmp_path


def test_version_1_groups_are_made_below_the_own_group_of_each_hierarchy(version_1: tuple[Path, Path]) -> None:
    proc, root = version_1
    cgroups = root / "sys/fs/cgroup"
    assert find_home(proc, root) == CgroupHome(version=1, cpu=cgroups / "cpu", memory=cgroups / "memory/mine")


def test_groups_of_processes_that_are_gone_are_removed(version_1: tuple[Path, Path]) -> None:
    proc, root = version_1
    abandoned = root / "sys/fs/cgroup/cpu/cephalo-999999999-0"
    foreign = root / "sys/fs/cgroup/cpu/other-999999999-0"
    ours = root / "sys/fs/cgroup/cpu/cephalo-1-0"
    for group in (abandoned, foreign, ours):
        group.mkdir()
    find_home(proc, root)
    assert [group.exists() for group in (abandoned, foreign, ours)] == [False, True, True]


def test_version_2_groups_are_made_where_controllers_are_given_to_children(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/user/session\n")
    session = tmp_path / "sys/fs/cgroup/user/session"
    session.mkdir(parents=True)
    (session / "cgroup.subtree_control").write_text("memory\n")
    (session.parent / "cgroup.subtree_control").write_text("memory cpu pids\n")
    home = find_home(tmp_path, tmp_path)
    assert home == CgroupHome(version=2, cpu=session.parent, memory=session.parent)
    (session.parent / "cgroup.subtree_control").write_text("memory\n")
    assert find_home(tmp_path, tmp_path) is None


def test_limits_are_written_as_each_version_wants_them(tmp_path: Path) -> None:
    home = CgroupHome(version=1, cpu=tmp_path / "c", memory=tmp_path / "m")
    home.cpu.mkdir()
    home.memory.mkdir()
    first = DeviceCgroup.create(home, "0", 2**20)
    assert (first.memory / "memory.limit_in_bytes").read_text() == "1048576"
    first.limit_cpu(0.3)
    assert (first.cpu / "cpu.cfs_quota_us").read_text() == "1500"
    assert (first.cpu / "cpu.cfs_period_us").read_text() == "5000"
    assert (first.cpu / "cpu.shares").read_text() == "10240"
    first.limit_cpu(0.1)
    assert (first.cpu / "cpu.cfs_quota_us").read_text() == "1000"
    assert (first.cpu / "cpu.cfs_period_us").read_text() == "10000"
    second = DeviceCgroup.create(CgroupHome(version=2, cpu=tmp_path, memory=tmp_path), "1", 2**20)
    second.limit_cpu(2.0)
    assert (second.cpu / "cpu.max").read_text() == "10000 5000"
    assert (second.cpu / "cpu.weight").read_text() == "1000"
    assert (second.memory / "memory.max").read_text() == "1048576"
    assert DeviceCgroup.from_json(second.to_json()) == second


@pytest.mark.skipif(find_home() is None, reason="control groups may not be made here")
def test_the_kernel_throttles_a_group_and_removal_ends_its_processes() -> None:
    home = find_home()
    assert home is not None
    group = DeviceCgroup.create(home, "test", 2**28)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
        group.join(burner.pid)
        group.limit_cpu(0.2)
        deadline = time.monotonic() + 30
        while group.num_throttled() < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert group.num_throttled() >= 5
        group.remove()
        assert burner.wait(30) == -9
    assert not group.cpu.exists()
    assert not group.memory.exists()
