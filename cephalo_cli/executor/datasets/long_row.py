"""Documents as one long row of tokens: what windows are cut from."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from cephalo_cli.executor.datasets.token_files import TokenRow, digest_of
from cephalo_cli.executor.datasets.tokenizer import SpecialTokens

__all__ = ["LongRow"]


@dataclass(frozen=True, kw_only=True)
class LongRow:
    """Tokens of documents that follow one another, and what is known of them."""

    tokens: TokenRow
    special: SpecialTokens
    """What frames a sample, ends documents, or is no text."""
    num_ids: int
    """Ids that text has are below this."""
    counts: npt.NDArray[Any] | None = None
    """Where it is 0 the token is never to be predicted or found; None: all are."""
    content: bytes | None = None
    """Digest of the tokens, where it is known already."""

    def digest(self, *facts: object) -> str:
        """Hash facts about samples together with the tokens they are cut from, and with which of these count."""
        digest = hashlib.sha256("/".join(map(str, facts)).encode())
        digest.update(digest_of(self.tokens) if self.content is None else self.content)
        if self.counts is not None:
            digest.update(digest_of(self.counts))
        return digest.hexdigest()
