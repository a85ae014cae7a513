"""``cephalo profile``: what the hardware does, measured here, imported, or estimated."""

from typing import TYPE_CHECKING, Annotated

import typer

from cephalo_cli.cli.options import Dtype, Force, Json, OutputPath, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cephalo_cli.artifacts import Cluster, Profile
    from cephalo_cli.artifacts.base import InputFile

__all__ = ["NAME", "SUMMARY", "command"]

NAME = "profile"
DEFAULT_SECONDS = 60.0
LARGEST_MEASURED = 16
LARGEST_ESTIMATED = 32
SUMMARY = "Measure, estimate or import what the hardware does."


def command(
    cluster: Annotated[
        str | None, typer.Argument(metavar="CLUSTER", help="A cluster file; without one, this machine's devices.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="LIST", help="Instead of CLUSTER: catalog devices, such as l4:2,a6000,p40.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A catalog name, a model file, or a Hugging Face config.json.")
    ] = ...,  # type: ignore[assignment]  # typer's mark of a required option
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one sample (not for vit: it follows from the image).")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Compute dtype.")] = "float32",
    max_microbatch: Annotated[
        int | None, typer.Option(min=1, help="Largest microbatch; when absent 16 measured, 32 estimated.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Budget of measuring, for each device type; 60 when absent.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate from the catalog instead of measuring here.")
    ] = False,
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

    Example: cephalo profile examples/clusters/laptop-mixed.json --model examples/models/gpt-10m.json --seq-len 256
    -o profiles/laptop.json
    """
    import os

    from cephalo_cli.catalog import load_model
    from cephalo_cli.cli.output import Output
    from cephalo_cli.errors import UsageError
    from cephalo_cli.runtime.launch import external_launcher

    external = external_launcher(os.environ)
    speaks = external is None or external.rank == 0
    out = Output(json=json, quiet=quiet or not speaks, path=output)
    measured = not estimate and from_table is None
    _refuse_contradictions(
        cluster=cluster,
        gpus=gpus,
        estimate=estimate,
        from_table=from_table,
        memory_table=memory_table,
        memory_cluster=memory_cluster,
        max_microbatch=max_microbatch,
        max_seconds=max_seconds,
    )
    if output is not None and speaks:
        from cephalo_cli.artifacts import store

        store.check_writable(output, force=force)
    shape, model_inputs = load_model(model)
    if shape.family == "vit" and seq_len is not None:
        raise UsageError("--seq-len is not for vit: its length follows from the image", hint="leave it out")
    if shape.family != "vit" and seq_len is None:
        raise UsageError("--seq-len is missing: how many tokens has one sample?", hint="such as --seq-len 1024")
    length = seq_len or shape.tokens_per_sample(0)
    if shape.max_seq_len is not None and length > shape.max_seq_len:
        raise UsageError(
            f"--seq-len is {length}, but {shape.name} takes at most {shape.max_seq_len} tokens",
            hint="shorten it, or raise the model's max_seq_len",
        )
    wanted, cluster_inputs = _cluster(cluster, gpus)
    inputs = (*cluster_inputs, *model_inputs)
    profile: Profile | None
    with out.progress("profiling" if measured else "estimating" if estimate else "importing") as progress:
        if estimate:
            from cephalo_cli.profiler import estimate_profile

            profile = estimate_profile(
                wanted, shape, seq_len=seq_len, dtype=dtype, max_microbatch=max_microbatch or LARGEST_ESTIMATED
            )
        elif from_table is not None and memory_table is not None:
            from cephalo_cli.profiler import import_profile

            profile = import_profile(
                wanted,
                shape,
                seq_len=seq_len,
                dtype=dtype,
                latency_csv=from_table,
                memory_csv=memory_table,
                memory_cluster=memory_cluster,
            )
        else:
            from cephalo_cli.profiler import profile_cluster

            profile = profile_cluster(
                wanted,
                shape,
                seq_len=length,
                dtype=dtype,
                max_seconds=max_seconds or DEFAULT_SECONDS,
                progress=progress,
                external=external,
                max_microbatch=max_microbatch or LARGEST_MEASURED,
            )
    if profile is None:
        return
    profile = profile.model_copy(update={"inputs": (*inputs, *profile.inputs)})

    def tables() -> "list[RenderableType]":
        from cephalo_cli.reporting import artifact_tables

        return artifact_tables(profile)

    out.artifact(profile, tables, force=force)
    if output not in (None, "-"):
        out.hint(f"cephalo plan {output} --batch-size 32 -o plans/{profile.cluster.name}.json")


def _refuse_contradictions(
    *,
    cluster: str | None,
    gpus: str | None,
    estimate: bool,
    from_table: str | None,
    memory_table: str | None,
    memory_cluster: str | None,
    max_microbatch: int | None,
    max_seconds: float | None,
) -> None:
    from cephalo_cli.errors import UsageError

    if cluster is not None and gpus is not None:
        raise UsageError("CLUSTER and --gpus both say which devices there are", hint="leave one out")
    if estimate and from_table is not None:
        raise UsageError("--estimate and --from-table exclude each other", hint="leave one out")
    if (from_table is None) != (memory_table is None):
        raise UsageError("--from-table and --memory-table go together", hint="give both or none")
    if memory_cluster is not None and memory_table is None:
        raise UsageError("--memory-cluster has no effect without --memory-table", hint="leave it out")
    if from_table is not None and max_microbatch is not None:
        raise UsageError("--max-microbatch has no effect on imported tables", hint="leave it out")
    if max_seconds is not None and (estimate or from_table is not None):
        raise UsageError("--max-seconds is the budget of measuring", hint="leave it out")
    if max_seconds is not None and max_seconds <= 0:
        raise UsageError(f"--max-seconds is {max_seconds:g}, expected seconds above 0")
    if cluster is None and gpus is None and (estimate or from_table is not None):
        raise UsageError("which devices? no CLUSTER and no --gpus given", hint="such as --gpus rtx-3090:2,rtx-4090")
    if gpus is not None and not estimate and from_table is None:
        raise UsageError(
            "--gpus names devices of the catalog, which this machine need not have",
            hint="add --estimate, or measure with a CLUSTER file",
        )


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
