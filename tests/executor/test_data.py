"""Which sample comes when, and where tokens come from."""

from pathlib import Path

import numpy as np
import pytest

from cephalo_cli.errors import ArtifactError, CephaloError, UsageError
from cephalo_cli.executor.data import Batches, Source, count_tokens
from cephalo_cli.executor.datasets.opening import split_source
from tests.executor.datasets.opened import counted, open_data, text_of, tokens_of


def open_text(folder: Path, num_bytes: int, seq_len: int = 4) -> Source:
    path = folder / "text.txt"
    path.write_bytes(bytes(position % 251 for position in range(num_bytes)))
    return open_data(path, seq_len=seq_len)


@pytest.mark.parametrize("split", [[[3], [1], [1], [2], [1]], [[8]], [[2, 2], [], [1, 3]]])
def test_each_sample_comes_once_an_epoch_to_one_rank(tmp_path: Path, split: list[list[int]]) -> None:
    source = open_text(tmp_path, 24 * 4 + 1)
    batches = Batches(source, split, seed=3)
    for epoch in range(2):
        seen: list[int] = []
        for step in range(3):
            position = epoch * 24 + step * 8
            expected = batches.sample_indices(position)
            rows = [
                text_of(microbatch).tokens_BT[row, 0].item()
                for rank in range(len(split))
                for microbatch in batches.of_rank(rank, position)
                for row in range(len(microbatch.targets))
            ]
            assert rows == [tokens_of(source, index)[0] for index in expected]
            seen += expected
        assert sorted(seen) == list(range(24))


def test_order_depends_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    source = open_text(tmp_path, 200)
    one, other = Batches(source, [[2, 1], [3]], 0), Batches(source, [[6]], 0)
    orders = [one.sample_indices(position) for position in range(0, 90, 6)]
    assert orders == [other.sample_indices(position) for position in range(0, 90, 6)]
    assert orders != [Batches(source, [[6]], 1).sample_indices(position) for position in range(0, 90, 6)]
    first, second = ([one.sample_indices(epoch * 50 + entry)[0] for entry in range(50)] for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_of_an_epoch_is_short_or_left_out(tmp_path: Path, *, drop_last: bool) -> None:
    batches = Batches(open_text(tmp_path, 7 * 4 + 1), [[2], [1, 2]], 0, drop_last=drop_last)
    assert batches.num_dropped == (2 if drop_last else 0)
    position = 0
    for epoch in range(3):
        order: list[int] = []
        for size in [5] if drop_last else [5, 2]:
            assert len(batches.sample_indices(position)) == size
            assert count_tokens(batches.of_rank(0, position)) == 2 * 4
            assert count_tokens(batches.of_rank(1, position)) == (size - 2) * 4
            order += batches.sample_indices(position)
            position = batches.after(position)
        assert position == 7 * (epoch + 1)
        assert len(set(order)) == len(order) == (5 if drop_last else 7)


def test_samples_of_microbatches_are_their_places_in_the_global_batch(tmp_path: Path) -> None:
    batches = Batches(open_text(tmp_path, 200), [[2, 1], [], [3]], 0)
    assert [microbatch.samples for microbatch in batches.of_rank(0, 0)] == [(0, 1), (2,)]
    assert batches.of_rank(1, 0) == []
    assert [microbatch.samples for microbatch in batches.of_rank(2, 6)] == [(3, 4, 5)]


def test_targets_are_the_tokens_after(tmp_path: Path) -> None:
    source = open_text(tmp_path, 41)
    (found,) = Batches(source, [[10]], 0).of_rank(0, 0)
    microbatch = text_of(found)
    assert microbatch.tokens_BT.shape == microbatch.targets_BT.shape == (10, 4)
    assert ((microbatch.tokens_BT + 1) == microbatch.targets_BT).all()
    assert count_tokens([microbatch]) == 40
    microbatch.targets_BT[3] = -100
    assert count_tokens([microbatch]) == 36


def test_a_folder_is_its_visible_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first")
    (tmp_path / ".hidden").write_bytes(b"no")
    source = open_data(tmp_path, seq_len=11)
    assert source.num_samples == 1
    assert bytes(tokens_of(source, 0)) == b"first\nsecond"


def test_the_standard_library_is_text_on_every_machine() -> None:
    one, again = (open_data("python-stdlib", seq_len=64) for _ in range(2))
    assert one.digest == again.digest
    assert one.num_samples > 10_000
    words = b"".join(bytes(tokens_of(one, index)) for index in range(200))
    assert b"import " in words


def test_random_tokens_depend_on_seed_and_sample(tmp_path: Path) -> None:
    one, again = (open_data("random", seq_len=6, model={"vocab_size": 11}, seed=1) for _ in range(2))
    other = open_data("random", seq_len=6, model={"vocab_size": 11}, seed=2)
    assert tokens_of(one, 3) == tokens_of(again, 3)
    assert tokens_of(one, 3) != tokens_of(one, 4)
    assert tokens_of(one, 3) != tokens_of(other, 3)
    assert {token for index in range(100) for token in tokens_of(one, index)} == set(range(11))
    assert one.digest == again.digest != other.digest
    assert not list(tmp_path.iterdir())


def test_token_files(tmp_path: Path) -> None:
    tokens = np.arange(50, dtype=np.int32) * 3
    np.save(tmp_path / "tokens.npy", tokens)
    tokens.astype("<u2").tofile(tmp_path / "tokens.bin")
    for name in ("tokens.npy", "tokens.bin"):
        source = open_data(tmp_path / name, seq_len=7, model={"vocab_size": 148})
        assert source.num_samples == 7
        assert tokens_of(source, 2) == tokens[14:22].tolist()


def refuse(message: str, kind: type[CephaloError], name: str, vocab_size: int = 256) -> None:
    with pytest.raises(kind, match=message):
        open_data(name, model={"vocab_size": vocab_size})


def test_data_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"abc" * 10)
    refuse("text is read as bytes, which need 256 token ids, the model has 255", UsageError, str(text), 255)
    refuse("no such file or folder", ArtifactError, str(tmp_path / "missing"))
    refuse("no such file or folder", ArtifactError, str(tmp_path / "missing.npy"))
    np.save(tmp_path / "wrong.npy", np.zeros((2, 2)))
    refuse(
        r"holds float64 of shape \(2, 2\), expected integers in one dimension", ArtifactError, f"{tmp_path}/wrong.npy"
    )
    np.save(tmp_path / "large.npy", np.array([0, 300, 5]))
    refuse("holds token id 300 at position 1, the model has 0 to 255", UsageError, f"{tmp_path}/large.npy")
    np.save(tmp_path / "negative.npy", np.array([0, -1, 5]))
    refuse("holds token id -1 at position 1", UsageError, f"{tmp_path}/negative.npy")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object))
    refuse("cannot be read as tokens", ArtifactError, f"{tmp_path}/objects.npy")
    with pytest.raises(UsageError, match="the data has 8 samples, one step takes 9"):
        Batches(open_data(text), [[4], [5]], 0)


