"""Operations of units, worked out by hand, and measured blocks of others that stay below their peaks."""

import csv
from pathlib import Path

import pytest

from cephalo_cli.artifacts import Model
from cephalo_cli.artifacts.profile import UnitKind
from cephalo_cli.catalog.devices import device
from cephalo_cli.costmodel.flops import forward_flops
from tests.simulator.plans import small_model

DATA = Path(__file__).parents[3] / "shared" / "data"


def llama(**changes: int | None) -> Model:
    return Model(
        name="small", family="llama", num_layers=1, hidden_size=8, num_heads=2, ffn_size=16, vocab_size=32,
        max_seq_len=16,
    ).model_copy(update=changes)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "kind", "flops"),
    [
        # 4 square matrices and 2 of the MLP; causal attention over 10 positions
        (small_model(), "block", 2 * 10 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 10 * 10 * 64),
        (small_model(), "head", 2 * 10 * 64 * 256),
        (small_model(), "embedding", 0),
        # three MLP matrices; one key and value head of two
        (llama(num_kv_heads=1), "block", 2 * 10 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16) + 2 * 10 * 10 * 8),
        # heads wider than hidden_size / num_heads
        (llama(head_size=16), "block", 2 * 10 * (4 * 8 * 32 + 3 * 8 * 16) + 2 * 10 * 10 * 32),
    ],
)
def test_operations_of_a_forward_by_hand(model: Model, kind: UnitKind, flops: float) -> None:
    assert forward_flops(model, kind, 10) == flops


@pytest.mark.parametrize("window", [1, 2, 5, 7])
def test_a_sliding_window_counts_the_keys_inside_it(window: int) -> None:
    products = 2 * 10 * (4 * 8 * 8 + 3 * 8 * 16)
    seen = sum(min(place, window) for place in range(1, 11))
    assert forward_flops(llama(sliding_window=window), "block", 10) == products + 4 * seen * 8


@pytest.mark.parametrize("window", [8, 9, 10, 16])
def test_a_window_never_counts_more_than_causal_attention(window: int) -> None:
    assert forward_flops(llama(sliding_window=window), "block", 10) == forward_flops(llama(), "block", 10)


def test_operations_of_an_image_and_of_a_bidirectional_model() -> None:
    vit = Model(
        name="vit", family="vit", num_layers=1, hidden_size=8, num_heads=2, ffn_size=16, image_size=32, patch_size=8,
        num_classes=10,
    )  # fmt: skip
    assert forward_flops(vit, "embedding", 0) == 2 * 16 * 3 * 64 * 8
    assert forward_flops(vit, "block", 0) == 2 * 17 * (4 * 64 + 2 * 8 * 16) + 4 * 17 * 17 * 8
    assert forward_flops(vit, "head", 0) == 2 * 8 * 10
    bert = Model(
        name="bert", family="bert", num_layers=1, hidden_size=8, num_heads=2, ffn_size=16, vocab_size=32, max_seq_len=16
    )
    assert forward_flops(bert, "head", 10) == 2 * 10 * (64 + 8 * 32)


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared reference data is not on this machine")
def test_no_measured_block_of_others_exceeds_its_peak() -> None:
    with (DATA / "model_shapes.csv").open() as file:
        shapes = {row["model"]: row for row in csv.DictReader(file)}
    checked = 0
    with (DATA / "measured_block_latency.csv").open() as file:
        for row in csv.DictReader(file):
            shape = shapes[row["model"]]
            peak = (device(row["device"]).peak_flops or {}).get(row["dtype"])  # type: ignore[arg-type]  # text
            if peak is None:
                continue
            flops = forward_flops(_shape(shape), "block", int(row["seq_len"])) * int(row["microbatch"])
            assert flops / peak < float(row["forward_ms"]) / 1e3, row
            assert 2 * flops / peak < float(row["backward_ms"]) / 1e3, row
            checked += 1
    assert checked > 500


def _shape(row: dict[str, str]) -> Model:
    common = {
        "name": row["model"],
        "num_layers": 1,
        "hidden_size": int(row["hidden_size"]),
        "num_heads": int(row["num_heads"]),
        "ffn_size": int(row["ffn_size"]),
    }
    if row["family"] == "vit":
        return Model(**common, family="vit", image_size=384, patch_size=16, num_classes=1000)  # type: ignore[arg-type]
    return Model(**common, family=row["family"], vocab_size=49152, max_seq_len=8192)  # type: ignore[arg-type]
