"""Entries for ranks that are started the way users start them."""

import json
import os
import signal
from typing import Any

from cephalo_cli.artifacts import Plan
from cephalo_cli.executor import Callbacks, TrainOptions
from cephalo_cli.executor.trainer import train
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.schedule import Op, Record


def killed_in_a_step(context: ProcessContext, arguments: dict[str, Any]) -> None:
    """Train; one rank is killed while it recomputes in the second step."""
    recomputed = 0

    def on_record(record: Record) -> None:
        nonlocal recomputed
        recomputed += record.op is Op.RECOMPUTE
        if context.rank == arguments["rank"] and recomputed == arguments["after"]:
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        Plan.model_validate_json(json.dumps(arguments["plan"])),
        TrainOptions.model_validate_json(json.dumps(arguments["options"])),
        context,
        Callbacks(on_record=on_record),
    )
