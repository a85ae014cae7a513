"""Which way attention is computed: one fused operator, or scores that exist in memory.

Two answers are kept apart. `attention_of` is what training here does, and what estimates assume unless told otherwise.
`published_attention` is what the programs behind the reference measurements did; the catalog's coefficients are fitted
with it, and a table is replayed with ``attention="plain"``.
"""

from typing import Literal

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.catalog.data import device_records

__all__ = ["Attention", "attention_of", "published_attention"]

Attention = Literal["fused", "plain"]
HALVES = frozenset({"float16", "bfloat16"})


def attention_of(model: Model, device: DeviceType, dtype: DType) -> Attention:
    """Say how the executor's `scaled_dot_product_attention` runs on a device.

    On CPUs it is always fused; elsewhere wherever torch has a fused kernel: not on Pascal cards without fast float16,
    and not for grouped queries in float32 or float64, which only the 16-bit flash kernels take.
    """
    if device.backend == "cpu":
        return "fused"
    is_grouped = model.kv_heads != model.num_heads
    return "fused" if _has_kernel(device) and (dtype in HALVES or not is_grouped) else "plain"


def published_attention(model: Model, device: DeviceType) -> Attention:
    """Say how the reference measurements computed a model's attention.

    There gpt, bert and vit blocks materialise their scores and llama blocks do not, except on Pascal cards without
    fast float16.
    """
    if device.backend == "cpu":
        return "fused"
    return "fused" if model.family == "llama" and _has_kernel(device) else "plain"


def _has_kernel(device: DeviceType) -> bool:
    record = device_records().get(device.catalog or "")
    return record is None or record.architecture != "pascal"
