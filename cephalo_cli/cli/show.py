"""``cephalo show``: render one artifact, or lay several side by side."""

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cephalo_cli.cli.options import Force, Json, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cephalo_cli.artifacts import Envelope
    from cephalo_cli.artifacts.base import InputFile
    from cephalo_cli.cli.output import Output

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "show"
SUMMARY = "Show one artifact, or compare several."
EXAMPLES = (
    "cephalo show plans/laptop-mixed.json",
    "cephalo show plans/laptop-mixed.json simulated.json measured.json",
    "cephalo show plans/laptop-mixed.json simulated.json --html page.html",
    "cephalo show old.json new.json --fail-if slower:5% --fail-if infeasible",
)


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="One artifact, or several to compare; - is standard input."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Print the JSON Schema of cluster, model, profile, plan or report."),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.png|svg", help="Draw the artifact as well.")] = None,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE.html", help="Write one self-contained page: tables, pictures, inputs and digests."
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 7 if the second file is worse: slower:5%, memory:5% (any rank), infeasible. Repeatable.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Show what an artifact says, or lay several side by side: plans and reports, or profiles.

    A Hugging Face config.json, or a folder that holds one, is shown as the model that it describes.
    """
    from cephalo_cli.cli.output import Output
    from cephalo_cli.errors import ConditionError, UsageError
    from cephalo_cli.reporting.conditions import broken, parse_condition

    out = Output(json=json, quiet=quiet)
    if schema is not None:
        _show_schema(schema, alone=not (files or plot or html or fail_if))
        return
    if not files:
        raise UsageError("no file given", hint="cephalo show FILE, or cephalo show --schema KIND")
    if files.count("-") > 1:
        raise UsageError("standard input can be read once", hint="give - once")
    conditions = [parse_condition(each) for each in fail_if or ()]
    _check_written(plot, html, force=force)
    read = [_read(path) for path in files]
    artifacts = [artifact for artifact, _ in read]
    found = broken(conditions, artifacts, files)
    if plot is not None:
        from cephalo_cli.reporting import plot_artifact

        plot_artifact(artifacts, plot, names=files, force=force)
    if html is not None:
        _write_page(read, html, force=force)
    _show(out, artifacts, files)
    _say_whose(out, read, files)
    for kind, written in (("picture", plot), ("page", html)):
        if written is not None:
            out.note(f"wrote the {kind} {written}")
    if found:
        raise ConditionError("; ".join(found), hint=" ".join(f"--fail-if {each.text}" for each in conditions))


def _check_written(plot: str | None, html: str | None, *, force: bool) -> None:
    from cephalo_cli.artifacts import store
    from cephalo_cli.errors import UsageError

    for path in filter(None, (plot, html)):
        store.check_writable(path, force=force)
    if html is not None and not html.lower().endswith((".html", ".htm")):
        raise UsageError(f"{html!r} is not .html", hint="give the page this ending")


def _show_schema(kind: str, *, alone: bool) -> None:
    from cephalo_cli.artifacts import store
    from cephalo_cli.cli.output import Output
    from cephalo_cli.errors import UsageError

    if not alone:
        raise UsageError("--schema stands alone", hint="leave out the rest")
    text = json_text.dumps(_plain_words(store.json_schema(kind)), indent=2, ensure_ascii=False) + "\n"
    Output(json=True, quiet=False).data(lambda: text, list)


def _show(out: "Output", artifacts: "Sequence[Envelope]", files: "Sequence[str]") -> None:
    from cephalo_cli.artifacts import store

    if len(artifacts) == 1:

        def tables() -> "list[RenderableType]":
            from cephalo_cli.reporting import artifact_tables

            return artifact_tables(artifacts[0])

        out.data(lambda: store.dumps(artifacts[0]), tables)
        return

    from cephalo_cli.reporting import Comparison, compare

    comparison: Comparison = compare(artifacts, files)
    out.data(lambda: json_text.dumps(comparison.rows, indent=2) + "\n", comparison.tables)


def _read(path: str) -> "tuple[Envelope, InputFile]":
    """Read an artifact of any kind, or another program's model, with its name and digest."""
    from cephalo_cli.artifacts import Envelope, store
    from cephalo_cli.errors import ArtifactError

    inside = Path(path) / "config.json"
    file = str(inside) if path != store.STANDARD_STREAM and inside.is_file() else path
    try:
        return store.read_input(file, Envelope)
    except ArtifactError:
        if file == store.STANDARD_STREAM or not _is_of_hugging_face(file):
            raise
    from cephalo_cli.catalog import model_from_hf_config

    return model_from_hf_config(file), store.input_file(file)


def _say_whose(out: "Output", read: "Sequence[tuple[Envelope, InputFile]]", files: "Sequence[str]") -> None:
    """Say of a model that its file is another program's, and that commands take it all the same."""
    for path, (artifact, source) in zip(files, read, strict=True):
        if artifact.kind == "model" and path != "-" and _is_of_hugging_face(source.path):
            out.note(f"{source.path} is a Hugging Face configuration: --model {path} takes it as it is")


def _is_of_hugging_face(path: str) -> bool:
    from cephalo_cli.artifacts import store
    from cephalo_cli.errors import ArtifactError

    try:
        document = store.read_object(path)
    except ArtifactError:
        return False
    return "model_type" in document and "kind" not in document


def _write_page(read: "Sequence[tuple[Envelope, InputFile]]", path: str, *, force: bool) -> None:
    """Write the page; a plan's step is played out for it."""
    from cephalo_cli.artifacts import Plan
    from cephalo_cli.reporting.page import Shown, write_page
    from cephalo_cli.simulator import simulate

    shown = [
        Shown(
            artifact=artifact,
            source=source,
            timeline=simulate(artifact).timeline if isinstance(artifact, Plan) else None,
        )
        for artifact, source in read
    ]
    write_page(shown, path, force=force)


def _plain_words(value: Any) -> Any:
    """Take the marks of code away from a schema's descriptions: who reads JSON sees them as they are."""
    if isinstance(value, dict):
        return {
            key: child.replace("``", "`") if key == "description" and isinstance(child, str) else _plain_words(child)
            for key, child in value.items()
        }
    return [_plain_words(child) for child in value] if isinstance(value, list) else value
