"""Which way attention is computed: one fused operator, or scores that exist in memory.

Two answers are kept apart. `attention_by` is what training here does, on a device that is here (`kernels_here`) or in
the catalog (`kernels_of`), and what estimates assume unless told otherwise. `published_attention` is what the programs
behind the reference measurements did; the catalog's coefficients are fitted with it, and a table is replayed with
``attention="plain"``.

Note: what torch's `scaled_dot_product_attention` takes
    * CPUs: one fused kernel for every dtype, mask and grouping.
    * CUDA, the flash kernel: 16 bits from compute capability 8.0 on, heads of at most 256, grouped queries, no mask. A
      sliding window that is shorter than the sample is a mask.
    * CUDA, the memory-efficient kernel: float32 and float16, from 8.0 on bfloat16, masks, no grouped queries.
    * ROCm: both, where AOTriton has them without being asked to experiment: gfx90a, gfx942, gfx950.
    * Everything else, float64 on GPUs included: the composed operator, whose scores exist.

    Sources: torch 2.13, docstring of the operator (grouped queries: "only for Flash_attention and math kernel"; "for
    all other backends, the PyTorch implementation will be used"); aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
"""

from typing import Literal

import torch

from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.artifacts.model import Model
from cephalo_cli.catalog.data import device_records

__all__ = ["Attention", "Kernels", "attention_by", "kernels_here", "kernels_of", "published_attention"]

Attention = Literal["fused", "plain"]
Kernels = Literal["all", "flash", "efficient", "none"]
"""What a device has; ``flash`` has the memory-efficient kernel too."""

FLASH_CAPABILITY = (8, 0)
FLASH_HEAD_WIDTH = 256
BEFORE_FLASH = frozenset({"pascal", "pascal-dc", "volta", "turing"})
"""Architectures of NVIDIA below that capability."""
AOTRITON_CHIPS = frozenset({"gfx90a", "gfx942", "gfx950"})
AOTRITON = frozenset({"cdna2", "cdna3"})
"""The catalog's names for them."""


def attention_by(kernels: Kernels, model: Model, dtype: DType, tokens: int) -> Attention:
    """Say how the executor's attention runs.

    Args:
        kernels: What the device has.
        model: The model.
        dtype: Compute dtype.
        tokens: Tokens of one sample.
    """
    if kernels == "all":
        return "fused"
    if kernels == "none" or dtype == "float64":
        return "plain"
    if model.kv_heads == model.num_heads:
        return "fused" if dtype != "bfloat16" or kernels == "flash" else "plain"
    is_masked = model.sliding_window is not None and model.sliding_window < tokens
    is_half = dtype in ("float16", "bfloat16")
    takes_groups = kernels == "flash" and is_half and not is_masked and model.width_of_head <= FLASH_HEAD_WIDTH
    return "fused" if takes_groups else "plain"


def kernels_of(device: DeviceType) -> Kernels:
    """Say which kernels a device type has; of a CUDA type without a catalog id, bfloat16 tells its generation."""
    record = device_records().get(device.catalog or "")
    architecture = None if record is None else record.architecture
    if device.backend == "cpu":
        return "all"
    if device.backend == "rocm":
        return "flash" if architecture in AOTRITON else "none"
    if device.backend not in ("cuda", None):
        return "none"
    is_recent = "bfloat16" in (device.peak_flops or {}) if architecture is None else architecture not in BEFORE_FLASH
    return "flash" if is_recent else "efficient"


def kernels_here(device: torch.device) -> Kernels:
    """Say which kernels a device of this machine has."""
    if device.type == "cpu":
        return "all"
    if device.type != "cuda":
        return "none"
    if torch.version.hip is not None:
        chip = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        return "flash" if chip in AOTRITON_CHIPS else "none"
    return "flash" if torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY else "efficient"


def published_attention(model: Model, device: DeviceType) -> Attention:
    """Say how the reference measurements computed a model's attention.

    There gpt, bert and vit blocks materialise their scores and llama blocks do not, except on Pascal cards without
    fast float16.
    """
    if device.backend == "cpu":
        return "fused"
    record = device_records().get(device.catalog or "")
    is_slow = record is not None and record.architecture == "pascal"
    return "fused" if model.family == "llama" and not is_slow else "plain"
