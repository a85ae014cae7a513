"""What every artifact is made of: strict, immutable values inside a versioned envelope."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SCHEMA_VERSION", "DType", "Envelope", "InputFile", "Value"]

SCHEMA_VERSION = "1.0"
"""The version this program writes. A newer major version is refused; older ones are upgraded on reading."""

DType = Literal["float32", "bfloat16", "float16", "float64"]
"""Names of the compute dtypes, as in torch."""

VERSION_PATTERN = r"^[0-9]+\.[0-9]+$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"

T = TypeVar("T")
Series = Annotated[tuple[T, ...], Field(fail_fast=True)]
"""A list of values; its first bad value is enough to refuse it."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0)]
NumBytes = Annotated[int, Field(ge=0, lt=2**63)]
PositiveInt = Annotated[int, Field(ge=1, lt=2**63)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0.0)]


class Value(BaseModel):
    """A strict, immutable piece of an artifact: no unknown keys, no silent conversions, no NaN or infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class InputFile(Value):
    """A file that went into an artifact."""

    path: str
    """The path as it was given on the command line."""
    sha256: Annotated[str, Field(pattern=DIGEST_PATTERN)]
    """Digest of the file's bytes."""


class Envelope(Value):
    """The outermost object of every artifact."""

    kind: str
    """Which artifact this is: cluster, model, profile, plan or report."""
    schema_version: Annotated[str, Field(pattern=VERSION_PATTERN)] = SCHEMA_VERSION
    """Version of the contract the file follows."""
    created_by: str | None = None
    """The program and version that wrote the file; absent in files written by hand."""
    inputs: Series[InputFile] = ()
    """The files this one was made from."""
