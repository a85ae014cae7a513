"""From options to the values engines take, with errors in the words of the command line."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions
from cephalo_cli.executor.datasets.formats import NOISE, TOKEN_SUFFIXES

__all__ = ["train_options"]

OPTION_OF_FIELD = {"num_steps": "--steps", "learning_rate": "--lr"}


def train_options(**values: Any) -> TrainOptions:
    """Make a training's options; text is tokenised with what the weights' folder has, unless another is asked for.

    Raises:
        UsageError: A value is out of range; the message names the option.
    """
    try:
        options = TrainOptions(**values)
        return options.model_copy(update={"tokenizer": options.tokenizer or _tokenizer_of_weights(options)})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        option = OPTION_OF_FIELD.get(field, "--" + field.replace("_", "-"))
        expected = first["msg"].removeprefix("Input should be ")
        raise UsageError(f"{option} is {first['input']!r}, expected {expected}") from error


def _tokenizer_of_weights(options: TrainOptions) -> str | None:
    """The folder of the weights, where it has a tokenizer and there is text to tokenise."""
    is_text = options.data != NOISE and Path(options.data).suffix.lower() not in TOKEN_SUFFIXES
    if options.weights is None or not is_text or not (Path(options.weights) / "tokenizer.json").is_file():
        return None
    return options.weights
