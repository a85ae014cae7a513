"""Profiles from measurements made elsewhere.

Note: two tables, one grid
    A profile's curves share one list of microbatch sizes, but times and memory were measured at different ones. Both
    are put on the union of their sizes, read where they lack one as the cost model reads them (`costmodel.tables`).
    Where that would change the slope with which a curve goes on beyond its end, five points of its own line are added.
    So a curve has the value at every size that it had alone (memory: rounded up to a whole byte).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import Cluster, DeviceType
from cephalo_cli.artifacts.faults import nearest
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.profile import DeviceProfile, Profile, UnitKind, UnitProfile
from cephalo_cli.catalog.data import ModelRecord, model_records, normal
from cephalo_cli.costmodel.network import network_from_links
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.errors import ArtifactError
from cephalo_cli.profiler.lengths import tokens_of_sample
from cephalo_cli.profiler.table import LatencyRow, MemoryRow, read_latency_table, read_memory_table
from cephalo_cli.units import num_frozen_parameters, num_parameters

__all__ = ["import_profile"]

NUM_SLOPE_POINTS = 5
"""Points that `costmodel.tables.interpolate` takes the slope from beyond a curve's end."""

MOST_FALL = 1 / 3
"""Part by which a curve's last points may fall and still count as noise (published series: up to 0.19)."""

