"""Tokens on disk: written once, mapped into memory by every rank and every later training.

Note: an entry is complete or absent
    An entry is a folder named after the digest of all that its content depends on. It is written aside, under a lock
    that the kernel lets go of when its holder ends, and renamed when all is on disk. Who opens an entry compares every
    file with the size and the checksum in ``about.json``; an entry that does not agree is written anew. So of several
    ranks and jobs one writes, the others wait, as long as what they wait for grows.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from cephalo_cli.errors import ArtifactError, TrainingError

__all__ = ["TokenWriter", "Tokenised", "tokenised"]

TOKENS_FILE, RECORDS_FILE, ABOUT_FILE = "tokens.bin", "records.bin", "about.json"
RECORD_DTYPE = "<i8"
POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """Tokens, mapped into memory."""

    tokens: npt.NDArray[np.integer[Any]]
    """All tokens, one after the other."""
    records: npt.NDArray[np.int64]
    """Of every prompt with completion: where its tokens start, and where its completion does, [records, 2]."""
    digest: str
    """Digest of both."""


class TokenWriter:
    """Writes an entry, a few tokens at a time.

    Args:
        folder: Where it goes.
        dtype: Dtype of the tokens, little-endian.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._folder, self._dtype = folder, dtype
        self._files: dict[str, IO[bytes]] = {}
        self._hashes = {name: hashlib.sha256() for name in (TOKENS_FILE, RECORDS_FILE)}
        self.num_tokens = 0

    def __enter__(self) -> Self:
        for name in (TOKENS_FILE, RECORDS_FILE):
            self._files[name] = (self._folder / name).open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Append tokens."""
        self._write(TOKENS_FILE, ids.astype(self._dtype).tobytes())
        self.num_tokens += len(ids)

    def add_record(self, num_prompt_tokens: int) -> None:
        """Say that a record starts here, and how many tokens of its prompt come before its completion."""
        starts = np.array([self.num_tokens, self.num_tokens + num_prompt_tokens], dtype=RECORD_DTYPE)
        self._write(RECORDS_FILE, starts.tobytes())

    def finish(self) -> None:
        """Have everything on disk."""
        about: dict[str, Any] = {"dtype": self._dtype, "files": {}}
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            about["files"][name] = {"num_bytes": file.tell(), "sha256": self._hashes[name].hexdigest()}
        with (self._folder / ABOUT_FILE).open("wb") as last:
            last.write(json.dumps(about).encode())
            last.flush()
            os.fsync(last.fileno())

    def _write(self, name: str, content: bytes) -> None:
        self._files[name].write(content)
        self._hashes[name].update(content)


def tokenised(
    write: Callable[[TokenWriter], None], *, key: str, dtype: str, cache: Path | None, timeout_s: float
) -> Tokenised:
    """Open the tokens that ``key`` stands for; write them first where they are not there yet.

    Args:
        write: Writes all tokens.
        key: Digest of all that they depend on.
        dtype: Dtype to keep them in.
        cache: Folder of entries; without one they go into a file that ends with the process.
        timeout_s: How long another process may write nothing while this one waits for it.

    Raises:
        ArtifactError: The folder cannot be written.
        TrainingError: Another process has written nothing for too long.
    """
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="cephalo-") as folder:
            _fill(Path(folder), dtype, write)
            return _open(Path(folder))
    entry = cache / key
    found = _open_complete(entry)
    if found is not None:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(entry, timeout_s):
            found = _open_complete(entry)
            return _write_entry(entry, dtype, write) if found is None else found
    except OSError as error:
        raise ArtifactError(
            f"cannot be written: {error.strerror or error}",
            where=f"cache of tokens {error.filename or cache}",
            hint="CEPHALO_CACHE_DIR or --cache-dir gives another folder, --no-cache needs none",
        ) from error


def _write_entry(entry: Path, dtype: str, write: Callable[[TokenWriter], None]) -> Tokenised:
    """Write aside, then rename; what a process that was killed left behind goes first."""
    part = _part(entry)
    for left in (part, entry):
        if left.exists():
            shutil.rmtree(left)
    part.mkdir()
    try:
        _fill(part, dtype, write)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    part.rename(entry)
    folder = os.open(entry.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return _open(entry)


def _fill(folder: Path, dtype: str, write: Callable[[TokenWriter], None]) -> None:
    with TokenWriter(folder, dtype) as writer:
        write(writer)
        writer.finish()


def _open(folder: Path) -> Tokenised:
    about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
    files = about["files"]
    return Tokenised(
        tokens=_mapped(folder / TOKENS_FILE, about["dtype"]),
        records=_mapped(folder / RECORDS_FILE, RECORD_DTYPE).reshape(-1, 2),
        digest=hashlib.sha256("/".join(files[name]["sha256"] for name in sorted(files)).encode()).hexdigest(),
    )


def _open_complete(entry: Path) -> Tokenised | None:
    """Open an entry, or None where it is absent or does not agree with its checksums."""
    try:
        about = json.loads((entry / ABOUT_FILE).read_text(encoding="utf-8"))
        for name, expected in about["files"].items():
            path = entry / name
            if path.stat().st_size != expected["num_bytes"]:
                return None
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                    return None
        return _open(entry)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    """Map a file; an empty one cannot be."""
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype=dtype)


@contextlib.contextmanager
def _locked(entry: Path, timeout_s: float) -> Iterator[None]:
    """Hold an entry's lock, which ends with the process."""
    with entry.with_suffix(".lock").open("a") as lock:
        written, since = -1, time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = _num_bytes(_part(entry) / TOKENS_FILE)
                if now != written:
                    written, since = now, time.monotonic()
                elif time.monotonic() - since > timeout_s:
                    raise TrainingError(
                        f"another process has the lock of {entry.name[:12]} and wrote nothing for {timeout_s:g} s",
                        where=f"cache of tokens {entry.parent}",
                        hint="end it, raise --timeout, or use --no-cache",
                    ) from None
                time.sleep(POLL_S)
        yield


def _part(entry: Path) -> Path:
    return entry.with_suffix(".part")


def _num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
