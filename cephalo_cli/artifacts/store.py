"""Artifacts on disk: strict reading with the path of the bad value, atomic byte-reproducible writing.

Reading goes outside in: the file, its encoding, its JSON, its kind, its version, and only then its content.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from cephalo_cli.artifacts import strict_json
from cephalo_cli.artifacts.base import SCHEMA_VERSION, Envelope, InputFile
from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.explain import refuse
from cephalo_cli.artifacts.faults import nearest, one_of, shown
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.plausible import refuse_forgotten_units
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.artifacts.proposals import OF_A_MANIFEST, OTHER_FORMATS, inside, neighbour, of_checkpoint
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

MAKERS: Mapping[tuple[str, str], str] = {
    ("cluster", "profile"): "cephalo profile {path} --model MODEL --seq-len N -o PROFILE.json",
    ("profile", "plan"): "cephalo plan {path} --batch-size N -o PLAN.json",
}
"""The command that makes what was expected of what was given."""

STANDARD_STREAM = "-"

A = TypeVar("A", bound=Envelope)


def read(path: str | Path, kind: type[A]) -> A:
    """Read one artifact of a known kind; ``-`` reads standard input.

    Raises:
        ArtifactError: The file is missing, too large, not UTF-8, not JSON, of another kind or version, or its content
            breaks the contract; the message names the file and the path of the value.
    """
    return _expect(loads(_read_bytes(path, wanted=kind), where=_name(path)), kind, path)


def read_any(path: str | Path) -> Envelope:
    """Read an artifact of any kind. Raises as `read`."""
    return read(path, Envelope)


def read_input(path: str | Path, kind: type[A]) -> tuple[A, InputFile]:
    """Read one artifact of a known kind together with its name and digest, in one pass (``-`` can be read only once).

    Raises as `read`.
    """
    raw = _read_bytes(path, wanted=kind)
    return _expect(loads(raw, where=_name(path)), kind, path), _named(path, raw)


def read_object(path: str | Path, *, wanted: type[Envelope] | None = None) -> dict[str, Any]:
    """Read a JSON object that is no artifact, such as another program's configuration, with the same care.

    Args:
        path: The file.
        wanted: The kind of artifact that may stand for it, for what is proposed where there is no such file.

    Raises:
        ArtifactError: The file is missing, too large, not UTF-8, not JSON, or not an object.
    """
    return _parse_object(_read_bytes(path, wanted=wanted), _name(path))


def read_text(path: str | Path) -> tuple[str, InputFile]:
    """Read a text file that is no artifact, such as a table, together with its name and digest.

    Raises:
        ArtifactError: The file is missing, too large, or not UTF-8.
    """
    raw = _read_bytes(path)
    try:
        return raw.decode("utf-8-sig"), _named(path, raw)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"is not UTF-8 text (byte {error.start})", where=_name(path)) from error


def input_file(path: str | Path) -> InputFile:
    """Name a file and its digest, for an artifact's ``inputs``. Raises as `read`."""
    return _named(path, _read_bytes(path))


def loads(raw: bytes, *, where: str) -> Envelope:
    """Build an artifact from the bytes of a file; ``where`` names the file in errors. Raises as `read`."""
    document = _parse_object(raw, where)
    kind = document.get("kind")
    if kind is None and document.keys() >= OF_A_MANIFEST:
        raise ArtifactError("is the manifest of a checkpoint", where=where, hint=of_checkpoint(Path(where).parent))
    if not isinstance(kind, str) or kind not in KINDS:
        found = f"found {shown(kind)}" if "kind" in document else "is missing"
        hint = nearest(kind, KINDS) if isinstance(kind, str) else None
        raise ArtifactError(f"{found}, expected {one_of(KINDS)}", where=f"{where}: kind", hint=hint)
    document = _upgrade(document, where)
    try:
        artifact = KINDS[kind].model_validate_json(json.dumps(document))
    except ValidationError as error:
        refuse(error, KINDS[kind], document, where)
    except RecursionError as error:
        raise ArtifactError("is nested too deeply for an artifact", where=where) from error
    if isinstance(artifact, Cluster):  # what is made from one carries it along
        refuse_forgotten_units(artifact, where)
    return artifact


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
    write_bytes(text.encode(), path, force=force)


def write_bytes(content: bytes, path: str | Path, *, force: bool = False) -> None:
    """Write any file the way artifacts are written: whole or not at all. Raises as `write`.

    A link stays a link, and the file it leads to is written; a pipe or a device is written in place.
    """
    check_writable(path, force=force)
    try:
        if _is_stream(Path(path)):
            Path(path).write_bytes(content)
            return
        target = Path(path).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise ArtifactError(
            f"cannot be written: {_reason(error)}", where=str(path), hint="give another path"
        ) from error


