"""What typer refused, in this program's words: what was found, what was expected, and what was probably meant."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["sentence"]

_CHOICES = re.compile(r"'(?P<found>.*?)' is not one of (?P<choices>'.+')", re.DOTALL)
_REWORDED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)"), r"unexpected argument \1"),
    (re.compile(r"Option '(.*)' requires an argument"), r"\1 needs a value"),
    (re.compile(r"No such command '(.*?)'\. Did you mean (.*)\?"), r"No such command '\1' (did you mean \2?)"),
    (re.compile(r" Choose from: .*"), ""),
)
_EXPECTED: Mapping[str, str] = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le}",
}
"""By the type of the validator's error."""


def sentence(error: Any) -> str:
    """Put an error of typer's into one line.

    Args:
        error: Typer's exception; it has ``format_message`` and perhaps a parameter, a context, or names that come near.
    """
    message = " ".join(str(error.format_message()).split()).removesuffix(".")
    for pattern, words in _REWORDED:
        message = pattern.sub(words, message)
    said = _misspelt(error) or _misvalued(error) or message.removesuffix(".")
    context = getattr(error, "ctx", None)
    if context is None or said.endswith(")"):
        return said
    listed = "commands" if said.startswith("No such command") else "options"
    return f"{said} ({context.command_path} --help lists the {listed})"


def _misspelt(error: Any) -> str | None:
    """An option that does not exist."""
    name = getattr(error, "option_name", None)
    if not name or not hasattr(error, "possibilities"):
        return None
    context = error.ctx
    known = [option for parameter in context.command.params for option in parameter.opts] if context else []
    bare = {option.lstrip("-"): option for option in known}
    near = [bare[each] for each in difflib.get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.6)]
    where = f" of {context.command_path}" if context else ""
    return f"{name} is no option{where}" + (f" (did you mean {near[0]}?)" if near else "")


def _misvalued(error: Any) -> str | None:
    """A value that an option or argument does not take."""
    parameter = getattr(error, "param", None)
    if parameter is None or not error.message:
        return None
    name = (
        max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar or parameter.name
    )
    choices = _CHOICES.search(error.message)
    if choices:
        known = re.findall(r"'([^']+)'", choices["choices"])
        *others, last = [repr(choice) for choice in known]
        near = difflib.get_close_matches(choices["found"], known, n=1, cutoff=0.5)
        expected = f"{', '.join(others)} or {last}" if others else last
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        subject = f"{name} is" if parameter.param_type_name == "option" else "found"
        return f"{subject} {choices['found']!r}, expected {expected}{hint}"
    cause = error.__cause__
    fault = cause.errors()[0] if hasattr(cause, "errors") else {}
    if fault.get("type") not in _EXPECTED:
        return None
    return f"{name} is {fault['input']}, expected {_EXPECTED[fault['type']].format(**fault.get('ctx', {}))}"
