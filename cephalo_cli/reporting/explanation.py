"""Why a plan is as fast as it is, as tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cephalo_cli.reporting.sheet import Column, Sheet, merged, rendered

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["explanation_tables"]


def explanation_tables(explanation: Mapping[str, Sequence[Mapping[str, Any]]]) -> list["RenderableType"]:
    """Render an explanation.

    Args:
        explanation: ``bindings`` with rank, device, constraints and memory_fraction; ``gains`` with change, step_s and
            speedup (None where the change does not fit).
    """
    bindings = merged(
        {
            "ranks": [binding["rank"]],
            "device": binding["device"],
            "constraints": ", ".join(binding["constraints"]) or "waits for others",
            "memory_fraction": binding["memory_fraction"],
        }
        for binding in explanation["bindings"]
    )
    gains = explanation["gains"]
    return rendered(
        (
            Sheet(
                name="bindings",
                title="What binds",
                columns=(
                    Column(key="ranks", title="rank", kind="ranks"),
                    Column(key="device", title="device"),
                    Column(key="constraints", title="bound by"),
                    Column(key="memory_fraction", title="memory", kind="percent"),
                ),
                rows=tuple(bindings),
            ),
            Sheet(
                name="gains",
                title="What would help (planned again)",
                columns=(
                    Column(key="change", title="change"),
                    Column(key="step_s", title="step", kind="seconds"),
                    Column(key="speedup", title="speed", kind="ratio"),
                ),
                rows=tuple(gains),
            ),
        )
    )
