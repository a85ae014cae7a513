"""Memory terms by hand. E, B and H are the parameters of embedding, block and head."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.plan import FsdpOptions, PlanSettings, ScheduleName
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.costmodel import RankChoice, rank_memory
from cephalo_cli.costmodel.memory import accumulation_bytes, buffers_bytes, limit_bytes, state_bytes
from cephalo_cli.schedule import StepStages, step_stages
from cephalo_cli.units import model_units
from tests.costmodel.bases import TIED_H, B, E, H, basis, choice

BOUNDARY = 6 * 4 * 4
"""Bytes of one float32 sample between units."""


def stages(profile: Profile, name: ScheduleName = "layer-major", rounds: int = 1) -> StepStages:
    return step_stages(name, model_units(profile.model), rounds)


def memory(profile: Profile, mine: RankChoice, num_ranks: int = 2, **settings: Any) -> dict[str, int]:
    whole = rank_memory(profile, PlanSettings(**settings), mine, step=stages(profile), num_ranks=num_ranks)
    terms = whole.model_dump()
    return {name.removesuffix("_bytes"): value for name, value in terms.items()}


@pytest.mark.parametrize(
    ("dtype", "frozen", "expected"),
    [
        ("float32", 0, 16 * 456),
        ("bfloat16", 0, 16 * 456),
        ("float16", 0, 16 * 456),
        ("float64", 0, 32 * 456),
        ("float32", 100, 16 * 356 + 4 * 100),
        ("float64", 100, 32 * 356 + 8 * 100),
    ],
)
def test_state_is_master_gradient_and_two_moments(dtype: DType, frozen: int, expected: int) -> None:
    assert state_bytes(basis(dtype=dtype, frozen=frozen)) == expected


def test_state_holds_the_moments_of_the_planned_optimizer() -> None:
    mixed = basis(frozen=100)
    assert state_bytes(mixed, "adamw") == state_bytes(mixed) == 16 * 356 + 4 * 100
    assert state_bytes(mixed, "sgd with momentum") == 12 * 356 + 4 * 100
    assert state_bytes(mixed, "sgd") == 8 * 356 + 4 * 100
    assert state_bytes(basis(dtype="float64"), "sgd") == 16 * 456
    half = memory(basis(), choice("x", [1], 0.5), optimizer="sgd")
    assert half["state"] == 8 * 456 // 2


@pytest.mark.parametrize(("optimizer", "numbers"), [("adamw", 3), ("sgd with momentum", 2), ("sgd", 1)])
def test_updates_in_backward_hold_the_gradients_of_one_unit(optimizer: str, numbers: int) -> None:
    early: dict[str, Any] = {"optimizer": optimizer, "optimizer_in_backward": True}
    half = memory(basis(), choice("x", [1], 0.5), **early)
    assert half["state"] == (4 * numbers * 456 + 4 * max(E, B, H)) // 2
    usual = memory(basis(), choice("x", [1], 0.5), optimizer=optimizer)
    assert {name: half[name] for name in ("buffers", "working", "saved")} == {
        name: usual[name] for name in ("buffers", "working", "saved")
    }


def test_a_rank_that_keeps_everything_holds_the_gradients_that_are_alive_together() -> None:
    alone = memory(basis(), choice("x", [1], 1.0), num_ranks=1, optimizer_in_backward=True)
    assert alone["state"] == 12 * 456 + 4 * max(B + H, 2 * B, B + E)
    early, one = PlanSettings(optimizer_in_backward=True), choice("x", [1], 1.0)
    for rounds, alive in ((1, max(B + H, 2 * B, B + E)), (2, 456)):
        step = stages(basis(), "replicated", rounds)
        assert rank_memory(basis(), early, one, step=step, num_ranks=2).state_bytes == 12 * 456 + 4 * alive


def test_tied_embeddings_are_stored_once() -> None:
    assert state_bytes(basis(tied=True)) == 16 * (E + 2 * B + TIED_H)


def test_accumulation_is_at_least_float32() -> None:
    dtypes: tuple[DType, ...] = ("float16", "bfloat16", "float32", "float64")
    assert [accumulation_bytes(dtype) for dtype in dtypes] == [4, 4, 4, 8]


UNTIED = {
    # parameters and gradients of every stage: embedding, block 0, block 1, head, block 1, block 0, embedding
    "parameters": [E + B, B + B, B + H, B + H, B + B, B, 0],
    "gradients": [0, 0, 0, H, B + H, B + B, E + B],
}
TIED = {
    # the head needs the embedding and adds to its gradient, which waits for the embedding's own backward
    "parameters": [E + B, B + B, B + TIED_H + E, B + TIED_H + E, B + B, B, 0],
    "gradients": [0, 0, 0, TIED_H + E, B + TIED_H + E, B + B + E, E + B],
}


@pytest.mark.parametrize(("tied", "counts"), [(False, UNTIED), (True, TIED)], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("dtype", "parameter", "gradient"), [("float32", 4, 4), ("bfloat16", 2, 4), ("float16", 2, 4), ("float64", 8, 8)]
)
def test_buffers_are_the_fullest_stage(
    tied: bool,  # noqa: FBT001  (a parameter of the table)
    counts: dict[str, list[int]],
    dtype: DType,
    parameter: int,
    gradient: int,
) -> None:
    step = stages(basis(tied=tied))
    expected = max(
        parameter * parameters + gradient * gradients
        for parameters, gradients in zip(counts["parameters"], counts["gradients"], strict=True)
    )
    for num_ranks in (2, 5):
        assert buffers_bytes(step, num_ranks=num_ranks, dtype=dtype) == expected


def test_fullest_stages_in_numbers() -> None:
    assert buffers_bytes(stages(basis()), num_ranks=2, dtype="float32") == 2256
    assert buffers_bytes(stages(basis()), num_ranks=2, dtype="bfloat16") == 1720
    assert buffers_bytes(stages(basis(tied=True)), num_ranks=2, dtype="float32") == 2352
    assert buffers_bytes(stages(basis(tied=True)), num_ranks=2, dtype="bfloat16") == 1976


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rank_that_keeps_everything_in_the_compute_dtype_needs_no_buffers(dtype: DType) -> None:
    assert buffers_bytes(stages(basis()), num_ranks=1, dtype=dtype) == 0
    assert buffers_bytes(stages(basis(), "replicated", 3), num_ranks=4, dtype=dtype) == 0


def test_a_rank_that_keeps_everything_else_has_a_copy_to_compute_with() -> None:
    assert buffers_bytes(stages(basis()), num_ranks=1, dtype="bfloat16") == 2 * (E + 2 * B + H)
    assert buffers_bytes(stages(basis(), "replicated", 3), num_ranks=4, dtype="float16") == 2 * (E + 2 * B + H)


def test_microbatch_major_keeps_the_whole_gradient_from_the_first_round_on() -> None:
    profile = basis()
    once = buffers_bytes(stages(profile, "microbatch-major", 1), num_ranks=2, dtype="float32")
    again = buffers_bytes(stages(profile, "microbatch-major", 2), num_ranks=2, dtype="float32")
    assert once == 2256, "one round is as layer-major"
    assert again == 4 * (2 * B + (E + 2 * B + H))
    settings = PlanSettings()
    mine = choice("x", [1, 1], 0.5)
    step = stages(profile, "microbatch-major", 2)
    assert rank_memory(profile, settings, mine, step=step, num_ranks=2).buffers_bytes == again


def test_reducing_every_microbatch_keeps_no_gradients_for_later() -> None:
    options = FsdpOptions(reduces_every_microbatch=True)
    units = model_units(basis().model)
    once = buffers_bytes(step_stages("microbatch-major", units, 1), num_ranks=2, dtype="bfloat16")
    again = buffers_bytes(step_stages("microbatch-major", units, 3, options), num_ranks=2, dtype="bfloat16")
    assert again == once


def test_whole_gradients_have_the_dtype_of_their_reduction() -> None:
    units = model_units(basis().model)
    step = step_stages("microbatch-major", units, 1, FsdpOptions(reduce_dtype="bfloat16"))
    # the backward of the last block: both blocks whole, its own gradient and, on its way, the head's
    assert buffers_bytes(step, num_ranks=2, dtype="bfloat16") == 2 * (2 * B) + 2 * (B + H)


def test_every_term_by_hand() -> None:
    terms = memory(basis(), choice("x", [2, 1], 0.25))
    assert terms == {
        "state": 4 * 456,  # a quarter of 16 bytes each
        "buffers": 2256,
        "working": 400 * 2,  # the block's, for the largest microbatch
        "saved": 10 * 3 + 3 * BOUNDARY * 3,  # the embedding's graph; outputs of embedding and two blocks, three samples
        "reserve": 1000,
        "total": 1824 + 2256 + 800 + 894 + 1000,
        "limit": 90_000,  # nine tenths of 100,001, rounded down
    }


def test_without_recompute_blocks_keep_what_autograd_keeps() -> None:
    terms = memory(basis(), choice("x", [2, 1], 0.25, recompute=False))
    assert terms["working"] == 2 * max(4 * 60, 400 - 100), "what the block keeps is counted as saved"
    assert terms["saved"] == 10 * 3 + 2 * 100 * 3 + BOUNDARY * 3


def test_offloaded_boundaries_leave_four_in_flight() -> None:
    terms = memory(basis(), choice("x", [2, 1], 0.25, offload=True))
    assert terms["saved"] == 10 * 3
    assert terms["buffers"] == 2256 + 4 * BOUNDARY * 2


def test_other_schedules_hold_one_microbatch_at_a_time() -> None:
    profile = basis()
    for name in ("microbatch-major", "replicated"):
        step = stages(profile, name, 2)
        terms = rank_memory(profile, PlanSettings(), choice("x", [2, 1], 0.25), step=step, num_ranks=2)
        assert terms.saved_bytes == 10 * 2 + 3 * BOUNDARY * 2


def test_a_rank_without_samples_or_state_still_takes_part_in_gathers() -> None:
    terms = memory(basis(), choice("x", [], 0.0))
    assert terms == {
        "state": 0,
        "buffers": 2256,
        "working": 0,
        "saved": 0,
        "reserve": 1000,
        "total": 3256,
        "limit": 90_000,
    }


def test_one_rank_alone() -> None:
    terms = memory(basis(1), choice("x", [1], 1.0), num_ranks=1)
    assert (terms["state"], terms["buffers"]) == (16 * 456, 0)
    low = memory(basis(1, dtype="bfloat16"), choice("x", [1], 1.0), num_ranks=1)
    assert (low["state"], low["buffers"]) == (16 * 456, 2 * 456)
    assert low["saved"] == 10 + 3 * BOUNDARY // 2


def test_imported_working_memory_has_the_buffers_inside() -> None:
    assert memory(basis(method="imported"), choice("x", [2, 1], 0.25, offload=True))["buffers"] == 0


def test_settings_limit_and_reserve() -> None:
    terms = memory(basis(), choice("x", [1], 0.5), memory_fraction=0.5, reserve_bytes=7)
    assert (terms["limit"], terms["reserve"]) == (50_000, 7)
    assert limit_bytes(basis(), "y", PlanSettings(memory_fraction=1.0)) == 100_001


@given(
    sizes=st.lists(st.integers(1, 9), max_size=4),
    share=st.floats(0, 1),
    more=st.integers(1, 9),
    switches=st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_more_samples_and_more_state_never_take_less(
    sizes: list[int], share: float, more: int, switches: tuple[bool, bool]
) -> None:
    def total(sizes: list[int], share: float) -> int:
        mine = choice("x", sizes, share, recompute=switches[0], offload=switches[1])
        return memory(basis(), mine)["total"]

    assert total([*sizes, more], share) >= total(sizes, share)
    assert total([size + more for size in sizes], share) >= total(sizes, share)
    assert total(sizes, share) >= total(sizes, share / 2)
