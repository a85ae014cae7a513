"""How long a sample is."""

from cephalo_cli.artifacts.model import Model
from cephalo_cli.errors import UsageError

__all__ = ["tokens_of_sample"]


def tokens_of_sample(model: Model, seq_len: int | None) -> int:
    """Return the tokens of one sample: the sequence length for text, patches and the class token for images.

    Args:
        model: The model.
        seq_len: The length asked for; None for vit.

    Raises:
        UsageError: The length is missing for text, given for images, or longer than the positions a model has learned
            (rotary positions have no end).
    """
    where = "--seq-len"
    if model.family == "vit":
        tokens = model.tokens_per_sample(0)
        if seq_len not in (None, tokens):
            raise UsageError(f"the length of {model.name!r} follows from its images: {tokens}", where=where)
        return tokens
    if seq_len is None:
        raise UsageError("is needed for a model of text", where=where)
    if model.family != "llama" and model.max_seq_len is not None and seq_len > model.max_seq_len:
        raise UsageError(f"{seq_len} is longer than the {model.max_seq_len} positions of {model.name!r}", where=where)
    return seq_len
