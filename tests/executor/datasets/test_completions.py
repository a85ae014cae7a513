"""Prompts with completions: what is learned, and what becomes of long ones."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from cephalo_cli.errors import UsageError
from cephalo_cli.executor.data import Row
from tests.executor.datasets.opened import open_data
from tests.executor.datasets.tokenizers_made import make_bpe


def write_chat(path: Path, *pairs: tuple[str, str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": one, "completion": other}) + "\n" for one, other in pairs))
    return path


def learned(row: Row) -> str:
    return "".join(chr(target) for target in row["targets_BT"].tolist() if target != -100)


CASES = {
    # prompt, completion: tokens, what is learned
    ("ab", "xyz"): ("abxyz...", "xyz"),
    ("", "xyz"): ("xyz.....", "yz"),
    ("ab", ""): ("ab......", ""),
    ("abcdef", "xyz"): ("abcdefxy", "xyz"),
    ("abcdefg", "xyz"): ("bcdefgxy", "xyz"),
    ("a" * 100 + "bcd", "xyz"): ("aaabcdxy", "xyz"),
    ("abc", "stuvwxyz"): ("cstuvwxy", "stuvwxyz"),
    ("abc", "stuvwxyz!"): ("cstuvwxy", "stuvwxyz"),
    ("", "qrstuvwxyz"): ("qrstuvwx", "rstuvwxy"),
}


def test_only_completions_are_learned_and_long_records_keep_them(tmp_path: Path) -> None:
    path, notices = write_chat(tmp_path / "a.jsonl", *CASES), list[str]()
    source = open_data(path, seq_len=8, notice=notices.append)
    assert source.num_samples == len(CASES)
    for index, (tokens, expected) in enumerate(CASES.values()):
        row = source.row(index, 0)
        assert "".join(chr(token) if token else "." for token in row["tokens_BT"].tolist()) == tokens
        assert learned(row) == expected
        targets = row["targets_BT"].tolist()
        for place, target in enumerate(targets[:-1]):
            assert target in {-100, row["tokens_BT"][place + 1]}
    assert notices == [
        "5 of 9 prompts lose their beginning: with the completion they are longer than 8 tokens",
        "2 of 9 completions lose their end: alone they are longer than 8 tokens",
    ]


def test_the_end_is_learned_too(tmp_path: Path, bpe: Path) -> None:
    path = write_chat(tmp_path / "a.jsonl", ("print(", "help)"))
    source = open_data(path, seq_len=16, model={"vocab_size": 400}, tokenizer=str(bpe))
    read = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    prompt, completion = read.encode("print(").ids, read.encode("help)").ids
    row = source.row(0, 0)
    assert row["tokens_BT"].tolist()[: len(prompt + completion)] == prompt + completion
    assert [target for target in row["targets_BT"].tolist() if target != -100] == [*completion, 0]
    bare = make_bpe(tmp_path / "bare", config={})
    without = open_data(path, seq_len=16, model={"vocab_size": 400}, tokenizer=str(bare))
    assert [target for target in without.row(0, 0)["targets_BT"].tolist() if target != -100] == completion


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    path = write_chat(tmp_path / "a.jsonl", ("a", "b"))
    with pytest.raises(UsageError, match="holds prompts with completions, bert models find masked tokens"):
        open_data(path, family="bert")
    with pytest.raises(UsageError, match="each prompt with its completion is a sample of its own"):
        open_data(path, end_token="256", document_mask=True)
