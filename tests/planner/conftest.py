"""Profiles for the planner's tests: random small ones, and simple ones made by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from cephalo_cli.artifacts.cluster import Cluster, DeviceType, Node
from cephalo_cli.artifacts.profile import DeviceProfile, Profile, UnitProfile
from cephalo_cli.units import num_parameters
from tests.planner.profiles import random_profile, small_model


@pytest.fixture(name="random_profile")
def _random_profile() -> Callable[..., Profile]:
    return random_profile


@pytest.fixture
def simple_profile() -> Callable[..., Profile]:
    """A profile whose devices are given as ``{name: (count, memory_bytes, seconds a sample)}``, blocks only."""

    def make(devices: dict[str, tuple[int, int, float]], **changes: Any) -> Profile:
        model = small_model()
        units = {
            name: {
                "block": UnitProfile(
                    microbatch=(1, 2, 4),
                    forward_s=tuple(seconds * size for size in (1, 2, 4)),
                    backward_s=tuple(2 * seconds * size for size in (1, 2, 4)),
                    working_bytes=(1000, 2000, 4000),
                )
            }
            for name, (_, _, seconds) in devices.items()
        }
        members = tuple(name for name, (count, _, _) in devices.items() for _ in range(count))
        return Profile(
            cluster=Cluster(
                name="simple",
                device_types={
                    name: DeviceType(backend="cuda", memory_bytes=memory) for name, (_, memory, _) in devices.items()
                },
                nodes=(Node(name="node", devices=members),),
                network="ideal",
            ),
            model=model,
            seq_len=8,
            dtype="float32",
            num_parameters=num_parameters(model),
            devices={
                name: DeviceProfile(method="imported", units=changes.get("units", unit)) for name, unit in units.items()
            },
            network="ideal",
        )

    return make
