"""A rank that is lost or stands still at any moment ends the job everywhere, with its name and the reason."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cephalo_cli.artifacts.store import dumps
from cephalo_cli.errors import TrainingError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.runtime.launch import run_ranks
from tests.executor.plans import make_model, make_plan

PLAN = make_plan(make_model(), [[2], [1, 1]], [0.5, 0.5])
TIMEOUT_S = 4.0
LIMIT_S = 30.0


@pytest.mark.parametrize(
    ("moment", "name", "reason", "saved"),
    [
        ("START", "SIGKILL", "was killed by SIGKILL", []),
        ("REDUCE_GRAD", "SIGKILL", "was killed by SIGKILL", ["step-00000001"]),
        ("FORWARD", "SIGSTOP", "was stopped (SIGSTOP) and did not answer for 4 s", ["step-00000001"]),
    ],
)
def test_a_lost_rank_is_named_and_nothing_stays(
    tmp_path: Path, moment: str, name: str, reason: str, saved: list[str]
) -> None:
    pids: list[int] = []

    def hear(_: int, event: dict[str, Any]) -> None:
        if "pid" in event:
            pids.append(event["pid"])

    options = TrainOptions(data="random", num_steps=1000, checkpoint_dir=str(tmp_path / "run"), checkpoint_every=1)
    arguments = {
        "plan": json.loads(dumps(PLAN)),
        "options": options.model_dump(mode="json"),
        "rank": 1,
        "moment": moment,
        "step": 2,
        "signal": name,
    }
    start = time.monotonic()
    with pytest.raises(TrainingError) as ended:
        run_ranks("tests.cases.troubled:troubled", arguments, PLAN.cluster, on_event=hear, timeout_s=TIMEOUT_S)
    assert ended.value.exit_code == 6
    assert ended.value.message == f"rank 1 (core on host) {reason}"
    assert time.monotonic() - start < 2 * LIMIT_S + TIMEOUT_S
    assert len(pids) == 2 or (moment == "START" and pids)  # the other rank may not have come so far
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)
    kept = sorted(path.name for path in (tmp_path / "run").glob("step-*"))
    assert kept == saved
