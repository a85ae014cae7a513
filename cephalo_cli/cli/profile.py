"""``cephalo profile``: what the hardware does, measured here, imported, or estimated."""

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cephalo_cli.cli.gpus import common_dtype
from cephalo_cli.cli.options import LARGEST_INTEGER, Dtype, Force, Json, Lora, OutputPath, Quiet, check_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from cephalo_cli.artifacts import Cluster, Model, Profile
    from cephalo_cli.artifacts.base import InputFile
    from cephalo_cli.cli.output import ProgressCallback
    from cephalo_cli.runtime.launch import RankEnvironment

__all__ = ["EXAMPLES", "NAME", "SUMMARY", "command"]

NAME = "profile"
DEFAULT_SECONDS = 60.0
LARGEST_MEASURED = 16
LARGEST_ESTIMATED = 32
SUMMARY = "Measure, estimate or import what the hardware does."
EXAMPLES = (
    (
        "cephalo profile examples/clusters/laptop-mixed.json --model"
        " examples/models/gpt-10m.json --seq-len 256 --max-microbatch 8 -o profile.json"
    ),
    (
        "cephalo profile --gpus l4:2,a6000,p40 --model llama-7b --seq-len 512"
        " --dtype float16 --estimate -o estimated.json"
    ),
)


def command(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER",
            help="A cluster file (cephalo show --schema cluster describes it); without one, this machine's devices.",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="LIST", help="Instead of CLUSTER: catalog devices, such as l4:2,a6000,p40.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A catalog name, a model file, a Hugging Face folder, or MODULE:FUNCTION of one's own.",
        ),
    ] = ...,  # type: ignore[assignment]  # typer's mark of a required option
    seq_len: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=LARGEST_INTEGER,
            help="Tokens of one sample (not for vit: it follows from the image).",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Compute dtype; if absent float32, and with --estimate alone one that all devices run."),
    ] = None,
    lora: Lora = None,
    max_microbatch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=LARGEST_INTEGER, help="Largest microbatch; when absent 16 measured, 32 estimated."
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Seconds of measuring, for each device type: starting processes comes on top. 60 when absent.",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate from the catalog instead of measuring here.")
    ] = False,
    attention: Annotated[
        Literal["auto", "fused", "plain"],
        typer.Option(
            help="With --estimate: one fused kernel, scores kept in memory, or as training on each device does."
        ),
    ] = "auto",
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="With --estimate: correct it by a short measurement on the same card."),
    ] = None,
    from_table: Annotated[
        str | None, typer.Option(metavar="LATENCY.csv", help="Import block latencies measured elsewhere.")
    ] = None,
    memory_table: Annotated[
        str | None, typer.Option(metavar="MEMORY.csv", help="With --from-table: the memory measured with them.")
    ] = None,
    memory_cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --memory-table: use the rows of this cluster only.")
    ] = None,
    output: OutputPath = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Find out what each device type does with the model's units, and what the network does with their shards.

    Measures on this machine (under torchrun every rank measures its own device) unless told to estimate or import.
    """
    import os

    from cephalo_cli.artifacts import store
    from cephalo_cli.cli.launching import unused
    from cephalo_cli.cli.lora import with_adapters
    from cephalo_cli.cli.output import Output
    from cephalo_cli.runtime.launch import external_launcher

    external = external_launcher(os.environ)
    speaks = external is None or external.rank == 0
    out = Output(json=json, quiet=quiet or not speaks, path=output)
    wanted = _Wanted(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq_len,
        dtype=dtype or "float32",
        max_microbatch=max_microbatch,
        max_seconds=max_seconds,
        estimate=estimate,
        attention=None if attention == "auto" else attention,
        calibrate=calibrate,
        from_table=from_table,
        memory_table=memory_table,
        memory_cluster=memory_cluster,
    )
    _refuse_contradictions(wanted)
    if output is not None and speaks:
        store.check_writable(output, force=force)
    shape, inputs = _model(model, wanted)
    shape = with_adapters(shape, lora)
    check_length(shape, seq_len)
    devices, cluster_inputs = _cluster(cluster, gpus)
    if estimate and calibrate is None and dtype is None:
        wanted = replace(wanted, dtype=common_dtype(devices))
        out.note(f"computed in {wanted.dtype}, which all these devices run; --dtype names another")
    with out.progress("profiling") as progress:
        profile, more = wanted.make(devices, shape, progress, external, out.note)
    if profile is None:
        return
    profile = profile.model_copy(update={"inputs": (*cluster_inputs, *inputs, *more)})

    def tables() -> "list[RenderableType]":
        from cephalo_cli.reporting import artifact_tables

        return artifact_tables(profile)

    out.artifact(profile, tables, force=force)
    if output not in (None, "-"):
        out.hint(f"cephalo plan {output} --batch-size 32 -o {unused('plan.json')}")


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The options of the command."""

    cluster: str | None
    gpus: str | None
    seq_len: int | None
    dtype: Dtype
    max_microbatch: int | None
    max_seconds: float | None
    estimate: bool
    attention: Literal["fused", "plain"] | None
    calibrate: str | None
    from_table: str | None
    memory_table: str | None
    memory_cluster: str | None

    def make(
        self,
        cluster: "Cluster",
        model: "Model",
        progress: "ProgressCallback",
        external: "RankEnvironment | None",
        note: "Callable[[str], None]",
    ) -> "tuple[Profile | None, tuple[InputFile, ...]]":
        """Estimate, import or measure; None in the other ranks of an outer launcher. Also the files that were read."""
        from cephalo_cli.artifacts import Profile, store

        if self.estimate:
            from cephalo_cli.profiler import estimate_profile

            known = None if self.calibrate is None else store.read_input(self.calibrate, Profile)
            profile = estimate_profile(
                cluster,
                model,
                seq_len=self.seq_len,
                dtype=self.dtype,
                max_microbatch=self.max_microbatch or LARGEST_ESTIMATED,
                attention=self.attention,
                calibration=None if known is None else known[0],
            )
            return profile, () if known is None else (known[1],)
        if self.from_table is not None and self.memory_table is not None:
            from cephalo_cli.profiler import import_profile

            profile = import_profile(
                cluster,
                model,
                seq_len=self.seq_len,
                dtype=self.dtype,
                latency_csv=self.from_table,
                memory_csv=self.memory_table,
                memory_cluster=self.memory_cluster,
            )
            return profile, (store.input_file(self.from_table), store.input_file(self.memory_table))

        from cephalo_cli.profiler import profile_cluster

        measured = profile_cluster(
            cluster,
            model,
            seq_len=self.seq_len or model.tokens_per_sample(0),
            dtype=self.dtype,
            max_microbatch=self.max_microbatch or LARGEST_MEASURED,
            max_seconds=self.max_seconds or DEFAULT_SECONDS,
            progress=progress,
            on_notice=note,
            external=external,
        )
        return measured, ()


