"""From files to records: what is read, and where a broken one is."""

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from cephalo_cli.errors import ArtifactError, CephaloError, UsageError
from cephalo_cli.executor.datasets import records
from cephalo_cli.executor.datasets.formats import find_files
from cephalo_cli.executor.datasets.records import Completion, Document, read_records


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def texts(path: Path) -> list[str]:
    found = []
    for record in read_records(find_files(str(path))):
        assert isinstance(record, Document)
        found.append("".join(record.pieces))
    return found


def test_json_lines_of_several_files_in_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl", {"text": "third"})
    write_lines(tmp_path / "a.jsonl", {"id": 7, "text": "first\nline"}, "", {"text": "über", "meta": {}})
    assert texts(tmp_path) == ["first\nline", "über", "third"]


def test_prompts_and_completions(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"prompt": "p", "completion": "c"}, {"completion": "", "prompt": ""})
    assert list(read_records(find_files(str(path)))) == [
        Completion(prompt="p", completion="c"),
        Completion(prompt="", completion=""),
    ]


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "text": ["one", "two"]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["one", "two"]
    chat = tmp_path / "chat.parquet"
    parquet.write_table(pa.table({"prompt": ["p"] * 3000, "completion": ["c"] * 3000}), chat)
    assert list(read_records(find_files(str(chat)))) == [Completion(prompt="p", completion="c")] * 3000


GOOD = {"text": "good"}
BROKEN: dict[str, tuple[Any, ...]] = {
    "{path}:2: expected one JSON object a line: Expecting ',' delimiter: line 1 column 14 (char 13)": (
        GOOD,
        '{"text": "a" "b"}',
    ),
    "{path}:2: expected a JSON object, found list": (GOOD, [1]),
    '{path}:3: expected a text in "text", found none': (GOOD, "", {"txt": "a"}),
    '{path}:2: expected a text in "text", found int': (GOOD, {"text": 3}),
    '{path}:2: expected a text in "text", found NoneType': (GOOD, {"text": None}),
    '{path}:1: expected a text in "completion", found none': ({"prompt": "a"},),
    '{path}:2: expected a text in "prompt", found list': (
        {"prompt": "a", "completion": "b"},
        {"prompt": [], "completion": ""},
    ),
    '{path}:1: expected "text", or "prompt" and "completion", found the fields body, id': ({"id": 1, "body": "a"},),
    '{path}:1: expected "text", or "prompt" and "completion", found the fields prompt, text': (
        {"text": "", "prompt": ""},
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_line_is_named(tmp_path: Path, message: str) -> None:
    path = write_lines(tmp_path / "data.jsonl", *BROKEN[message])
    with pytest.raises(ArtifactError) as refusal:
        texts_or_completions(path)
    assert str(refusal.value) == message.format(path=path)
    assert refusal.value.exit_code == 3


def texts_or_completions(path: Path) -> None:
    for record in read_records(find_files(str(path))):
        if isinstance(record, Document):
            list(record.pieces)


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    refuse(path, ArtifactError, f"{path}: cannot be read as Parquet")
    parquet.write_table(pa.table({"body": ["a"]}), path)
    refuse(path, ArtifactError, f'{path}: expected "text", or "prompt" and "completion" as columns, found body')
    parquet.write_table(pa.table({"text": ["a", None]}), path)
    refuse(path, ArtifactError, f'{path}: row 1: expected a text in "text", found NoneType')
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    refuse(path, UsageError, f"--data {path}: holds no records")


def refuse(path: Path, kind: type[CephaloError], message: str) -> None:
    with pytest.raises(kind) as refusal:
        texts_or_completions(path)
    assert str(refusal.value).startswith(message)


def test_parquet_is_optional_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refuse(
        tmp_path / "a.parquet",
        UsageError,
        f"--data {tmp_path}/a.parquet: Parquet files need the package pyarrow, which is not installed "
        "(pip install 'cephalo_cli[parquet]'",
    )


def test_text_is_cut_at_line_breaks_that_no_space_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 16)
    content = "def f():\n    über\n\n\nx = 1\n\tif\ny" * 9
    (tmp_path / "a.txt").write_text(content)
    (document,) = read_records(find_files(str(tmp_path / "a.txt")))
    assert isinstance(document, Document)
    pieces = list(document.pieces)
    assert "".join(pieces) == content
    assert len(pieces) > 9
    for before, after in pairwise(pieces):
        assert before.endswith("\n")
        assert not after[0].isspace()


def test_text_without_line_breaks_is_cut_before_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 16)
    monkeypatch.setattr(records, "LONGEST_PIECE", 64)
    for content in ("word " * 100, "x" * 500):
        (tmp_path / "a.txt").write_text(content)
        pieces = texts_of_pieces(tmp_path / "a.txt")
        assert "".join(pieces) == content
        assert max(map(len, pieces)) <= 64 + 16
        assert all(piece.startswith((" ", "x")) for piece in pieces[1:])


def texts_of_pieces(path: Path) -> list[str]:
    (document,) = read_records(find_files(str(path)))
    assert isinstance(document, Document)
    return list(document.pieces)


def test_records_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", GOOD, GOOD, "broken")
    found: Iterator[Any] = iter(read_records(find_files(str(path))))
    next(found)
    next(found)
    with pytest.raises(ArtifactError, match=":3: expected one JSON object a line"):
        next(found)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine so far" + b"\xff" + b"a" * 100)
    with pytest.raises(ArtifactError, match="is not UTF-8 text: invalid start byte near byte 11"):
        texts_of_pieces(tmp_path / "a.txt")
