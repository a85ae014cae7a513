"""What can be asked for about the data, and what is refused before anything starts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from cephalo_cli.artifacts.base import PositiveInt, Value
from cephalo_cli.artifacts.model import Family
from cephalo_cli.errors import UsageError
from cephalo_cli.executor.datasets.formats import NOISE, TOKEN_SUFFIXES

__all__ = ["DataOptions", "TokenDtype", "check_data_options"]

TokenDtype = Literal["uint16", "uint32"]


class DataOptions(Value):
    """Where samples come from."""

    data: str
    """A file, a folder, ``python-stdlib`` or ``random``, see `cephalo_cli.executor.datasets.formats`."""
    tokenizer: str | None = None
    """A ``tokenizer.json``, or a folder that has one; when absent the bytes of text are its tokens."""
    end_token: str | None = None
    """Token that ends documents: its text with a tokenizer, otherwise its id; when absent what the tokenizer's
    configuration says."""
    document_mask: bool | None = None
    """Whether documents in one sample are kept apart; when absent where a token is known to end them."""
    mask_token: str | None = None
    """Token that stands for a masked one (bert): its text with a tokenizer, otherwise its id; when absent what the
    tokenizer's configuration says, and 256 for bytes."""
    mask_rate: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Part of the tokens that bert is to find; 0.15 when absent."""
    cache_dir: str | None = None
    """Where tokenised data is kept for later trainings; when absent nowhere."""
    token_dtype: TokenDtype | None = None
    """Dtype of a ``.bin`` file's tokens, little-endian; uint16 when absent."""
    data_mask: str | None = None
    """A ``.npy`` file with one number a token of a token file: 0 where the token counts nothing as a target."""
    drop_last: bool = False
    """Whether the last, short batch of an epoch is left out; otherwise it is trained with its true count."""
    validation_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Part of the data that is kept for validation: its end, and of images a part of all classes."""
    validate_every: PositiveInt | None = None
    """Steps between validations; only after the last step when absent."""
    validation_steps: PositiveInt | None = None
    """Most batches of one validation; all of the validation data when absent."""


def check_data_options(options: DataOptions, family: Family) -> None:
    """Refuse options of the data that would have no effect.

    Raises:
        UsageError: With the option.
    """
    for option, value in (
        ("--validate-every", options.validate_every),
        ("--validation-steps", options.validation_steps),
    ):
        _refuse(
            value is not None and options.validation_fraction == 0,
            f"{option} needs --validation-fraction: there is no validation data",
        )
    suffix = Path(options.data).suffix.lower()
    is_tokens, is_noise = suffix in TOKEN_SUFFIXES, options.data == NOISE
    _refuse(options.data_mask is not None and not is_tokens, "--data-mask needs a token file (.bin or .npy)")
    _refuse(
        options.token_dtype is not None and suffix != ".bin",
        "--token-dtype is for .bin files; other data says its own dtype",
    )
    _refuse(options.tokenizer is not None and is_tokens, "--tokenizer is for text, a token file is tokenised already")
    for option, given in (
        ("--tokenizer", options.tokenizer is not None),
        ("--end-token", options.end_token is not None),
        ("--document-mask", options.document_mask is not None),
    ):
        _refuse(given and family == "vit", f"{option} is for text, vit models take images")
        _refuse(given and is_noise, f"{option} is for text, --data {NOISE} has no documents")
    for option, given in (
        ("--mask-token", options.mask_token is not None),
        ("--mask-rate", options.mask_rate is not None),
    ):
        _refuse(given and family != "bert", f"{option} is for bert models, {family} models predict what comes next")
    if options.tokenizer is None:
        for option, token in (("--end-token", options.end_token), ("--mask-token", options.mask_token)):
            _refuse(
                token is not None and not (token.isascii() and token.isdecimal()),
                f"{option} is {token!r}, expected a token id: without --tokenizer tokens have no text",
            )
    _refuse(
        is_tokens and options.end_token is not None and options.document_mask is False,
        "--end-token has no effect on a token file with --no-document-mask",
    )


def _refuse(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if condition:
        raise UsageError(message)
