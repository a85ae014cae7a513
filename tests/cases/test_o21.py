"""O21: timing without waiting for the device, cold start included."""

from pathlib import Path
from statistics import median

import pytest

from cephalo_cli import catalog
from cephalo_cli.errors import ArtifactError
from cephalo_cli.profiler.import_table import import_profile
from cephalo_cli.profiler.measure_timing import Point
from tests.profiler.test_measure_timing import FakeDevice, sweep_of


def test_o21_work_that_returns_at_once_is_timed_to_its_end_and_the_cold_start_left_out() -> None:
    """O21: an operation returns at once and takes 50 ms; the first call takes 2 s: 50 ms are reported, with repeats."""
    device = FakeDevice(warm_up_s=1.95)
    samples = sweep_of(device, lambda _: 0.05).run([Point(1, "block")], 60.0)[Point(1, "block")]
    assert abs(median(samples.forward_s) - 0.05) < 1e-9
    assert max(samples.forward_s) < 0.06
    assert len(samples.forward_s) >= 3


def test_o21_a_clock_that_does_not_wait_would_see_nothing() -> None:
    """O21: the same work under a clock that does not wait for the device: what this tool must not report."""
    samples = sweep_of(FakeDevice(), lambda _: 0.05, careless=True).run([Point(1, "block")], 60.0)
    assert median(samples[Point(1, "block")].forward_s) < 0.05


LATENCY = "model,device,seq_len,dtype,microbatch,forward_ms,backward_ms\n" + "".join(
    f"gpt2,l4,128,float32,{size},{forward_ms},{2 * size}\n" for size, forward_ms in enumerate((10, 9, 5, 2), start=1)
)
MEMORY = "cluster,model,dtype,microbatch,working_bytes,parameters\none,gpt2,float32,1,1000000,124439808\n"


def test_o21_times_that_fall_with_more_samples_are_refused(tmp_path: Path) -> None:
    """O21: a clock that did not wait gives 10, 9, 5 and 2 ms for 1 to 4 samples: no profile, which could be planned on.

    Beyond 4 samples such a curve went on to 0 seconds.
    """
    (tmp_path / "latency.csv").write_text(LATENCY)
    (tmp_path / "memory.csv").write_text(MEMORY)
    with pytest.raises(ArtifactError) as refusal:
        import_profile(
            catalog.cluster_from_gpus("l4"),
            catalog.model("gpt2"),
            seq_len=128,
            dtype="float32",
            latency_csv=tmp_path / "latency.csv",
            memory_csv=tmp_path / "memory.csv",
        )
    assert refusal.value.exit_code == 3
    assert "l4, block: forward falls from 10 ms at microbatch 1 to 2 ms at 4, expected more" in str(refusal.value)
