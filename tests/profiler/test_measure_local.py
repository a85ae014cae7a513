from types import SimpleNamespace

import pytest
import torch

from cephalo_cli.profiler import local_cluster


def test_a_machine_without_accelerators_is_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    cluster = local_cluster()
    assert [place.device for place in cluster.ranks] == ["cpu"]
    assert cluster.device_types["cpu"].backend == "cpu"
    assert (cluster.device_types["cpu"].memory_bytes or 0) > 2**28


def test_every_accelerator_is_a_device_of_its_own_type(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [("NVIDIA L4", 24), ("NVIDIA H100 80GB HBM3", 80), ("NVIDIA L4", 24)]
    module = SimpleNamespace(
        get_device_properties=lambda index: SimpleNamespace(name=cards[index][0], total_memory=cards[index][1])
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    cluster = local_cluster()
    assert [place.device for place in cluster.ranks] == ["nvidia-l4", "nvidia-h100-80gb-hbm3", "nvidia-l4"]
    assert cluster.device_types["nvidia-l4"].memory_bytes == 24
    assert cluster.device_types["nvidia-l4"].backend == "cuda"
