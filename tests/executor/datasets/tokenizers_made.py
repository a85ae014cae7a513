"""Real tokenizers, trained on the running Python's own text."""

import argparse
import inspect
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = inspect.getsource(argparse) + inspect.getsource(textwrap)
END, MASK, FIRST, LAST = "<|end|>", "[MASK]", "[CLS]", "[SEP]"


def make_bpe(folder: Path, *, vocab_size: int = 400, config: dict[str, object] | None = None) -> Path:
    """GPT-2's way: bytes, joined in pairs; ``config`` becomes the ``tokenizer_config.json``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return _save(tokenizer, folder, {"eos_token": END} if config is None else config)


def make_wordpiece(folder: Path, *, vocab_size: int = 300) -> Path:
    """BERT's way: words in pieces, samples in a frame."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=["[PAD]", "[UNK]", FIRST, LAST, MASK], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    named = {"cls_token": FIRST, "sep_token": LAST, "mask_token": {"content": MASK, "special": True}}
    return _save(tokenizer, folder, named)


def _save(tokenizer: Tokenizer, folder: Path, config: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
