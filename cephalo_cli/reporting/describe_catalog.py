"""What the catalog says of its devices and models: lists to look through, and one entry with every number's source."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from cephalo_cli.artifacts.base import DType
from cephalo_cli.catalog import device, model
from cephalo_cli.catalog.coefficients import coefficients
from cephalo_cli.catalog.data import (
    DeviceRecord,
    ModelRecord,
    device_records,
    find,
    model_records,
    named_device,
    normal,
    pcie_rates,
)
from cephalo_cli.catalog.models import model_in_tables
from cephalo_cli.reporting.describe_inputs import describe_model
from cephalo_cli.reporting.sheet import Column, Fact, Facts, Kind, Part, Sheet, Value, shown

__all__ = ["CatalogKind", "catalog_entry", "catalog_list", "entry_parts", "entry_plain", "relatives"]

CatalogKind: TypeAlias = Literal["devices", "models"]
STATE_BYTES = 16
"""Bytes of training state a parameter: float32 weight, gradient and Adam's two moments."""
SHOWN_DTYPES: tuple[DType, ...] = ("float32", "float16", "bfloat16")


def catalog_entry(kind: CatalogKind, name: str) -> str | None:
    """Return the id of the entry that ``--gpus`` or ``--model`` take this name for, else None."""
    if kind == "devices":
        return named_device(name)
    wanted = normal(name)
    known = (key for key, record in model_records().items() if wanted in (key, *record.aliases))
    return model_in_tables(name) or next(known, None)


def catalog_list(kind: CatalogKind, word: str | None = None) -> Sheet:
    """List the entries in whose id, aliases, description or family ``word`` occurs; all of them without one.

    Raises:
        ArtifactError: It occurs nowhere; the nearest name is suggested.
    """
    records = _records(kind)
    names = [key for key, record in records.items() if word is None or _mentions(key, record, normal(word))]
    if word is not None and not names:
        what = kind.removesuffix("s")
        find(word, records, lambda record: record.aliases, what=what, where=f"catalog {kind}")
    return _devices(names) if kind == "devices" else _models(names)


def entry_parts(kind: CatalogKind, key: str) -> list[Part]:
    """Say everything about one entry, with the source of every number."""
    return _device_parts(key) if kind == "devices" else _model_parts(key)


def relatives(kind: CatalogKind, key: str, name: str) -> list[str]:
    """Ids of the other entries in whose id or aliases a name occurs that means one of them: ``a100``, the 80 GB one."""
    word = normal(name)
    return [
        other
        for other, record in _records(kind).items()
        if other != key and any(word in called for called in (other, *record.aliases))
    ]


def entry_plain(kind: CatalogKind, key: str) -> dict[str, object]:
    """Give the same as JSON values; numbers are SI."""
    if kind == "devices":
        record = device_records()[key]
        numbers = [
            {"quantity": quantity, "value": value, "source": source}
            for quantity, _, value, _, source in _numbers(record)
        ]
        errors = {dtype: coefficients(device(key), dtype).expected_error for dtype in record.peak_flops}
        about = {"id": key} | record.model_dump(mode="json", include=set(_ABOUT), exclude_none=True)
        return about | {"numbers": numbers, "estimate_error": errors}
    known = model_records()[key]
    shape = model(key).model_dump(mode="json", exclude_none=True, exclude={"kind", "schema_version", "inputs", "name"})
    return {
        "id": key,
        "aliases": list(known.aliases),
        "table_names": list(known.table_names),
        **shape,
        "num_parameters": known.num_parameters,
        "source": known.source,
    }


def _records(kind: CatalogKind) -> Mapping[str, DeviceRecord | ModelRecord]:
    return device_records() if kind == "devices" else model_records()


def _mentions(key: str, record: DeviceRecord | ModelRecord, word: str) -> bool:
    if isinstance(record, DeviceRecord):
        more = [record.description, record.architecture, record.backend]
    else:
        more = [str(record.shape["family"])]
    return any(word in normal(text) for text in (key, *record.aliases, *more))


# Devices --------------------------------------------------------------------------------------------------------------

_ABOUT = ("description", "aliases", "architecture", "backend")


def _devices(names: Iterable[str]) -> Sheet:
    return Sheet(
        name="devices",
        title="Devices (peaks of dense products in TFLOP/s; - cannot run it)",
        columns=(
            Column(key="device", title="device"),
            Column(key="memory_bytes", title="memory", kind="bytes"),
            Column(key="memory_bandwidth_bytes_per_s", title="bandwidth", kind="link"),
            *(Column(key=f"{dtype}_flops", title=dtype, kind="tera") for dtype in SHOWN_DTYPES),
            Column(key="architecture", title="family"),
        ),
        rows=tuple(map(_device_row, names)),
        notes=("cephalo catalog devices NAME tells more, with sources.",),
    )


