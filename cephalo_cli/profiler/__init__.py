"""What the hardware does: measured, imported or estimated.

Functions are loaded when they are first asked for: importing a table needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cephalo_cli.profiler.estimate import estimate_profile
    from cephalo_cli.profiler.import_table import import_profile
    from cephalo_cli.profiler.local import local_cluster
    from cephalo_cli.profiler.measure import profile_cluster

__all__ = ["estimate_profile", "import_profile", "local_cluster", "profile_cluster"]


def __getattr__(name: str) -> Any:
    modules = {
        "estimate_profile": "estimate",
        "import_profile": "import_table",
        "local_cluster": "local",
        "profile_cluster": "measure",
    }
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{modules[name]}"), name)
