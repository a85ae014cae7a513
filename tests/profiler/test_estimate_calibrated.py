"""A short measurement of one model corrects the estimates of others on the same card."""

import pytest

from cephalo_cli import catalog
from cephalo_cli.artifacts import Cluster, Profile, store
from cephalo_cli.artifacts.base import DType
from cephalo_cli.catalog.coefficients import coefficients
from cephalo_cli.profiler.calibrate import RATES, calibrated
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
    known = coefficients(catalog.device("rtx-3090"), dtype)
    stated = known.calibrated_error if dtype == "float16" else known.expected_error
    assert after.devices["rtx-3090"].expected_error == stated


def test_other_cards_stay_as_they_were() -> None:
    measured = _slowed(_estimate("rtx-3090", "llama-2-7b"), "rtx-3090", 2.0)
    before, after = (_estimate("a6000", "llama-2-13b", profile) for profile in (None, measured))
    assert after == before


EMULATED = ("cpu-80", "cpu-50", "cpu-30", "cpu-20")


def _laptop(names: tuple[str, ...] = EMULATED) -> tuple[Profile, Cluster]:
    """The committed measurement of emulated devices, and their cluster with the catalog's cpu for what they are."""
    measured = store.read("profiles/laptop-mixed.json", Profile)
    types = {
        new: measured.cluster.device_types[old].model_copy(update={"catalog": "cpu"})
        for old, new in zip(EMULATED, names, strict=True)
    }
    (node,) = measured.cluster.nodes
    return measured, measured.cluster.model_copy(
        update={"device_types": types, "nodes": (node.model_copy(update={"devices": tuple(types)}),)}
    )


def test_emulated_devices_are_corrected_at_the_speed_they_were_measured_at() -> None:
    """The model, the length and the devices are those measured, so all devices are off alike, and by little."""
    measured, cluster = _laptop()
    after = estimate_profile(
        cluster, measured.model, seq_len=256, dtype="float32", max_microbatch=8, calibration=measured
    )
    for name in EMULATED:
        block, truth = after.devices[name].units["block"], measured.devices[name].units["block"]
        for curve in ("forward_s", "backward_s"):
            at_one, at_eight = getattr(block, curve)[0], getattr(block, curve)[7]
            assert at_one == pytest.approx(getattr(truth, curve)[0], rel=0.25), (name, curve)
            assert at_eight == pytest.approx(getattr(truth, curve)[-1], rel=0.25), (name, curve)


def test_of_measured_types_with_one_id_each_name_takes_its_own_and_others_the_nearest_speed() -> None:
    measured, cluster = _laptop()
    with_ids = measured.model_copy(update={"cluster": cluster})
    slow = _slowed(with_ids, "cpu-20", 3.0)
    (_, renamed) = _laptop(("a", "b", "c", "d"))
    for types, name, own in ((cluster, "cpu-20", 3.0), (renamed, "d", 3.0), (cluster, "cpu-80", 1.0)):
        first, second = (
            estimate_profile(types, measured.model, seq_len=256, dtype="float32", max_microbatch=1, calibration=known)
            for known in (with_ids, slow)
        )
        before_s, after_s = (profile.devices[name].units["block"].forward_s[0] for profile in (first, second))
        assert after_s == pytest.approx(own * before_s, rel=0.1)


def test_a_name_that_is_another_card_does_not_count() -> None:
    measured = _slowed(_estimate("rtx-3090", "llama-2-7b"), "rtx-3090", 2.0)
    types = {"rtx-3090": catalog.device("a6000")}
    cluster = measured.cluster.model_copy(update={"device_types": types})
    before, after = (
        estimate_profile(cluster, measured.model, seq_len=512, dtype="float16", max_microbatch=1, calibration=known)
        for known in (None, measured)
    )
    assert after == before


def test_a_card_that_is_as_estimated_stays_so() -> None:
    measured = _slowed(_estimate("l4", "llama-2-7b"), "l4", 1.0)
    before, after = (_estimate("l4", "gpt2", known).devices["l4"].units for known in (None, measured))
    for kind, unit in before.items():
        assert after[kind].forward_s == pytest.approx(unit.forward_s, rel=1e-6)
        assert after[kind].backward_s == pytest.approx(unit.backward_s, rel=1e-6)


def test_two_factors_are_all_that_a_series_changes() -> None:
    """What follows the peak rate is corrected alike, and so is what follows the memory's; nothing else moves."""
    measured = _slowed(_estimate("l4", "llama-2-7b"), "l4", 1.4)
    before = coefficients(catalog.device("l4"), "float16")
    after = calibrated(catalog.device("l4"), "l4", "float16", measured)
    by_rate = [getattr(after, name) / getattr(before, name) for name in RATES[0]]
    by_memory = [getattr(after, name) / getattr(before, name) for name in RATES[1]]
    assert by_rate == pytest.approx([by_rate[0]] * 3)
    assert by_memory == pytest.approx([by_memory[0]] * 3)
    assert 1 < by_memory[0] < by_rate[0] < 1.5
    assert (after.launch_s, after.sustained, after.collectives) == (
        before.launch_s,
        before.sustained,
        before.collectives,
    )
