"""Opening pretrained weights on all ranks together: all of them go on, or all stop for the same reason."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist

from cephalo_cli.artifacts.base import InputFile
from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import CephaloError
from cephalo_cli.executor.agreement import compare_ranks
from cephalo_cli.executor.peers import gather_values
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.runtime.process import ProcessContext

__all__ = ["open_weights", "vouch_for_weights"]


def open_weights(folder: Path, model: Model, group: dist.ProcessGroup) -> Pretrained:
    """Open a folder on every rank.

    Raises:
        ArtifactError: A rank cannot; on all ranks.
        UsageError: The library is missing somewhere; on all ranks.
    """
    opened: list[Pretrained] = []
    _together(lambda: opened.append(Pretrained(folder, model)), group)
    return opened[0]


def vouch_for_weights(weights: Pretrained, context: ProcessContext) -> tuple[InputFile, ...]:
    """Make sure that all ranks see the same weights, and that tensors that are there twice are equal.

    The ranks of a node share its files, so they share the reading.

    Returns:
        Every file with its digest.

    Raises:
        ArtifactError: Tensors that should be one differ.
        TrainingError: Two nodes have different files.
    """
    group = context.process_group
    nodes = [place.node for place in context.cluster.ranks]
    mates = [rank for rank, node in enumerate(nodes) if node == context.place.node]
    digests: list[InputFile] = []

    def read() -> None:
        with weights:
            weights.check_copies(mates.index(context.rank), len(mates))
        digests.extend(weights.digests(mates.index(context.rank), len(mates)))

    _together(read, group)
    all_ranks = gather_values(digests, group)
    files = sorted((each for rank in mates for each in all_ranks[rank]), key=lambda each: each.path)
    digest = hashlib.sha256("\n".join(f"{file.path} {file.sha256}" for file in files).encode()).hexdigest()
    compare_ranks({f"the weights in {weights.folder}": digest}, group)
    return tuple(files)


def _together(work: Callable[[], None], group: dist.ProcessGroup) -> None:
    """Do something on all ranks; what goes wrong on one is raised on all."""
    problem: CephaloError | None = None
    try:
        work()
    except CephaloError as error:
        problem = error
    problems: Sequence[CephaloError | None] = gather_values(problem, group)
    first = next((each for each in problems if each is not None), None)
    if first is not None:
        raise first
