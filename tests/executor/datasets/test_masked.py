"""Masked tokens: what is drawn, from what, and what never is."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cephalo_cli.errors import UsageError
from cephalo_cli.executor.data import Batches, Source
from cephalo_cli.executor.datasets.masked import Masking
from cephalo_cli.models.batch import TextBatch
from tests.executor.datasets.opened import open_data
from tests.executor.datasets.tokenizers_made import FIRST, LAST, MASK, make_bpe


def originals(source: Source, index: int, epoch: int = 0) -> list[int]:
    """A sample before it was masked."""
    row = source.row(index, epoch)
    tokens: list[int] = np.where(row["targets_BT"] == -100, row["tokens_BT"], row["targets_BT"]).tolist()
    return tokens


def test_of_the_tokens_a_seventh_is_to_be_found_most_of_them_masked() -> None:
    masking = Masking(mask_id=256, special=frozenset({256}), num_ids=257, rate=0.15, seed=0)
    tokens = np.arange(100_000) % 256
    seen, targets = masking(tokens, np.ones(100_000, dtype=np.bool_), 0, 0)
    chosen = targets != -100
    assert chosen.sum() == 15_000
    assert (targets[chosen] == tokens[chosen]).all()
    assert (seen[~chosen] == tokens[~chosen]).all()
    masked, kept = seen[chosen] == 256, seen[chosen] == tokens[chosen]
    other = ~masked & ~kept
    assert masked.mean() == pytest.approx(0.8, abs=0.015)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.015)
    assert other.mean() == pytest.approx(0.1, abs=0.015)
    assert set(seen[chosen][other].tolist()) == set(range(256))


def test_special_tokens_are_never_masked_and_never_drawn() -> None:
    special = frozenset({1, 5, 9})
    masking = Masking(mask_id=9, special=special, num_ids=12, rate=0.9, seed=3)
    tokens = np.arange(1200) % 12
    for epoch in range(5):
        seen, targets = masking(tokens, np.ones(1200, dtype=np.bool_), 7, epoch)
        is_special = np.isin(tokens, list(special))
        assert (targets[is_special] == -100).all()
        assert (seen[is_special] == tokens[is_special]).all()
        assert set(seen[~is_special].tolist()) <= set(range(12)) - {1, 5}


def test_one_token_at_least_is_to_be_found_where_one_may_be() -> None:
    masking = Masking(mask_id=9, special=frozenset({9}), num_ids=10, rate=0.01, seed=0)
    tokens = np.array([1, 2, 9])
    _, targets = masking(tokens, np.array([False, True, True]), 0, 0)
    assert targets.tolist() == [-100, 2, -100]
    seen, targets = masking(tokens, np.zeros(3, dtype=np.bool_), 0, 0)
    assert (seen.tolist(), targets.tolist()) == ([1, 2, 9], [-100] * 3)


def test_masks_depend_on_seed_epoch_and_sample_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the same words again and again " * 40)
    source = open_data(tmp_path / "a.txt", seq_len=31, family="bert", mask_rate=0.3)
    again = open_data(tmp_path / "a.txt", seq_len=31, family="bert", mask_rate=0.3)
    other = open_data(tmp_path / "a.txt", seq_len=31, family="bert", mask_rate=0.3, seed=1)
    rows = {
        (name, epoch, index): tuple(each.row(index, epoch)["targets_BT"].tolist())
        for name, each in (("one", source), ("again", again), ("other", other))
        for epoch in range(2)
        for index in range(3)
    }
    for epoch in range(2):
        for index in range(3):
            assert rows["one", epoch, index] == rows["again", epoch, index] != rows["other", epoch, index]
    assert len({row for (name, *_), row in rows.items() if name == "one"}) == 6
    assert source.digest == again.digest != other.digest
    splits = [[[2, 1], [4]], [[7]], [[1] * 7], [[], [3], [4]]]
    seen = []
    for split in splits:
        batches = Batches(source, split, 5)
        whole = [microbatch for rank in range(len(split)) for microbatch in batches.of_rank(rank, 35)]
        seen.append(np.concatenate([np.hstack([_tokens(each), each.targets.numpy()]) for each in whole]).tolist())
    assert seen[0] == seen[1] == seen[2] == seen[3]


def _tokens(batch: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    assert isinstance(batch, TextBatch)
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = batch.tokens_BT.numpy()
    return found


def test_every_token_is_in_one_sample_and_padding_is_a_document_of_its_own(tmp_path: Path) -> None:
    content = bytes(range(32, 32 + 90))
    (tmp_path / "a.txt").write_bytes(content)
    source = open_data(tmp_path / "a.txt", seq_len=20, family="bert")
    assert source.num_samples == 5
    found = [token for index in range(5) for token in originals(source, index)]
    assert bytes(found[:90]) == content
    row = source.row(4, 0)
    assert row["documents_BT"].tolist() == [0] * 10 + [1] * 10
    assert (row["targets_BT"][10:] == -100).all()
    assert all((source.row(index, 0)["tokens_BT"] <= 256).all() for index in range(5))


def test_bytes_need_one_id_more_for_the_mask(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError) as refusal:
        open_data(tmp_path / "a.txt", family="bert", model={"vocab_size": 256})
    assert refusal.value.message == (
        "text is read as bytes, which need 257 token ids, those that are no text included, the model has 256"
    )
    source = open_data(tmp_path / "a.txt", family="bert", mask_rate=0.99, mask_token="258")
    tokens = {token for epoch in range(9) for token in source.row(0, epoch)["tokens_BT"].tolist()}
    assert 258 in tokens
    assert 256 not in tokens


def test_samples_of_a_tokenizer_with_a_frame_have_it(tmp_path: Path, wordpiece: Path) -> None:
    text = "the parser and the argument of the parser " * 30
    (tmp_path / "a.txt").write_text(text)
    source = open_data(
        tmp_path / "a.txt", seq_len=16, family="bert", model={"vocab_size": 300}, tokenizer=str(wordpiece)
    )
    read = Tokenizer.from_file(str(wordpiece / "tokenizer.json"))
    first, last, mask = (read.token_to_id(token) for token in (FIRST, LAST, MASK))
    ids = [*read.encode(text, add_special_tokens=False).ids, last]
    assert source.num_samples == -(-len(ids) // 14)
    found = []
    for index in range(source.num_samples - 1):
        row = originals(source, index, 1)
        assert (row[0], row[-1]) == (first, last)
        found += row[1:-1]
    assert any((source.row(index, 1)["tokens_BT"] == mask).any() for index in range(source.num_samples))
    assert found == ids[: len(found)]
    with pytest.raises(UsageError, match="samples of 2 tokens have no room between the two that frame them"):
        open_data(tmp_path / "a.txt", seq_len=2, family="bert", model={"vocab_size": 300}, tokenizer=str(wordpiece))


def test_token_files_and_noise_are_masked_too(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(40))
    np.save(tmp_path / "mask.npy", np.arange(40) >= 20)
    with pytest.raises(UsageError, match="bert models need a token that stands for a masked one, and none is known"):
        open_data(tmp_path / "a.npy", family="bert")
    source = open_data(
        tmp_path / "a.npy", seq_len=20, family="bert", mask_token="50", data_mask=str(tmp_path / "mask.npy")
    )
    assert originals(source, 0) + originals(source, 1) == list(range(40))
    assert (source.row(0, 0)["targets_BT"] == -100).all()
    assert (source.row(1, 0)["targets_BT"] != -100).sum() == 3
    noise = open_data("random", seq_len=20, family="bert", model={"vocab_size": 11})
    assert (noise.row(3, 0)["targets_BT"] != -100).sum() == 3
    assert originals(noise, 3, 0) == originals(noise, 3, 5)


def test_a_tokenizer_without_a_mask_needs_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    bare = make_bpe(tmp_path / "bare", config={})
    with pytest.raises(UsageError, match="none is known") as refusal:
        open_data(tmp_path / "a.txt", family="bert", model={"vocab_size": 400}, tokenizer=str(bare))
    assert refusal.value.hint == "--mask-token names it"
