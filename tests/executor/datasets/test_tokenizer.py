"""Tokenizers: what their files say, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from cephalo_cli.errors import ArtifactError, CephaloError, UsageError
from cephalo_cli.executor.datasets.tokenizer import ByteTokenizer, load_tokenizer
from tests.executor.datasets.opened import open_data
from tests.executor.datasets.tokenizers_made import END, FIRST, LAST, MASK, TEXT, make_bpe


def test_ids_are_those_of_the_library(bpe: Path) -> None:
    ours, theirs = load_tokenizer(str(bpe)), Tokenizer.from_file(str(bpe / "tokenizer.json"))
    (ids,) = ours.encode([TEXT])
    assert ids.tolist() == theirs.encode(TEXT, add_special_tokens=False).ids
    assert ours.num_ids == theirs.get_vocab_size() == 400
    assert theirs.decode(ids.tolist()) == TEXT
    assert load_tokenizer(str(bpe / "tokenizer.json")).digest == ours.digest


def test_the_configuration_beside_it_names_the_special_tokens(bpe: Path, wordpiece: Path) -> None:
    read = Tokenizer.from_file(str(wordpiece / "tokenizer.json"))
    found = load_tokenizer(str(wordpiece)).special
    first, last, mask = (read.token_to_id(token) for token in (FIRST, LAST, MASK))
    assert (found.end_id, found.end_text, found.mask_id, found.frame) == (last, LAST, mask, (first, last))
    assert found.ids == {read.token_to_id(token) for token in ("[PAD]", "[UNK]", FIRST, LAST, MASK)}
    plain = load_tokenizer(str(bpe)).special
    assert (plain.end_text, plain.mask_id, plain.frame) == (END, None, None)


def test_options_name_them_too(bpe: Path, tmp_path: Path) -> None:
    bare = make_bpe(tmp_path / "bare", config={})
    assert load_tokenizer(str(bare)).special.end_id is None
    assert load_tokenizer(str(bare), end_token=END).special.end_id == 0
    chosen = load_tokenizer(str(bpe), end_token="x", mask_token="y").special
    assert (chosen.end_text, chosen.mask_id) == ("x", Tokenizer.from_file(str(bpe / "tokenizer.json")).token_to_id("y"))


def test_truncation_and_padding_in_the_file_are_not_for_training(bpe: Path, tmp_path: Path) -> None:
    cutting = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    cutting.enable_truncation(3)
    cutting.enable_padding(length=9)
    cutting.save(str(tmp_path / "tokenizer.json"))
    (ids,) = load_tokenizer(str(tmp_path)).encode(["a much longer text than that"])
    assert len(ids) > 9


def test_bytes_are_tokens() -> None:
    plain = ByteTokenizer()
    assert [ids.tolist() for ids in plain.encode(["aü", ""])] == [[97, 195, 188], []]
    assert (plain.num_ids, plain.special.ids) == (256, frozenset())
    assert ByteTokenizer(end_id=256, mask_id=300).num_ids == 301
    assert np.concatenate(plain.encode([TEXT])).tobytes() == b"".join(
        bytes([value]) + b"\0" * 7 for value in TEXT.encode()
    )


def broken(folder: Path, content: str | None, config: str | None = None) -> Path:
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config)
    return folder


REFUSED: dict[str, tuple[type[CephaloError], Callable[[Path, str], Path], dict[str, Any]]] = {
    "no such file": (ArtifactError, lambda folder, _: broken(folder, None), {}),
    "cannot be read as a tokenizer: ": (ArtifactError, lambda folder, _: broken(folder, "{}"), {}),
    "cannot be read: Expecting value": (ArtifactError, lambda folder, good: broken(folder, good, "no"), {}),
    "expected a JSON object, found list": (ArtifactError, lambda folder, good: broken(folder, good, "[]"), {}),
    "'</s>' is not in the tokenizer's vocabulary": (
        ArtifactError,
        lambda folder, good: broken(folder, good, json.dumps({"eos_token": "</s>"})),
        {},
    ),
    "'<none>' is not in the vocabulary of ": (
        UsageError,
        broken,
        {"end_token": "<none>"},
    ),
    "'<no>' is not in the vocabulary of ": (
        UsageError,
        broken,
        {"mask_token": "<no>"},
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str, bpe: Path, tmp_path: Path) -> None:
    kind, make, options = REFUSED[message]
    folder = make(tmp_path, (bpe / "tokenizer.json").read_text())
    with pytest.raises(kind) as refusal:
        load_tokenizer(str(folder), **options)
    assert refusal.value.message.startswith(message)
    assert refusal.value.where is not None


def test_the_library_is_optional_and_says_so(bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError) as refusal:
        load_tokenizer(str(bpe))
    assert str(refusal.value) == (
        "--tokenizer needs the package tokenizers, which is not installed "
        "(pip install 'cephalo_cli[hf]', or leave --tokenizer out: then bytes are the tokens)"
    )


def test_a_vocabulary_larger_than_the_model_s_is_refused_with_both(bpe: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        open_data("python-stdlib", model={"vocab_size": 399}, tokenizer=str(bpe))
    assert refusal.value.message == "has 400 token ids, model tiny-gpt has a vocab_size of 399"
    assert refusal.value.where == f"--tokenizer {bpe}"


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--tokenizer is for text, a token file is tokenised already", {"data": "a.bin", "tokenizer": "t"}),
        ("--tokenizer is for text, --data random has no documents", {"data": "random", "tokenizer": "t"}),
        ("--tokenizer is for text, vit models take images", {"data": "a", "tokenizer": "t", "family": "vit"}),
        ("--end-token is '</s>', expected a token id: without --tokenizer tokens have no text", {"end_token": "</s>"}),
        ("--mask-rate is for bert models, gpt models predict what comes next", {"mask_rate": 0.2}),
        ("--mask-token is for bert models, gpt models predict what comes next", {"mask_token": "256"}),
        (
            "--end-token has no effect on a token file with --no-document-mask",
            {"data": "a.npy", "end_token": "3", "document_mask": False},
        ),
        ("is 65, which is a byte of text", {"end_token": "65"}),
        ("is 260, the model has token ids 0 to 259", {"end_token": "260"}),
        ("--document-mask needs to know which token ends a document", {"document_mask": True}),
    ],
)
def test_options_without_effect_or_sense_are_refused(message: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    image = {"image_size": 8, "patch_size": 4, "num_classes": 2, "vocab_size": None, "max_seq_len": None}
    given = {"data": str(tmp_path / "a.txt")} | options
    if given.get("family") == "vit":
        given["model"] = image
    with pytest.raises(UsageError) as refusal:
        open_data(**given)
    assert refusal.value.message == message
