"""Options that several commands share, declared once."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from cephalo_cli.artifacts import Model

__all__ = [
    "LARGEST_INTEGER",
    "Dtype",
    "Engine",
    "Force",
    "Json",
    "Lora",
    "LrSchedule",
    "OnNonfinite",
    "Optimizer",
    "OutputPath",
    "Quiet",
    "RecomputeChoice",
    "SwitchChoice",
    "TokenDtype",
    "check_length",
]

LARGEST_INTEGER = 2**31 - 1
"""The most samples or tokens that an option takes."""

Json = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
OutputPath = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Where the result goes; - is standard output.")
]
Lora = Annotated[
    str | None,
    typer.Option(
        metavar="rank=R,...",
        help="Train low-rank adapters only: rank=8, or with more, such as rank=8,base=bfloat16. alpha=A: the rank if "
        "absent; targets=NAME+NAME: what they adapt, attention.* if absent; base=DTYPE: what the model itself is "
        "stored in.",
    ),
]
Dtype = Literal["float32", "bfloat16", "float16"]
Engine = Literal["cephalo", "fsdp2", "ddp"]
Optimizer = Literal["adamw", "sgd"]
LrSchedule = Literal["constant", "cosine", "linear"]
OnNonfinite = Literal["stop", "skip"]
TokenDtype = Literal["uint16", "uint32"]
SwitchChoice = Literal["auto", "on", "off"]
RecomputeChoice = Literal["auto", "on", "off", "blocks"]


def check_length(model: "Model", seq_len: int | None) -> None:
    """Refuse a --seq-len that a model does not take, or the lack of one that it needs.

    Raises:
        UsageError: It does not fit the model.
    """
    from cephalo_cli.errors import UsageError

    if model.family == "vit":
        if seq_len is not None:
            raise UsageError("--seq-len is not for vit: its length follows from the image", hint="leave it out")
        return
    if seq_len is None:
        raise UsageError("--seq-len is missing: how many tokens has one sample?", hint="such as --seq-len 1024")
    if model.max_seq_len is not None and seq_len > model.max_seq_len:
        raise UsageError(
            f"--seq-len is {seq_len}, but {model.name} takes at most {model.max_seq_len} tokens",
            hint="shorten it, or raise the model's max_seq_len",
        )
