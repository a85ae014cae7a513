"""What ``cephalo train`` was asked, and how it is done: the plan is read, run by its ranks, and the report told."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cephalo_cli.artifacts import Plan, store
from cephalo_cli.cli.options import LARGEST_INTEGER
from cephalo_cli.cli.output import Output
from cephalo_cli.errors import ArtifactError, TrainingError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cephalo_cli.artifacts.base import InputFile
    from cephalo_cli.executor import TrainingResult, TrainOptions
    from cephalo_cli.runtime.launch import RankEnvironment

__all__ = ["Training"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The options of the command that say what is read, written and started; the others are the training's own."""

    plan: str
    data: str | None
    steps: int | None
    checkpoint_dir: str | None
    resume: str | None
    trace: str | None
    metrics: str | None
    tensorboard: str | None
    dry_run: bool
    memory_limit: bool
    elastic: bool
    timeout_s: float
    output: str | None
    json: bool
    quiet: bool
    force: bool

    def run(self, **settings: Any) -> None:
        """Train, or show what would be trained.

        Args:
            settings: Fields of `cephalo_cli.executor.TrainOptions` under their names.

        Raises:
            UsageError: Options, plan and devices do not fit together.
            ArtifactError: A file is not what it should be, or exists already.
            TrainingError: The training failed, or its last checkpoint could not be written.
            InterruptedRunError: A signal came.
        """
        from cephalo_cli.cli.settings import train_options
        from cephalo_cli.runtime.launch import external_launcher

        external = external_launcher(os.environ)
        speaks = external is None or external.rank == 0
        out = Output(json=self.json, quiet=self.quiet or not speaks, path=self.output)
        self._check_arguments()
        self._check_names(settings)
        if speaks:
            self._check_writable()
        plan, source = store.read_input(self.plan, Plan)
        if self.elastic:
            plan, external = self._for_present(plan, external, out.note)
        options = train_options(
            data=self.data or "random",
            num_steps=self.steps or 1,
            checkpoint_dir=self.checkpoint_dir,
            resume=self.resume or ("latest" if self.elastic else None),
            replace_export=self.force,
            **settings,
        )
        if options.tokenizer != settings["tokenizer"]:
            out.note(f"text is tokenised with the tokenizer of {options.tokenizer}")
        if plan.model.lora is not None and options.weights is None and options.resume is None:
            out.note("without --weights, the adapters train beside a model of random weights")
        if self.dry_run:
            _show_dry_run(plan, options, out)
            return
        result = self._train(plan, options, out, external)
        if result is None:
            _say_nothing_was_done(out)
        else:
            self._tell(result, source, out)

    def _check_arguments(self) -> None:
        """Refuse what is missing, and what would have no effect."""
        if not 0 < self.timeout_s <= LARGEST_INTEGER:
            raise UsageError(f"--timeout is {self.timeout_s:g}, expected seconds above 0, at most {LARGEST_INTEGER}")
        written = {
            "-o": self.output,
            "--trace": self.trace,
            "--metrics": self.metrics,
            "--tensorboard": self.tensorboard,
        }
        for option, path in written.items():
            if self.dry_run and path is not None:
                raise UsageError(f"--dry-run trains nothing, so there is nothing for {option} to write")
        for option, value in (("--data", self.data), ("--steps", self.steps)):
            if not self.dry_run and value is None:
                raise UsageError(f"Missing option '{option}'", hint="cephalo train --help lists the options")

    def _check_names(self, settings: Mapping[str, Any]) -> None:
        """Refuse names that no file can have before ranks start, where they would be found in each of them."""
        named = {"--resume": self.resume, "--checkpoint-dir": self.checkpoint_dir, "--tensorboard": self.tensorboard}
        named |= {f"--{name}": settings.get(name) for name in ("weights", "export", "tokenizer")}
        for option, path in named.items():
            if path is None:
                continue
            try:
                Path(path).lstat()
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise ArtifactError(
                        f"{path}: this name of {len(path)} characters is longer than names may be", where=option
                    ) from error

    def _check_writable(self) -> None:
        for path in (self.output, self.trace, self.metrics):
            if path is not None:
                store.check_writable(path, force=self.force)
        for option, folder in (("--checkpoint-dir", self.checkpoint_dir), ("--tensorboard", self.tensorboard)):
            if folder is None:
                continue
            if not Path(folder).is_file():
                store.check_folder(folder, where=f"{option} {folder}")
            else:
                raise UsageError(
                    f"{folder} is a file, expected a folder",
                    where=option,
                    hint="name a folder; it is made if it is not there",
                )

    def _for_present(
        self, plan: Plan, external: "RankEnvironment | None", note: Callable[[str], None]
    ) -> "tuple[Plan, RankEnvironment]":
        """The plan for the devices that are there, see `cephalo_cli.cli.elastic`."""
        from cephalo_cli.cli.elastic import plan_for_present

        if external is None:
            raise UsageError(
                "--elastic is for ranks that torchrun started", hint="torchrun ... -m cephalo_cli train ..."
            )
        if self.checkpoint_dir is None:
            raise UsageError("--elastic needs --checkpoint-dir, to go on from the last checkpoint")
        again, met, changed = plan_for_present(plan, external, self.timeout_s)
        if changed is not None:
            note(changed)
        return again, met

    def _train(
        self, plan: Plan, options: "TrainOptions", out: Output, external: "RankEnvironment | None"
    ) -> "TrainingResult | None":
        """Run the ranks that start here, telling of every step."""
        from cephalo_cli.cli.train_lines import StepTeller, numerics_line
        from cephalo_cli.executor import Callbacks, run_training

        speaks = external is None or external.rank == 0
        with ExitStack() as stack:
            advance = stack.enter_context(out.progress("training"))
            teller = StepTeller(plan, options.num_steps, out.note, advance)
            teller.write_to(self.metrics if speaks else None, self.tensorboard if speaks else None, stack)
            return run_training(
                plan,
                options,
                Callbacks(
                    on_step=teller,
                    on_checkpoint=lambda path: out.note(f"saved {path}"),
                    on_notice=out.note,
                    on_numerics=lambda numerics: out.note(numerics_line(numerics)),
                ),
                external=external,
                enforce_memory=self.memory_limit,
                timeout_s=self.timeout_s,
            )

    def _tell(self, result: "TrainingResult", source: "InputFile", out: Output) -> None:
        """Write and show the report; a training without its last checkpoint ends with an error after that."""
        report = result.report.model_copy(update={"inputs": (source, *result.report.inputs)})
        if self.trace is not None:
            from cephalo_cli.reporting import write_trace

            write_trace(result.timeline, self.trace, force=self.force)

        def tables() -> "list[RenderableType]":
            from cephalo_cli.reporting.describe_report import describe_report
            from cephalo_cli.reporting.sheet import rendered

            return rendered(describe_report(report, with_steps=False))

        out.artifact(report, tables, force=self.force)
        if self.output not in (None, "-"):
            out.hint(f"cephalo show {self.plan} {self.output}")
        if result.unsaved is not None:
            raise TrainingError(f"all steps are done, but {result.unsaved}")


def _say_nothing_was_done(out: Output) -> None:
    """Say that there is no report, because the last step was done before."""
    if out.path not in (None, "-"):
        out.note(f"{out.path} was not written: there is nothing to report")
    if out.json:
        out.data(lambda: "null\n", list)


def _show_dry_run(plan: Plan, options: "TrainOptions", out: Output) -> None:
    """Check what can be checked without ranks, and show what they would do."""
    from cephalo_cli.executor.options import check_options
    from cephalo_cli.reporting.dry_run import describe_dry_run, plain_dry_run
    from cephalo_cli.reporting.sheet import rendered

    if options.engine != "cephalo":
        raise UsageError(f"--dry-run shows what --engine cephalo does, {options.engine} decides for itself")
    check_options(plan, options)
    if options.weights is not None:
        from cephalo_cli.executor.pretrained import Pretrained

        Pretrained(Path(options.weights), plan.model)
    dtype = options.dtype or plan.dtype
    out.data(
        lambda: json.dumps(plain_dry_run(plan, dtype, options.optimizer_kind), indent=1) + "\n",
        lambda: rendered(describe_dry_run(plan, dtype, options.optimizer_kind)),
    )
