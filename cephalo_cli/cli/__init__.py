"""The command line: parse, read, call, write, render, hint.

Commands live in modules of their own, which import their engine inside the function: ``cephalo --help`` loads neither
torch nor scipy, pandas or matplotlib.
"""

import contextlib
import errno
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cephalo_cli import __version__
from cephalo_cli.cli.complaints import sentence
from cephalo_cli.cli.helping import ENVIRONMENT, Command, examples
from cephalo_cli.cli.output import Talk, harmless
from cephalo_cli.errors import ArtifactError, CephaloError

__all__ = ["app", "main", "register_commands"]

FIRST = "cephalo plan --gpus rtx-3090:2,rtx-4090,p40:2 --model llama-3b --seq-len 2048 --batch-size 64"
"""What a newcomer may try first: it needs neither files nor devices."""
LONGEST_SHOWN = 255
"""Characters of a word in an error: those of the longest name that a file may have."""

EPILOG = f"""profile -> plan -> simulate -> train: each stage reads files, writes one file, and names the next command.

{examples([FIRST])}

{ENVIRONMENT}"""


def _version(wanted: bool) -> None:  # noqa: FBT001  (a callback's signature belongs to typer)
    if wanted:
        sys.stdout.write(f"cephalo {__version__}\n")
        raise typer.Exit


app = typer.Typer(
    name="cephalo",
    help="Plan, predict and run transformer training on clusters of different GPUs.",
    epilog=EPILOG,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _root(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Plan, predict and run transformer training on clusters of different GPUs."""


def register_commands() -> None:
    """Add the commands to `app`; once is enough, again does nothing."""
    if app.registered_commands:
        return
    from cephalo_cli.cli import catalog, export, plan, profile, show, simulate, train

    for module in (profile, plan, simulate, train, show, export, catalog):
        epilog = examples(module.EXAMPLES)
        app.command(name=module.NAME, short_help=module.SUMMARY, epilog=epilog, cls=Command)(module.command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the documented codes.

    0 done; 1 a fault of ours; 2 usage; 3 bad artifact or input; 4 infeasible; 5 time limit before any plan; 6 training
    failed; 7 a condition of ``show --fail-if`` holds; 130 interrupted (143 for SIGTERM, 129
    for SIGHUP).
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it: nobody listens
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (stays open to the end)
    register_commands()
    with contextlib.redirect_stderr(Talk(sys.stderr)):
        code = _run(arguments)
    if arguments is None and "RANK" in os.environ:
        _leave(code)
    raise SystemExit(code)


def _leave(code: int) -> NoReturn:
    """End the process of a rank at once.

    A thread that waits for lost ranks, in torch's native code, would turn the interpreter's way out into an abort.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(arguments: list[str] | None) -> int:
    debug = bool(os.environ.get("CEPHALO_DEBUG"))
    try:
        words = sys.argv[1:] if arguments is None else arguments
        result: Any = app(args=words or ["--help"], prog_name="cephalo", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except CephaloError as error:
        if debug:
            traceback.print_exc()
        if not error.is_of_every_rank or os.environ.get("LOCAL_RANK", "0") == "0":
            _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return 128 + signal.SIGINT
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001  (the last line of defence: a user never sees a traceback)
        return _unexpected(error, debug=debug)


def _unexpected(error: Exception, *, debug: bool) -> int:
    """Say what typer refused, or what nobody foresaw."""
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):
        _complain(sentence(error))
        return int(error.exit_code)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None:
        _complain(f"what was to be printed cannot be written: {os.strerror(error.errno).lower()}")
        return ArtifactError.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)
        _complain(f"{name}: this name of {len(name)} characters is longer than names may be")
        return ArtifactError.exit_code
    if debug:
        traceback.print_exc()
    _complain(f"{type(error).__name__}: {error} (a fault of cephalo's; CEPHALO_DEBUG=1 shows where)")
    return 1


def _complain(message: str) -> None:
    """Print one line on standard error."""
    line = harmless(" ".join(map(_shortened, message.split()))).removesuffix(".")
    sys.stderr.write(f"cephalo: error: {line}\n")


def _shortened(word: str) -> str:
    """Leave out the middle of a word that would fill the screen, such as a file's content given for its name."""
    half = LONGEST_SHOWN // 2
    return word if len(word) <= LONGEST_SHOWN else f"{word[:half]}...{word[-half:]}"
