"""The device under a rank, and signals."""

import dataclasses
import os
import signal
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.profile import Identity
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import agreement
from cephalo_cli.executor.agreement import StopSignals, check_device
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan

GIB = 2**30
L4 = DeviceType(backend="cuda", memory_bytes=24 * GIB)


def make_identity(name: str, memory_bytes: int, uuid: str | None = None) -> Identity:
    return Identity(name=name, memory_bytes=memory_bytes, uuid=uuid, torch="2.13")


def plan_for(device_type: DeviceType, measured: Identity | None) -> Plan:
    plan = make_plan(make_model(), [[1]])
    cluster = plan.cluster.model_copy(update={"device_types": {"core": device_type}})
    devices = {"core": plan.devices["core"].model_copy(update={"identity": measured})}
    return plan.model_copy(update={"cluster": cluster, "devices": devices})


def context_on(plan: Plan, device: str) -> ProcessContext:
    return ProcessContext(
        cluster=plan.cluster,
        place=plan.cluster.ranks[0],
        device=torch.device(device),
        world_size=1,
        process_group=cast("dist.ProcessGroup", None),
        timeout=timedelta(seconds=1),
        emulation=None,
        emit=lambda _: None,
    )


def check(monkeypatch: pytest.MonkeyPatch, plan: Plan, device: str, here: Identity) -> str | None:
    def identity(*_: Any) -> Identity:
        return here

    monkeypatch.setattr(agreement, "device_identity", identity)
    return check_device(plan, context_on(plan, device))


def test_the_planned_device_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_identity("NVIDIA L4", round(22.5 * GIB))
    assert check(monkeypatch, plan_for(L4, None), "cuda", here) is None
    assert check(monkeypatch, plan_for(L4, here), "cuda", here) is None
    rocm = L4.model_copy(update={"backend": "rocm"})
    assert check(monkeypatch, plan_for(rocm, None), "cuda", here) is None


REFUSED = {
    "another card": (make_identity("NVIDIA L4", 24 * GIB), make_identity("Tesla P40", 24 * GIB, "GPU-1")),
    "another size": (None, make_identity("NVIDIA A100", 80 * GIB)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_device_is_refused_with_both_descriptions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    measured, here = REFUSED[name]
    with pytest.raises(UsageError) as refusal:
        check(monkeypatch, plan_for(L4, measured), "cuda", here)
    assert (
        refusal.value.message
        == {
            "another card": "runs on Tesla P40 (24.0 GiB, GPU-1), the plan was made for NVIDIA L4 (24.0 GiB)",
            "another size": "runs on NVIDIA A100 (80.0 GiB), the plan was made for core with 24.0 GiB",
        }[name]
    )
    assert refusal.value.where == "rank 0 (core on host)"


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="runs on cpu, the plan has cuda"):
        check(monkeypatch, plan_for(L4, None), "cpu", make_identity("Xeon", 8 * GIB))


def test_another_processor_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DeviceType(backend="cpu", memory_bytes=GIB)
    told = check(monkeypatch, plan_for(cpu, make_identity("Xeon", GIB)), "cpu", make_identity("EPYC", 9 * GIB))
    assert told == "rank 0 (core on host) runs on EPYC; the plan was made for Xeon, so its times will be off"
    assert check(monkeypatch, plan_for(cpu, None), "cpu", make_identity("EPYC", GIB)) is None
    pinned = make_identity("EPYC", GIB).model_copy(update={"keeps_to_one_cpu": True})
    told = check(monkeypatch, plan_for(cpu, pinned), "cpu", make_identity("EPYC", GIB))
    assert told == (
        "rank 0 (core on host) may use all CPUs of the host; "
        "the plan was made for one CPU a rank, so its times will be off"
        " (leave starting the ranks to cephalo train, or have the launcher hold each to a CPU of its own)"
    )
    assert check(monkeypatch, plan_for(cpu, pinned), "cpu", pinned) is None


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"driver": "550.54"}, {"driver": "570.86"}, "driver 570.86; the plan was made with driver 550.54"),
        (
            {"torch": "2.12.0+cu126", "backend_version": "12.6"},
            {"torch": "2.13.0+cu128", "backend_version": "12.8"},
            "torch 2.13.0 and cuda 12.8; the plan was made with torch 2.12.0 and cuda 12.6",
        ),
        ({"torch": "2.13.0"}, {"torch": "2.13.0+cu128"}, None),
        ({"driver": None}, {"driver": "570.86"}, None),
        ({"uuid": "GPU-1"}, {"uuid": "GPU-2"}, None),  # another card of the same model
    ],
)
def test_other_versions_are_only_told(
    monkeypatch: pytest.MonkeyPatch, then: dict[str, str | None], now: dict[str, str | None], told: str | None
) -> None:
    card = make_identity("NVIDIA L4", 24 * GIB)
    plan = plan_for(L4, card.model_copy(update=then))
    notice = check(monkeypatch, plan, "cuda", card.model_copy(update=now))
    assert notice == (told and f"rank 0 (core on host) has {told}, so its times may be off")


def test_versions_are_told_once_for_the_ranks_of_a_type_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_identity("NVIDIA L4", 24 * GIB)
    plan = plan_for(L4, here.model_copy(update={"torch": "2.12"}))
    nodes = tuple(Node(name=name, devices=("core", "core")) for name in ("a", "b"))
    plan = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"nodes": nodes})})
    monkeypatch.setattr(agreement, "device_identity", lambda *_: here)
    context = context_on(plan, "cuda")
    told = [check_device(plan, dataclasses.replace(context, place=place)) for place in plan.cluster.ranks]
    assert [notice is not None for notice in told] == [True, False, True, False]


def test_a_card_that_was_measured_as_another_type_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (make_identity("NVIDIA L4", 24 * GIB, uuid) for uuid in ("GPU-slow", "GPU-fast"))
    plan = plan_for(L4, slow)
    devices = plan.devices | {"fast": plan.devices["core"].model_copy(update={"identity": fast})}
    plan = plan.model_copy(update={"devices": devices})
    assert check(monkeypatch, plan, "cuda", slow) is None
    assert check(monkeypatch, plan, "cuda", fast) == (
        "rank 0 (core on host) runs on NVIDIA L4 (24.0 GiB, GPU-fast), which was profiled as fast, so its times will be"
        " off (check the order of visible devices)"
    )


def test_the_first_signal_is_remembered_and_the_second_ends_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has tests ignore it
    try:
        with StopSignals() as signals:
            assert signals.received is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received == signal.SIGTERM
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, heard)
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
