"""Real ranks for tests: one set of processes runs many plans, each over as many of them as it needs.

Starting a process that loads torch takes seconds, joining a process group milliseconds; so all tests share them.
"""

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, but not in its module's __all__

from cephalo_cli.artifacts import Plan
from cephalo_cli.errors import CephaloError
from cephalo_cli.executor.engine import CephaloEngine, EngineSetting, Traffic
from cephalo_cli.executor.interpreter import Hooks
from cephalo_cli.executor.options import Callbacks, TrainOptions
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.collectives import CollectiveRecord
from cephalo_cli.runtime.process import ProcessContext, rank_process
from cephalo_cli.schedule import Record

TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Something all ranks of a plan do."""

    plan: Plan
    options: TrainOptions
    run: Callable[[ProcessContext, "Job"], Any]
    """Gives what the rank found."""
    arguments: Any = None


@dataclass
class Trained:
    """What a rank's training was."""

    losses: list[float | None] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    collectives: list[tuple[str, str]] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)
    """Of every collective."""
    notices: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    result: Any = None


class Ranks:
    """Processes that wait for jobs, from the first test that needs them to the end."""

    def __init__(self, num_processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        self._num_jobs = 0
        for rank in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs, Path(self._folder.name)), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, jobs: Sequence[Job]) -> list[list[Any]]:
        """Run jobs one after the other; gives for each job what every rank found, or the error it raised."""
        return [self._run(job) for job in jobs]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join()
            process.close()
        self._folder.cleanup()

    def _run(self, job: Job) -> list[Any]:
        pipes = self._pipes[: len(job.plan.ranks)]
        for pipe in pipes:
            pipe.send((self._num_jobs, job))
        self._num_jobs += 1
        return [pipe.recv() for pipe in pipes]


def train_job(context: ProcessContext, job: Job) -> Trained:
    """Train, and write down what happened."""
    trained = Trained()
    with _collectives_told_to(trained):
        result = train(
            job.plan,
            job.options,
            context,
            Callbacks(
                on_record=trained.records.append,
                on_notice=trained.notices.append,
                on_checkpoint=trained.checkpoints.append,
            ),
        )
    if result is not None:
        trained.result = result
        trained.losses = [step.loss for step in result.report.steps]
        trained.grad_norms = [step.grad_norm for step in result.report.steps]
    return trained


def make_engine(
    context: ProcessContext,
    job: Job,
    *,
    initialise: bool = True,
    on_record: Callable[[Record], None] = lambda _: None,
) -> CephaloEngine:
    """Make the engine alone, for tests that look inside."""
    return CephaloEngine(make_setting(context, job, on_record=on_record), initialise=initialise)


def make_setting(
    context: ProcessContext, job: Job, *, on_record: Callable[[Record], None] = lambda _: None
) -> EngineSetting:
    """What an engine is made with."""
    return EngineSetting(
        plan=job.plan,
        options=job.options,
        dtype=job.options.dtype or job.plan.dtype,
        seed=job.options.seed or 0,
        context=context,
        hooks=Hooks(
            throttle=context.compute,
            sum_over_ranks=lambda values: _sum(values, context),
            on_record=on_record,
        ),
        callbacks=Callbacks(),
    )


def _sum(values: torch.Tensor, context: ProcessContext) -> torch.Tensor:
    total = values.detach().clone()
    dist.all_reduce(total, group=context.process_group)
    return total


class _collectives_told_to:  # noqa: N801 - reads as a statement
    """Has every collective that is really started written down."""

    def __init__(self, told: Trained) -> None:
        self._told = told
        self._before = Traffic.add

    def __enter__(self) -> None:
        told, before = self._told, self._before

        def add(traffic: Traffic, record: CollectiveRecord) -> None:
            told.collectives.append((record.kind, record.name))
            told.received_bytes.append(record.received_bytes)
            before(traffic, record)

        Traffic.add = add  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        Traffic.add = self._before  # type: ignore[method-assign]


def _serve(rank: int, pipe: Any, folder: Path) -> None:
    while True:
        try:
            number, job = pipe.recv()
        except EOFError:
            # A Gloo thread that lets go of its last collective while Python ends aborts the process (torch 2.13).
            os._exit(0)
        store = FileStore(str(folder / f"store-{number}"), len(job.plan.ranks))
        try:
            with rank_process(job.plan.cluster, rank, timeout=TIMEOUT, emit=lambda _: None, store=store) as context:
                found = job.run(context, job)
        except CephaloError as error:
            found = error
        except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        pipe.send(found)
