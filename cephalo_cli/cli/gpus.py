"""What ``cephalo plan --gpus`` adds to an estimate: a dtype that all devices run, and a command that would fit."""

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cephalo_cli.cli.options import Dtype

if TYPE_CHECKING:
    from cephalo_cli.artifacts import Cluster

__all__ = ["common_dtype", "fitting_command"]

PREFERRED: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
"""Half the bytes and, on most devices, many times the rate of float32; bfloat16 needs no loss scaling."""
_MORE_CARDS = re.compile(r"(one|\d+) more (\S+) fits?")
_OPTIONS = re.compile(r"(--.+) fits")
_EACH_OPTION = re.compile(r" (?=--)")


def common_dtype(cluster: "Cluster", *, scales_loss: bool = True) -> Dtype:
    """Choose the dtype to compute in: the first of `PREFERRED` that every device runs.

    Not float16 where training cannot scale the loss. Where there is none, bfloat16, which the estimate then refuses by
    the name of the device that cannot.
    """
    peaks = [device.peak_flops for device in cluster.device_types.values() if device.peak_flops is not None]
    allowed = [dtype for dtype in PREFERRED if scales_loss or dtype != "float16"]
    return next((dtype for dtype in allowed if all(dtype in each for each in peaks)), PREFERRED[0])


def fitting_command(repair: str, gpus: str, options: Mapping[str, str | None]) -> str | None:
    """Write the command that does what a repair says.

    Args:
        repair: Such as ``one more p40 fits`` or ``--batch-size 12 fits``.
        gpus: The devices as they were given.
        options: The command's other options with their values, None where they were not given, empty for switches.

    Returns:
        The command, or None where the repair is no change of the command line.
    """
    changed: dict[str, str | None] = {"--gpus": gpus.replace(" ", ""), **options}
    cards, words = _MORE_CARDS.fullmatch(repair), _OPTIONS.fullmatch(repair)
    if cards is not None:
        changed["--gpus"] = _with_more(gpus, cards[2], 1 if cards[1] == "one" else int(cards[1]))
    elif words is not None:
        changed |= {
            option: value for option, _, value in (each.partition(" ") for each in _EACH_OPTION.split(words[1]))
        }
    else:
        return None
    given = [word for option, value in changed.items() if value is not None for word in (option, value) if word]
    return shlex.join(["cephalo", "plan", *given])


def _with_more(gpus: str, device: str, count: int) -> str:
    """Add devices to a list such as ``l4:2,p40``, keeping the names that were used."""
    from cephalo_cli.catalog import cluster_from_gpus

    parts = [part.strip().partition(":") for part in gpus.split(",")]
    for place, (name, _, number) in enumerate(parts):
        if next(iter(cluster_from_gpus(name).device_types)) == device:
            parts[place] = name, ":", str(int(number or 1) + count)
            break
    else:
        parts.append((device, ":", str(count)))
    return ",".join("".join(part) for part in parts)