def _model(text: str, wanted: _Wanted) -> "tuple[Model, tuple[InputFile, ...]]":
    """The model, and the files it came from. One's own is loaded, held to what units must be, and described."""
    from cephalo_cli.artifacts.model import is_own_source
    from cephalo_cli.catalog import load_model
    from cephalo_cli.errors import UsageError

    if not is_own_source(text) or wanted.estimate or wanted.from_table is not None:
        return load_model(text)
    if wanted.seq_len is None:
        raise UsageError("--seq-len is missing: how many tokens has one sample?", hint="such as --seq-len 1024")
    from cephalo_cli.models.own import describe_own

    return describe_own(text, wanted.seq_len, wanted.dtype), ()


def _refuse_contradictions(wanted: _Wanted) -> None:
    from cephalo_cli.errors import UsageError

    measuring = not wanted.estimate and wanted.from_table is None
    contradictions = (
        (
            wanted.cluster is not None and wanted.gpus is not None,
            "CLUSTER and --gpus both say which devices there are",
            "leave one out",
        ),
        (
            wanted.estimate and wanted.from_table is not None,
            "--estimate and --from-table exclude each other",
            "leave one out",
        ),
        (
            wanted.calibrate is not None and not wanted.estimate,
            "--calibrate has no effect without --estimate",
            "add --estimate",
        ),
        (
            wanted.attention is not None and not wanted.estimate,
            "--attention has no effect without --estimate: what runs is measured, and the profile says which it was",
            "add --estimate, or leave it out",
        ),
        (
            (wanted.from_table is None) != (wanted.memory_table is None),
            "--from-table and --memory-table go together",
            "give both or none",
        ),
        (
            wanted.memory_cluster is not None and wanted.memory_table is None,
            "--memory-cluster has no effect without --memory-table",
            "leave it out",
        ),
        (
            wanted.from_table is not None and wanted.max_microbatch is not None,
            "--max-microbatch has no effect on imported tables",
            "leave it out",
        ),
        (
            wanted.max_seconds is not None and not measuring,
            "--max-seconds is the budget of measuring",
            "leave it out",
        ),
        (
            wanted.max_seconds is not None and not 0 < wanted.max_seconds < inf,
            f"--max-seconds is {wanted.max_seconds}, expected seconds above 0",
            None,
        ),
        (
            wanted.cluster is None and wanted.gpus is None and not measuring,
            "which devices? no CLUSTER and no --gpus given",
            "such as --gpus rtx-3090:2,rtx-4090",
        ),
        (
            wanted.gpus is not None and measuring,
            "--gpus names devices of the catalog, which this machine need not have",
            "add --estimate, or measure with a CLUSTER file",
        ),
    )
    for contradicts, message, hint in contradictions:
        if contradicts:
            raise UsageError(message, hint=hint)


def _cluster(path: str | None, gpus: str | None) -> "tuple[Cluster, tuple[InputFile, ...]]":
    """The cluster with catalog facts filled in, and the file it came from."""
    from cephalo_cli.artifacts import Cluster, store
    from cephalo_cli.catalog import cluster_from_gpus, resolve_cluster

    if path is not None:
        cluster, source = store.read_input(path, Cluster)
        return resolve_cluster(cluster, where=path), (source,)
    if gpus is not None:
        return cluster_from_gpus(gpus), ()
    from cephalo_cli.profiler import local_cluster

    return local_cluster(), ()
