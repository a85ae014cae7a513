"""Running the command line in this process, and what it printed."""

import contextlib
import io
from dataclasses import dataclass

import pytest

from cephalo_cli.cli import main


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str


def cephalo(*arguments: str) -> Ran:
    """Run one command line; data and talk are kept apart."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(list(arguments))
    code = end.value.code
    assert isinstance(code, int)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())
