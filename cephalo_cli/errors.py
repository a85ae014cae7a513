"""What can go wrong for a user: one class per exit code, one line per message.

A message has three parts: what is wrong, where (file and field path), and what to do next. The command line puts
them together; nothing in this module prints.
"""

from typing import ClassVar

__all__ = [
    "ArtifactError",
    "CephaloError",
    "ConditionError",
    "InfeasibleError",
    "InterruptedRunError",
    "TimeLimitError",
    "TrainingError",
    "UsageError",
]


class CephaloError(Exception):
    """A fault with a cause the user can understand and act on.

    Args:
        message: What is wrong and what was expected, without a full stop.
        where: The file and field path it concerns, such as ``plan.json: ranks[2].state_share``.
        hint: What to do next, usually a command or an option.
    """

    exit_code: ClassVar[int] = 1
    is_of_every_rank: bool = False
    """Whether every rank finds the same fault by itself, so that one of each host may say it for all."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head} ({self.hint})" if self.hint else head

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip from a rank's process to the one that started it."""
        return _rebuild, (type(self), self.message, self.where, self.hint, dict(self.__dict__))


def _rebuild(
    kind: type[CephaloError], message: str, where: str | None, hint: str | None, state: dict[str, object]
) -> CephaloError:
    error = kind(message, where=where, hint=hint)
    error.__dict__.update(state)
    return error


class UsageError(CephaloError):
    """The command line contradicts itself or asks for something that does not exist."""

    exit_code = 2


class ArtifactError(CephaloError):
    """A file is missing, unreadable, not an artifact, or says something impossible."""

    exit_code = 3


class InfeasibleError(CephaloError):
    """No plan fits; the message names the rank, the memory term, the bytes, and the smallest repair."""

    exit_code = 4


class TimeLimitError(CephaloError):
    """The time limit passed before any plan was found."""

    exit_code = 5


class TrainingError(CephaloError):
    """Training stopped: a rank died, hung, or computed something that is not a number."""

    exit_code = 6


class ConditionError(CephaloError):
    """What ``show --fail-if`` was told to watch for has happened; the files themselves are sound.

    A code of its own, so that a job can tell a slower plan from a broken file (3), from no plan at all (4) and from a
    fault of this program (1).
    """

    exit_code = 7


class InterruptedRunError(CephaloError):
    """A signal stopped the run after a checkpoint was saved.

    Args:
        message: What was interrupted and what was saved.
        signal_number: The signal; the exit code is 128 plus it (130 for SIGINT, 143 for SIGTERM,
            129 for SIGHUP).
        where: As in `CephaloError`.
        hint: As in `CephaloError`.
    """

    exit_code = 130

    def __init__(
        self, message: str, *, signal_number: int = 2, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number  # type: ignore[misc]  # one class, two documented codes