def test_token_files_of_32_bits_and_masks(tmp_path: Path) -> None:
    tokens, mask = np.arange(70_000, 70_020), np.arange(20) % 3 != 0
    tokens.astype("<u4").tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "mask.npy", mask)
    name, large = str(tmp_path / "tokens.bin"), {"vocab_size": 80_000}
    plain = open_data(name, model=large, token_dtype="uint32")
    masked = open_data(name, model=large, token_dtype="uint32", data_mask=str(tmp_path / "mask.npy"))
    assert plain.num_samples == masked.num_samples == 5
    assert plain.digest != masked.digest
    assert counted(masked, 1) == mask[5:9].tolist()
    assert counted(masked, 4) == [*mask[17:20].tolist(), False]
    assert tokens_of(masked, 4) == [70_016, 70_017, 70_018, 70_019, 0]
    (microbatch,) = Batches(masked, [[5]], None).of_rank(0, 0)
    assert count_tokens([microbatch]) == int(mask[1:].sum())
    assert (microbatch.targets[0] == -100).tolist() == (~mask[1:5]).tolist()
    for wrong in (np.ones(19), np.ones(19, dtype=np.int64)):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(ArtifactError, match="expected one integer or truth value for each of 20 tokens"):
            open_data(name, model=large, token_dtype="uint32", data_mask=str(tmp_path / "wrong.npy"))


def test_validation_data_is_the_end_and_never_trained_on(tmp_path: Path) -> None:
    source = open_text(tmp_path, 10 * 4 + 1)
    whole, nothing = split_source(source, 0.0)
    assert (whole, nothing) == (source, None)
    training, validation = split_source(source, 0.25)
    assert validation is not None
    assert (training.num_samples, validation.num_samples) == (8, 2)
    assert len({source.digest, training.digest, validation.digest}) == 3
    assert tokens_of(validation, 0) == tokens_of(source, 8)
    assert all(counted(validation, 1))
    _, little = split_source(source, 1e-6)
    assert little is not None
    assert little.num_samples == 1
    with pytest.raises(UsageError, match="the data has 10 samples, which leaves none to train on"):
        split_source(source, 0.99)


def test_sequence_length_and_content_change_the_digest(tmp_path: Path) -> None:
    first = open_text(tmp_path, 100)
    assert open_text(tmp_path, 100).digest == first.digest
    assert open_text(tmp_path, 100, seq_len=5).digest != first.digest
    assert open_text(tmp_path, 101).digest != first.digest
