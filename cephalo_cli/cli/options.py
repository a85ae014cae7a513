"""Options that several commands share, declared once."""

from typing import Annotated, Literal

import typer

__all__ = [
    "LARGEST_INTEGER",
    "Dtype",
    "Engine",
    "Force",
    "Json",
    "LrSchedule",
    "OnNonfinite",
    "Optimizer",
    "OutputPath",
    "Quiet",
    "SwitchChoice",
    "TokenDtype",
]

LARGEST_INTEGER = 2**31 - 1
"""The most samples or tokens that an option takes."""

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
OutputPath = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Where the result goes; - is standard output.")
]
Dtype = Literal["float32", "bfloat16", "float16"]
Engine = Literal["cephalo", "fsdp2", "ddp"]
Optimizer = Literal["adamw", "sgd"]
LrSchedule = Literal["constant", "cosine", "linear"]
OnNonfinite = Literal["stop", "skip"]
TokenDtype = Literal["uint16", "uint32"]
SwitchChoice = Literal["auto", "on", "off"]
