"""Cephalo: plan, predict and run transformer training on clusters of different GPUs.

For a training loop of one's own (see ``examples/own_loop.py``): `read_plan`, `ShardedModel`, and what a step is given,
`TextBatch` and `ImageBatch`. They are loaded when they are first asked for, torch with them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cephalo_cli.executor.loop import ShardedModel, read_plan
    from cephalo_cli.models import ImageBatch, TextBatch

__version__ = "0.1.0"
__all__ = ["ImageBatch", "ShardedModel", "TextBatch", "__version__", "read_plan"]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    homes = {
        "ImageBatch": "cephalo_cli.models",
        "ShardedModel": "cephalo_cli.executor.loop",
        "TextBatch": "cephalo_cli.models",
        "read_plan": "cephalo_cli.executor.loop",
    }
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - most uses of the package need none of this

    return getattr(import_module(homes[name]), name)
