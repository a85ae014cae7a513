"""Mistakes of who starts the ranks: each gives one line that says what is wrong, and what to do."""

import socket
from collections.abc import Iterator

import pytest

from tests.cli.commands import cephalo

PLAN = "plans/laptop-mixed.json"
TRAIN = ("--data", "random", "--steps", "2")


def launched(monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[int, str]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = cephalo("train", PLAN, *TRAIN, "--timeout", "5")
    return ran.code, ran.err.splitlines()[-1].removeprefix("cephalo: error: ")


def test_a_plan_for_four_ranks_launched_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    code, error = launched(monkeypatch, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    assert code == 2
    assert error == (
        "the launcher started 2 processes, cluster 'laptop-mixed' has 4 devices"
        " (start one process per device; train --elastic plans again for what is there)"
    )


def test_what_every_rank_finds_is_said_once_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for rank, said in (("0", 1), ("1", 0)):
        for name, value in (where | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(name, value)
        ran = cephalo("train", PLAN, *TRAIN)
        assert (ran.code, ran.err.count("the launcher started 2 processes")) == (2, said)
        assert len(ran.err.splitlines()) == said


def test_a_launcher_that_says_half(monkeypatch: pytest.MonkeyPatch) -> None:
    code, error = launched(monkeypatch, RANK="0", WORLD_SIZE="4")
    assert code == 2
    assert error == (
        "RANK and WORLD_SIZE are set but MASTER_ADDR and MASTER_PORT not"
        " (use torchrun, or unset RANK and WORLD_SIZE to start local ranks)"
    )


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken)}
    code, error = launched(monkeypatch, RANK="0", WORLD_SIZE="4", LOCAL_RANK="0", LOCAL_WORLD_SIZE="4", **where)
    assert code == 6
    assert f"127.0.0.1:{taken}: address already in use" in error
    assert error.endswith(
        "(MASTER_ADDR and MASTER_PORT say where ranks meet; is the port in use, or closed to this host?)"
    )
