"""Exporting from a training: rank 0 writes, the others send it their shards, one unit after the other."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import CephaloError
from cephalo_cli.executor.engine import CephaloEngine
from cephalo_cli.executor.export import Export, UnitTensors, check_target
from cephalo_cli.executor.flat import FlatLayout
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.peers import broadcast_value, reaching_peers
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.layout import Range

__all__ = ["export_weights", "prepare_export"]

PIECE_BYTES = 1 << 26
"""Bytes sent at a time."""


def prepare_export(
    options: TrainOptions, model: Model, weights: Pretrained | None, group: dist.ProcessGroup
) -> Export | None:
    """Check on rank 0 what is to be exported; every rank calls it.

    Returns:
        The export on rank 0, where one is asked for.

    Raises:
        CephaloError: It cannot be; on all ranks.
    """
    if options.export is None:
        return None
    export: Export | None = None
    problem: CephaloError | None = None
    if dist.get_rank(group) == 0:
        try:
            check_target(Path(options.export), replaces=options.replace_export)
            export = Export(Path(options.export), model, weights=weights, dtype=options.export_dtype)
        except CephaloError as error:
            problem = error
    problem = broadcast_value(problem, group)
    if problem is not None:
        raise problem
    return export


def export_weights(export: Export | None, engine: CephaloEngine, group: dist.ProcessGroup) -> None:
    """Write the engine's weights; every rank calls it, rank 0 with its export.

    Raises:
        TrainingError: They cannot be written.
    """
    units = _whole_units(engine, group)
    if export is not None:
        export.write(units)
        return
    for _ in units:
        pass


def _whole_units(engine: CephaloEngine, group: dist.ProcessGroup) -> Iterator[UnitTensors]:
    """Every unit's parameters, whole on rank 0 and empty elsewhere."""
    for unit in engine.units:
        parts = [(unit.unit.name, unit.layout, unit.master)]
        if unit.frozen is not None:
            parts.append((unit.frozen.name, unit.frozen.layout, unit.frozen.master))
        tensors: dict[str, torch.Tensor] = {}
        for name, layout, master in parts:
            tensors |= _whole(layout, master, engine.ranges(name), group, is_replicated=engine.is_replicated)
        yield tensors


def _whole(
    layout: FlatLayout,
    master: torch.Tensor,
    ranges: Sequence[Range],
    group: dist.ProcessGroup,
    *,
    is_replicated: bool,
) -> dict[str, torch.Tensor]:
    """Put a buffer together on rank 0; where state is replicated rank 0 has all of it."""
    if dist.get_rank(group) > 0:
        if not is_replicated:
            _send(master, group)
        return {}
    flat = torch.empty(layout.num_elements, dtype=master.dtype)
    if is_replicated:
        flat.copy_(master)
    else:
        flat[ranges[0].start : ranges[0].stop].copy_(master)
        for source, part in enumerate(ranges[1:], start=1):
            _receive(flat[part.start : part.stop], source, group)
    return {slot.name: slot.view(flat) for slot in layout.slots}


def _send(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    for piece in _pieces(tensor):
        with reaching_peers():
            dist.send(piece.cpu().view(torch.uint8), group=group, group_dst=0)


def _receive(target: torch.Tensor, source: int, group: dist.ProcessGroup) -> None:
    for piece in _pieces(target):
        with reaching_peers():
            dist.recv(piece.view(torch.uint8), group=group, group_src=source)


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor, PIECE_BYTES // tensor.itemsize) if len(tensor) else ()
