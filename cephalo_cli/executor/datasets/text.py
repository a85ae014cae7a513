"""Text as samples: with a tokenizer, as bytes, or from a token file; to predict what comes next, or what is masked."""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import cast

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.data import Source
from cephalo_cli.executor.datasets.cache import Tokenised, tokenised
from cephalo_cli.executor.datasets.completions import Completions
from cephalo_cli.executor.datasets.formats import DataFiles
from cephalo_cli.executor.datasets.long_row import LongRow
from cephalo_cli.executor.datasets.masked import MaskedNoise, MaskedWindows, Masking
from cephalo_cli.executor.datasets.options import DataOptions
from cephalo_cli.executor.datasets.records import Completion, Document, content_digest, read_records
from cephalo_cli.executor.datasets.token_files import FileBytes, check_ids, read_mask, read_token_file
from cephalo_cli.executor.datasets.tokenizer import (
    BYTE_MASK_ID,
    NUM_BYTES,
    ByteTokenizer,
    SpecialTokens,
    Tokenizer,
    load_tokenizer,
)
from cephalo_cli.executor.datasets.windows import NoiseTokens, Windows
from cephalo_cli.executor.datasets.writing import write_completions, write_documents

__all__ = ["TextOpener"]

MASK_RATE = 0.15
CACHE_VERSION = 1
"""Grows when the same text makes other tokens than before."""
MIN_FRAMED_TOKENS = 3


