"""From files to documents and records, one at a time: no file need fit into memory.

Note: pieces
    A text file may be larger than memory, so it is tokenised in pieces of about 64 KiB. A piece ends behind a line
    break that no white space follows; where there is none for 1 MiB, before a space. A tokenizer that looks further
    than that sees the pieces as texts of their own.
"""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.executor.datasets.formats import DataFiles

__all__ = ["Completion", "Document", "content_digest", "read_records"]

PIECE_BYTES = 2**16
LONGEST_PIECE = 2**20
CHAT_FIELDS = ("prompt", "completion")
EXPECTED = 'expected "text", or "prompt" and "completion"'


@dataclass(frozen=True, kw_only=True)
class Document:
    """Text to be packed with other documents."""

    pieces: Iterable[str]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A prompt, and the completion that is to be learned."""

    prompt: str
    completion: str


def read_records(files: DataFiles) -> Iterator[Document] | Iterator[Completion]:
    """Read text, JSON-lines or Parquet files; all records of a source are of one kind, that of the first.

    Raises:
        ArtifactError: While reading, with the file and the line or row, and what was expected there.
        UsageError: The package ``pyarrow`` is needed and not installed, or there is no record.
    """
    if files.format == "text":
        return (Document(pieces=_pieces(path)) for path in files.paths)
    read = _json_lines if files.format == "json-lines" else _parquet_rows
    found = chain.from_iterable(read(path) for path in files.paths)
    first = next(found, None)
    if first is None:
        raise UsageError("holds no records", where=f"--data {files.name}")
    has_text, has_chat = "text" in first[1], any(name in first[1] for name in CHAT_FIELDS)
    if has_text == has_chat:
        fields = ", ".join(sorted(first[1])) or "none"
        raise ArtifactError(f"{EXPECTED}, found the fields {fields}", where=first[0])
    everything = chain([first], found)
    if has_text:
        return (Document(pieces=(_text(where, record, "text"),)) for where, record in everything)
    return (
        Completion(prompt=_text(where, record, "prompt"), completion=_text(where, record, "completion"))
        for where, record in everything
    )


def content_digest(paths: Iterable[Path]) -> str:
    """Digest of the bytes of files, in order.

    Raises:
        ArtifactError: One cannot be read.
    """
    whole = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    return whole.hexdigest()


def _text(where: str, record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        found = f"found {type(value).__name__}" if field in record else "found none"
        raise ArtifactError(f'expected a text in "{field}", {found}', where=where)
    return value


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                record = json.loads(line.strip())
            except (ValueError, RecursionError) as error:
                raise ArtifactError(f"expected one JSON object a line: {error}", where=where) from error
            if not isinstance(record, dict):
                raise ArtifactError(f"expected a JSON object, found {type(record).__name__}", where=where)
            yield where, record


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional package
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise UsageError(
            "Parquet files need the package pyarrow, which is not installed",
            where=f"--data {path}",
            hint="pip install 'cephalo_cli[parquet]', or make it .jsonl",
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = [name for name in ("text", *CHAT_FIELDS) if name in names]
            if not wanted:
                raise ArtifactError(f"{EXPECTED} as columns, found {', '.join(names) or 'none'}", where=str(path))
            number = 0
            for batch in file.iter_batches(columns=wanted, batch_size=1024):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"cannot be read as Parquet: {error}", where=str(path)) from error


def _pieces(path: Path) -> Iterator[str]:
    """Cut a text file, see the note above."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, num_bytes = "", 0
    try:
        with path.open("rb") as file:
            while block := file.read(PIECE_BYTES):
                rest += decoder.decode(block)
                num_bytes += len(block)
                cut = _place_to_cut(rest)
                if cut:
                    yield rest[:cut]
                    rest = rest[cut:]
            rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"is not UTF-8 text: {error.reason} near byte {num_bytes + error.start}",
            where=str(path),
            hint="convert it, or leave --tokenizer out: then its bytes are the tokens",
        ) from error
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    if rest:
        yield rest


def _place_to_cut(text: str) -> int:
    """Where a piece ends; 0 where more text is needed to tell."""
    place = text.rfind("\n", 0, len(text) - 1)
    while place >= 0:
        if not text[place + 1].isspace():
            return place + 1
        place = text.rfind("\n", 0, place)
    if len(text) < LONGEST_PIECE:
        return 0
    return max(text.rfind(" "), 0) or len(text)
