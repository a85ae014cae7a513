"""What other processes do to a cache; nothing here loads torch, so that they start fast."""

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from cephalo_cli.errors import CephaloError
from cephalo_cli.executor.datasets.cache import Tokenised, TokenWriter, tokenised

IDS = np.arange(1000)


def get(cache: Path | None, write: Any, *, key: str = "key", timeout_s: float = 5.0) -> Tokenised:
    return tokenised(write, key=key, dtype="<u2", cache=cache, timeout_s=timeout_s)


def die_while_writing(cache: Path) -> None:
    def write(writer: TokenWriter) -> None:
        writer.add(np.arange(100_000) % 1000)
        os.kill(os.getpid(), signal.SIGKILL)

    get(cache, write)


def write_slowly(cache: Path, results: Any) -> None:
    """Tell how often this process wrote, and what it found."""
    number = 0

    def write(writer: TokenWriter) -> None:
        nonlocal number
        number += 1
        writer.add(IDS)
        time.sleep(0.5)

    digest = get(cache, write).digest
    results.put((number, digest))


def run_out_of_space(cache: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        get(cache, lambda writer: writer.add(IDS))
    except CephaloError as error:
        os._exit(error.exit_code)
