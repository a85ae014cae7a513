"""One rank's training, from the first check to the report.

1. Compare the device with the plan, and the ranks with one another.
2. Make the engine; draw weights or load a checkpoint.
3. Every step: add up the tokens of the global batch and hear of signals; run the step; tell; save now and then.
4. Put the ranks' times together into a report.
"""

import contextlib
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cephalo_cli.artifacts.base import DType, InputFile
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.errors import InterruptedRunError, TrainingError
from cephalo_cli.executor.agreement import StopSignals, check_device, compare_ranks, job_facts
from cephalo_cli.executor.checkpoint_folder import prepare_folder
from cephalo_cli.executor.checkpoint_manifest import Found, Manifest
from cephalo_cli.executor.data import Batches, count_tokens, on_device
from cephalo_cli.executor.datasets.opening import open_source, split_source
from cephalo_cli.executor.engine import CephaloEngine, EngineSetting, StepEngine
from cephalo_cli.executor.exporting import export_weights, prepare_export
from cephalo_cli.executor.interpreter import Hooks
from cephalo_cli.executor.options import Callbacks, TrainingResult, TrainOptions, check_options, microbatch_split
from cephalo_cli.executor.over_memory import MemorySeen
from cephalo_cli.executor.pace import StepReporter
from cephalo_cli.executor.peers import gather_values, sum_over_ranks
from cephalo_cli.executor.pretrained import Pretrained
from cephalo_cli.executor.resuming import find_start, restore, seed_in_force, state_dtype
from cephalo_cli.executor.saver import Saver
from cephalo_cli.executor.starting_weights import open_weights, vouch_for_weights
from cephalo_cli.executor.summary import Records, make_result, summarise
from cephalo_cli.executor.validation import Validation
from cephalo_cli.models.own import check_own
from cephalo_cli.runtime.device import MemoryMeter
from cephalo_cli.runtime.peers import PeerLostError
from cephalo_cli.runtime.process import ProcessContext

__all__ = ["train"]


def train(plan: Plan, options: TrainOptions, context: ProcessContext, callbacks: Callbacks) -> TrainingResult | None:
    """Train on this rank; every rank of the plan calls it at the same time.

    Args:
        plan: Who does what.
        options: What is asked for.
        context: This rank.
        callbacks: Whom to tell.

    Returns:
        Report and time line on rank 0; None on the others, and where the resumed checkpoint is that of the last step.

    Raises:
        UsageError: Options, plan or device do not fit together.
        ArtifactError: Data or a checkpoint cannot be read.
        TrainingError: Ranks disagree, something is not finite, or a checkpoint cannot be written.
        InterruptedRunError: A signal came; a checkpoint was saved where there is a folder for it.
    """
    check_options(plan, options)
    with StopSignals() as signals, contextlib.ExitStack() as held:
        training = _Training(plan, options, context, callbacks, signals=signals, held=held)
        try:
            training.run()
        except PeerLostError:
            raise
        except BaseException:
            training.leave()
            raise
        finally:
            training.engine.close()
        return _report(training)


@dataclass
class _Progress:
    """Where a training is."""

    step: int = 0
    position: int = 0


