"""A rank that needs more memory than its device has."""

from cephalo_cli.errors import TrainingError

__all__ = ["MemoryLimitError"]


class MemoryLimitError(TrainingError):
    """A rank went over its device's memory; whoever knows the plan can say what was planned."""

    rank: int | None = None
    """Which one, where the message comes from the process that started it."""
