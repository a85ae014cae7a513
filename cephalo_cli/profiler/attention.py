"""Which way attention is computed: one fused operator, or scores that exist in memory."""

from typing import Literal

from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.catalog.data import device_records

__all__ = ["Attention", "attention_of"]

Attention = Literal["fused", "plain"]


def attention_of(model: Model, device: DeviceType) -> Attention:
    """Say how a device is estimated to compute a model's attention: as in the reference measurements.

    There gpt, bert and vit blocks materialise their scores and llama blocks do not, except on Pascal cards without
    fast float16, for which no fused kernel is built. On CPUs attention is always fused.
    """
    if device.backend == "cpu":
        return "fused"
    record = device_records().get(device.catalog or "")
    has_kernel = record is None or record.architecture != "pascal"
    return "fused" if model.family == "llama" and has_kernel else "plain"
