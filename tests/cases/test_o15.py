"""O15: device numbers mean different cards in different tools."""

from datetime import timedelta
from typing import cast

import pytest
import torch
import torch.distributed as dist

from cephalo_cli.artifacts.cluster import DeviceType, Node
from cephalo_cli.artifacts.profile import Identity
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import agreement
from cephalo_cli.executor.agreement import check_device
from cephalo_cli.runtime.present import recognise
from cephalo_cli.runtime.process import ProcessContext
from tests.executor.plans import make_model, make_plan

GIB = 2**30
CARDS = {
    "rtx-5090": Identity(name="NVIDIA GeForce RTX 5090", memory_bytes=32 * GIB, uuid="GPU-a", torch="2.13"),
    "pro-6000": Identity(name="NVIDIA RTX PRO 6000", memory_bytes=96 * GIB, uuid="GPU-b", torch="2.13"),
}
BASE = make_plan(make_model(), [[1], [1]])
PLAN = BASE.model_copy(
    update={
        "cluster": BASE.cluster.model_copy(
            update={
                "device_types": {
                    name: DeviceType(backend="cuda", memory_bytes=card.memory_bytes) for name, card in CARDS.items()
                },
                "nodes": (Node(name="host", devices=tuple(CARDS)),),
            }
        ),
        "devices": {name: BASE.devices["core"].model_copy(update={"identity": card}) for name, card in CARDS.items()},
    }
)


def context_of(rank: int) -> ProcessContext:
    return ProcessContext(
        cluster=PLAN.cluster,
        place=PLAN.cluster.ranks[rank],
        device=torch.device("cuda", rank),
        world_size=2,
        process_group=cast("dist.ProcessGroup", None),
        timeout=timedelta(seconds=1),
        emulation=None,
        emit=lambda _: None,
    )


@pytest.mark.parametrize("runtime_order", [("rtx-5090", "pro-6000"), ("pro-6000", "rtx-5090")])
def test_o15_the_card_under_a_rank_is_compared_with_the_plan(
    monkeypatch: pytest.MonkeyPatch, runtime_order: tuple[str, str]
) -> None:
    """O15: a runtime that numbers cards the other way round is noticed by name and memory, with both descriptions."""

    def identity(device: torch.device, _: object) -> Identity:
        return CARDS[runtime_order[device.index]]

    monkeypatch.setattr(agreement, "device_identity", identity)
    for rank in range(2):
        if runtime_order == tuple(CARDS):
            assert check_device(PLAN, context_of(rank)) is None
            continue
        with pytest.raises(UsageError) as refusal:
            check_device(PLAN, context_of(rank))
        words = str(refusal.value)
        assert all(card.name in words for card in CARDS.values())
        assert "32.0 GiB" in words
        assert "96.0 GiB" in words
        assert "check the order of visible devices" in words


def test_o15_an_elastic_run_recognises_cards_by_what_they_say() -> None:
    """O15: the device type of a card follows from its name and memory, never from its number."""
    types = PLAN.cluster.device_types
    for name, card in CARDS.items():
        assert recognise(card, types, PLAN.devices) == name
    stranger = Identity(name="Tesla T4", memory_bytes=16 * GIB, torch="2.13")
    assert recognise(stranger, types, PLAN.devices) is None
    unmeasured = {name: profile.model_copy(update={"identity": None}) for name, profile in PLAN.devices.items()}
    assert recognise(CARDS["pro-6000"], types, unmeasured) == "pro-6000"
