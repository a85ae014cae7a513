"""What ``cephalo plan`` was asked, and its answer."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from cephalo_cli.cli.contradictions import refuse_contradictions
from cephalo_cli.cli.gpus import common_dtype, fitting_command
from cephalo_cli.cli.lora import fitting_adapters, with_adapters
from cephalo_cli.cli.options import LARGEST_INTEGER, Dtype, Optimizer, RecomputeChoice, SwitchChoice, check_length
from cephalo_cli.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cephalo_cli.artifacts import Plan
    from cephalo_cli.artifacts.base import InputFile
    from cephalo_cli.artifacts.plan import OptimizerKind, PlanSettings, Strategy
    from cephalo_cli.artifacts.profile import Basis
    from cephalo_cli.cli.output import Output
    from cephalo_cli.planner.explain import Explanation

__all__ = ["Question", "check_file"]

LARGEST_BATCH = 1024
MEMORY_FRACTION = 0.9
SEVERAL = ("auto", "max")
"""What stands for a batch size that is to be found."""


def check_file(out: "Output", path: str, *, alone: bool) -> None:
    """Verify a plan file and say so.

    Raises:
        ArtifactError: It is not a plan, or does not hold what it says.
        UsageError: ``alone`` is false: other arguments stand beside it.
    """
    from cephalo_cli.artifacts import Plan, store
    from cephalo_cli.planner import check_plan

    if not alone or out.path is not None:
        raise UsageError("--check stands alone", hint="cephalo plan --check PLAN")
    plan = store.read(path, Plan)
    check_plan(plan)
    out.note(f"{path}: every rank fits, and everything it says follows from its profile")
    if out.json:
        out.data(lambda: json.dumps({"plan": path, "valid": True}) + "\n", list)


@dataclass(frozen=True, kw_only=True)
class Question:
    """The options of the command."""

    profile: str | None
    gpus: str | None
    model: str | None
    seq_len: int | None
    dtype: Dtype | None
    lora: str | None
    batch_size: str | None
    max_batch_size: int | None
    strategy: Literal["cephalo", "fsdp", "compute-balanced", "memory-balanced", "whale", "poplar", "all"]
    objective: Literal["time", "cost"]
    drop_devices: bool
    memory_fraction: float
    reserve: str | None
    recompute: RecomputeChoice
    offload: SwitchChoice
    keep_unsharded: str
    microbatch_size: int | None
    optimizer: Optimizer
    momentum: float
    optimizer_in_backward: bool
    time_limit: float | None
    explain: bool

    @property
    def has_one_size(self) -> bool:
        """Whether the batch size is given, not to be found."""
        return self.batch_size not in SEVERAL

    def answer(self, out: "Output", *, force: bool) -> None:
        """Plan, write and show.

        Raises:
            UsageError: Options contradict each other.
            ArtifactError: An input cannot be read, or the output cannot be written.
            InfeasibleError: Nothing fits.
            TimeLimitError: No plan was found in time.
        """
        from cephalo_cli.artifacts import store

        refuse_contradictions(self, to_standard_output=out.path == "-")
        batch = self._batch() if self.has_one_size else None
        settings = self._settings()
        if out.path is not None:
            store.check_writable(out.path, force=force)
        basis, inputs = self._basis(out)
        with out.progress("planning"), self._repaired(basis, batch):
            plans = self._plans(basis, batch, settings, inputs, out)
        explanation = None
        if self.explain:
            from cephalo_cli.planner import explain

            with out.progress("explaining"):
                explanation = explain(plans[0])
        for other in plans[1:]:
            if out.path is not None:
                path = _beside(out.path, other.strategy)
                out.save(other, path, force=force)
                out.note(f"wrote {path}")
        self._show(out, plans[0], explanation, force=force)

    def _show(self, out: "Output", plan: "Plan", explanation: "Explanation | None", *, force: bool) -> None:
        def tables() -> "list[RenderableType]":
            from cephalo_cli.reporting import artifact_tables, explanation_tables

            shown = artifact_tables(plan)
            return shown if explanation is None else [*shown, "", *explanation_tables(asdict(explanation))]

        if explanation is not None and out.json:
            from cephalo_cli.artifacts import store

            if out.path is not None:
                out.save(plan, out.path, force=force)
            told = asdict(explanation) | {"plan": json.loads(store.dumps(plan))}
            out.data(lambda: json.dumps(told, indent=2) + "\n", list)
        else:
            out.artifact(plan, tables, force=force)
        self._advise(out, plan)
        if self.objective == "cost":
            from cephalo_cli.planner import cost_per_token

            out.note(f"a million tokens cost {cost_per_token(plan) * 1e6:.3g}")
        if out.path not in (None, "-"):
            from cephalo_cli.cli.launching import training_commands

            out.hint(f"cephalo simulate {out.path}   or, to train:")
            for command in training_commands(plan, out.path):
                out.note(f"  {command}")
        elif out.path is None:
            out.hint("add -o PLAN.json to keep the plan, then cephalo train PLAN.json --data SOURCE --steps N")

    def _advise(self, out: "Output", plan: "Plan") -> None:
        """Name points that the profile lacks, and the larger search that may find a faster plan, where it may."""
        from cephalo_cli.planner.beyond import missing_points
        from cephalo_cli.planner.worth_trying import worth_trying

        for advice in (missing_points(plan), worth_trying(plan)):
            if advice is not None:
                out.note(advice)

    def _plans(
        self,
        basis: "Basis",
        batch: int | None,
        settings: "PlanSettings",
        inputs: "tuple[InputFile, ...]",
        out: "Output",
    ) -> "list[Plan]":
        from cephalo_cli.planner import choose_batch, choose_devices, make_all_plans, make_plan

        if batch is None:
            goal = cast("Literal['auto', 'max']", self.batch_size)
            largest, limit = self.max_batch_size or LARGEST_BATCH, self.time_limit
            return [choose_batch(basis, goal, largest, settings, time_limit_s=limit, say=out.note, inputs=inputs)]
        if self.drop_devices or self.objective == "cost":
            return [choose_devices(basis, batch, settings, objective=self.objective, inputs=inputs)]
        if self.strategy == "all":
            return list(make_all_plans(basis, batch, settings, time_limit_s=self.time_limit, inputs=inputs).values())
        strategy: Strategy = self.strategy
        limit = self.time_limit
        thorough = limit is not None
        return [make_plan(basis, batch, strategy, settings, time_limit_s=limit, thorough=thorough, inputs=inputs)]

    def _batch(self) -> int:
        text = self.batch_size or ""
        if not re.fullmatch(r"-?[0-9]{1,4000}", text):
            raise UsageError(f"--batch-size is {text!r}, expected a whole number, auto or max")
        batch = int(text)
        if not 1 <= batch <= LARGEST_INTEGER:
            expected = "at least 1" if batch < 1 else f"at most {LARGEST_INTEGER}"
            raise UsageError(f"--batch-size is {batch}, expected {expected}")
        return batch

    def _keep_unsharded(self) -> int | Literal["auto"] | None:
        if self.keep_unsharded == "off":
            return None
        if self.keep_unsharded == "auto":
            return "auto"
        if not (self.keep_unsharded.isascii() and self.keep_unsharded.isdigit()):
            raise UsageError(f"--keep-unsharded is {self.keep_unsharded!r}, expected off, auto or a number of blocks")
        return min(int(self.keep_unsharded), LARGEST_INTEGER)

    def _reserve_bytes(self) -> int | None:
        from cephalo_cli.quantities import parse_memory

        if self.reserve is None:
            return None
        try:
            return parse_memory(self.reserve)
        except UsageError as error:
            error.where = "--reserve"
            raise

    def _settings(self) -> "PlanSettings":
        from cephalo_cli.artifacts.plan import PlanSettings

        return PlanSettings(
            memory_fraction=self.memory_fraction,
            reserve_bytes=self._reserve_bytes(),
            recompute=self.recompute,
            offload=self.offload,
            keep_unsharded=self._keep_unsharded(),
            microbatch_size=self.microbatch_size,
            optimizer=self._optimizer(),
            optimizer_in_backward=self.optimizer_in_backward or None,
        )

    def _basis(self, out: "Output") -> "tuple[Basis, tuple[InputFile, ...]]":
        from cephalo_cli.artifacts import Profile, store

        if self.profile is not None:
            from cephalo_cli.catalog.compatible import expect_compatible

            profile, source = store.read_input(self.profile, Profile)
            expect_compatible(profile.cluster, profile.dtype)
            return profile, (source,)
        from cephalo_cli.catalog import cluster_from_gpus, load_model
        from cephalo_cli.profiler import estimate_profile

        cluster = cluster_from_gpus(self.gpus or "")
        shape, inputs = load_model(self.model or "")
        shape = with_adapters(shape, self.lora)
        check_length(shape, self.seq_len)
        dtype = self.dtype or common_dtype(cluster, scales_loss=not self.optimizer_in_backward)
        if self.dtype is None:
            out.note(f"computed in {dtype}, which all these devices run; --dtype names another")
        return estimate_profile(cluster, shape, seq_len=self.seq_len, dtype=dtype), inputs

    @contextmanager
    def _repaired(self, basis: "Basis", batch: int | None) -> Iterator[None]:
        """Put what would fit into the answer that nothing fits: a command, and adapters."""
        try:
            yield
        except InfeasibleError as error:
            if error.hint is None:
                raise
            if self.gpus is not None:
                if not error.hint.startswith("--"):
                    error.hint = self._wider_repair() or error.hint
                command = fitting_command(error.hint, self.gpus, self._given())
                error.hint += "" if command is None else f": {command}"
            adapters = fitting_adapters(basis, self._settings(), 1 if batch is None else batch)
            if adapters is not None:
                where = "add" if self.gpus is not None else "profile again with"
                error.hint += f"; or train adapters only, which fits: {where} --lora {adapters}"
            raise

    def _wider_repair(self) -> str | None:
        """The repair of another dtype, where float16 was chosen here: only there are gradients needed all at once."""
        from cephalo_cli.catalog import cluster_from_gpus

        cluster = cluster_from_gpus(self.gpus or "")
        chosen = [common_dtype(cluster, scales_loss=scales_loss) for scales_loss in (True, False)]
        if self.dtype is not None or chosen != ["float16", "float32"]:
            return None
        again = replace(self, optimizer_in_backward=True, dtype="float32")
        batch = self._batch() if self.has_one_size else 1
        return "--dtype float32 --optimizer-in-backward fits" if again.fits(batch) else None

    def fits(self, batch: int) -> bool:
        """Whether some plan of this many samples fits."""
        from cephalo_cli.cli.output import Output
        from cephalo_cli.planner.repair import fits

        return fits(self._basis(Output(json=False, quiet=True))[0], self._settings(), batch)

    def _given(self) -> "dict[str, str | None]":
        """The options that say what is planned, as they were given."""
        return {
            "--model": self.model,
            "--seq-len": None if self.seq_len is None else str(self.seq_len),
            "--dtype": self.dtype,
            "--lora": self.lora,
            "--batch-size": self.batch_size,
            "--memory-fraction": None if self.memory_fraction == MEMORY_FRACTION else f"{self.memory_fraction:g}",
            "--reserve": self.reserve,
            "--recompute": None if self.recompute == "auto" else self.recompute,
            "--offload": None if self.offload == "auto" else self.offload,
            "--keep-unsharded": None if self.keep_unsharded == "off" else self.keep_unsharded,
            "--microbatch-size": None if self.microbatch_size is None else str(self.microbatch_size),
            "--optimizer": None if self.optimizer == "adamw" else self.optimizer,
            "--momentum": f"{self.momentum:g}" if self.momentum else None,
            "--optimizer-in-backward": "" if self.optimizer_in_backward else None,
        }

    def _optimizer(self) -> "OptimizerKind | None":
        """Whose moments the plan must hold; AdamW's go without saying."""
        if self.optimizer == "adamw":
            return None
        return "sgd with momentum" if self.momentum else "sgd"


def _beside(path: str, strategy: str) -> str:
    """``plans/a.json`` and ``fsdp`` give ``plans/a.fsdp.json``."""
    stem = path.removesuffix(".json")
    return f"{stem}.{strategy}.json"
