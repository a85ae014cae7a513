"""Packed documents: what a window says about them."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cephalo_cli.executor.data import Batches
from cephalo_cli.models.batch import TextBatch
from tests.executor.datasets.opened import counted, open_data, tokens_of

TEXTS = ["one", "", "three\n", "vier: über"]


def write_texts(folder: Path) -> Path:
    folder.mkdir()
    for number, content in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(content)
    return folder


def test_bytes_of_a_folder_are_read_where_they_lie(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    joined = "\n".join(TEXTS).encode()
    for seq_len in (1, 3, 5, 50):
        source = open_data(folder, seq_len=seq_len)
        assert source.num_samples == -(-(len(joined) - 1) // seq_len)
        found = [token for index in range(source.num_samples) for token in tokens_of(source, index)[:-1]]
        assert bytes(found[: len(joined) - 1]) == joined[:-1]


def test_every_document_ends_with_the_end_token_where_there_is_one(tmp_path: Path, bpe: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    expected = [token for text in TEXTS for token in [*text.encode(), 256]]
    source = open_data(folder, seq_len=len(expected), end_token="256")
    assert tokens_of(source, 0)[:-1] == expected
    with_tokenizer = open_data(folder, seq_len=64, tokenizer=str(bpe), model={"vocab_size": 400})
    read = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    ids = [id_ for text in TEXTS for id_ in [*read.encode(text).ids, 0]]
    assert tokens_of(with_tokenizer, 0)[: len(ids)] == ids


def test_line_breaks_join_documents_where_there_is_none(tmp_path: Path, bpe: Path) -> None:
    path, notices = tmp_path / "a.jsonl", list[str]()
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    assert bytes(tokens_of(open_data(path, seq_len=21), 0)) == "\n".join(TEXTS).encode()[:22]
    (tmp_path / "tokenizer.json").write_bytes((bpe / "tokenizer.json").read_bytes())
    source = open_data(path, seq_len=64, tokenizer=str(tmp_path), model={"vocab_size": 400}, notice=notices.append)
    ids = [token for token, counts in zip(tokens_of(source, 0), [True, *counted(source, 0)], strict=False) if counts]
    assert Tokenizer.from_file(str(bpe / "tokenizer.json")).decode(ids) == "\n".join(TEXTS)
    assert "documents_BT" not in source.row(0, 0)
    assert notices == ["no token is known to end documents, so line breaks join them; --end-token names one"]


def test_documents_are_numbered_and_their_ends_predict_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([5, 6, 9, 7, 9, 9, 8, 8, 8, 8, 9, 5]))
    notices: list[str] = []
    source = open_data(tmp_path / "a.npy", seq_len=8, end_token="9", notice=notices.append)
    assert notices == ["documents end with token 9 and are kept apart; --no-document-mask lets them see one another"]
    row = source.row(0, 0)
    assert row["tokens_BT"].tolist() == [5, 6, 9, 7, 9, 9, 8, 8]
    assert row["documents_BT"].tolist() == [0, 0, 0, 1, 1, 2, 3, 3]
    assert row["targets_BT"].tolist() == [6, 9, -100, 9, -100, -100, 8, 8]
    plain = open_data(tmp_path / "a.npy", seq_len=8)
    assert "documents_BT" not in plain.row(0, 0)
    assert counted(plain, 0) == [True] * 8
    assert plain.digest != source.digest


@pytest.mark.parametrize("wanted", [None, True, False])
def test_apart_is_the_default_where_the_end_is_known(tmp_path: Path, wanted: bool | None) -> None:  # noqa: FBT001 - the case
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "c"}\n')
    source = open_data(path, end_token="256", document_mask=wanted)
    assert ("documents_BT" in source.row(0, 0)) == (wanted is not False)
    assert counted(source, 0) == [True, True, wanted is False, True]


def test_rows_of_one_document_need_no_mask(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([5, 6, 7, 8, 9, 5, 6, 9, 7, 8, 6, 5, 5]))
    source = open_data(tmp_path / "a.npy", end_token="9")
    one, several, last = (batch for batch in Batches(source, [[1, 1, 1]], None).of_rank(0, 0))
    assert isinstance(one, TextBatch)
    assert isinstance(several, TextBatch)
    assert isinstance(last, TextBatch)
    assert one.documents_BT is None
    assert several.documents_BT is not None
    assert several.documents_BT.tolist() == [[0, 1, 1, 1]]
    assert last.documents_BT is None
