"""What is refused before anything starts."""

from typing import Any

import pytest

from cephalo_cli.artifacts import Plan
from cephalo_cli.artifacts.plan import FsdpOptions, PlanSettings
from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions, run_training
from cephalo_cli.executor.options import check_options, microbatch_split
from tests.executor.plans import make_model, make_plan

MODEL = make_model()
PLAN = make_plan(MODEL, [[2, 1], [1]])
FOR_SGD = make_plan(MODEL, [[2, 1], [1]], settings=PlanSettings(optimizer="sgd"))


def options(**changes: Any) -> TrainOptions:
    fields: dict[str, Any] = {"data": "random", "num_steps": 1}
    return TrainOptions(**(fields | changes))


REFUSED: dict[str, tuple[Plan, TrainOptions]] = {
    "the plan's sequences have 17 tokens, model tiny-gpt takes at most 16": (
        make_plan(MODEL, [[1]], seq_len=17),
        options(),
    ),
    "the plan counts 7 frozen parameters, its model has 0": (
        make_plan(MODEL, [[1]], num_frozen_parameters=7),
        options(),
    ),
    "a cpu device's memory is host memory already": (make_plan(MODEL, [[1]], offload=True), options()),
    "the plan describes a variant of FSDP for the simulator, which the executor does not run": (
        make_plan(MODEL, [[1]], schedule="microbatch-major").model_copy(update={"fsdp": FsdpOptions()}),
        options(),
    ),
    "--recompute goes with --even-split; the plan says who does": (PLAN, options(recompute=True)),
    "--even-split is for --engine fsdp2 and ddp; cephalo follows the plan": (PLAN, options(even_split=True)),
    "--microbatch-size needs --even-split; otherwise the plan's microbatches are used": (
        PLAN,
        options(engine="ddp", microbatch_size=1),
    ),
    "--compile is for --engine cephalo": (PLAN, options(engine="ddp", compile=True)),
    "--optimizer-in-backward is for --engine cephalo": (
        PLAN,
        options(engine="ddp", optimizer_in_backward=True, clip=None),
    ),
    "--optimizer-in-backward updates a unit before the norm of the whole gradient is known, so nothing can be clipped "
    "by it": (PLAN, options(optimizer_in_backward=True)),
    "--optimizer-in-backward has updated units by the time a gradient is found not to be finite, so no step can be "
    "skipped": (PLAN, options(optimizer_in_backward=True, clip=None, on_nonfinite="skip")),
    "--optimizer-in-backward cannot leave out the steps in which a scaled float16 gradient overflows": (
        PLAN,
        options(optimizer_in_backward=True, clip=None, dtype="float16"),
    ),
    "the plan has room for the moments of sgd, adamw keeps more": (FOR_SGD, options()),
    "the plan has room for the moments of sgd, sgd with momentum keeps more": (
        FOR_SGD,
        options(optimizer="sgd", momentum=0.9),
    ),
    "the plan holds the gradients of one unit, not of all": (
        make_plan(MODEL, [[2, 1], [1]], settings=PlanSettings(optimizer_in_backward=True)),
        options(clip=None),
    ),
    "--checkpoint-every needs --checkpoint-dir": (PLAN, options(checkpoint_every=1)),
    "--resume latest needs --checkpoint-dir to look in": (PLAN, options(resume="latest")),
    "checkpoints are those of --engine cephalo, fsdp2 has none": (PLAN, options(engine="fsdp2", checkpoint_dir="x")),
    "checkpoints are those of --engine cephalo, ddp has none": (PLAN, options(engine="ddp", resume="x")),
    "float16 needs a scaled loss, which --engine fsdp2 does not have here": (
        make_plan(MODEL, [[1], [1]]),
        options(engine="fsdp2", dtype="float16"),
    ),
    "--engine ddp needs samples on every rank, rank 1 has none": (make_plan(MODEL, [[2], []]), options(engine="ddp")),
    "--engine fsdp2 gathers anew for each microbatch, so all ranks need the same number, found [2, 1]": (
        PLAN,
        options(engine="fsdp2"),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    plan, wanted = REFUSED[message]
    with pytest.raises(UsageError) as refusal:
        run_training(plan, wanted)
    assert refusal.value.message == message


def test_offloading_needs_recompute() -> None:
    cluster = PLAN.cluster.model_dump(exclude_none=True) | {
        "device_types": {"core": {"backend": "cuda", "memory_bytes": 1}}
    }
    plan = make_plan(MODEL, [[2, 1], [1]], offload=True, recompute=False, cluster=PLAN.cluster.model_validate(cluster))
    with pytest.raises(UsageError, match="offloading needs recompute"):
        check_options(plan, options())
    check_options(
        plan.model_copy(update={"ranks": tuple(rank.model_copy(update={"recompute": True}) for rank in plan.ranks)}),
        options(),
    )


@pytest.mark.parametrize(
    ("batch", "num_ranks", "size", "expected"),
    [
        (8, 2, None, [[4], [4]]),
        (7, 3, None, [[3], [2], [2]]),
        (2, 3, None, [[1], [1], []]),
        (10, 2, 2, [[2, 2, 1], [2, 2, 1]]),
        (9, 2, 2, [[2, 2, 1], [2, 2]]),
    ],
)
def test_even_split(batch: int, num_ranks: int, size: int | None, expected: list[list[int]]) -> None:
    plan = make_plan(MODEL, [[batch]] + [[]] * (num_ranks - 1))
    even = options(engine="ddp", even_split=True, microbatch_size=size)
    assert microbatch_split(plan, even) == expected
    assert microbatch_split(plan, options()) == [[batch]] + [[]] * (num_ranks - 1)
