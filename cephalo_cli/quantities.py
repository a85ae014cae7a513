"""The only place where numbers become text for people, and text from people becomes numbers.

Inside the program and in every file quantities are plain SI: bytes, seconds, floating-point operations, bytes a second.
"""

import re
from decimal import Decimal

from cephalo_cli.errors import UsageError

__all__ = [
    "format_bytes",
    "format_change",
    "format_count",
    "format_percent",
    "format_rate",
    "format_seconds",
    "format_share",
    "parse_bytes",
    "parse_memory",
    "parse_rate",
]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "pib": 2**50,
}
_ROUNDS_UP = 0.9995
"""From this fraction of the next unit on, three digits would show 1000."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)(/s)?\s*", re.ASCII)
_BIT_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
SMALLEST_MEMORY_BYTES = 2**20
"""Below it a plain number is no memory of a device, but one of GiB or MiB whose unit was forgotten."""
SMALLEST_BYTES_PER_S = 1000.0
"""Below it a plain number is no bandwidth, but one of GB/s or MB/s whose unit was forgotten."""


def format_bytes(num_bytes: float) -> str:
    """Write a size in binary units with three significant digits, such as ``22.5 GiB``."""
    size, unit = float(num_bytes), 0
    while abs(size) >= 1023.5 and unit < len(_BINARY) - 1:  # below it the digits shown do not reach 1024
        size /= 1024
        unit += 1
    return f"{size:.0f} B" if unit == 0 else f"{_three_digits(size)} {_BINARY[unit]}"


def format_seconds(seconds: float) -> str:
    """Write a duration in the unit that reads best, such as ``12.3 ms``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= factor * _ROUNDS_UP:
            return f"{_three_digits(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{_three_digits(seconds / 1e-9)} ns"


def format_count(count: float) -> str:
    """Write a large number with a decimal prefix, such as ``1.41 G``; small whole numbers stay as they are."""
    for factor, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= factor * (1 if unit == "k" else _ROUNDS_UP):
            scale = 1e3 if unit == "k" else factor
            return f"{_three_digits(count / scale)} {unit}"
    return f"{count:.0f}" if float(count).is_integer() else _three_digits(count)


def format_rate(per_second: float, what: str) -> str:
    """Write a rate such as ``5.21 samples/s`` or ``4.29 MB/s`` (``what`` names the unit)."""
    text = format_count(per_second)
    return f"{text}{what}/s" if " " in text else f"{text} {what}/s"


def format_percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, never as ``-0.0 %``."""
    return f"{fraction * 100:.1f} %".replace("-0.0 %", "0.0 %")


def format_share(fraction: float) -> str:
    """Write a share as `format_percent` does, or longer where that hides it: ``0.04 %``, ``<0.01 %``."""
    percent = fraction * 100
    if not 0.0 < percent < 0.1:
        return format_percent(fraction)
    return f"{percent:.2f} %" if percent >= 0.005 else "<0.01 %"


def format_change(fraction: float) -> str:
    """Write a relative change as a percentage with its sign, such as ``-3.1 %``; ``0.0 %`` has none."""
    text = format_percent(abs(fraction))
    return text if text == format_percent(0.0) else f"{'+' if fraction > 0 else '-'}{text}"


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``24GB`` (which differs), ``512`` or ``1.5 MiB`` as bytes.

    Raises:
        UsageError: The text is not a number with a unit of bytes.
    """
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    shown = repr(text if len(text) <= 40 else f"{text[:37]}...")
    if match is None or factor is None:
        raise UsageError(f"{shown} is not a size", hint="write it like 24GiB, 24GB or 1500000000")
    value = Decimal(match[1]) * factor
    if value >= 2**63:
        raise UsageError(f"{shown} is larger than any memory", hint="write it like 24GiB, 24GB or 1500000000")
    return round(value)


def parse_memory(text: str) -> int:
    """Read a size of a device's memory as `parse_bytes` does; a plain number below a mebibyte lacks its unit.

    Raises:
        UsageError: The text is not a size, or plainly not the size that was meant.
    """
    value = parse_bytes(text)
    number = text.strip()
    if number.replace(".", "").isdecimal() and 0 < value < SMALLEST_MEMORY_BYTES:
        hint = "write its unit, such as 512MiB" if value > 999 else f"did you mean {number}GiB or {number}MiB?"
        raise UsageError(f"{text!r} is {value} byte{'s' * (value > 1)}", hint=hint)
    return value


def parse_rate(text: str) -> float:
    """Read a bandwidth such as ``48GB/s``, ``10Gbit/s``, ``48GB`` or ``48000000000`` as bytes a second.

    Raises:
        UsageError: The text is not a bandwidth, or plainly not the one that was meant.
    """
    hint = "write it like 48GB/s, 10Gbit/s or 48000000000"
    match = _RATE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is not None and unit in _BIT_UNITS and match[3]:
        value = float(Decimal(match[1]) * _BIT_UNITS[unit] / 8)
    elif match is not None and unit in _SIZE_UNITS and (unit or not match[3]):
        value = float(parse_bytes(match[1] + unit))
    else:
        shown = repr(text if len(text) <= 40 else f"{text[:37]}...")
        raise UsageError(f"{shown} is not a bandwidth", hint=hint)
    if not unit and 0 < value < SMALLEST_BYTES_PER_S:
        raise UsageError(
            f"{text!r} is {value:g} bytes a second", hint=f"did you mean {match[1]}GB/s or {match[1]}MB/s?"
        )
    return value


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
