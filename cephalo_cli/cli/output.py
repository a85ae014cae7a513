"""What a command says and where: data on standard output, talk on standard error, in one of three modes.

human  the artifact as tables on standard output, a progress bar and one hint on standard error
json   the artifact as JSON on standard output, nothing else there
quiet  nothing but errors
"""

import contextlib
import errno
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from cephalo_cli.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from cephalo_cli.artifacts import Envelope

__all__ = ["Output", "ProgressCallback", "Talk", "harmless"]

ProgressCallback = Callable[[float, str], None]
"""Called with the finished fraction of a job and a few words about what is under way."""

TABLE_WIDTH_IN_A_PIPE = 80
_TRAILING_SPACES = re.compile(r" +$", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Output:
    """The one place commands print through.

    Args:
        json: Print data as JSON.
        quiet: Print nothing but errors.
        path: Where the command's artifact goes; ``-`` is standard output, which then carries nothing else.

    Raises:
        UsageError: ``json`` and ``quiet`` are both set.
    """

    def __init__(self, *, json: bool, quiet: bool, path: str | None = None) -> None:
        if json and quiet:
            raise UsageError("--json and --quiet exclude each other", hint="leave one out")
        self.json = json
        self.quiet = quiet
        self.path = path

    def artifact(
        self, artifact: "Envelope", renderables: Callable[[], list["RenderableType"]], *, force: bool = False
    ) -> None:
        """Write an artifact to its file and show it.

        Args:
            artifact: What the command made.
            renderables: Called in human mode for the tables to show.
            force: Whether an existing file may be overwritten.
        """
        from cephalo_cli.artifacts import store

        artifact = _signed(artifact)
        if self.path is not None:
            store.write(artifact, self.path, force=force)
        self.data(lambda: store.dumps(artifact), renderables)

    def save(self, artifact: "Envelope", path: str, *, force: bool = False) -> None:
        """Write an artifact to a file without showing it."""
        from cephalo_cli.artifacts import store

        store.write(_signed(artifact), path, force=force)

    def data(self, text: Callable[[], str], renderables: Callable[[], list["RenderableType"]]) -> None:
        """Show data that is not written to a file: JSON text or tables, by mode."""
        if self.quiet or (self.path == "-" and self.json):
            return
        if self.json:
            sys.stdout.write(text())
            return
        stream = sys.stderr if self.path == "-" else sys.stdout
        if stream.isatty():
            console = _console(stream)
            for renderable in renderables():
                console.print(_Harmless(renderable))
            return
        buffer = io.StringIO()
        for renderable in renderables():
            _console(buffer, width=TABLE_WIDTH_IN_A_PIPE).print(_Harmless(renderable))
        stream.write(_TRAILING_SPACES.sub("", buffer.getvalue()))

    def note(self, text: str) -> None:
        """Say something about what was done, on standard error."""
        if not self.quiet and not self.json:
            sys.stderr.write(harmless(text) + "\n")

    def hint(self, command: str) -> None:
        """Name the next command, with the user's own arguments in it."""
        self.note(f"next: {command}")

    @contextmanager
    def progress(self, title: str) -> Iterator[ProgressCallback]:
        """Show a progress bar on a terminal; stay silent in a pipe, and in the json and quiet modes."""
        if self.quiet or self.json or not sys.stderr.isatty():
            yield _silent
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(title, total=1.0)

            def advance(fraction: float, text: str) -> None:
                bar.update(task, completed=min(max(fraction, 0.0), 1.0), description=f"{title}: {text}")

            yield advance


class Talk:
    """Standard error for as long as somebody listens.

    A full disk, a reader that left or a terminal that is gone is no reason to stop the work that is talked about.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what was held back if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def _console(stream: IO[str], *, width: int | None = None) -> "Console":
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            # rich itself would end the process with exit code 1, which means a fault of ours
            raise BrokenPipeError(errno.EPIPE, "nobody reads any more")

    return Pipe(file=stream, width=width, highlight=False, soft_wrap=False)


def harmless(text: str) -> str:
    """Leave out what would move a terminal's cursor or change its colours: names come from files of others."""
    return _CONTROL.sub("", text)


class _Harmless:
    """Something to print, without the control characters of the words in it."""

    def __init__(self, content: "RenderableType") -> None:
        self.content = content

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
        for segment in console.render(self.content, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))


def _signed(artifact: "Envelope") -> "Envelope":
    from cephalo_cli import __version__

    return artifact.model_copy(update={"created_by": f"cephalo {__version__}"})


def _silent(_fraction: float, _text: str) -> None:
    pass
