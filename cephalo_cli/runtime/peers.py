"""Telling the loss of another rank from an error of one's own."""

from cephalo_cli.errors import TrainingError

__all__ = ["PeerLostError", "is_peer_loss"]

SIGNS = ("closed by peer", "reset by peer", "Broken pipe", "Timed out waiting", "Connection refused")
"""What Gloo says, in a plain RuntimeError, when the other side is gone or silent (torch 2.13)."""


class PeerLostError(TrainingError):
    """A transfer failed because another rank ended or fell silent; that rank's own error is the one to look at."""


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error means that another rank ended or fell silent; torch's own classes are known by name."""
    if isinstance(error, PeerLostError):
        return True
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