class TextOpener:
    """Opens text for the families that take it; arguments as `cephalo_cli.executor.datasets.opening.open_source`."""

    def __init__(
        self,
        options: DataOptions,
        model: Model,
        files: DataFiles,
        *,
        seq_len: int,
        seed: int,
        timeout_s: float,
        notice: Callable[[str], None],
    ) -> None:
        self._options, self._model, self._files = options, model, files
        self._seq_len, self._seed, self._timeout_s, self._notice = seq_len, seed, timeout_s, notice
        self._vocab_size = model.vocab_size or 0
        self._where = f"--data {files.name}"

    def open(self) -> Source:
        """Open noise, a token file, or text with the tokenizer asked for."""
        options = self._options
        if self._files.format == "noise":
            return self._noise()
        if self._files.format == "tokens":
            return self._samples(self._token_file())
        if options.tokenizer is not None:
            tokenizer = load_tokenizer(options.tokenizer, end_token=options.end_token, mask_token=options.mask_token)
            if tokenizer.num_ids > self._vocab_size:
                raise UsageError(
                    f"has {tokenizer.num_ids} token ids, model {self._model.name} has a vocab_size of "
                    f"{self._vocab_size}",
                    where=f"--tokenizer {options.tokenizer}",
                    hint="use the model's own tokenizer, or a model with a larger vocab_size",
                )
            if tokenizer.special.end_id is None:
                self._notice("no token is known to end documents, so line breaks join them; --end-token names one")
        else:
            tokenizer = self._bytes()
            if self._files.format == "text" and tokenizer.special.end_id is None:
                return self._samples(
                    LongRow(tokens=FileBytes(self._files.paths), special=tokenizer.special, num_ids=tokenizer.num_ids)
                )
        return self._tokenised(tokenizer)

    def _noise(self) -> Source:
        if self._model.family != "bert":
            return NoiseTokens(seq_len=self._seq_len, vocab_size=self._vocab_size, seed=self._seed)
        mask_id = self._id(self._options.mask_token, "--mask-token")
        masking = self._masking(
            SpecialTokens(mask_id=self._vocab_size - 1 if mask_id is None else mask_id), self._vocab_size
        )
        return MaskedNoise(seq_len=self._seq_len, masking=masking)

    def _token_file(self) -> LongRow:
        options = self._options
        tokens = read_token_file(self._files.root, options.token_dtype or "uint16")
        check_ids(tokens, self._vocab_size, options.data)
        counts = None if options.data_mask is None else read_mask(Path(options.data_mask), len(tokens))
        end_id, mask_id = self._id(options.end_token, "--end-token"), self._id(options.mask_token, "--mask-token")
        special = SpecialTokens(end_id=end_id, mask_id=mask_id, ids=_known(end_id, mask_id))
        return LongRow(tokens=tokens, special=special, num_ids=self._vocab_size, counts=counts)

    def _bytes(self) -> Tokenizer:
        options = self._options
        mask_id = self._id(options.mask_token, "--mask-token")
        if self._model.family == "bert" and mask_id is None:
            mask_id = BYTE_MASK_ID
        tokenizer = ByteTokenizer(end_id=self._id(options.end_token, "--end-token"), mask_id=mask_id)
        if tokenizer.num_ids > self._vocab_size:
            more = "" if tokenizer.num_ids == NUM_BYTES else ", those that are no text included"
            raise UsageError(
                f"text is read as bytes, which need {tokenizer.num_ids} token ids{more}, the model has "
                f"{self._vocab_size}",
                where=self._where,
                hint="use a model with a larger vocab_size, or --data random",
            )
        for option, id_ in (("--end-token", tokenizer.special.end_id), ("--mask-token", tokenizer.special.mask_id)):
            if id_ is not None and id_ < NUM_BYTES:
                raise UsageError(f"is {id_}, which is a byte of text", where=option, hint="ids from 256 on are free")
        return tokenizer

    def _tokenised(self, tokenizer: Tokenizer) -> Source:
        options, end_id = self._options, tokenizer.special.end_id
        read = read_records(self._files)
        first = next(read)
        is_chat = isinstance(first, Completion)
        if is_chat:
            self._check_chat()
        facts = {
            "version": CACHE_VERSION,
            "content": content_digest(self._files.paths),
            "format": self._files.format,
            "tokenizer": tokenizer.digest,
            "end_id": end_id,
        }
        records = chain([first], read)
        found = tokenised(
            lambda writer: (
                write_completions(cast("Iterator[Completion]", records), tokenizer, writer)
                if is_chat
                else write_documents(cast("Iterator[Document]", records), tokenizer, writer)
            ),
            key=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
            dtype="<u1" if tokenizer.num_ids <= 2**8 else "<u2" if tokenizer.num_ids <= 2**16 else "<u4",
            cache=None if options.cache_dir is None else Path(options.cache_dir).expanduser(),
            timeout_s=self._timeout_s,
        )
        if is_chat:
            return self._completions(found)
        return self._samples(
            LongRow(
                tokens=found.tokens,
                special=tokenizer.special,
                num_ids=tokenizer.num_ids,
                content=bytes.fromhex(found.digest),
            )
        )

    def _check_chat(self) -> None:
        if self._model.family == "bert":
            raise UsageError("holds prompts with completions, bert models find masked tokens", where=self._where)
        if self._options.document_mask is not None:
            raise UsageError(
                "--document-mask is for packed documents, each prompt with its completion is a sample of its own"
            )

    def _completions(self, found: Tokenised) -> Source:
        source = Completions(found, self._seq_len)
        for what, number in (
            ("prompts lose their beginning: with the completion they are", source.num_prompts_cut),
            ("completions lose their end: alone they are", source.num_completions_cut),
        ):
            if number:
                self._notice(f"{number} of {source.num_samples} {what} longer than {self._seq_len} tokens")
        return source

    def _samples(self, row: LongRow) -> Source:
        """Windows of a row, masked for bert."""
        end_id = self._end_to_keep_apart(row.special)
        if self._model.family != "bert":
            return Windows(row, self._seq_len, end_id=end_id)
        if row.special.frame is not None and self._seq_len < MIN_FRAMED_TOKENS:
            raise UsageError(f"samples of {self._seq_len} tokens have no room between the two that frame them")
        return MaskedWindows(row, self._seq_len, self._masking(row.special, row.num_ids), end_id=end_id)

    def _end_to_keep_apart(self, special: SpecialTokens) -> int | None:
        """What ends documents, where they are to be kept apart."""
        wanted = self._options.document_mask
        if wanted and special.end_id is None:
            raise UsageError("--document-mask needs to know which token ends a document", hint="--end-token names it")
        if wanted is False or special.end_id is None:
            return None
        if wanted is None:
            end = special.end_id if special.end_text is None else f"{special.end_text} ({special.end_id})"
            self._notice(
                f"documents end with token {end} and are kept apart; --no-document-mask lets them see one another"
            )
        return special.end_id

    def _masking(self, special: SpecialTokens, num_ids: int) -> Masking:
        if special.mask_id is None:
            raise UsageError(
                "bert models need a token that stands for a masked one, and none is known",
                where=self._where,
                hint="--mask-token names it",
            )
        return Masking(
            mask_id=special.mask_id,
            special=special.ids | _known(special.mask_id),
            num_ids=num_ids,
            rate=MASK_RATE if self._options.mask_rate is None else self._options.mask_rate,
            seed=self._seed,
        )

    def _id(self, token: str | None, option: str) -> int | None:
        """A token given as its id."""
        if token is None:
            return None
        if int(token) >= self._vocab_size:
            raise UsageError(f"is {token}, the model has token ids 0 to {self._vocab_size - 1}", where=option)
        return int(token)


def _known(*ids: int | None) -> frozenset[int]:
    return frozenset(id_ for id_ in ids if id_ is not None)
