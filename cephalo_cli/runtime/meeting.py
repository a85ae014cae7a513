"""Where the ranks of an outer launcher meet, free of what ranks before them left.

Note: a place of its own for each start
    torchrun starts ranks again after one was lost, or when a host came or went, and may keep the store in which they
    met before (torch 2.13 does, with the c10d rendezvous). What the former ranks left there, addresses above all,
    would be taken for that of the new ones, who would then wait for ranks long gone. So the ranks agree on a name
    that nobody used before: each puts up a word of its own, rank 0 answers with all words and a name, and each goes
    ahead once its own word was in the answer and everybody has said so. Words that are left over only make
    rank 0 answer again.

Note: why another thread waits
    torch's client waits without end for whoever took its connection: a foreign service that listens on the port and
    says nothing, or a rank 0 that stands still. So a thread goes to the meeting, and is left behind when time is up.
    Its connection may take `LEFT_BEHIND_S` more, so that torch does not end it just when the interpreter is leaving.
"""

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from cephalo_cli.errors import InterruptedRunError, TrainingError
from cephalo_cli.runtime.launch import RankEnvironment
from cephalo_cli.runtime.worker import HELD_SIGNALS

__all__ = ["meet", "meet_in"]

PAUSE_S = 0.05
"""Between two looks at the store."""
LAST_WORD_S = 2.0
"""How much longer a rank waits to hear who did not come."""
LEFT_BEHIND_S = 60.0
"""How much longer than the ranks wait a connection may take, see the note."""


def meet(external: RankEnvironment, timeout_s: float) -> Store:
    """Meet the other ranks that an outer launcher started (environment variables say where).

    Returns:
        A store that only these ranks use; it must be kept, and serves the process group too.

    Raises:
        TrainingError: The others did not come in time.
        InterruptedRunError: One of the signals that are held back came meanwhile.
    """
    rank, world_size = external.rank, external.world_size
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    hint = "MASTER_ADDR and MASTER_PORT say where ranks meet; is the port in use, or closed to this host?"
    deadline = time.monotonic() + timeout_s

    def come() -> Store:
        store = _open_store(rank, world_size, timeout_s)
        return meet_in(store, rank, world_size, deadline - time.monotonic())

    try:
        store = _in_time(come, timeout_s + LAST_WORD_S)
    except dist.DistError as error:
        reason = str(error).partition("\n")[0].rpartition("message: ")[2]
        raise TrainingError(f"rank {rank} cannot meet the others at {address}: {reason}", hint=hint) from error
    if store is None:
        raise TrainingError(f"rank {rank} had no answer from {address} for {timeout_s:g} s", hint=hint)
    return store


def _open_store(rank: int, world_size: int, timeout_s: float) -> Store:
    """Connect to the store that rank 0 puts up, or that torchrun has put up for it."""
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=timeout_s + LEFT_BEHIND_S),
        wait_for_workers=False,
        multi_tenant=True,
    )
    store.set_timeout(timedelta(seconds=timeout_s))
    return store


def _in_time(work: Callable[[], Store], patience_s: float) -> Store | None:
    """Do something in another thread; None if it takes longer than that.

    Raises:
        InterruptedRunError: A signal that is held back came.
    """
    outcome: list[Store | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=run, name="cephalo-meeting", daemon=True)
    thread.start()
    end = time.monotonic() + patience_s
    while thread.is_alive() and time.monotonic() < end:
        thread.join(PAUSE_S)
        held = signal.sigpending() & HELD_SIGNALS
        if held:
            number = signal.sigwait(held)
            raise InterruptedRunError(
                "stopped while waiting for the other ranks; nothing was trained", signal_number=int(number)
            )
    if not outcome:
        return None
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def meet_in(store: Store, rank: int, world_size: int, timeout_s: float) -> Store:
    """Agree with the other ranks on a part of a store that nobody used before, see the note.

    Raises:
        TrainingError: The others did not come in time.
    """
    board = PrefixStore("cephalo/meeting", store)
    deadline = time.monotonic() + timeout_s
    mine = uuid.uuid4().hex
    board.set(f"word/{rank}", json.dumps([mine, world_size]))
    while time.monotonic() < deadline:
        if rank == 0:
            _answer(board, world_size)
        name, words = _read(board, "answer") or ("", [])
        if len(words) == world_size and words[rank] == mine:
            board.set(f"heard/{name}/{rank}", "yes")
            if board.check([f"heard/{name}/{other}" for other in range(world_size)]):
                return PrefixStore(f"cephalo/{name}", store)
        time.sleep(PAUSE_S)
    missing = [str(other) for other in range(world_size) if _word(board, other, world_size) is None]
    raise TrainingError(
        f"the {world_size} ranks did not meet within {round(timeout_s, 1):g} s"
        + (f": nothing was heard of rank {', '.join(missing)}" if missing else ""),
        hint="start all ranks with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    )


def _answer(board: Store, world_size: int) -> None:
    """Answer the words that are there, unless they were answered."""
    words = [_word(board, rank, world_size) for rank in range(world_size)]
    if None not in words and (_read(board, "answer") or ("", []))[1] != words:
        board.set("answer", json.dumps([uuid.uuid4().hex, words]))


def _word(board: Store, rank: int, world_size: int) -> str | None:
    """A rank's word, where it is of a start with as many ranks."""
    word, counted = _read(board, f"word/{rank}") or (None, 0)
    return word if counted == world_size else None


def _read(board: Store, name: str) -> Any:
    return json.loads(board.get(name)) if board.check([name]) else None