def _device_row(name: str) -> dict[str, Value]:
    record = device_records()[name]
    return {
        "device": name,
        "memory_bytes": record.memory_bytes,
        "memory_bandwidth_bytes_per_s": record.memory_bandwidth_bytes_per_s,
        **{f"{dtype}_flops": record.peak_flops.get(dtype) for dtype in SHOWN_DTYPES},
        "architecture": record.architecture,
    }


def _device_parts(key: str) -> list[Part]:
    record = device_records()[key]
    errors = {dtype: coefficients(device(key), dtype).expected_error for dtype in record.peak_flops}
    about = Facts(
        name="device",
        title=f"{key}: {record.description}",
        facts=(
            Fact(key="aliases", label="also called", value=list(record.aliases) or None),
            Fact(key="architecture", label="family", value=record.architecture),
            Fact(key="backend", label="runs with", value=record.backend),
            Fact(
                key="estimate_error",
                label="estimates",
                value="miss by "
                + ", ".join(f"{shown(error, 'percent')} in {dtype}" for dtype, error in errors.items()),
                more="(median)",
            ),
        ),
    )
    numbers = list(_numbers(record))
    sources = list(dict.fromkeys(source for *_, source in numbers))
    table = Sheet(
        name="numbers",
        title="Numbers",
        columns=(
            Column(key="quantity", title="quantity"),
            Column(key="value", title="value"),
            Column(key="source", title="source"),
        ),
        rows=tuple(
            {"quantity": label, "value": shown(value, kind), "source": f"[{sources.index(source) + 1}]"}
            for _, label, value, kind, source in numbers
        ),
        notes=tuple(f"[{number}] {source}" for number, source in enumerate(sources, start=1)),
    )
    return [about, table]


def _numbers(record: DeviceRecord) -> Iterable[tuple[str, str, float, Kind, str]]:
    """Path in the record, words, value, how it is written, and source of every number of a device."""

    def source(path: str) -> str:
        return record.other_sources.get(path, record.source)

    yield "memory_bytes", "memory", record.memory_bytes, "bytes", source("memory_bytes")
    path = "memory_bandwidth_bytes_per_s"
    yield path, "memory bandwidth", record.memory_bandwidth_bytes_per_s, "link", source(path)
    for dtype, peak in record.peak_flops.items():
        yield f"peak_flops.{dtype}", f"peak in {dtype}", peak, "flops", source(f"peak_flops.{dtype}")
    if record.pcie is not None:
        generation, lanes = record.pcie.generation, record.pcie.lanes
        label = f"to the host (PCIe {generation} x{lanes})"
        yield "pcie", label, pcie_rates()[generation] * lanes / 16, "link", source("pcie")
    for path, label in (("board_link_bytes_per_s", "between devices"), ("host_bytes_per_s", "to the host")):
        rate = getattr(record, path)
        if rate is not None:
            yield path, label, rate, "link", source(path)


# Models ---------------------------------------------------------------------------------------------------------------


def _models(names: Iterable[str]) -> Sheet:
    return Sheet(
        name="models",
        title="Models",
        columns=(
            Column(key="model", title="model"),
            Column(key="family", title="family"),
            Column(key="num_parameters", title="parameters", kind="count"),
            Column(key="state_bytes", title="state", kind="bytes"),
            Column(key="num_layers", title="blocks", kind="count"),
            Column(key="hidden_size", title="hidden", kind="count"),
            Column(key="max_seq_len", title="longest", kind="count"),
        ),
        rows=tuple(map(_model_row, names)),
        notes=(
            f"state: what training keeps, {STATE_BYTES} bytes a parameter; longest: tokens of a sample.",
            "cephalo catalog models NAME tells more, with sources.",
        ),
    )


def _model_row(name: str) -> dict[str, Value]:
    record, shape = model_records()[name], model(name)
    return {
        "model": name,
        "family": shape.family,
        "num_parameters": record.num_parameters,
        "state_bytes": STATE_BYTES * record.num_parameters,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "max_seq_len": shape.max_seq_len,
    }


def _model_parts(key: str) -> list[Part]:
    record = model_records()[key]
    about = Facts(
        name="entry",
        title=key,
        facts=(
            Fact(key="aliases", label="also called", value=list(record.aliases) or None),
            Fact(key="table_names", label="in tables", value=list(record.table_names) or None),
            Fact(
                key="num_parameters",
                label="published",
                value=record.num_parameters,
                kind="count",
                more=f"parameters ({record.num_parameters})",
            ),
            Fact(
                key="state_bytes",
                label="training state",
                value=STATE_BYTES * record.num_parameters,
                kind="bytes",
                more=f"({STATE_BYTES} bytes a parameter)",
            ),
            Fact(key="source", label="source", value=record.source),
        ),
    )
    return [about, *describe_model(model(key))]
