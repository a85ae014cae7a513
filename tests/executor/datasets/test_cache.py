"""Tokens on disk: complete or absent, written once, whoever asks."""

import fcntl
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cephalo_cli.errors import ArtifactError, TrainingError
from cephalo_cli.executor.datasets import writing
from cephalo_cli.executor.datasets.cache import TokenWriter
from cephalo_cli.executor.datasets.records import Document
from cephalo_cli.executor.datasets.tokenizer import ByteTokenizer
from tests.executor.datasets.cache_jobs import IDS, die_while_writing, get, run_out_of_space, write_slowly
from tests.executor.datasets.opened import open_data


class Writes:
    """Writes IDS with two records, and counts how often."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.number = 0
        self._error = error

    def __call__(self, writer: TokenWriter) -> None:
        self.number += 1
        writer.add_record(3)
        writer.add(IDS[:10])
        writer.add_record(0)
        writer.add(IDS[10:])
        if self._error is not None:
            raise self._error


def test_written_once_and_mapped_after(tmp_path: Path) -> None:
    write = Writes()
    first, second = get(tmp_path / "deep" / "cache", write), get(tmp_path / "deep" / "cache", write)
    assert write.number == 1
    for found in (first, second):
        assert isinstance(found.tokens, np.memmap)
        assert found.tokens.tolist() == IDS.tolist()
        assert found.records.tolist() == [[0, 3], [10, 10]]
    assert first.digest == second.digest
    assert get(tmp_path / "deep" / "cache", write, key="other").digest == first.digest
    assert write.number == 2


def test_without_a_cache_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert get(None, Writes()).tokens.tolist() == IDS.tolist()
    assert not list(tmp_path.iterdir())


def test_nothing_at_all_is_a_content_too(tmp_path: Path) -> None:
    found = get(tmp_path, lambda _: None)
    assert (len(found.tokens), found.records.shape) == (0, (0, 2))
    assert get(tmp_path, Writes()).digest == found.digest


def tear(entry: Path, how: str) -> None:
    tokens, about = entry / "tokens.bin", entry / "about.json"
    if how == "truncated":
        os.truncate(tokens, tokens.stat().st_size - 2)
    elif how == "flipped":
        tokens.write_bytes(b"\1" + tokens.read_bytes()[1:])
    elif how == "without records":
        (entry / "records.bin").unlink()
    elif how == "without facts":
        about.unlink()
    elif how == "torn facts":
        about.write_text(about.read_text()[:20])
    else:
        about.write_text(json.dumps([1]))


@pytest.mark.parametrize(
    "how", ["truncated", "flipped", "without records", "without facts", "torn facts", "other facts"]
)
def test_an_entry_that_is_not_whole_is_written_anew(tmp_path: Path, how: str) -> None:
    digest = get(tmp_path, Writes()).digest
    tear(tmp_path / "key", how)
    write = Writes()
    found = get(tmp_path, write)
    assert write.number == 1
    assert (found.digest, found.tokens.tolist()) == (digest, IDS.tolist())
    assert get(tmp_path, write).digest == digest
    assert write.number == 1


def test_a_writer_that_fails_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="line 7"):
        get(tmp_path, Writes(ArtifactError("line 7")))
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
    assert get(tmp_path, Writes()).tokens.tolist() == IDS.tolist()


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_while_writing, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "key.part" / "tokens.bin").stat().st_size > 0
    assert get(tmp_path, Writes()).tokens.tolist() == IDS.tolist()
    assert not (tmp_path / "key.part").exists()


def test_of_several_processes_one_writes_and_all_read_the_same(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=write_slowly, args=(tmp_path, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(number for number, _ in found) == [0, 0, 0, 1]
    assert len({digest for _, digest in found}) == 1


def test_a_lock_that_nothing_comes_of_is_given_up(tmp_path: Path) -> None:
    with (tmp_path / "key.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TrainingError, match=r"another process has the lock of key and wrote nothing for 0\.1 s"):
            get(tmp_path, Writes(), timeout_s=0.1)
    assert get(tmp_path, Writes()).tokens.tolist() == IDS.tolist()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError) as refusal:
        get(tmp_path / "file", Writes())
    assert (refusal.value.where or "").startswith(f"cache of tokens {tmp_path / 'file'}")
    assert "--no-cache" in (refusal.value.hint or "")


def test_a_full_disk_is_an_error_and_leaves_no_entry(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run_out_of_space, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 3
    assert not (tmp_path / "key").exists()
    assert not (tmp_path / "key.part").exists()


def test_content_tokenizer_and_end_make_another_entry(tmp_path: Path, bpe: Path) -> None:
    text, cache = tmp_path / "text.txt", tmp_path / "cache"
    keys: list[set[str]] = [set()]
    for content, end in (("some text", "256"), ("some text", "257"), ("some test", "257")):
        text.write_text(content)
        source = open_data(text, seq_len=3, cache_dir=str(cache), end_token=end)
        again = open_data(text, seq_len=3, cache_dir=str(cache), end_token=end)
        assert source.digest == again.digest
        keys.append({path.name for path in cache.iterdir() if path.is_dir()})
    open_data(text, seq_len=3, model={"vocab_size": 400}, tokenizer=str(bpe), cache_dir=str(cache))
    keys.append({path.name for path in cache.iterdir() if path.is_dir()})
    assert [len(each) for each in keys] == [0, 1, 2, 3, 4]
    assert (
        open_data(text, seq_len=3, end_token="257").digest
        == open_data(text, seq_len=3, end_token="257", cache_dir=str(cache)).digest
    )


def test_tokens_are_written_while_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text larger than memory: never more than one batch of texts is waiting."""
    monkeypatch.setattr(writing, "BATCH_CHARACTERS", 1000)
    waiting = []

    def write(writer: TokenWriter) -> None:
        def documents() -> Iterator[Document]:
            for number in range(100):
                waiting.append(100 * number - writer.num_tokens)
                yield Document(pieces=iter(["x" * 60, "y" * 40]))

        writing.write_documents(documents(), ByteTokenizer(), writer)

    found = get(tmp_path, write)
    assert len(found.tokens) == 100 * 100 + 99
    assert max(waiting) <= 1000 + 200
