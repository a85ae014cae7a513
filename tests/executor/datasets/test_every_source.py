"""What holds for the samples of every source: each comes once an epoch, the same whatever the plan."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from cephalo_cli.executor.data import Batches, Microbatch, Source, count_tokens
from cephalo_cli.executor.datasets.opening import split_source
from cephalo_cli.models import ImageBatch
from tests.executor.datasets.opened import open_data

TEXTS = [f"document {number} has {'many ' * (number % 5)}words" for number in range(23)]
VIT = {"image_size": 4, "patch_size": 2, "num_classes": 4, "num_channels": 1, "vocab_size": None, "max_seq_len": None}


def open_text(folder: Path, **options: Any) -> Source:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return open_data(folder / "a.jsonl", seq_len=12, **options)


def open_chat(folder: Path) -> Source:
    parquet.write_table(pa.table({"prompt": TEXTS, "completion": TEXTS[::-1]}), folder / "a.parquet")
    return open_data(folder / "a.parquet", seq_len=40)


def open_tokenised(folder: Path) -> Source:
    np.save(folder / "a.npy", np.arange(700) % 250)
    return open_data(folder / "a.npy", seq_len=12, end_token="17")


def open_files(folder: Path) -> Source:
    for number in range(27):
        (folder / "images" / str(number % 4)).mkdir(parents=True, exist_ok=True)
        image = np.full((4, 4), 9 * number, dtype=np.uint8)
        Image.fromarray(image).save(folder / "images" / str(number % 4) / f"{number}.png")
    return open_data(folder / "images", family="vit", model=VIT)


def open_arrays(folder: Path) -> Source:
    np.save(folder / "images.npy", np.arange(26 * 16).reshape(26, 4, 4) / 7)
    np.save(folder / "labels.npy", np.arange(26) % 4)
    return open_data(folder, family="vit", model=VIT)


SOURCES: dict[str, Callable[[Path], Source]] = {
    "packed documents": lambda folder: open_text(folder, end_token="256"),
    "joined documents": open_text,
    "masked text": lambda folder: open_text(folder, family="bert"),
    "masked documents": lambda folder: open_text(folder, family="bert", end_token="257"),
    "prompts with completions": open_chat,
    "a token file": open_tokenised,
    "image files": open_files,
    "image arrays": open_arrays,
}


@pytest.fixture(scope="module", params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    return SOURCES[request.param](tmp_path_factory.mktemp("data"))


def rows_of(microbatches: list[Microbatch]) -> list[tuple[bytes, bytes]]:
    """Inputs and targets of every sample that counts."""
    rows = []
    for each in microbatches:
        inputs = each.images_BCHW if isinstance(each, ImageBatch) else each.tokens_BT
        pairs = zip(inputs, each.targets, strict=True)
        rows += [(one.numpy().tobytes(), other.numpy().tobytes()) for one, other in pairs if (other != -100).any()]
    return rows


def expected_rows(source: Source, epoch: int) -> Counter[tuple[bytes, bytes]]:
    rows = Counter[tuple[bytes, bytes]]()
    for index in range(source.num_samples):
        row = source.row(index, epoch)
        image = row.get("images_BCHW")
        inputs = row["tokens_BT"] if image is None else image
        targets = row["targets_BT"] if image is None else row["labels_B"]
        if (targets != -100).any():
            rows[inputs.tobytes(), targets.tobytes()] += 1
    return rows


SPLITS = st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=3).filter(any)


@given(split=SPLITS, seed=st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_every_sample_once_an_epoch_to_one_rank(source: Source, split: list[list[int]], seed: int) -> None:
    batches, whole = Batches(source, split, seed), Batches(source, [[sum(map(sum, split))]], seed)
    position = 0
    for epoch in range(2):
        found: list[tuple[bytes, bytes]] = []
        while position < (epoch + 1) * source.num_samples:
            of_ranks = [batches.of_rank(rank, position) for rank in range(len(split))]
            step = [row for microbatches in of_ranks for row in rows_of(microbatches)]
            assert step == rows_of(whole.of_rank(0, position))
            assert sum(map(count_tokens, of_ranks)) == count_tokens(whole.of_rank(0, position))
            assert [[len(each.samples) for each in microbatches] for microbatches in of_ranks] == split
            found += step
            position = batches.after(position)
        assert position == (epoch + 1) * source.num_samples
        assert Counter(found) == expected_rows(source, epoch)


def test_training_and_validation_data_are_apart_and_all_there_is(source: Source) -> None:
    training, validation = split_source(source, 0.2)
    assert validation is not None
    assert training.num_samples + validation.num_samples == source.num_samples
    assert expected_rows(training, 3) + expected_rows(validation, 3) == expected_rows(source, 3)
    # All ranks run as many batches, however few samples are left for the last one.
    batches = Batches(validation, [[3], [1, 1], []], None)
    positions, position = [], 0
    while position < batches.num_samples:
        assert [len(batches.of_rank(rank, position)) for rank in range(3)] == [1, 2, 0]
        positions.append(position)
        position = batches.after(position)
    assert positions == list(range(0, validation.num_samples, 5))


def test_rows_have_the_same_fields_and_shapes(source: Source) -> None:
    shapes = {
        tuple((name, value.shape, value.dtype) for name, value in source.row(index, 0).items())
        for index in range(source.num_samples)
    }
    assert len(shapes) == 1
