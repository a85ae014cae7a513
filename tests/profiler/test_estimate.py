"""Estimates: close to published measurements, careful where nothing is known, refused where a device cannot."""

from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Cluster, Model, Profile, store
from cephalo_cli.artifacts.base import DType
from cephalo_cli.artifacts.cluster import DeviceType, Link, Node
from cephalo_cli.artifacts.profile import UnitProfile
from cephalo_cli.catalog.coefficients import coefficients
from cephalo_cli.catalog.data import device_records
from cephalo_cli.costmodel.tables import interpolate
from cephalo_cli.errors import ArtifactError, UsageError
from cephalo_cli.profiler.attention import Attention, published_attention
from cephalo_cli.profiler.estimate import estimate_profile
from cephalo_cli.profiler.memory import unit_memory
from cephalo_cli.profiler.roofline import Work, unit_seconds, unit_work
from cephalo_cli.profiler.table import LatencyRow, read_latency_table
from cephalo_cli.units import num_parameters

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "measured_block_latency.csv"


ATTENTIONS: tuple[tuple[int, Attention], ...] = ((512, "plain"), (2048, "plain"), (2048, "fused"))


def _estimate(
    gpus: str,
    model: str,
    seq_len: int | None,
    dtype: DType,
    *,
    max_microbatch: int = 4,
    attention: Attention | None = None,
) -> Profile:
    return estimate_profile(
        catalog.cluster_from_gpus(gpus),
        catalog.model(model),
        seq_len=seq_len,
        dtype=dtype,
        max_microbatch=max_microbatch,
        attention=attention,
    )


def _block(profile: Profile, device: str) -> UnitProfile:
    return profile.devices[device].units["block"]


def _errors(row: LatencyRow) -> list[float]:
    device, model = catalog.device(row.device), catalog.model(row.model)
    work = unit_work(
        model,
        kind="block",
        tokens=model.tokens_per_sample(row.seq_len),
        dtype=row.dtype,
        microbatch=row.microbatch,
        attention=published_attention(model, device),
    )
    peaks, bandwidth = device.peak_flops, device.memory_bandwidth_bytes_per_s
    assert peaks is not None
    assert bandwidth is not None
    forward_s, backward_s = unit_seconds(work, peaks[row.dtype], bandwidth, coefficients(device, row.dtype))
    return [abs(forward_s / row.forward_s - 1), abs(backward_s / row.backward_s - 1)]


@pytest.mark.skipif(not DATA.exists(), reason="the shared reference data is not here")
def test_published_block_times_are_met() -> None:
    rows, _ = read_latency_table(DATA)
    errors = [error for row in rows for error in _errors(row)]
    assert len(errors) > 3000
    assert median(errors) <= 0.026
    assert quantiles(errors, n=10)[-1] <= 0.13  # larger microbatches were measured on warmer cards, see the formula


def test_a_profile_by_estimate_says_everything_a_plan_needs() -> None:
    profile = _estimate("rtx-3090:2,4090,p40:2", "llama-2-7b", 512, "float16")
    assert store.loads(store.dumps(profile).encode(), where="x") == profile
    assert profile.num_parameters == num_parameters(catalog.model("llama-2-7b"))
    assert profile.network != "ideal"
    assert profile.network.method == "estimated"
    for device in profile.devices.values():
        assert device.method == "estimated"
        assert set(device.units) == {"embedding", "block", "head"}
        assert device.expected_error is not None
        assert 0 < device.expected_error < 0.5
        assert device.host_copy is not None
        assert device.optimizer_s_per_parameter > 0
        for unit in device.units.values():
            assert unit.microbatch == (1, 2, 3, 4)
            assert list(unit.forward_s) == sorted(unit.forward_s)
            assert unit.saved_bytes is not None


def test_memory_of_an_estimate_is_that_of_fake_tensors() -> None:
    block = _block(_estimate("a100-80gb", "gpt2", 256, "bfloat16"), "a100-80gb")
    counted = unit_memory(catalog.model("gpt2"), seq_len=256, dtype="bfloat16", kind="block", microbatch=3)
    assert (block.working_bytes[2], (block.saved_bytes or ())[2]) == (counted.working_bytes, counted.saved_bytes)
    assert block.flags == ("fused attention",)


def test_faster_cards_take_less_time() -> None:
    profile = _estimate("p40,l4,a6000,a100-80gb,h100-sxm", "llama-2-7b", 512, "float16")
    forwards = [_block(profile, name).forward_s[3] for name in ("p40", "l4", "a6000", "a100-80gb", "h100-sxm")]
    assert forwards == sorted(forwards, reverse=True)


