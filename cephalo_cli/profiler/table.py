"""Tables of measurements as comma-separated text: every row is checked, every fault has its line and column."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from cephalo_cli.artifacts import store
from cephalo_cli.artifacts.base import DType, InputFile
from cephalo_cli.artifacts.faults import nearest, one_of
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.errors import ArtifactError

__all__ = ["LatencyRow", "MemoryRow", "read_latency_table", "read_memory_table"]


LONGEST_MS = 8.64e7
"""A day: no unit takes longer with one microbatch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyRow:
    """Forward and backward of one unit, measured once."""

    model: str
    device: str
    seq_len: int
    dtype: DType
    unit: UnitKind
    microbatch: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRow:
    """Memory of one microbatch, measured once."""

    cluster: str
    model: str
    dtype: DType
    microbatch: int
    working_bytes: int
    parameters: int


def read_latency_table(path: str | Path) -> tuple[list[LatencyRow], InputFile]:
    """Read ``model,device,seq_len,dtype,microbatch,forward_ms,backward_ms`` (a block; optional column ``unit``).

    Raises:
        ArtifactError: The file cannot be read, lacks a column or has one too many, or a value is not what its column
            holds.
    """
    columns = ("model", "device", "seq_len", "dtype", "microbatch", "forward_ms", "backward_ms")
    rows, file = _read(path, columns, optional=("unit",))
    return [
        LatencyRow(
            model=row.text("model"),
            device=row.text("device"),
            seq_len=row.count("seq_len"),
            dtype=row.dtype(),
            unit=row.unit(),
            microbatch=row.count("microbatch"),
            forward_s=row.milliseconds("forward_ms"),
            backward_s=row.milliseconds("backward_ms"),
        )
        for row in rows
    ], file


def read_memory_table(path: str | Path) -> tuple[list[MemoryRow], InputFile]:
    """Read ``cluster,model,dtype,microbatch,working_bytes,parameters``. Raises as `read_latency_table`."""
    rows, file = _read(path, ("cluster", "model", "dtype", "microbatch", "working_bytes", "parameters"))
    return [
        MemoryRow(
            cluster=row.text("cluster"),
            model=row.text("model"),
            dtype=row.dtype(),
            microbatch=row.count("microbatch"),
            working_bytes=row.count("working_bytes"),
            parameters=row.count("parameters"),
        )
        for row in rows
    ], file


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a table, with its place for errors."""

    values: Mapping[str, str]
    where: str

    def text(self, column: str) -> str:
        value = self.values[column].strip()
        return value or self._refuse(column, "text")

    def count(self, column: str) -> int:
        value = self.values[column].strip()
        if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) > 0):
            self._refuse(column, "a whole number above 0")
        return int(value)

    def milliseconds(self, column: str) -> float:
        """Seconds above 0, or 0 where an embedding was too quick for the clock."""
        try:
            value = float(self.values[column])
        except ValueError:
            value = math.nan
        may_be_zero = self.unit() == "embedding"
        if not (0 <= value <= LONGEST_MS) or (value == 0 and not may_be_zero):
            least = "of at least 0" if may_be_zero else "above 0"
            self._refuse(column, f"a number {least} and at most {LONGEST_MS:.0f}, a day")
        return value / 1e3

    def dtype(self) -> DType:
        value = self.values["dtype"].strip()
        if value not in get_args(DType):
            self._refuse("dtype", one_of(get_args(DType)))
        return cast("DType", value)

    def unit(self) -> UnitKind:
        value = self.values.get("unit", "block").strip()
        if value not in get_args(UnitKind):
            self._refuse("unit", one_of(get_args(UnitKind)))
        return cast("UnitKind", value)

    def _refuse(self, column: str, expected: str) -> str:
        raise ArtifactError(f"found {self.values[column][:60]!r}, expected {expected}", where=f"{self.where}: {column}")


def _read(path: str | Path, columns: Sequence[str], optional: Sequence[str] = ()) -> tuple[list[_Row], InputFile]:
    text, file = store.read_text(path)
    where = file.path
    lines = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(lines, [])]
    for name in header:
        if name not in (*columns, *optional):
            hint = nearest(name, (*columns, *optional)) or f"the columns are {','.join((*columns, *optional))}"
            raise ArtifactError("unknown column", where=f"{where}: {name}", hint=hint)
    for name in columns:
        if header.count(name) != 1:
            fault = "column is missing" if name not in header else "column is there twice"
            raise ArtifactError(fault, where=f"{where}: {name}", hint=f"the columns are {','.join(columns)}")
    rows = list(_rows(lines, header, where))
    if not rows:
        raise ArtifactError("has no rows below its header", where=where)
    return rows, file


def _rows(lines: Iterator[list[str]], header: list[str], where: str) -> Iterator[_Row]:
    for number, values in enumerate(lines, start=2):
        if not values:
            continue
        place = f"{where}: line {number}"
        if len(values) != len(header):
            raise ArtifactError(f"found {len(values)} values, expected {len(header)}", where=place)
        yield _Row(dict(zip(header, values, strict=True)), place)
