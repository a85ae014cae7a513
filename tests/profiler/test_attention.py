"""How attention runs: one rule for devices that are here and those of the catalog."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cephalo_cli import catalog
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType
from cephalo_cli.catalog.data import device_records
from cephalo_cli.profiler.attention import Kernels, attention_by, kernels_here, kernels_of, published_attention
from cephalo_cli.profiler.estimate import estimate_profile

ALL, GROUPED = catalog.model("gpt2"), catalog.model("llama-3-8b")
WINDOWED, WINDOWED_GROUPED = ALL.model_copy(update={"sliding_window": 64}), catalog.model("mistral-7b")
TOKENS = 8192
OF_ARCHITECTURE: dict[str, Kernels] = {
    "pascal": "efficient",
    "pascal-dc": "efficient",
    "volta": "efficient",
    "turing": "efficient",
    "ampere": "flash",
    "ampere-dc": "flash",
    "ada": "flash",
    "hopper": "flash",
    "blackwell": "flash",
    "blackwell-dc": "flash",
    "cdna1": "none",
    "cdna2": "flash",
    "cdna3": "flash",
    "rdna3": "none",
    "gaudi": "none",
    "x86": "all",
}


@pytest.mark.parametrize("name", device_records())
def test_every_device_of_the_catalog_has_the_kernels_of_its_architecture(name: str) -> None:
    assert kernels_of(catalog.device(name)) == OF_ARCHITECTURE[device_records()[name].architecture]


@pytest.mark.parametrize(
    ("backend", "peaks", "kernels"),
    [
        ("cuda", {"float32": 1e13, "bfloat16": 1e14}, "flash"),
        ("cuda", {"float32": 1e13, "float16": 1e14}, "efficient"),
        (None, {"float32": 1e13}, "efficient"),
        ("rocm", {"bfloat16": 1e14}, "none"),
        ("mps", {"float32": 1e13}, "none"),
        ("hpu", {"bfloat16": 1e14}, "none"),
        ("cpu", None, "all"),
    ],
)
def test_kernels_of_a_device_that_the_catalog_does_not_know(backend: Any, peaks: Any, kernels: Kernels) -> None:
    assert kernels_of(DeviceType(backend=backend, memory_bytes=1, peak_flops=peaks)) == kernels


@pytest.mark.parametrize(
    ("kernels", "dtype", "fused"),
    [
        ("all", "float64", "all windowed grouped windowed-grouped"),
        ("flash", "float16", "all windowed grouped"),
        ("flash", "bfloat16", "all windowed grouped"),
        ("flash", "float32", "all windowed"),
        ("flash", "float64", ""),
        ("efficient", "float16", "all windowed"),
        ("efficient", "bfloat16", ""),
        ("efficient", "float32", "all windowed"),
        ("none", "float16", ""),
    ],
)
def test_what_each_kernel_takes(kernels: Kernels, dtype: DType, fused: str) -> None:
    models = {"all": ALL, "windowed": WINDOWED, "grouped": GROUPED, "windowed-grouped": WINDOWED_GROUPED}
    found = [name for name, model in models.items() if attention_by(kernels, model, dtype, TOKENS) == "fused"]
    assert found == fused.split()


def test_a_window_as_long_as_the_sample_and_a_wide_head() -> None:
    assert attention_by("flash", WINDOWED_GROUPED, "bfloat16", 4096) == "fused"
    wide = GROUPED.model_copy(update={"num_heads": 8, "num_kv_heads": 2})
    assert wide.width_of_head == 512
    assert attention_by("flash", wide, "bfloat16", 4096) == "plain"


@pytest.mark.parametrize(
    ("capability", "kernels"), [((6, 1), "efficient"), ((7, 5), "efficient"), ((8, 0), "flash"), ((12, 0), "flash")]
)
def test_what_a_cuda_device_here_has(
    capability: tuple[int, int], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert kernels_here(torch.device("cuda", 0)) == kernels


@pytest.mark.parametrize(
    ("chip", "kernels"), [("gfx908", "none"), ("gfx90a:sramecc+", "flash"), ("gfx942", "flash"), ("gfx1100", "none")]
)
def test_what_a_rocm_device_here_has(chip: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=chip))
    assert kernels_here(torch.device("cuda", 0)) == kernels


def test_what_other_devices_here_have() -> None:
    assert [kernels_here(torch.device(name)) for name in ("cpu", "mps", "xpu")] == ["all", "none", "none"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_kept", [2, 8])
@pytest.mark.parametrize("is_masked", [False, True])
def test_torch_agrees_for_the_cpu(dtype: torch.dtype, num_kept: int, *, is_masked: bool) -> None:
    query, kept = (torch.zeros(1, heads, 16, 32, dtype=dtype, requires_grad=True) for heads in (8, num_kept))
    mask = torch.ones(16, 16, dtype=torch.bool).tril() if is_masked else None
    chosen = torch._fused_sdp_choice(  # noqa: SLF001 - torch tells its choice nowhere else
        query, kept, kept, attn_mask=mask, is_causal=not is_masked, enable_gqa=num_kept != 8
    )
    assert chosen == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value


def test_estimates_of_grouped_queries_hold_their_scores_where_no_kernel_takes_them() -> None:
    """V100s have no flash kernel: 32 heads of 8,192 x 8,192 scores are 4 GiB a sample that fused attention hides."""
    profiles = [
        estimate_profile(
            catalog.cluster_from_gpus("v100-32gb"),
            GROUPED,
            seq_len=TOKENS,
            dtype="float16",
            max_microbatch=1,
            attention=attention,
        )
        for attention in (None, "plain")
    ]
    block, plain = (profile.devices["v100-32gb"].units["block"] for profile in profiles)
    assert block == plain
    assert block.flags[0] == "plain attention"
    assert block.working_bytes[0] > 4 * 2**30


def test_reference_programs_materialise_scores_except_in_llama() -> None:
    l4, p40, cpu = (catalog.device(name) for name in ("l4", "p40", "cpu"))
    llama = catalog.model("llama-7b")
    assert [published_attention(ALL, device) for device in (l4, p40, cpu)] == ["plain", "plain", "fused"]
    assert [published_attention(llama, device) for device in (l4, p40, cpu)] == ["fused", "plain", "fused"]