@pytest.mark.parametrize("model", ["bert-large", "gpt-1.3b", "llama-7b", "llama-33b"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sample_takes_at_most_a_tenth_longer_in_a_large_microbatch(model: str, dtype: DType) -> None:
    """Clocks that fall with a call's length made a sample of llama-7b five times slower in a microbatch of 32."""
    for name, record in device_records().items():
        if dtype not in record.peak_flops:
            continue
        fit, seconds = coefficients(catalog.device(name), dtype), []
        for size in (1, 32):
            work = unit_work(
                catalog.model(model), kind="block", tokens=512, dtype=dtype, microbatch=size, attention="fused"
            )
            rates = record.peak_flops[dtype], record.memory_bandwidth_bytes_per_s
            seconds.append(np.array(unit_seconds(work, *rates, fit)) / size)
        assert (seconds[1] <= 1.1 * seconds[0]).all(), (name, seconds)


def test_what_limits_of_power_add_is_bounded() -> None:
    """However wide a block is: no clock falls below two fifths of its most, and heat adds a tenth for 32 times more."""
    fit = coefficients(catalog.device("l4"), "float32").model_copy(update={"sustained": 1e6})
    work = unit_work(
        catalog.model("llama-7b"), kind="block", tokens=512, dtype="float32", microbatch=1, attention="fused"
    )
    endless = replace(work, matrix_elements=1e18)
    slowed_s, cold_s = (
        unit_seconds(endless, 1e13, 1e12, fit.model_copy(update={"sustained": exponent}))[0] for exponent in (1e6, 0.0)
    )
    assert slowed_s / cold_s == pytest.approx(2.5 * (1 + 2.5 * 3 * cold_s / 0.01) ** 0.0275, rel=0.05)


def test_a_cpu_is_known_by_its_datasheet_alone_and_says_so() -> None:
    """The committed measurement of a CPU's blocks lies within the stated error, which calibration cannot lower."""
    measured = store.read("profiles/laptop-mixed.json", Profile)
    types = {
        name: device.model_copy(update={"catalog": "cpu"}) for name, device in measured.cluster.device_types.items()
    }
    profile = estimate_profile(
        measured.cluster.model_copy(update={"device_types": types}),
        measured.model,
        seq_len=256,
        dtype="float32",
        max_microbatch=8,
    )
    for name, truth in measured.devices.items():
        device, block = profile.devices[name], truth.units["block"]
        estimated = device.units["block"]
        for curve in ("forward_s", "backward_s"):
            for size, second in zip(block.microbatch, getattr(block, curve), strict=True):
                assert abs(getattr(estimated, curve)[size - 1] / second - 1) <= (device.expected_error or 0), name
        ratio = device.optimizer_s_per_parameter / truth.optimizer_s_per_parameter
        assert abs(ratio - 1) <= (device.expected_optimizer_error or 0), name
    bare = DeviceType(backend="cpu", memory_bytes=1)
    assert coefficients(bare, "float32") == coefficients(catalog.device("cpu"), "float32")


def test_memory_optimizer_and_collectives_carry_errors_of_their_own() -> None:
    profile = _estimate("l4:2,p40", "gpt2", 128, "float32")
    for device in profile.devices.values():
        assert device.expected_memory_error == 0.098
        assert device.expected_optimizer_error == pytest.approx(1 / 3)
    assert profile.network != "ideal"
    assert profile.network.expected_error == 0.25


def test_longer_sequences_cost_more_than_their_tokens_where_scores_exist() -> None:
    short, long, fused = (
        _block(_estimate("l4", "gpt_1.3b", length, "float32", attention=attention), "l4")
        for length, attention in ATTENTIONS
    )
    assert interpolate(long.microbatch, long.forward_s, 1) > 1.2 * interpolate(short.microbatch, short.forward_s, 4)
    assert interpolate(long.microbatch, long.forward_s, 1) > 1.1 * interpolate(fused.microbatch, fused.forward_s, 1)


def test_a_sliding_window_hides_scores_but_does_not_save_them() -> None:
    """The operator that takes a mask skips nothing, the causal one half; a window as long as the sample is no mask."""
    windowed, whole = (
        catalog.model("mistral-7b"),
        catalog.model("mistral-7b").model_copy(update={"sliding_window": None}),
    )

    def work(model: Model, tokens: int, attention: Attention) -> Work:
        return unit_work(model, kind="block", tokens=tokens, dtype="float32", microbatch=1, attention=attention)

    assert work(windowed, 8192, "fused").fused_flops == 2 * work(whole, 8192, "fused").fused_flops
    assert work(windowed, 8192, "plain") == work(whole, 8192, "plain")
    assert work(windowed, 4096, "fused") == work(whole, 4096, "fused")


def test_every_device_of_the_catalog_can_be_estimated_in_every_dtype_it_runs() -> None:
    model = catalog.model("bert-base")
    for name, record in device_records().items():
        for dtype, peak in record.peak_flops.items():
            work = unit_work(model, kind="block", tokens=128, dtype=dtype, microbatch=2, attention="fused")
            fit = coefficients(catalog.device(name), dtype)
            forward_s, backward_s = unit_seconds(work, peak, record.memory_bandwidth_bytes_per_s, fit)
            assert work.products_flops / peak < forward_s * 1.2, name
            assert forward_s < backward_s < 1, name


def test_devices_without_measurements_take_their_architectures_coefficients() -> None:
    measured, relative, stranger = (coefficients(catalog.device(name), "float16") for name in ("l4", "l40s", "mi300x"))
    assert measured != relative != stranger
    assert coefficients(catalog.device("rtx-4090"), "bfloat16") == relative
    assert measured.expected_error < stranger.expected_error
    assert coefficients(DeviceType(memory_bytes=1), "float32") == coefficients(catalog.device("mi300x"), "float32")


def test_a_dtype_that_one_card_cannot_run_is_refused_with_the_card() -> None:
    with pytest.raises(UsageError) as caught:
        _estimate("a100-80gb,v100-16gb", "gpt2", 128, "bfloat16")
    assert str(caught.value) == (
        "--dtype: 'v100-16gb' cannot run bfloat16; it runs float16, float32"
        " (all devices of the cluster run float32 and float16)"
    )


def test_vendors_whose_collectives_cannot_meet_are_refused_with_both_cards() -> None:
    with pytest.raises(UsageError) as caught:
        _estimate("l4,mi210:2", "gpt2", 128, "float32")
    assert str(caught.value) == (
        "device_types: 'l4' (cuda) and 'mi210' (rocm) cannot be in one group of collectives"
        " (make a cluster for each backend's devices)"
    )


def test_what_a_custom_device_must_say_is_named() -> None:
    custom = DeviceType(backend="cuda", memory_bytes=2**30, peak_flops={"float32": 1e13})
    cluster = Cluster(
        name="own", device_types={"mine": custom}, nodes=(Node(name="a", devices=("mine",)),), network="ideal"
    )
    with pytest.raises(ArtifactError, match=r"device_types\.mine\.memory_bandwidth_bytes_per_s: is missing"):
        estimate_profile(cluster, catalog.model("gpt2"), seq_len=128, dtype="float32", max_microbatch=1)


def test_a_custom_device_that_says_enough_is_estimated() -> None:
    link = Link(bandwidth_bytes_per_s=1e10, latency_s=1e-5)
    custom = DeviceType(
        memory_bytes=2**30, peak_flops={"float32": 1e13}, memory_bandwidth_bytes_per_s=5e11, host_link=link
    )
    cluster = Cluster(
        name="own", device_types={"mine": custom}, nodes=(Node(name="a", devices=("mine",)),), network="ideal"
    )
    profile = estimate_profile(cluster, catalog.model("gpt2"), seq_len=128, dtype="float32", max_microbatch=1)
    device = profile.devices["mine"]
    assert device.host_copy is not None
    assert device.host_copy.to_host_bytes_per_s == 8e9
    assert device.units["block"].forward_s[0] > 2 * 128 * 7_000_000 / 1e13


def test_an_emulated_cpu_has_its_share_of_a_core() -> None:
    types = {
        name: DeviceType(catalog="cpu", backend="cpu", memory_bytes=2**30, emulated_speed=speed)
        for name, speed in (("whole", 1.0), ("half", 0.5))
    }
    cluster = Cluster(
        name="emulated",
        device_types=types,
        nodes=(Node(name="a", devices=("whole", "half")),),
        network="ideal",
    )
    profile = estimate_profile(cluster, catalog.model("gpt2"), seq_len=128, dtype="float32", max_microbatch=2)
    assert _block(profile, "half").forward_s[1] > 1.8 * _block(profile, "whole").forward_s[1]
    assert profile.devices["half"].collective_compute_s_per_byte > 0
    assert profile.devices["half"].host_copy is None
    assert _block(profile, "half").flags == ("fused attention",)


def test_images_have_the_length_of_their_patches() -> None:
    profile = _estimate("l4", "vit-base", None, "float32")
    assert profile.seq_len == 197
    with pytest.raises(UsageError, match="follows from its images: 197"):
        _estimate("l4", "vit-base", 512, "float32")


def test_sizes_beyond_counting_are_refused() -> None:
    endless = catalog.model("gpt2").model_copy(update={"hidden_size": 12 * 10**17})
    with pytest.raises(UsageError, match=r"--model: gpt2 has .* parameters, expected at most"):
        estimate_profile(catalog.cluster_from_gpus("l4"), endless, seq_len=16, dtype="float32")
    with pytest.raises(UsageError, match="--max-microbatch: found 2147483647, expected at most 4096"):
        _estimate("l4", "gpt2", 16, "float32", max_microbatch=2**31 - 1)
    long = catalog.model("llama-7b").model_copy(update={"max_seq_len": 2**40})
    with pytest.raises(UsageError, match=r"--seq-len: a microbatch of 32 samples has a tensor of .* elements"):
        estimate_profile(catalog.cluster_from_gpus("l4"), long, seq_len=2**40, dtype="float32")