R = TypeVar("R", LatencyRow, MemoryRow)
_Curve = dict[int, float]


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What the memory table says of one model."""

    working_bytes: _Curve
    num_parameters: int
    flags: tuple[str, ...]


def import_profile(
    cluster: Cluster,
    model: Model,
    *,
    seq_len: int | None,
    dtype: DType,
    latency_csv: str | Path,
    memory_csv: str | Path,
    memory_cluster: str | None = None,
) -> Profile:
    """Make a profile from a table of latencies and a table of memory.

    Device types are found in the table by their name or by their catalog id. A unit without rows costs nothing.
    Repeated rows count as their median. ``working_bytes`` of the table stand for buffers and working memory together.

    Args:
        cluster: The cluster; catalog facts are filled in.
        model: The model, under its name in both tables.
        seq_len: Tokens of one sample; None for vit, whose length follows from the image
            (and whose rows are taken whatever their ``seq_len``).
        dtype: Compute dtype.
        latency_csv: Columns ``model,device,seq_len,dtype,microbatch,forward_ms,backward_ms`` and optionally ``unit``.
        memory_csv: Columns ``cluster,model,dtype,microbatch,working_bytes,parameters``.
        memory_cluster: Which rows of the memory table to use. When None, those that name this cluster; when there are
            none, those of a model with as many parameters; when there are none, all. Of several clusters' rows the
            largest value counts at every size.

    Raises:
        UsageError: The length does not fit the model.
        ArtifactError: A table cannot be read, or lacks the model, a device, the length or the dtype (the message names
            what is missing and what is there), or the times of a unit fall with more samples.
    """
    cluster = catalog.resolve_cluster(cluster)
    tokens = tokens_of_sample(model, seq_len)
    latencies, latency_file = read_latency_table(latency_csv)
    memories, memory_file = read_memory_table(memory_csv)
    latencies = _select_latencies(latencies, model, tokens, dtype, latency_file.path)
    memories = _select_memories(memories, model, dtype, memory_file.path)
    if memory_cluster is not None:
        what = f"{model.name!r} in {dtype} on cluster {memory_cluster!r}"
        memories = _select(memories, lambda row: row.cluster, memory_cluster, what, memory_file.path)
    memory = _memory(_most_fitting(memories, model, cluster.name))
    devices: dict[str, DeviceProfile] = {}
    for name in dict.fromkeys(place.device for place in cluster.ranks):
        rows = _rows_of_device(latencies, name, cluster.device_types[name], latency_file.path)
        units: dict[UnitKind, UnitProfile] = {}
        for kind in _kinds(rows):
            of_kind = [row for row in rows if row.unit == kind]
            _refuse_falling(of_kind, f"{latency_file.path}: {of_kind[0].device}, {kind}")
            units[kind] = _unit(of_kind, memory)
        devices[name] = DeviceProfile(method="imported", units=units)
    return Profile(
        inputs=(latency_file, memory_file),
        cluster=cluster,
        model=model,
        seq_len=tokens,
        dtype=dtype,
        num_parameters=memory.num_parameters,
        num_frozen_parameters=num_frozen_parameters(model),
        devices=devices,
        network=network_from_links(cluster),
    )


# Finding rows ---------------------------------------------------------------------------------------------------------


def _select_latencies(rows: list[LatencyRow], model: Model, seq_len: int, dtype: DType, where: str) -> list[LatencyRow]:
    rows = _rows_of_model(rows, model, where)
    about = f"{model.name!r} in {dtype}"
    rows = _select(rows, lambda row: row.dtype, dtype, about, where)
    if model.family == "vit":
        return rows
    return _select(rows, lambda row: row.seq_len, seq_len, f"{about} at sequence length {seq_len}", where)


def _select(rows: list[R], key: Callable[[R], object], wanted: object, what: str, where: str) -> list[R]:
    found = [row for row in rows if key(row) == wanted]
    if not found:
        known = sorted({str(key(row)) for row in rows})
        near = nearest(str(wanted), known)
        hint = f"it has {', '.join(known)}" + (f"; {near}" if near else "")
        raise ArtifactError(f"the table has no rows for {what}", where=where, hint=hint)
    return found


def _rows_of_device(rows: list[LatencyRow], name: str, device: DeviceType, where: str) -> list[LatencyRow]:
    """Find a device type's rows by the type's own name, else by its catalog id, else by an alias of that id."""
    wanted = [(normal, normal(name))]
    if device.catalog is not None:
        wanted += [(normal, normal(device.catalog)), (_device_key, _device_key(device.catalog))]
    for spell, key in wanted:
        found = [row for row in rows if spell(row.device) == key]
        if found:
            return found
    called = name if device.catalog in (None, name) else f"{name}' or '{device.catalog}"
    what = f"device '{called}' with this model, dtype and sequence length"
    return _select(rows, lambda row: row.device, name, what, where)


def _device_key(name: str) -> str:
    try:
        return catalog.device(name).catalog or normal(name)
    except ArtifactError:
        return normal(name)


def _rows_of_model(rows: list[R], model: Model, where: str) -> list[R]:
    """Find a model's rows by what their names mean in the catalog, else by the letters of its names."""
    same = [row for row in rows if _model_key(row.model) == _model_key(model.name)]
    record: ModelRecord | None = model_records().get(model.name)
    names = {normal(model.name), *(() if record is None else record.aliases)}
    found = same or [row for row in rows if normal(row.model) in names]
    return found or _select(
        rows, lambda row: _model_key(row.model), _model_key(model.name), f"model {model.name!r}", where
    )


def _model_key(name: str) -> str:
    try:
        return catalog.model(name).name
    except ArtifactError:
        return normal(name)


# Memory ---------------------------------------------------------------------------------------------------------------


def _select_memories(rows: list[MemoryRow], model: Model, dtype: DType, where: str) -> list[MemoryRow]:
    rows = _rows_of_model(rows, model, where)
    return _select(rows, lambda row: row.dtype, dtype, f"{model.name!r} in {dtype}", where)


def _most_fitting(rows: list[MemoryRow], model: Model, cluster_name: str) -> list[MemoryRow]:
    """Prefer rows of the cluster itself, then rows of a model with as many parameters; else take all."""
    of_cluster = [row for row in rows if row.cluster == cluster_name]
    of_size = [row for row in rows if row.parameters == num_parameters(model)]
    return of_cluster or of_size or rows


