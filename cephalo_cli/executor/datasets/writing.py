"""Tokenising: from documents or records to an entry of tokens, a batch of texts at a time."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from cephalo_cli.executor.datasets.cache import TokenWriter
from cephalo_cli.executor.datasets.records import Completion, Document
from cephalo_cli.executor.datasets.tokenizer import Tokenizer

__all__ = ["write_completions", "write_documents"]

BATCH_TEXTS = 1024
BATCH_CHARACTERS = 2**19
"""Texts and characters that are tokenised together, so that a tokenizer can use several cores. Until its ids are taken
out, a tokenised character takes a hundred bytes or more (tokenizers 0.23)."""
T = TypeVar("T")


def write_documents(documents: Iterator[Document], tokenizer: Tokenizer, writer: TokenWriter) -> None:
    """Write documents, each with the token that ends it; a line break between two where there is none."""
    end_id = tokenizer.special.end_id
    for batch in _batched(_texts(documents, between="" if end_id is not None else "\n"), lambda each: len(each[0])):
        for ids, (_, is_end) in zip(tokenizer.encode([text for text, _ in batch]), batch, strict=True):
            writer.add(ids)
            if is_end and end_id is not None:
                writer.add(np.array([end_id]))


def write_completions(records: Iterator[Completion], tokenizer: Tokenizer, writer: TokenWriter) -> None:
    """Write prompts, each followed by its completion and the token that ends it."""
    end = np.array([] if tokenizer.special.end_id is None else [tokenizer.special.end_id], dtype=np.int64)
    for batch in _batched(records, lambda record: len(record.prompt) + len(record.completion)):
        prompts = tokenizer.encode([record.prompt for record in batch])
        completions = tokenizer.encode([record.completion for record in batch])
        for prompt, completion in zip(prompts, completions, strict=True):
            writer.add_record(len(prompt))
            for ids in (prompt, completion, end):
                writer.add(ids)


def _texts(documents: Iterator[Document], *, between: str) -> Iterator[tuple[str, bool]]:
    """Pieces of documents, and whether each is its document's last; ``between`` follows all but the last of all."""
    held: str | None = None
    for document in documents:
        if held is not None:
            yield held + between, True
        held = None
        for piece in document.pieces:
            if held is not None:
                yield held, False
            held = piece
        held = held or ""
    if held is not None:
        yield held, True


def _batched(items: Iterator[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group items until they are many or large."""
    batch: list[T] = []
    num_characters = 0
    for item in items:
        batch.append(item)
        num_characters += size(item)
        if len(batch) == BATCH_TEXTS or num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