def check_writable(path: str | Path, *, force: bool = False) -> None:
    """Find out before a long job whether its result could be written.

    Raises:
        ArtifactError: The file exists and ``force`` is false, it is a folder, or its folder cannot be written.
    """
    if str(path) == STANDARD_STREAM:
        return
    if not str(path):
        raise ArtifactError("the name of a file is empty", hint="a variable of the shell that is not set?")
    try:
        if Path(path).is_dir():
            raise ArtifactError("is a folder, expected a file name", where=str(path), hint="give a file name")
        if _is_stream(Path(path)):
            return
        target = Path(path).resolve()
        if target.exists() and not force:
            raise ArtifactError("exists already", where=str(path), hint="--force overwrites it")
        parent = next(folder for folder in target.parents if folder.exists())
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links
        reason = _reason(error) if isinstance(error, OSError) else "its links form a loop"
        raise ArtifactError(f"cannot be written: {reason}", where=str(path), hint="give another path") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(
            f"cannot be written: {parent} is not a writable folder", where=str(path), hint="give another path"
        )


def check_folder(folder: str | Path, *, where: str) -> None:
    """Find out before a long job whether files could be put into a folder; one that is not there is not left behind.

    Raises:
        ArtifactError: It cannot be made, or not be written; ``where`` names it.
    """
    path = Path(folder)
    try:
        missing = [each for each in (path, *path.parents) if not each.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        finally:
            for each in missing:
                with contextlib.suppress(OSError):
                    each.rmdir()
    except OSError as error:
        raise ArtifactError(f"cannot be written: {_reason(error)}", where=where, hint="give another path") from error


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema of one kind of artifact, each field with its description.

    Raises:
        ArtifactError: There is no such kind.
    """
    if kind not in KINDS:
        raise ArtifactError(f"found kind {shown(kind)}, expected {one_of(KINDS)}", hint=nearest(kind, KINDS))
    schema = KINDS[kind].model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# Reading, step by step ------------------------------------------------------------------------------------------------


def _expect(artifact: Envelope, kind: type[A], path: str | Path) -> A:
    if not isinstance(artifact, kind):
        wanted = cast("str", kind.model_fields["kind"].default)
        hint = f"give a {wanted} file here"
        if (artifact.kind, wanted) in MAKERS and str(path) != STANDARD_STREAM:
            hint = f"{MAKERS[artifact.kind, wanted].format(path=path)} makes one"
        raise ArtifactError(f"found a {artifact.kind}, expected a {wanted}", where=_name(path), hint=hint)
    return artifact


def _named(path: str | Path, raw: bytes) -> InputFile:
    name = os.fsencode(path).decode(errors="replace")
    return InputFile(path=name, sha256=hashlib.sha256(raw).hexdigest())


def _name(path: str | Path) -> str:
    return "standard input" if str(path) == STANDARD_STREAM else str(path)


def _read_bytes(path: str | Path, *, wanted: type[Envelope] | None = None) -> bytes:
    most = strict_json.MAX_FILE_BYTES
    kinds = None if wanted is None else [name for name, each in KINDS.items() if issubclass(each, wanted)]
    if str(path) == STANDARD_STREAM:
        return sys.stdin.buffer.read(most + 1)
    if not str(path):
        raise ArtifactError("the name of a file is empty", hint="a variable of the shell that is not set?")
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size > most:
                strict_json.refuse_size(str(path))
            return file.read(most + 1)  # a pipe or a device has no size of its own
    except FileNotFoundError as error:
        if Path(path).is_symlink():
            raise ArtifactError("is a link to a file that is not there", where=str(path)) from error
        raise ArtifactError("no such file", where=str(path), hint=neighbour(Path(path), kinds)) from error
    except IsADirectoryError as error:
        raise ArtifactError("is a folder, expected a file", where=str(path), hint=inside(Path(path))) from error
    except OSError as error:
        raise ArtifactError(f"cannot be read: {_reason(error)}", where=str(path)) from error


def _parse_object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = strict_json.parse(raw, where)
    except ArtifactError as error:
        error.hint = error.hint or OTHER_FORMATS.get(Path(where).suffix.lower())
        raise
    if not isinstance(document, dict):
        raise ArtifactError(f"found {shown(document)}, expected a JSON object", where=where)
    return document


def _upgrade(document: dict[str, Any], where: str) -> dict[str, Any]:
    version = document.get("schema_version", SCHEMA_VERSION)
    where = f"{where}: schema_version"
    parts = version.split(".") if isinstance(version, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise ArtifactError(f"found {shown(version)}, expected a version such as {SCHEMA_VERSION!r}", where=where)
    if int(parts[0]) > int(SCHEMA_VERSION.split(".")[0]):
        raise ArtifactError(
            f"found version {version}, expected at most {SCHEMA_VERSION}", where=where, hint="upgrade cephalo"
        )
    while version in UPGRADES:
        document = UPGRADES[version](document)
        version = document["schema_version"]
    return document


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]


# Writing --------------------------------------------------------------------------------------------------------------


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _replace(target: Path, content: bytes) -> None:
    """Write beside the target, then rename over it: a reader sees the old file or the new one, never a part."""
    scratch = target.with_name(f".cephalo-{secrets.token_hex(8)}")
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _layout(value: Any, indent: str) -> str:
    """Indent objects and lists of objects; keep lists of plain values and empty things on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        rows = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_layout(child, deeper)}" for key, child in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(child, dict | list) for child in value):
        rows = [f"{deeper}{_layout(child, deeper)}" for child in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
