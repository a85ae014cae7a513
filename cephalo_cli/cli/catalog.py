"""``cephalo catalog``: the known devices and models, by the names that --gpus and --model take."""

import json as json_text
from typing import Annotated, Literal

import typer

from cephalo_cli.cli.options import Json, Quiet

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "catalog"
SUMMARY = "List known devices and models, or look one up."
EXAMPLES = (
    "cephalo catalog devices",
    "cephalo catalog devices a100",
    "cephalo catalog models llama-7b --json",
)


def command(
    kind: Annotated[Literal["devices", "models"], typer.Argument(metavar="devices|models", help="What to list.")],
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An id or alias for all details, or a part of one to search for."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what --gpus and --model know by name, search it, or show one entry with the source of every number."""
    from cephalo_cli.cli.output import Output
    from cephalo_cli.reporting.describe_catalog import catalog_entry, catalog_list, entry_parts, entry_plain, relatives
    from cephalo_cli.reporting.sheet import plain, rendered

    out = Output(json=json, quiet=quiet)
    key = None if name is None else catalog_entry(kind, name)
    if name is not None and key is not None:
        others = relatives(kind, key, name)
        told = entry_plain(kind, key) | {"others": others}
        out.data(
            lambda: json_text.dumps(told, indent=2, ensure_ascii=False) + "\n",
            lambda: [*rendered(entry_parts(kind, key)), *([f"\nSee also {', '.join(others)}."] if others else [])],
        )
        return
    found = catalog_list(kind, name)
    out.data(lambda: json_text.dumps(plain([found]), indent=2) + "\n", lambda: rendered([found]))
