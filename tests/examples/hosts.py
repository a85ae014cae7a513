"""Hosts in network namespaces of this machine, joined by a switch, each link as slow as wanted."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Host", "NoNamespacesError", "joined_hosts"]

INTERFACE = "eth0"


class NoNamespacesError(Exception):
    """Network namespaces cannot be made here."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One namespace."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Give the command that runs ``words`` on this host; Gloo finds the card by its name."""
        return ["ip", "netns", "exec", self.name, "env", f"GLOO_SOCKET_IFNAME={INTERFACE}", *words]

    def sent_bytes(self) -> int:
        """Bytes that have left the host, headers included."""
        counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(subprocess.check_output(["ip", "netns", "exec", self.name, "cat", counter], text=True))


@contextlib.contextmanager
def joined_hosts(num_hosts: int, bits_per_s: float | None = None) -> Iterator[list[Host]]:
    """Make hosts that reach each other through a switch, and take them away at the end.

    Args:
        num_hosts: How many.
        bits_per_s: What each host may send; unlimited if absent.

    Raises:
        NoNamespacesError: Not root, or the kernel or iproute2 is missing what it takes.
    """
    tag = f"c{os.getpid() % 100000:x}"
    switch = f"{tag}s"
    hosts = [Host(name=f"{tag}h{number}", address=f"10.77.0.{number + 1}") for number in range(num_hosts)]
    try:
        _ip("link", "add", switch, "type", "bridge")
        _ip("link", "set", switch, "up")
        for number, host in enumerate(hosts):
            plug = f"{tag}p{number}"
            _ip("netns", "add", host.name)
            _ip("link", "add", plug, "type", "veth", "peer", "name", INTERFACE, "netns", host.name)
            _ip("link", "set", plug, "master", switch, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            _ip("-n", host.name, "link", "set", INTERFACE, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
            if bits_per_s is not None:
                limit = ("rate", f"{bits_per_s:.0f}bit", "burst", "256kb", "latency", "100ms")
                _run("tc", "-n", host.name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *limit)
        yield hosts
    finally:
        for number, host in enumerate(hosts):
            with contextlib.suppress(NoNamespacesError):
                _ip("link", "del", f"{tag}p{number}")
            with contextlib.suppress(NoNamespacesError):
                _ip("netns", "del", host.name)
        with contextlib.suppress(NoNamespacesError):
            _ip("link", "del", switch)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    except FileNotFoundError as error:
        raise NoNamespacesError(f"{words[0]} is not installed") from error
    if done.returncode != 0:
        raise NoNamespacesError(f"{' '.join(words)}: {done.stderr.strip()}")
