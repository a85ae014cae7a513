"""Artifacts on disk: strict reading with the path of the bad value, atomic byte-reproducible writing.

Reading goes outside in: the file, its encoding, its JSON, its kind, its version, and only then its content.
"""

import contextlib
import difflib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from pydantic import BaseModel, ValidationError

from cephalo_cli.artifacts.base import SCHEMA_VERSION, Envelope, InputFile
from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.artifacts.report import Report
from cephalo_cli.errors import ArtifactError

__all__ = ["KINDS", "dumps", "input_file", "json_schema", "loads", "read", "read_any", "read_input", "write"]

KINDS: Mapping[str, type[Envelope]] = {
    "cluster": Cluster,
    "model": Model,
    "profile": Profile,
    "plan": Plan,
    "report": Report,
}
UPGRADES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version to the function that brings a document to the next one."""

MAX_FILE_BYTES = 64 * 2**20
MAX_INTEGER_DIGITS = 19
STANDARD_STREAM = "-"

A = TypeVar("A", bound=Envelope)


def read(path: str | Path, kind: type[A]) -> A:
    """Read one artifact of a known kind; ``-`` reads standard input.

    Raises:
        ArtifactError: The file is missing, too large, not UTF-8, not JSON, of another kind or version, or its content
            breaks the contract; the message names the file and the path of the value.
    """
    return _expect(read_any(path), kind, path)


def read_any(path: str | Path) -> Envelope:
    """Read an artifact of any kind. Raises as `read`."""
    return loads(_read_bytes(path), where=str(path))


def read_input(path: str | Path, kind: type[A]) -> tuple[A, InputFile]:
    """Read one artifact of a known kind together with its name and digest, in one pass (``-`` can be read only once).

    Raises as `read`.
    """
    raw = _read_bytes(path)
    return _expect(loads(raw, where=str(path)), kind, path), _named(path, raw)


def read_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON object that is no artifact, such as another program's configuration, with the same care.

    Raises:
        ArtifactError: The file is missing, too large, not UTF-8, not JSON, or not an object.
    """
    return _parse_object(_read_bytes(path), str(path))


def input_file(path: str | Path) -> InputFile:
    """Name a file and its digest, for an artifact's ``inputs``. Raises as `read`."""
    return _named(path, _read_bytes(path))


def loads(raw: bytes, *, where: str) -> Envelope:
    """Build an artifact from the bytes of a file; ``where`` names the file in errors. Raises as `read`."""
    document = _parse_object(raw, where)
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        found = "has no 'kind'" if kind is None else f"has kind {_shown(kind)}"
        raise ArtifactError(f"{found}, expected one of {', '.join(KINDS)}", where=f"{where}: kind", hint=_near(kind))
    document = _upgrade(document, where)
    try:
        return KINDS[kind].model_validate_json(json.dumps(document))
    except ValidationError as error:
        _refuse(error, KINDS[kind], where)


def dumps(artifact: Envelope) -> str:
    """Write an artifact as JSON: keys in the contract's order, absent values left out, short lists on one line."""
    return _layout(artifact.model_dump(mode="json", exclude_none=True), "") + "\n"


def write(artifact: Envelope, path: str | Path, *, force: bool = False) -> None:
    """Write an artifact atomically; ``-`` writes standard output.

    Raises:
        ArtifactError: The file exists and ``force`` is false, or the folder cannot be written.
    """
    text = dumps(artifact)
    if str(path) == STANDARD_STREAM:
        sys.stdout.write(text)
        return
    write_text(text, path, force=force)


