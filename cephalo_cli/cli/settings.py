"""From options to the values engines take, with errors in the words of the command line."""

from typing import Any

from pydantic import ValidationError

from cephalo_cli.errors import UsageError
from cephalo_cli.executor import TrainOptions

__all__ = ["train_options"]

OPTION_OF_FIELD = {"num_steps": "--steps", "learning_rate": "--lr"}


def train_options(**values: Any) -> TrainOptions:
    """Make a training's options.

    Raises:
        UsageError: A value is out of range; the message names the option.
    """
    try:
        return TrainOptions(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        option = OPTION_OF_FIELD.get(field, "--" + field.replace("_", "-"))
        expected = first["msg"].removeprefix("Input should be ")
        raise UsageError(f"{option} is {first['input']!r}, expected {expected}") from error
