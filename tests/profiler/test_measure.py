import contextlib
import itertools
import json
import re
import time

import pytest
import torch

from cephalo_cli.artifacts import Cluster, Model, Profile
from cephalo_cli.errors import UsageError
from cephalo_cli.profiler import profile_cluster
from cephalo_cli.profiler.measure_units import measure_units, num_copies
from cephalo_cli.profiler.memory import UnitMemory
from cephalo_cli.profiler.stopwatch import Stopwatch
from cephalo_cli.profiler.unit_runner import UnitRunner, UnitWorkload
from cephalo_cli.runtime.cgroup import find_home

CPU = torch.device("cpu")
MODEL = Model(
    name="tiny",
    family="gpt",
    num_layers=2,
    hidden_size=32,
    num_heads=2,
    ffn_size=64,
    vocab_size=64,
    max_seq_len=16,
    tie_embeddings=True,
    dropout=0.1,
)


def cluster_of(*speeds: float | None) -> Cluster:
    types = {
        f"d{rank}": {"backend": "cpu", "memory_bytes": 2**30} | ({"emulated_speed": speed} if speed else {})
        for rank, speed in enumerate(speeds)
    }
    link = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}
    content = {
        "kind": "cluster",
        "name": "c",
        "device_types": types,
        "nodes": [{"name": "n", "devices": list(types), "link": link}],
        "network": link,
    }
    return Cluster.model_validate_json(json.dumps(content))


def test_two_emulated_devices_are_measured_with_their_network() -> None:
    told: list[tuple[float, str]] = []
    profile = profile_cluster(
        cluster_of(0.5, 0.4),
        MODEL,
        16,
        "float32",
        max_microbatch=3,
        max_seconds=2,
        progress=lambda fraction, text: told.append((fraction, text)),
    )
    assert profile is not None
    assert Profile.model_validate_json(profile.model_dump_json(exclude_none=True)) == profile
    assert set(profile.devices) == {"d0", "d1"}
    for device in profile.devices.values():
        assert device.method == "measured"
        assert device.emulation == ("cgroup" if find_home() else "cooperative")
        assert device.optimizer_s_per_parameter > 0
        assert device.collective_compute_s_per_byte > 0
        assert device.collective_alone_part is not None
        assert device.reserve_bytes > 2**26
        assert device.host_copy is None
        assert device.identity is not None
        assert device.identity.num_threads == 1
        assert device.identity.keeps_to_one_cpu == (True if find_home() else None)
        for unit in device.units.values():
            assert unit.microbatch == (1, 2, 3)[: len(unit.microbatch)]
            assert min(unit.forward_s) > 0
            assert min(unit.working_bytes) > 0
            assert unit.forward_spread is not None
            assert len(unit.forward_spread) == len(unit.microbatch)
    assert profile.network != "ideal"
    for fit in (profile.network.all_gather, profile.network.reduce_scatter):
        assert {point.shares for point in fit.points} == {(0.5, 0.5), (1 / 3, 2 / 3)}
        assert len({point.unit_bytes for point in fit.points}) == 5
        assert fit.residual is not None
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert told[-1] == (1.0, "done")


def test_one_plain_cpu_is_a_cluster_too_and_says_that_its_time_was_not_enough() -> None:
    told: list[str] = []
    profile = profile_cluster(
        cluster_of(None), MODEL, 16, "bfloat16", max_microbatch=1, max_seconds=0.001, on_notice=told.append
    )
    assert profile is not None
    (notice,) = told
    assert re.fullmatch(r"measuring took [\d.]+ s: even the fewest repeats need more than 0.001 s", notice)
    assert profile.network == "ideal"
    assert profile.devices["d0"].emulation is None
    assert profile.devices["d0"].collective_compute_s_per_byte == 0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-microbatch is at least 1, found 0"):
        profile_cluster(cluster_of(None), MODEL, 16, "float32", max_microbatch=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["embedding", "block", "head"])
def test_gradients_accumulate_in_float32_whatever_computes(kind: str, dtype: torch.dtype) -> None:
    runner = UnitRunner(MODEL, kind, dtype, CPU)  # type: ignore[arg-type]  # pytest gives a str
    arguments, gradient = runner.inputs(2, 16)
    work = UnitWorkload(itertools.repeat(runner), arguments, gradient, contextlib.nullcontext, lambda: None)
    grads = runner.gradients()
    work.forward()
    work.backward()
    once = [grad.clone() for grad in grads]
    work.forward()
    work.backward()
    assert {grad.dtype for grad in grads} == {torch.float32}
    assert any(grad.abs().sum() > 0 for grad in grads)
    for grad, first in zip(grads, once, strict=True):
        torch.testing.assert_close(grad, 2 * first)


def test_sizes_that_would_fill_the_memory_are_not_tried() -> None:
    # a CPU process is taken to hold twice what lives
    curve = {size: UnitMemory(working_bytes=size * 2**40, saved_bytes=0) for size in (1, 2, 4)}
    units = measure_units(
        MODEL,
        seq_len=16,
        dtype="float32",
        device=CPU,
        capacity_bytes=5 * 2**40,
        curves={"block": curve},
        clock=time.perf_counter,
        stopwatch=Stopwatch(),
        compute=contextlib.nullcontext,
        max_seconds=60,
        on_pass=lambda _: None,
    )
    assert units["block"].microbatch == (1, 2)
    assert units["block"].flags[0] == "ended before microbatch 4: it would fill the memory"


MIB = 2**20


@pytest.mark.parametrize(
    ("own", "model", "cache", "spare", "copies"),
    [
        (14, 100, 32, 100, 3),  # 28 MiB of others, then the first again: the cache held 32
        (40, 400, 32, 400, 1),  # pushes itself out
        (4, 12, 32, 12, 3),  # the whole model stays in the cache, as it does in a step
        (14, 100, 32, 20, 2),  # little memory
        (14, 100, 0, 100, 1),  # nothing is known of a cache
        (14, 14, 32, 14, 1),
    ],
)
def test_a_unit_runs_in_turn_with_copies_that_push_it_out_of_the_cache(
    own: int, model: int, cache: int, spare: int, copies: int
) -> None:
    found = num_copies(own_bytes=own * MIB, model_bytes=model * MIB, cache_bytes=cache * MIB, spare_bytes=spare * MIB)
    assert found == copies


def test_each_run_uses_the_next_copy_and_leaves_its_gradient_there() -> None:
    runners = [UnitRunner(MODEL, "block", torch.float32, CPU) for _ in range(2)]
    arguments, gradient = runners[0].inputs(1, 16)
    work = UnitWorkload(itertools.cycle(runners), arguments, gradient, contextlib.nullcontext, lambda: None)
    work.forward()
    work.backward()
    assert [bool(runner.flat_grad.any()) for runner in runners] == [True, False]
    work.forward()
    work.backward()
    torch.testing.assert_close(runners[1].flat_grad, runners[0].flat_grad)
