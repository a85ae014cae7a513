import json
from collections.abc import Callable
from typing import Any

import pytest

from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.errors import ArtifactError
from cephalo_cli.planner import choose_batch, make_plan

Path = tuple[str | int, ...]


def changed(profile: Profile, path: Path, value: float) -> Profile:
    document: Any = json.loads(profile.model_dump_json())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return Profile.model_validate_json(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("devices", "type0", "units", "block", "working_bytes", 0),
            9 * 10**18,
            r"devices\.type0\.units\.block\.working_bytes\[0\]: found 9000000000000000000 bytes, expected at most",
        ),
        (
            ("devices", "type0", "units", "block", "forward_s", 0),
            1e308,
            r"devices\.type0\.units\.block\.forward_s\[0\]: found 1e\+308 s, expected",
        ),
        (
            ("network", "all_gather", "bandwidth_bytes_per_s"),
            1e-300,
            r"network\.all_gather\.bandwidth_bytes_per_s: found 1e-300 a second, expected",
        ),
        (("network", "reduce_scatter", "latency_s"), 1e300, r"network\.reduce_scatter\.latency_s: found 1e\+300 s"),
        (("devices", "type0", "optimizer_s_per_parameter"), 1e-320, "optimizer_s_per_parameter: found 9.99989e-321 s"),
        (("devices", "type0", "reserve_bytes"), 2**62, r"devices\.type0\.reserve_bytes: found"),
        (("cluster", "device_types", "type0", "memory_bytes"), 2**62, r"type0\.memory_bytes: found"),
        (("num_parameters",), 2**62, "num_parameters: found 4611686018427387904"),
    ],
)
def test_numbers_no_hardware_has_are_refused(
    random_profile: Callable[..., Profile], path: Path, value: float, message: str
) -> None:
    profile = changed(random_profile(0, moving=True), path, value)
    with pytest.raises(ArtifactError, match=message):
        make_plan(profile, 4)
    with pytest.raises(ArtifactError, match=message):
        choose_batch(profile, "max", 4)