def write_text(text: str, path: str | Path, *, force: bool = False) -> None:
    """Write any text file the way artifacts are written: whole or not at all. Raises as `write`."""
    target = Path(path)
    check_writable(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            Path(scratch).chmod(0o666 & ~umask)
            Path(scratch).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(scratch).unlink()
            raise
    except OSError as error:
        raise ArtifactError(
            f"cannot be written: {error.strerror or error}", where=str(path), hint="give another path with -o"
        ) from error


def check_writable(path: str | Path, *, force: bool = False) -> None:
    """Find out before a long job whether its result could be written.

    Raises:
        ArtifactError: The file exists and ``force`` is false, it is a folder, or its folder cannot be written.
    """
    target = Path(path)
    if str(path) == STANDARD_STREAM:
        return
    if target.is_dir():
        raise ArtifactError("is a folder, expected a file name", where=str(path), hint="give a file name with -o")
    if target.exists() and not force:
        raise ArtifactError("exists already", where=str(path), hint="--force overwrites it")
    parent = target.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ArtifactError(
            f"cannot be written: {parent} is not a writable folder", where=str(path), hint="give another path with -o"
        )


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema of one kind of artifact, each field with its description.

    Raises:
        ArtifactError: There is no such kind.
    """
    if kind not in KINDS:
        raise ArtifactError(f"unknown kind {kind!r}, expected one of {', '.join(KINDS)}", hint=_near(kind))
    schema = KINDS[kind].model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# Reading, step by step ------------------------------------------------------------------------------------------------


def _expect(artifact: Envelope, kind: type[A], path: str | Path) -> A:
    if not isinstance(artifact, kind):
        wanted = cast("str", kind.model_fields["kind"].default)
        raise ArtifactError(
            f"this is a {artifact.kind}, expected a {wanted}", where=str(path), hint=f"give a {wanted} file here"
        )
    return artifact


def _named(path: str | Path, raw: bytes) -> InputFile:
    return InputFile(path=str(path), sha256=hashlib.sha256(raw).hexdigest())


def _read_bytes(path: str | Path) -> bytes:
    if str(path) == STANDARD_STREAM:
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            size = Path(path).stat().st_size
            raise ArtifactError(f"is {size} bytes, artifacts have at most {MAX_FILE_BYTES}", where=str(path))
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError("no such file", where=str(path), hint=_neighbour(Path(path))) from error
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _parse_object(raw: bytes, where: str) -> dict[str, Any]:
    document = _parse_json(raw, where)
    if not isinstance(document, dict):
        raise ArtifactError(f"expected a JSON object, found {_shown(document)}", where=where)
    return document


def _parse_json(raw: bytes, where: str) -> Any:
    if len(raw) > MAX_FILE_BYTES:
        raise ArtifactError(f"is larger than {MAX_FILE_BYTES} bytes, the most an artifact has", where=where)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"is not UTF-8 text (byte {error.start})", where=where) from error
    if not text.strip():
        raise ArtifactError("is empty, expected a JSON object", where=where)
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_bounded_integer,
            parse_float=_bounded_float,
            object_pairs_hook=_unique_keys,
        )
    except json.JSONDecodeError as error:
        message = f"is not complete JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ArtifactError(message, where=where) from error
    except RecursionError as error:
        raise ArtifactError("is nested too deeply for an artifact", where=where) from error
    except ValueError as error:
        raise ArtifactError(str(error), where=where) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"contains {name}, expected finite numbers only")


def _bounded_integer(text: str) -> int:
    if len(text.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise ValueError(f"contains an integer of {len(text.lstrip('-'))} digits, at most {MAX_INTEGER_DIGITS} fit")
    return int(text)


def _bounded_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"contains {text[:40]}, which is larger than any float64")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"has the key {twice!r} twice in one object")
    return document


def _upgrade(document: dict[str, Any], where: str) -> dict[str, Any]:
    version = document.get("schema_version", SCHEMA_VERSION)
    where = f"{where}: schema_version"
    parts = version.split(".") if isinstance(version, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise ArtifactError(f"found {_shown(version)}, expected a version like {SCHEMA_VERSION!r}", where=where)
    if int(parts[0]) > int(SCHEMA_VERSION.split(".")[0]):
        raise ArtifactError(
            f"is version {version}, this program reads up to {SCHEMA_VERSION}", where=where, hint="upgrade cephalo"
        )
    while version in UPGRADES:
        document = UPGRADES[version](document)
        version = document["schema_version"]
    return document


def _refuse(error: ValidationError, model: type[BaseModel], where: str) -> NoReturn:
    first = error.errors()[0]
    location = tuple(part for part in first["loc"] if not _is_union_tag(part))
    path = _field_path(location)
    found = _shown(first["input"])
    if first["type"] == "extra_forbidden":
        raise ArtifactError(
            "unknown key", where=f"{where}: {path}", hint=_near(str(location[-1]), _keys_beside(model, location))
        )
    if first["type"] == "missing":
        raise ArtifactError("is missing", where=f"{where}: {path}", hint="cephalo show --schema lists every field")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if first["type"] == "value_error":
        raise ArtifactError(message, where=f"{where}: {path}" if path else where)
    raise ArtifactError(f"found {found}, expected {message}", where=f"{where}: {path}")


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part.startswith(("literal[", "function-")) or part in _VALUE_NAMES)


def _value_names(base: type[BaseModel]) -> set[str]:
    return {base.__name__}.union(*(_value_names(child) for child in base.__subclasses__()))


_VALUE_NAMES = frozenset(_value_names(BaseModel))


def _field_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _keys_beside(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that could stand where an unknown key stood."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in location[:-1]:
        node = _resolve(node, schema)
        node = node.get("items", {}) if isinstance(part, int) else _child(node, str(part))
    return list(_resolve(node, schema).get("properties", {}))


def _child(node: dict[str, Any], key: str) -> dict[str, Any]:
    child = node.get("properties", {}).get(key) or node.get("additionalProperties") or {}
    return cast("dict[str, Any]", child)


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for choice in node.get("anyOf", ()):
        if "$ref" in choice or choice.get("type") in ("object", "array"):
            node = choice
            break
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def _near(name: object, known: list[str] | None = None) -> str | None:
    close = difflib.get_close_matches(str(name), known if known is not None else list(KINDS), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None


def _neighbour(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"the folder {path.parent} does not exist"
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"did you mean {str(path.parent / close[0])!r}?" if close else None


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Writing --------------------------------------------------------------------------------------------------------------


def _layout(value: Any, indent: str) -> str:
    """Indent objects and lists of objects; keep lists of plain values and empty things on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{deeper}{json.dumps(key)}: {_layout(child, deeper)}" for key, child in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(child, dict | list) for child in value):
        rows = [f"{deeper}{_layout(child, deeper)}" for child in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