def _memory(rows: list[MemoryRow]) -> _Memory:
    names = sorted({row.cluster for row in rows})
    curves = [_medians((row.microbatch, float(row.working_bytes)) for row in rows if row.cluster == n) for n in names]
    sizes = sorted({size for curve in curves for size in curve})
    parameters = sorted({row.parameters for row in rows})
    flags: list[str] = []
    if len(names) > 1:
        flags.append(f"memory: at every size the largest of clusters {', '.join(names)}")
    if len(parameters) > 1:
        flags.append(f"parameters: the largest of {', '.join(map(str, parameters))}")
    largest = {size: max(_read(curve, size) for curve in curves) for size in sizes}
    return _Memory(working_bytes=largest, num_parameters=parameters[-1], flags=tuple(flags))


# Curves ---------------------------------------------------------------------------------------------------------------


def _kinds(rows: Sequence[LatencyRow]) -> list[UnitKind]:
    return list(dict.fromkeys(row.unit for row in rows))


def _unit(rows: Sequence[LatencyRow], memory: _Memory) -> UnitProfile:
    forward = _medians((row.microbatch, row.forward_s) for row in rows)
    backward = _medians((row.microbatch, row.backward_s) for row in rows)
    grid = _grid(forward, memory.working_bytes)
    flags = list(memory.flags)
    repeated = len(rows) - len(forward)
    if repeated:
        flags.append(f"times: {len(rows)} rows for {len(forward)} sizes, the median of each is used")
    for name, curve in (("forward", forward), ("backward", backward)):
        flags += [f"{name}: {size} samples took less time than fewer" for size in _decreases(curve)]
    return UnitProfile(
        microbatch=tuple(grid),
        forward_s=tuple(_read(forward, size) for size in grid),
        backward_s=tuple(_read(backward, size) for size in grid),
        working_bytes=tuple(math.ceil(_read(memory.working_bytes, size)) for size in grid),
        flags=tuple(flags),
    )


def _refuse_falling(rows: Sequence[LatencyRow], where: str) -> None:
    """Refuse times that fall so far that they say nothing of more samples than were measured."""
    for name, curve in (
        ("forward", _medians((row.microbatch, row.forward_s) for row in rows)),
        ("backward", _medians((row.microbatch, row.backward_s) for row in rows)),
    ):
        tail = list(curve.items())[-NUM_SLOPE_POINTS:]
        (few, before_s), (many, after_s) = tail[0], tail[-1]
        if after_s < before_s * (1 - MOST_FALL):
            raise ArtifactError(
                f"{name} falls from {before_s * 1e3:g} ms at microbatch {few} to {after_s * 1e3:g} ms at {many}, "
                "expected more samples to take longer",
                where=where,
                hint="measure it again, or leave out the rows that are wrong",
            )


def _medians(points: Iterable[tuple[int, float]]) -> _Curve:
    by_size: dict[int, list[float]] = {}
    for size, value in points:
        by_size.setdefault(size, []).append(value)
    return {size: median(by_size[size]) for size in sorted(by_size)}


def _grid(times: _Curve, memory: _Curve) -> list[int]:
    """Unite the sizes of two curves, and carry the end on where it would change either's slope.

    The sizes added lie on the memory's line where it passes through whole bytes: multiples of the run its slope was
    taken over.
    """
    grid = sorted({*times, *memory})
    tails = [list(curve)[-NUM_SLOPE_POINTS:] for curve in (times, memory)]
    end = grid[-NUM_SLOPE_POINTS:]
    if all(tail == end or (tail[-1] <= end[0] and len(end) == NUM_SLOPE_POINTS) for tail in tails):
        return grid
    first, last = tails[1][0], tails[1][-1]
    run = last - first or last
    start = last + ((grid[-1] - last) // run + 1) * run
    return grid + [start + run * step for step in range(NUM_SLOPE_POINTS)]


def _read(curve: Mapping[int, float], size: int) -> float:
    return interpolate(list(curve), list(curve.values()), size)


def _decreases(curve: _Curve) -> list[int]:
    sizes = list(curve)
    return [later for earlier, later in itertools.pairwise(sizes) if curve[later] < curve[earlier]]
