"""A short measurement of one model corrects the estimates of others on the same card."""

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Profile
from cephalo_cli.artifacts.base import DType
from cephalo_cli.profiler.calibrate import CALIBRATED_ERROR
from cephalo_cli.profiler.estimate import estimate_profile


def _estimate(gpus: str, model: str, calibration: Profile | None = None, dtype: DType = "float16") -> Profile:
    return estimate_profile(
        catalog.cluster_from_gpus(gpus),
        catalog.model(model),
        seq_len=512,
        dtype=dtype,
        max_microbatch=4,
        calibration=calibration,
    )


def _slowed(profile: Profile, device: str, factor: float) -> Profile:
    """Pretend that a card takes longer than estimated."""
    old = profile.devices[device]
    units = {
        kind: unit.model_copy(
            update={
                "forward_s": tuple(factor * second for second in unit.forward_s),
                "backward_s": tuple(factor * second for second in unit.backward_s),
            }
        )
        for kind, unit in old.units.items()
    }
    slow = old.model_copy(update={"units": units, "method": "measured"})
    return profile.model_copy(update={"devices": {**profile.devices, device: slow}})


@pytest.mark.parametrize("factor", [0.7, 1.5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_card_that_is_slower_than_its_datasheet_is_slower_with_every_model(factor: float, dtype: DType) -> None:
    measured = _slowed(_estimate("rtx-3090,l4", "llama-2-7b"), "rtx-3090", factor)
    before, after = (_estimate("rtx-3090,a6000", "llama-2-13b", profile, dtype) for profile in (None, measured))
    for size in range(4):
        plain_s = before.devices["rtx-3090"].units["block"].forward_s[size]
        assert after.devices["rtx-3090"].units["block"].forward_s[size] == pytest.approx(factor * plain_s, rel=0.1)
    assert after.devices["rtx-3090"].expected_error == CALIBRATED_ERROR


def test_other_cards_stay_as_they_were() -> None:
    measured = _slowed(_estimate("rtx-3090", "llama-2-7b"), "rtx-3090", 2.0)
    before, after = (_estimate("a6000", "llama-2-13b", profile) for profile in (None, measured))
    assert after == before
