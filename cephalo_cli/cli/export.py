"""``cephalo export``: a checkpoint as a folder that transformers loads."""

import json as json_text
from typing import Annotated

import typer

from cephalo_cli.cli.options import Dtype, Force, Json, Quiet

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "export"
SUMMARY = "Write a checkpoint as a folder that transformers loads."
EXAMPLES = (
    "cephalo export checkpoints exported",
    "cephalo export checkpoints/step-00000200 exported --weights gpt2 --dtype bfloat16",
)


def command(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a folder of them: the newest complete one.")
    ],
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where the folder goes.")],
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="What training started from: its configuration, tokenizer and dtypes are kept."
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Dtype of the weights; that of --weights, or float32, if absent.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Write configuration and weights (safetensors); adapters are merged into the weights they adapt.

    Needs no plan, no ranks and no data: a checkpoint knows its model. cephalo train --export does the same at the end.
    """
    from pathlib import Path

    from cephalo_cli.cli.output import Output
    from cephalo_cli.executor.export_checkpoint import export_checkpoint

    out = Output(json=json, quiet=quiet)
    with out.progress("exporting"):
        manifest = export_checkpoint(
            Path(checkpoint),
            Path(folder),
            weights=None if weights is None else Path(weights),
            dtype=dtype,
            replaces=force,
            say=out.note,
        )
    out.note(f"wrote {folder}: {manifest.model.name} after step {manifest.step}")
    if json:
        told = {"folder": folder, "model": manifest.model.name, "step": manifest.step}
        out.data(lambda: json_text.dumps(told) + "\n", list)
