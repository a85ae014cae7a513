"""How help looks: examples that can be copied, and what the environment changes."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import typer

__all__ = ["ENVIRONMENT", "Command", "examples"]

ENVIRONMENT = """\b
Environment:
  CEPHALO_DEBUG=1  show where an error came from
  NO_COLOR=1       print without colours
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
                   set by torchrun and other launchers: profile and train are
                   one rank of many

\b
Exit codes:
  0 done; 1 a fault of cephalo's; 2 usage; 3 bad artifact or input;
  4 no plan fits; 5 time limit before any plan; 6 training failed;
  7 a condition of show --fail-if holds; 130 interrupted (143 for SIGTERM, 129
  for SIGHUP) after saving a checkpoint"""
_NO_LIMIT = re.compile(r"\s+\[(?:\d+<=)?x<=2147483647\]|\s+\[x>=[01]\]|(?<=\d); x>=[01](?=\])")
_ARGUMENT_TYPE = re.compile(r"^(  [^-\s]\S*)( <\S+>)(?=  |$)", re.MULTILINE)


class Command(typer.core.TyperCommand):
    """A command whose help leaves out bounds that nobody asks for, and Python's types of arguments."""

    def get_help(self, ctx: Any) -> str:
        """Return the help text."""
        text = _NO_LIMIT.sub("", super().get_help(ctx))
        return _ARGUMENT_TYPE.sub(lambda match: match[1] + " " * len(match[2]), text)


def examples(commands: Sequence[str]) -> str:
    """Write commands so that help shows them as they are typed, long ones continued on further lines."""
    shown = (" \\\n      ".join(textwrap.wrap(command, 72, break_on_hyphens=False)) for command in commands)
    return "\b\n" + "\n".join(["Examples:", *(f"  {command}" for command in shown)])
