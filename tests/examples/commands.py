"""Cephalo's commands for scripts, without installing it."""

import os
import sys
from pathlib import Path

__all__ = ["commands_environment", "write_script"]


def commands_environment(folder: Path) -> dict[str, str]:
    """Environment in which ``cephalo``, ``torchrun`` and ``python`` are those of this test; every rank has one thread.

    Args:
        folder: Where the commands are written.
    """
    folder.mkdir()
    for name, module in (("cephalo", "cephalo_cli"), ("torchrun", "torch.distributed.run")):
        write_script(folder / name, f'exec "{sys.executable}" -m {module} "$@"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK", "WORLD"))}
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return {**kept, "PATH": path, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}


def write_script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/usr/bin/env bash\n{body}")
    path.chmod(0o755)
