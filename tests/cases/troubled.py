"""What befalls a rank in the tests of faults: an entry that trains until one rank gets a signal at a chosen moment."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.executor import Callbacks, TrainOptions, checkpoint
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record


def troubled(context: ProcessContext, arguments: dict[str, Any]) -> None:
    """Train; ``rank`` gets ``signal`` at ``moment``: an op of ``step``, its save, or the start."""
    moment, step = arguments["moment"], arguments["step"]
    is_me = context.rank == arguments["rank"]
    num_updates = 0
    context.emit({"pid": os.getpid()})

    def befall() -> None:
        os.kill(os.getpid(), signal.Signals[arguments["signal"]])

    def on_record(record: Record) -> None:
        nonlocal num_updates
        if is_me and num_updates == step - 1 and record.op.name == moment:
            befall()
        num_updates += record.op is Op.OPTIMIZER_STEP

    if is_me and moment == "START":
        befall()
    with pytest.MonkeyPatch.context() as patch:
        if is_me and moment == "SAVE":
            patch.setattr(checkpoint, "_all_written", _after(step, befall, lambda: num_updates))
        train(
            Plan.model_validate_json(json.dumps(arguments["plan"])),
            TrainOptions.model_validate_json(json.dumps(arguments["options"])),
            context,
            Callbacks(on_record=on_record),
        )


def _after(step: int, befall: Callable[[], None], num_updates: Callable[[], int]) -> Callable[..., Any]:
    """Gather what was written, as ever, but have something befall this rank in a step's save."""
    gather = checkpoint._all_written  # noqa: SLF001 - the moment between the shards and the manifest

    def gather_or_not(*given: Any) -> Any:
        if num_updates() == step:
            befall()
        return gather(*given)

    return gather_or_not
