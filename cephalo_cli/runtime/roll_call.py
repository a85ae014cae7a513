"""Who is missing when ranks of an outer launcher lose one another.

Note: roll call
    Nobody watches over the ranks of an outer launcher but the launcher, which does not know why one ended. So a rank
    that fails leaves its reason in the store where ranks meet. One that lost another leaves word too, waits a moment
    for the words of all, and names the rank whose own error it was, or the rank that said nothing: killed, or hung.
"""

import contextlib
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.errors import CephaloError, TrainingError
from cephalo_cli.runtime.peers import PeerLostError

__all__ = ["answer_roll_call"]

PATIENCE_S = 4.0
"""How long a rank waits for the words of the others."""
LOST = "lost another rank"


def answer_roll_call(error: CephaloError, rank: int, cluster: Cluster, timeout_s: float) -> CephaloError:
    """Leave word why this rank ends, and find out which rank caused it.

    Args:
        error: Why this rank ends.
        rank: This rank.
        cluster: The cluster, to name ranks.
        timeout_s: How long one rank may wait for another.

    Returns:
        The error to show: the given one, or one that names the rank that was lost.
    """
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way to it
    is_loss = isinstance(error, PeerLostError)
    with contextlib.suppress(RuntimeError):
        store.set(_key(rank), LOST if is_loss else str(error))
        if is_loss:
            return _named(error, _words(store, rank, len(cluster.ranks)), cluster, timeout_s)
    return error


def _words(store: Store, rank: int, world_size: int) -> dict[int, str | None]:
    """What each other rank says; None for one that says nothing."""
    words: dict[int, str | None] = {}
    end = time.monotonic() + PATIENCE_S
    for other in range(world_size):
        if other == rank:
            continue
        left = timedelta(seconds=max(end - time.monotonic(), 0.01))
        try:
            store.wait([_key(other)], left)
        except dist.DistStoreError:
            words[other] = None
        else:
            words[other] = store.get(_key(other)).decode()
    return words


def _named(error: CephaloError, words: dict[int, str | None], cluster: Cluster, timeout_s: float) -> CephaloError:
    for other, said in words.items():
        if said is not None and said != LOST:
            return PeerLostError(f"{_name(cluster, other)} ended: {said}")
    silent = [_name(cluster, other) for other, said in words.items() if said is None]
    if not silent:
        return error
    return TrainingError(f"{' and '.join(silent)} ended without a word, or did not answer for {timeout_s:g} s")


def _name(cluster: Cluster, rank: int) -> str:
    place = cluster.ranks[rank]
    return f"rank {rank} ({place.device} on {place.node})"


def _key(rank: int) -> str:
    return f"cephalo/end/{rank}"
