"""What passes between units: the boundary's activation and its gradient, one a unit and microbatch.

Note: copies to host memory
    With offload a boundary leaves the device as soon as its unit made it, and comes back one microbatch before it is
    used. Copies run on streams of their own between the device and pinned buffers, which are used again in every
    step. Memory on the device is given out and taken back in the order of the computing stream alone: a fetch is
    allocated there and waits for what was queued before, and a leaving tensor is kept until the computing stream has
    waited for its copy; two may be leaving at a time. So nothing is read or used again too early, and what is on the
    device stays bounded however far the host runs ahead.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

__all__ = ["Boundaries", "Key"]

MOST_LEAVING = 2
"""Tensors that may be on their way to the host at a time."""


class Key(NamedTuple):
    """Which tensor."""

    tensor: Literal["activation", "gradient"]
    unit: int
    """The unit whose output it is, or whose output's gradient."""
    microbatch: int


class Boundaries:
    """The boundary tensors of one step on one rank.

    Args:
        device: Where they are used.
        offload: Whether any of them goes to host memory.
        notice: Told in one sentence when pinned memory is not to be had.
    """

    def __init__(self, device: torch.device, *, offload: bool, notice: Callable[[str], None]) -> None:
        self._here: dict[Key, torch.Tensor] = {}
        self._arriving: dict[Key, torch.Event | None] = {}
        self._host = _HostCopies(device, notice) if offload else None

    def put(self, key: Key, tensor: torch.Tensor) -> None:
        """Keep a tensor."""
        self._here[key] = tensor

    def wait(self, key: Key) -> bool:
        """Wait until a tensor is on the device; False when nothing was on its way."""
        if key not in self._arriving:
            return False
        arrived = self._arriving.pop(key)
        if arrived is not None:
            torch.accelerator.current_stream().wait_event(arrived)
        return True

    def get(self, key: Key) -> torch.Tensor:
        """Give a tensor that is on the device."""
        return self._here[key]

    def drop(self, key: Key) -> None:
        """Forget a tensor, wherever it is."""
        self._here.pop(key, None)
        if self._host is not None:
            self._host.forget(key)

    def leave(self, key: Key) -> None:
        """Forget the device's copy of a tensor if the host has one."""
        if self._host is not None and self._host.has(key):
            self._here.pop(key, None)

    def offload(self, key: Key) -> torch.Event | None:
        """Start copying a tensor to the host and forget the device's; gives the copy's end (None: it is over)."""
        if self._host is None:
            raise AssertionError("the rank does not offload")
        return self._host.save(key, self._here.pop(key))

    def fetch(self, key: Key) -> torch.Event | None:
        """Start copying a tensor to the device; the host keeps its copy until `drop`. Gives the end as `offload`."""
        if self._host is None:
            raise AssertionError("the rank does not offload")
        self._here[key], self._arriving[key] = self._host.load(key)
        return self._arriving[key]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, as after every step."""
        return not self._here and not self._arriving


@dataclass
class _HostBuffer:
    tensor: torch.Tensor
    used: torch.Event | None = None
    """The last copy that touches it; None before the first, and on a device without streams."""


class _HostCopies:
    """Host buffers and the two copying streams; without streams (cpu) copies are done at once."""

    def __init__(self, device: torch.device, notice: Callable[[str], None]) -> None:
        self._device = device
        self._notice = notice
        self._pins = device.type != "cpu"
        self._outward = torch.Stream(device) if device.type != "cpu" else None
        self._inward = torch.Stream(device) if device.type != "cpu" else None
        self._buffers: dict[Key, _HostBuffer] = {}
        self._free: dict[tuple[torch.Size, torch.dtype], list[_HostBuffer]] = {}
        self._leaving: deque[tuple[torch.Tensor, torch.Event | None]] = deque()

    def has(self, key: Key) -> bool:
        return key in self._buffers

    def save(self, key: Key, tensor: torch.Tensor) -> torch.Event | None:
        while len(self._leaving) >= MOST_LEAVING:
            _, done = self._leaving.popleft()
            if done is not None:
                torch.accelerator.current_stream().wait_event(done)
        buffer = self._buffers[key] = self._take(tensor)
        self._copy(self._outward, buffer, buffer.tensor, tensor)
        self._leaving.append((tensor, buffer.used))
        return buffer.used

    def load(self, key: Key) -> tuple[torch.Tensor, torch.Event | None]:
        buffer = self._buffers[key]
        arriving = torch.empty(buffer.tensor.shape, dtype=buffer.tensor.dtype, device=self._device)
        self._copy(self._inward, buffer, arriving, buffer.tensor)
        return arriving, buffer.used

    def forget(self, key: Key) -> None:
        buffer = self._buffers.pop(key, None)
        if buffer is not None:
            self._free.setdefault((buffer.tensor.shape, buffer.tensor.dtype), []).append(buffer)

    def _copy(
        self, stream: torch.Stream | None, buffer: _HostBuffer, target: torch.Tensor, source: torch.Tensor
    ) -> None:
        if stream is None:
            target.copy_(source)
            return
        stream.wait_stream(torch.accelerator.current_stream())
        if buffer.used is not None:
            stream.wait_event(buffer.used)
        with stream:
            target.copy_(source, non_blocking=True)
        buffer.used = torch.Event(self._device, enable_timing=True)
        buffer.used.record(stream)

    def _take(self, like: torch.Tensor) -> _HostBuffer:
        free = self._free.get((like.shape, like.dtype))
        if free:
            return free.pop()
        if self._pins:
            try:
                return _HostBuffer(torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True))
            except RuntimeError as error:
                self._pins = False
                self._notice(f"no pinned host memory ({error}); offloading through pageable memory, which is slower")
        return _HostBuffer(torch.empty(like.shape, dtype=like.dtype, device="cpu"))
