"""``cephalo show``: render one artifact, or lay several side by side."""

import json as json_text
from typing import TYPE_CHECKING, Annotated

import typer

from cephalo_cli.cli.options import Force, Json, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["NAME", "SUMMARY", "command"]

NAME = "show"
SUMMARY = "Show one artifact, or compare several."


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="A.json [B.json ...]", help="One artifact, or several to compare; - is standard input."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Print the JSON Schema of cluster, model, profile, plan or report."),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.png|svg", help="Draw the artifact as well.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Show what an artifact says, or lay several side by side: plans, reports, or plans with reports.

    Example: cephalo show plans/laptop-mixed.json measured.json
    """
    from cephalo_cli.artifacts import store
    from cephalo_cli.cli.output import Output
    from cephalo_cli.errors import UsageError

    out = Output(json=json, quiet=quiet)
    if schema is not None:
        if files or plot:
            raise UsageError("--schema stands alone", hint="leave out the files")
        text = json_text.dumps(store.json_schema(schema), indent=2, ensure_ascii=False) + "\n"
        Output(json=True, quiet=False).data(lambda: text, list)
        return
    if not files:
        raise UsageError("no file given", hint="cephalo show FILE, or cephalo show --schema KIND")
    if files.count("-") > 1:
        raise UsageError("standard input can be read once", hint="give - once")
    if plot is not None:
        store.check_writable(plot, force=force)
    artifacts = [store.read_any(path) for path in files]
    if plot is not None:
        from cephalo_cli.reporting import plot_artifact

        plot_artifact(artifacts, plot, names=files, force=force)
    if len(artifacts) == 1:

        def tables() -> "list[RenderableType]":
            from cephalo_cli.reporting import artifact_tables

            return artifact_tables(artifacts[0])

        out.data(lambda: store.dumps(artifacts[0]), tables)
        return

    from cephalo_cli.reporting import Comparison, compare

    comparison: Comparison = compare(artifacts, files)
    out.data(lambda: json_text.dumps(comparison.rows, indent=2) + "\n", comparison.tables)
