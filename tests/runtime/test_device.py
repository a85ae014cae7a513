import json
from pathlib import Path

import pytest
import torch

from cephalo_cli.artifacts import Cluster
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.errors import UsageError
from cephalo_cli.runtime.device import (
    DeviceClock,
    MemoryMeter,
    cache_bytes,
    device_identity,
    driver_version,
    torch_device,
)
from cephalo_cli.runtime.places import device_index, num_threads
from cephalo_cli.runtime.process import process_group_backend

CPU = torch.device("cpu")


def cluster_of(*backends: str) -> Cluster:
    types = {f"d{index}": {"backend": backend, "memory_bytes": 1} for index, backend in enumerate(backends)}
    node = {"name": "n", "devices": list(types)}
    content = {"kind": "cluster", "name": "c", "device_types": types, "nodes": [node], "network": "ideal"}
    return Cluster.model_validate_json(json.dumps(content))


def test_a_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"s": 1.0}

    def finish(device: torch.device) -> None:
        assert device.type == "cuda"
        now["s"] += 0.05

    monkeypatch.setattr(torch.accelerator, "synchronize", finish)
    assert DeviceClock(torch.device("cuda", 0), lambda: now["s"])() == 1.05
    assert DeviceClock(CPU, lambda: now["s"])() == 1.05


def test_the_meter_sees_what_is_allocated_now_and_not_what_was() -> None:
    meter = MemoryMeter(CPU)
    before = meter.now_bytes()
    assert before is not None
    held = torch.empty(50_000_000)
    during = meter.now_bytes()
    del held
    after = meter.now_bytes()
    assert during is not None
    assert after is not None
    assert 200_000_000 <= during - before < 201_000_000
    assert abs(after - before) < 1_000_000


def test_the_meter_sees_a_peak_that_is_over() -> None:
    meter = MemoryMeter(CPU)
    meter.reset()
    before = meter.peak_bytes()
    held = torch.ones(50_000_000)
    del held
    assert meter.peak_bytes() - before > 150_000_000


def test_a_cpu_says_which_it_is() -> None:
    plain = device_identity(CPU, DeviceType(backend="cpu", memory_bytes=5))
    emulated = device_identity(CPU, DeviceType(backend="cpu", memory_bytes=5, emulated_speed=0.5))
    assert plain.name
    assert plain.memory_bytes > 2**28
    assert plain.torch == torch.__version__
    assert emulated.memory_bytes == 5


class _Properties:
    """What torch 2.13 tells of a CUDA device (``torch._C._CudaDeviceProperties``), and of an older build."""

    name = "NVIDIA H200"
    total_memory = 150_000_000_000

    def __init__(self, **more: object) -> None:
        self.__dict__.update(more)


@pytest.mark.parametrize(
    ("properties", "uuid", "clock_hz"),
    [
        (_Properties(uuid="5a3f", clock_rate=1_980_000), "5a3f", 1.98e9),
        (_Properties(pci_bus_id=0x19, pci_domain_id=1), "0001:19", None),
        (_Properties(clock_rate=0), None, None),
    ],
)
def test_an_accelerator_says_what_its_backend_tells(
    monkeypatch: pytest.MonkeyPatch, properties: _Properties, uuid: str | None, clock_hz: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    found = device_identity(torch.device("cuda", 0), DeviceType(backend="cuda", memory_bytes=5))
    assert (found.name, found.memory_bytes) == ("NVIDIA H200", 150_000_000_000)
    assert (found.uuid, found.clock_hz) == (uuid, clock_hz)


def test_a_device_without_properties_is_named_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**34)
    found = device_identity(torch.device("mps", 0), DeviceType(backend="mps", memory_bytes=5))
    assert found.name.endswith("(mps)")
    assert found.memory_bytes == 2**34


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
            "550.54.15",
        ),
        ("sys/module/amdgpu/version", "6.7.0\n", "6.7.0"),
        ("somewhere/else", "1.2", None),
    ],
)
def test_the_kernel_tells_the_drivers_version(tmp_path: Path, file: str, text: str, version: str | None) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert driver_version(object(), tmp_path) == version


def test_the_largest_cache_counts_and_none_where_the_kernel_names_none(tmp_path: Path) -> None:
    assert cache_bytes(CPU, tmp_path) == 0
    for index, size in enumerate(("48K", "1024K", "32768K")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert cache_bytes(CPU, tmp_path) == 32 * 2**20


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device")
def test_a_device_that_is_not_here_is_refused() -> None:
    assert torch_device("cpu", 3) == CPU
    with pytest.raises(UsageError, match="device 1 of backend cuda does not exist here: torch finds 0"):
        torch_device("cuda", 1)


def test_the_backend_follows_from_the_devices() -> None:
    assert process_group_backend(cluster_of("cpu", "cpu")) == "gloo"
    assert process_group_backend(cluster_of("cuda", "cuda")) == "cpu:gloo,cuda:nccl"
    assert process_group_backend(cluster_of("rocm")) == "cpu:gloo,cuda:nccl"
    with pytest.raises(UsageError, match="devices of backends cuda and rocm cannot run in one job"):
        process_group_backend(cluster_of("cuda", "rocm"))


def test_devices_are_counted_within_their_backend() -> None:
    cluster = cluster_of("cpu", "cuda", "cpu", "cuda")
    assert [device_index(cluster, place) for place in cluster.ranks] == [0, 0, 1, 1]
    assert all(num_threads(cluster, place) >= 1 for place in cluster.ranks)
