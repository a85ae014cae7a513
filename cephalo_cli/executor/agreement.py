"""What ranks make sure of before they start, and what they agree on while they run."""

import hashlib
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self

import torch
import torch.distributed as dist

from cephalo_cli import __version__
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.profile import Identity
from cephalo_cli.artifacts.store import dumps
from cephalo_cli.errors import TrainingError, UsageError
from cephalo_cli.executor.options import TrainOptions
from cephalo_cli.executor.peers import gather_values, sum_over_ranks
from cephalo_cli.quantities import format_bytes
from cephalo_cli.runtime.device import TORCH_TYPES, device_identity
from cephalo_cli.runtime.process import ProcessContext
from cephalo_cli.runtime.worker import HELD_SIGNALS

__all__ = ["StopSignals", "check_device", "compare_ranks", "job_facts"]

MEMORY_TOLERANCE = 0.15
"""Devices report up to this fraction less, or more, than the size they are sold with."""
SIGNALS = tuple(sorted(HELD_SIGNALS))


def compare_ranks(facts: Mapping[str, str], group: dist.ProcessGroup) -> None:
    """Make sure that all ranks are about to do the same.

    Args:
        facts: What must be equal, by its name in a sentence.
        group: All ranks.

    Raises:
        TrainingError: With the first thing two ranks disagree about, on every rank.
    """
    all_ranks = gather_values(dict(facts), group)
    for rank, theirs in enumerate(all_ranks):
        for what, value in all_ranks[0].items():
            if theirs[what] != value:
                raise TrainingError(
                    f"rank {rank} and rank 0 disagree about {what}: {theirs[what]} and {value}",
                    hint="start every rank with the same files, options and installation",
                )


def job_facts(plan: Plan, options: TrainOptions) -> dict[str, str]:
    """What ranks compare before anything else."""
    return {
        "the version of cephalo": __version__,
        "the version of torch": torch.__version__,
        "the plan": hashlib.sha256(dumps(plan).encode()).hexdigest(),
        "the options": options.model_dump_json(exclude={"cache_dir"}),  # hosts may keep it elsewhere
    }


def check_device(plan: Plan, context: ProcessContext) -> str | None:
    """Compare the device under this rank with the plan's.

    Another card of the same model is fine: plans travel. So its UUID only tells cards apart that name and memory do
    not, such as two of one model held to different clocks.

    Returns:
        One sentence when what differs changes speed but nothing else: another processor than the profile's, the card of
        another device type, or other versions of torch or the driver (told by a node's first rank of a type).

    Raises:
        UsageError: It is another kind of device, of another size, or not the one the profile was measured on.
    """
    here = device_identity(context.device, context.device_type)
    place = context.place
    where = f"rank {place.rank} ({place.device} on {place.node})"
    backend = context.device_type.backend
    if context.device.type != TORCH_TYPES.get(backend or "cpu", backend):
        raise UsageError(f"runs on {context.device.type}, the plan has {backend}", where=where)
    measured = plan.devices[place.device].identity
    if context.device.type == "cpu":
        if measured is not None and measured.name != here.name:
            return f"{where} runs on {here.name}; the plan was made for {measured.name}, so its times will be off"
        if measured is not None and measured.keeps_to_one_cpu and not here.keeps_to_one_cpu:
            return (
                f"{where} may use all CPUs of the host; the plan was made for one CPU a rank, so its times will be off"
                " (leave starting the ranks to cephalo train, or have the launcher hold each to a CPU of its own)"
            )
        return _other_versions(plan, context, here)
    expected = measured.memory_bytes if measured is not None else context.device_type.memory_bytes
    is_other = measured is not None and measured.name != here.name
    if expected is not None and abs(here.memory_bytes - expected) > MEMORY_TOLERANCE * expected:
        is_other = True
    if is_other:
        raise UsageError(
            f"runs on {_described(here)}, the plan was made for "
            f"{_described(measured) if measured else f'{place.device} with {format_bytes(expected or 0)}'}",
            where=where,
            hint="check the order of visible devices, or profile and plan again",
        )
    meant_for = _type_of(plan, here)
    if meant_for not in (None, place.device):
        return (
            f"{where} runs on {_described(here)}, which was profiled as {meant_for}, so its times will be off"
            " (check the order of visible devices)"
        )
    return _other_versions(plan, context, here)


class StopSignals:
    """Remembers a signal until the ranks agree to stop; a second one ends the process at once.

    Signals are caught in the main thread only, and given back at the end. Those that are ignored stay so: nohup means
    it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._remember) for number in heard}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # those that came before this were held back
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)

    def agree(self, num_tokens: int, group: dist.ProcessGroup) -> tuple[int, int | None]:
        """Add up the tokens of a step, and find out whether any rank was told to stop.

        Args:
            num_tokens: Valid tokens of this rank.
            group: All ranks.

        Returns:
            Valid tokens of the global batch, and the signal to stop for; the same on all ranks.
        """
        received = [float(self.received == number) for number in SIGNALS]
        tokens, *counts = sum_over_ranks(torch.tensor([num_tokens, *received], dtype=torch.float64), group).tolist()
        stop = next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)
        return round(tokens), None if stop is None else int(stop)


def _type_of(plan: Plan, here: Identity) -> str | None:
    """The device type that was measured on this very device."""
    if here.uuid is None:
        return None
    measured = ((name, profile.identity) for name, profile in plan.devices.items())
    return next((name for name, identity in measured if identity is not None and identity.uuid == here.uuid), None)


def _other_versions(plan: Plan, context: ProcessContext, here: Identity) -> str | None:
    """Say which versions differ from the profile's; torch's build for a backend counts as the backend's."""
    place, measured = context.place, plan.devices[context.place.device].identity
    alike = [rank for rank in plan.cluster.ranks if (rank.node, rank.device) == (place.node, place.device)]
    if measured is None or place.rank != alike[0].rank:
        return None
    versions = (
        ("torch", measured.torch.partition("+")[0], here.torch.partition("+")[0]),
        ("driver", measured.driver, here.driver),
        (context.device_type.backend or context.device.type, measured.backend_version, here.backend_version),
    )
    other = [(what, then, now) for what, then, now in versions if then is not None and now not in (None, then)]
    if not other:
        return None
    found = " and ".join(f"{what} {now}" for what, _, now in other)
    planned = " and ".join(f"{what} {then}" for what, then, _ in other)
    return (
        f"rank {place.rank} ({place.device} on {place.node}) has {found}; the plan was made with {planned}, so its"
        " times may be off"
    )


def _described(identity: Identity) -> str:
    uuid = f", {identity.uuid}" if identity.uuid else ""
    return f"{identity.name} ({format_bytes(identity.memory_bytes)}{uuid})"
