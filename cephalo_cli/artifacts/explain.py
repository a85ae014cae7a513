"""From the validator's errors to one refusal: the path of the value, what was found, what was expected."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from cephalo_cli.artifacts.base import DIGEST_PATTERN, VERSION_PATTERN, Envelope
from cephalo_cli.artifacts.faults import FieldPath, MisfitError, field_path, nearest, shown
from cephalo_cli.artifacts.plausible import plain_number
from cephalo_cli.errors import ArtifactError

__all__ = ["refuse"]

_EXPECTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "int_type": "a whole number",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "too_short": "at least {min_length} value",
    "tuple_type": "a list",
}
"""What was expected, by the validator's type of error; the rest keeps the validator's own words."""
_PATTERNS: Mapping[str, str] = {VERSION_PATTERN: "a version such as '1.0'", DIGEST_PATTERN: "64 hexadecimal digits"}


@dataclass(frozen=True, kw_only=True)
class _Fault:
    """One of the validator's errors, with its path in the document."""

    type: str
    path: FieldPath
    found: Any
    expected: str
    is_branch: bool
    """Whether it belongs to one choice of several."""


def refuse(error: ValidationError, kind: type[Envelope], document: dict[str, Any], where: str) -> NoReturn:
    """Turn the most helpful of the validator's errors into a refusal.

    Args:
        error: What the validator said.
        kind: The artifact it was to be.
        document: What was validated.
        where: Names the file.

    Raises:
        ArtifactError: Always.
    """
    errors = error.errors(include_url=False)
    if errors[0]["type"] == "json_invalid":  # the document is sound JSON, so only its depth can be at fault
        raise ArtifactError("is nested too deeply for an artifact", where=where) from error
    fault = _most_helpful([_fault(document, dict(entry)) for entry in errors])
    place = f"{where}: {field_path(fault.path)}" if fault.path else where
    hint = None
    if fault.type == "extra_forbidden":
        message, hint = "unknown key", _key_hint(fault, kind, document)
    elif fault.type == "missing":
        message, hint = "is missing", _schema_hint(kind)
    elif fault.type == "value_error":
        message = fault.expected
    else:
        message = f"found {shown(fault.found)}, expected {fault.expected}"
        if isinstance(fault.found, str):
            hint = nearest(fault.found, re.findall(r"'([^']+)'", fault.expected))
            hint = hint or plain_number(fault.path, fault.found)
    raise ArtifactError(message, where=place, hint=hint) from error


def _fault(document: dict[str, Any], entry: dict[str, Any]) -> _Fault:
    """Follow an error's location through the document; what the document lacks there names a choice, not a key."""
    path: FieldPath = ()
    here: Any = document
    is_branch = False
    location, kind_of_error = entry["loc"], entry["type"]
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        if (isinstance(here, dict) and part in here) or (isinstance(here, list) and part in range(len(here))):
            path, here = (*path, part), here[part]
        elif is_last and part == "[key]":
            kind_of_error = "extra_forbidden"
        elif is_last and kind_of_error == "missing":
            path = (*path, part)
        else:
            is_branch = True
    context = entry.get("ctx", {})
    if isinstance(context.get("error"), MisfitError):
        path = (*path, *context["error"].at)
    return _Fault(
        type=kind_of_error, path=path, found=entry["input"], expected=_expected(entry, context), is_branch=is_branch
    )


def _expected(entry: dict[str, Any], context: dict[str, Any]) -> str:
    if entry["type"] == "value_error":
        return str(context["error"])
    if entry["type"] in _EXPECTED:
        return _EXPECTED[entry["type"]].format(**context)
    return _PATTERNS.get(context.get("pattern", ""), entry["msg"].removeprefix("Input should be "))


def _most_helpful(faults: list[_Fault]) -> _Fault:
    """Choose the fault to tell: the first, with two exceptions.

    A misspelt key is told before the key it leaves missing. Choices for one value that fail at the value itself become
    one expectation; where one of them is an object, it is declared first, so faults inside an object come first too.
    """
    first = faults[0]
    if first.type == "missing":
        beside = (fault for fault in faults if fault.type == "extra_forbidden" and fault.path[:-1] == first.path[:-1])
        return next(beside, first)
    alike = [fault.expected for fault in faults if fault.is_branch and fault.path == first.path]
    return replace(first, expected=" or ".join(alike)) if first.is_branch else first


def _key_hint(fault: _Fault, kind: type[Envelope], document: dict[str, Any]) -> str:
    version = str(document.get("schema_version", ""))
    ours = str(kind.model_fields["schema_version"].default)
    if version.partition(".")[2].isdigit() and int(version.partition(".")[2]) > int(ours.partition(".")[2]):
        return f"the file is version {version}, this program knows {ours}: upgrade cephalo"
    return nearest(str(fault.path[-1]), _keys_beside(kind, fault.path)) or _schema_hint(kind)


def _schema_hint(kind: type[Envelope]) -> str:
    return f"cephalo show --schema {kind.model_fields['kind'].default} lists every field"


def _keys_beside(kind: type[Envelope], path: FieldPath) -> list[str]:
    """Names of the keys that could stand where an unknown key stood."""
    schema = kind.model_json_schema()
    node: dict[str, Any] = schema
    for part in path[:-1]:
        node = _resolve(node, schema)
        node = node.get("items", {}) if isinstance(part, int) else _child(node, part)
    node = _resolve(node, schema)
    return list(node.get("properties") or node.get("propertyNames", {}).get("enum", ()))


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
