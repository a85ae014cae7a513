"""Where the ranks of an outer launcher meet, free of what ranks before them left.

Note: a place of its own for each start
    torchrun starts ranks again after one was lost, or when a host came or went, and may keep the store in which they
    met before (torch 2.13 does, with the c10d rendezvous). What the former ranks left there, addresses above all,
    would be taken for that of the new ones, who would then wait for ranks long gone. So the ranks agree on a name
    that nobody used before: each puts up a word of its own, rank 0 answers with all words and a name, and each goes
    ahead once its own word was in the answer and everybody has said so. Words that are left over only make
    rank 0 answer again.
"""

import json
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from cephalo_cli.errors import TrainingError
from cephalo_cli.runtime.launch import RankEnvironment

__all__ = ["meet", "meet_in"]

PAUSE_S = 0.05
"""Between two looks at the store."""


def meet(external: RankEnvironment, timeout_s: float) -> Store:
    """Meet the other ranks that an outer launcher started (environment variables say where).

    Returns:
        A store that only these ranks use; it must be kept, and serves the process group too.

    Raises:
        TrainingError: The others did not come in time.
    """
    timeout = timedelta(seconds=timeout_s)
    try:
        store: Store = next(iter(rendezvous("env://", external.rank, external.world_size, timeout=timeout)))[0]
    except dist.DistNetworkError as error:
        raise TrainingError(
            f"rank {external.rank} cannot reach the others: {str(error).partition(chr(10))[0]}",
            hint="MASTER_ADDR and MASTER_PORT say where ranks meet; is the port in use, or closed to this host?",
        ) from error
    return meet_in(store, external.rank, external.world_size, timeout_s)


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
        f"the {world_size} ranks did not meet within {timeout_s:g} s"
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