class _Training:
    def __init__(
        self,
        plan: Plan,
        options: TrainOptions,
        context: ProcessContext,
        callbacks: Callbacks,
        *,
        signals: StopSignals,
        held: contextlib.ExitStack,
    ) -> None:
        self.plan, self.options, self.context, self._callbacks = plan, options, context, callbacks
        self._signals = signals
        self.meter = MemoryMeter(context.device)
        self.meter.reset()
        self._group = context.process_group
        self.dtype: DType = options.dtype or plan.dtype
        compare_ranks(job_facts(plan, options), self._group)
        self.weights: Pretrained | None = None
        if options.weights is not None:
            self.weights = open_weights(Path(options.weights), plan.model, self._group)
        self._export = prepare_export(options, plan.model, self.weights, self._group)
        notice = check_device(plan, context)
        if notice is not None:
            callbacks.on_notice(notice)
        if plan.model.own is not None:
            check_own(plan.model, plan.seq_len, self.dtype)
        if options.checkpoint_dir is not None:
            prepare_folder(Path(options.checkpoint_dir), self._group, held)
        found = find_start(options, plan.model, self.dtype, self._group, self._notice)
        self.seed = seed_in_force(options, found)
        self._source, validation = split_source(
            open_source(
                options,
                plan.model,
                seq_len=plan.seq_len,
                seed=self.seed,
                timeout_s=context.timeout.total_seconds(),
                notice=self._notice,
            ),
            options.validation_fraction,
        )
        compare_ranks({"the training data": self._source.digest}, self._group)
        split = microbatch_split(plan, options)
        self._batches = Batches(self._source, split, self.seed, drop_last=options.drop_last)
        self._validation = Validation(
            validation, split, options, context, lambda: signals.agree(0, self._group)[1] is not None
        )
        self._reporter = StepReporter(plan, options, self.dtype, context)
        if self._batches.num_dropped:
            self._notice(f"--drop-last leaves out {self._batches.num_dropped} samples of every epoch")
        self.inputs = self._vouch_for_weights(found)
        self.progress = _Progress()
        self.records = Records()
        self.saver = self._make_saver(found)
        self.engine = self._make_engine(found)
        if context.rank == 0:
            callbacks.on_numerics(self.engine.numerics())
        self._seen = MemorySeen()
        self._tell_memory(0, self.meter.peak_bytes())

    def run(self) -> None:
        """Run all steps."""
        for number in range(self.progress.step + 1, self.options.num_steps + 1):
            stop = self._run_step(number)
            if stop is not None:
                self._stop(stop)
            every = self.options.checkpoint_every
            if every is not None and number % every == 0:
                self._save()
        self._save()
        if self.saver is not None:
            self.saver.wait()
        if self.options.export is not None and isinstance(self.engine, CephaloEngine):
            export_weights(self._export, self.engine, self._group)
            self._notice(f"exported the weights to {self.options.export}")

    def tell_nothing_left(self) -> None:
        """Say why there is no report."""
        self._notice(f"step {self.progress.step} is the last and was done before: nothing was trained or measured")

    def leave(self) -> None:
        """Give a save that is under way the time to end."""
        if self.saver is not None:
            self.saver.leave()

    def _run_step(self, number: int) -> int | None:
        """Run one step; gives the signal to stop for instead, if there is one."""
        start = time.perf_counter()
        batch = self._batches.of_rank(self.context.rank, self.progress.position)
        num_tokens, stop = self._signals.agree(count_tokens(batch), self._group)
        if stop is not None:
            return stop
        if self.saver is not None:
            self.saver.poll()
        before = self._received()
        numbers, times = self.engine.run_step(on_device(batch, self.context.device), num_tokens=num_tokens, step=number)
        step_s = time.perf_counter() - start
        num_samples = len(self._batches.sample_indices(self.progress.position))
        self.progress.step = number
        self.progress.position = self._batches.after(self.progress.position)
        report = self._reporter.report(
            number,
            numbers,
            times,
            num_samples=num_samples,
            num_tokens=num_tokens,
            step_s=step_s,
            peak_bytes=self.meter.peak_bytes(),
        ).model_copy(update={"validation_loss": self._validation.loss_after(number, self.engine)})
        self._tell_memory(number, self.meter.peak_bytes())
        after = self._received()
        received = None if after is None or before is None else (after[0] - before[0], after[1] - before[1])
        self.records.add(report, times, received)
        if self.context.rank == 0:
            self._callbacks.on_step(report)
        return None

    def _stop(self, signal_number: int) -> None:
        """Save and leave, on all ranks in the same step."""
        self._save()
        if self.saver is not None:
            self.saver.wait()
            if self.saver.unsaved is not None:
                name = signal.Signals(signal_number).name
                raise TrainingError(f"stopped by {name} after step {self.progress.step}; {self.saver.unsaved}")
        where = self.options.checkpoint_dir
        saved = (
            f"a checkpoint is in {where}" if where is not None else "nothing was saved: there is no --checkpoint-dir"
        )
        raise InterruptedRunError(
            f"stopped after step {self.progress.step}; {saved}",
            signal_number=signal_number,
            hint=None if where is None else "--resume latest continues",
        )

    def _received(self) -> tuple[int, int] | None:
        traffic = self.engine.traffic
        return None if traffic is None else (traffic.gathered_bytes, traffic.reduced_bytes)

    # Making and resuming ----------------------------------------------------------------------------------------------

    def _make_engine(self, found: Found | None) -> StepEngine:
        setting = EngineSetting(
            plan=self.plan,
            options=self.options,
            dtype=self.dtype,
            seed=self.seed,
            context=self.context,
            hooks=Hooks(
                throttle=self.context.compute,
                sum_over_ranks=partial(sum_over_ranks, group=self._group),
                on_record=self._callbacks.on_record,
            ),
            callbacks=self._callbacks,
        )
        if self.options.engine != "cephalo":
            from cephalo_cli.executor.engine_torch import TorchEngine  # noqa: PLC0415 - FSDP2 takes 48 MiB to load

            return TorchEngine(setting)
        with contextlib.nullcontext() if found is not None or self.weights is None else self.weights as pretrained:
            engine = CephaloEngine(setting, initialise=found is None, pretrained=pretrained)
        if found is not None:
            restore(engine, found, self._source.digest, self._group)
            self.progress = _Progress(step=found.manifest.step, position=found.manifest.position)
            self._notice(f"resumed from {found.path} after step {found.manifest.step}")
        return engine

    def _vouch_for_weights(self, found: Found | None) -> tuple[InputFile, ...]:
        """Digests of the weights that training starts from; those of a checkpoint win."""
        if self.weights is None:
            return ()
        if self.weights.unused:
            shown = ", ".join(self.weights.unused[:3]) + (", ..." if len(self.weights.unused) > 3 else "")
            self._notice(f"{self.weights.folder} holds tensors that this model does not use: {shown}")
        if found is not None:
            self._notice(f"the weights are those of {found.path}, not of {self.weights.folder}")
            return ()
        stored = self.plan.model.frozen_dtype
        wider = self.weights.rounded_to(stored)
        if wider is not None:
            self._notice(f"weights that are not trained are stored in {stored}: those in {wider} are rounded")
        return vouch_for_weights(self.weights, self.context)

    def _make_saver(self, found: Found | None) -> Saver | None:
        options = self.options
        if options.checkpoint_dir is None:
            return None
        folder = Path(options.checkpoint_dir)
        is_async = options.async_checkpoint
        saver = Saver(
            folder,
            self._group,
            keep=options.keep,
            is_async=self.context.device.type != "cpu" if is_async is None else is_async,
            on_saved=lambda path: self._callbacks.on_checkpoint(str(path)) if self.context.rank == 0 else None,
            on_failed=lambda reason: self._notice(f"training goes on although a checkpoint is missing: {reason}"),
        )
        if found is not None and found.path.parent.resolve() == folder.resolve():
            saver.saved_step = found.manifest.step
        return saver

    def _save(self) -> None:
        if self.saver is None or not isinstance(self.engine, CephaloEngine):
            return
        manifest = Manifest(
            step=self.progress.step,
            position=self.progress.position,
            seed=self.seed,
            data=self._source.digest,
            model=self.plan.model,
            state_dtype=state_dtype(self.dtype),
            optimizer=self.options.optimizer_kind,
            num_updates=self.engine.num_updates,
            loss_scale=self.engine.scale.value,
            good_steps=self.engine.scale.good_steps,
            layout=self.engine.layout(),
            files={},
        )
        self.saver.save(manifest, self.engine.shards(to_write=True))

    def _tell_memory(self, step: int, peak_bytes: int) -> None:
        if self._seen.has_grown(step, peak_bytes):
            self._callbacks.on_memory(step, peak_bytes)

    def _notice(self, sentence: str) -> None:
        if self.context.rank == 0:
            self._callbacks.on_notice(sentence)


def _report(training: _Training) -> TrainingResult | None:
    """Put the ranks' summaries together on rank 0; None where the checkpoint left nothing to do."""
    records, context = training.records, training.context
    if not records.reports:
        training.tell_nothing_left()
        return None
    peak_bytes = training.meter.peak_bytes()
    mine = summarise(records, peak_bytes, training.options)
    all_ranks = gather_values(mine, context.process_group)
    if context.rank > 0:
        return None
    result = make_result(
        plan=training.plan,
        options=training.options,
        dtype=training.dtype,
        numerics=training.engine.numerics(),
        collectives=training.engine.algorithm,
        emulation=context.emulation,
        reports=records.reports,
        ranks=all_ranks,
        inputs=training.inputs,
    )
    return replace(result, unsaved=None if training.saver is None else training.saver.unsaved)
