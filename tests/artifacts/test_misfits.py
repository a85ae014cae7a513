"""Documents of the right form whose values do not fit together, each with its exact message."""

import json
from typing import Any

import pytest

from cephalo_cli.artifacts import store
from cephalo_cli.errors import ArtifactError
from tests.artifacts.documents import changed, document, renamed, without

UNIT = ("devices", "big", "units", "block")

MISFITS: list[tuple[str, dict[str, Any], str]] = [
    (
        "shares that sum to 0.9",
        changed("plan", "ranks", 2, "state_share", to=0.6),
        "f: ranks: found state shares that sum to 0.9, expected 1",
    ),
    (
        "shares of replicated state",
        changed("plan", "schedule", to="replicated"),
        "f: ranks: found state shares that sum to 1, expected 3",
    ),
    (
        "a variant of another schedule",
        changed("plan", "fsdp", to={"keeps_gathered": True}),
        "f: fsdp: is only for schedule 'microbatch-major', found \"layer-major\"",
    ),
    (
        "microbatches that do not sum to the batch",
        changed("plan", "ranks", 0, "microbatch_sizes", to=[3, 3]),
        "f: global_batch_size: found 8, expected 7, the sum of all microbatch sizes",
    ),
    (
        "memory terms that do not sum",
        changed("plan", "ranks", 1, "memory", "total_bytes", to=131),
        "f: ranks[1].memory.total_bytes: found 131, expected 132, the sum of the terms",
    ),
    (
        "a rank too few",
        without("plan", "ranks", 2),
        "f: ranks: found 2 ranks, expected 3, one a device of the cluster",
    ),
    (
        "a rank in the wrong place",
        changed("plan", "ranks", 2, "device", to="big"),
        'f: ranks[2]: found rank 2 on "b", "big", expected rank 2 on "b", "small"',
    ),
    (
        "a device type that is not in the cluster",
        changed("cluster", "nodes", 0, "devices", to=["big", "huge"]),
        "f: nodes[0].devices[1]: found \"huge\", expected 'big' or 'small'",
    ),
    (
        "a device type that is not in the plan's cluster",
        changed("plan", "cluster", "nodes", 1, "devices", 0, to="huge"),
        "f: cluster.nodes[1].devices[0]: found \"huge\", expected 'big' or 'small'",
    ),
    (
        "a node without link",
        without("cluster", "nodes", 0, "link"),
        "f: nodes[0].link: is missing, and the node has more than one device",
    ),
    (
        "two nodes of one name",
        changed("cluster", "nodes", 1, "name", to="a"),
        'f: nodes[1].name: found "a" again, expected a name of its own',
    ),
    (
        "a device type that says nothing",
        changed("cluster", "device_types", "small", to={"backend": "cpu"}),
        "f: device_types.small: has neither 'catalog' nor 'memory_bytes', expected one of them",
    ),
    (
        "an emulated gpu",
        changed("cluster", "device_types", "big", "emulated_speed", to=0.5),
        "f: device_types.big.emulated_speed: is only for backend 'cpu', found backend \"cuda\"",
    ),
    (
        "memory without its unit",
        changed("cluster", "device_types", "big", "memory_bytes", to=24),
        "f: device_types.big.memory_bytes: found 24, expected bytes, at least 1048576 (24 GiB are 25769803776)",
    ),
    (
        "a bandwidth without its unit",
        changed("cluster", "network", "bandwidth_bytes_per_s", to=48),
        (
            "f: network.bandwidth_bytes_per_s: found 48.0, expected bytes a second, at least 1000"
            " (48 GB/s are 48000000000)"
        ),
    ),
    (
        "a link to the host without its unit",
        changed("cluster", "device_types", "big", "host_link", "bandwidth_bytes_per_s", to=31.5),
        (
            "f: device_types.big.host_link.bandwidth_bytes_per_s: found 31.5, expected bytes a second, at least 1000"
            " (31.5 GB/s are 31500000000)"
        ),
    ),
    (
        "a peak without its unit",
        changed("cluster", "device_types", "big", "peak_flops", to={"float32": 82.6}),
        (
            "f: device_types.big.peak_flops.float32: found 82.6, expected operations a second, at least 1000000"
            " (82.6 TFLOP/s are 82600000000000)"
        ),
    ),
    (
        "memory in words",
        changed("cluster", "device_types", "big", "memory_bytes", to="24GiB"),
        (
            'f: device_types.big.memory_bytes: found "24GiB", expected a whole number'
            " (bytes, without a unit: 25769803776)"
        ),
    ),
    (
        "a bandwidth in words",
        changed("cluster", "nodes", 0, "link", "bandwidth_bytes_per_s", to="48GB/s"),
        (
            'f: nodes[0].link.bandwidth_bytes_per_s: found "48GB/s", expected a number'
            " (bytes a second, without a unit: 48000000000)"
        ),
    ),
    (
        "heads that do not divide",
        changed("model", "num_heads", to=3),
        "f: hidden_size: found 8, expected a multiple of num_heads, which is 3",
    ),
    (
        "key and value heads that do not divide",
        changed("model", "family", to="llama") | {"num_heads": 4, "num_kv_heads": 3},
        "f: num_heads: found 4, expected a multiple of num_kv_heads, which is 3",
    ),
    ("a field the family needs", without("model", "vocab_size"), "f: vocab_size: is missing, family 'gpt' needs it"),
    ("a field the family lacks", changed("model", "rope_theta", to=1e4), "f: rope_theta: is not for family 'gpt'"),
    (
        "patches that do not divide",
        without("model", "vocab_size")
        | {"family": "vit", "max_seq_len": None, "image_size": 30, "patch_size": 16, "num_classes": 10},
        "f: image_size: found 30, expected a multiple of patch_size, which is 16",
    ),
    (
        "lists of other lengths",
        changed("profile", *UNIT, "backward_s", to=[0.1, 0.2]),
        "f: devices.big.units.block.backward_s: found 2 values, expected 3, one a microbatch size",
    ),
    (
        "optional lists of other lengths",
        changed("profile", *UNIT, "saved_bytes", to=[1, 2, 3, 4]),
        "f: devices.big.units.block.saved_bytes: found 4 values, expected 3, one a microbatch size",
    ),
    (
        "sizes that decrease",
        changed("profile", *UNIT, "microbatch", to=[1, 4, 2]),
        "f: devices.big.units.block.microbatch[2]: found 2, expected more than 4",
    ),
    (
        "sizes that repeat",
        changed("profile", *UNIT, "microbatch", to=[1, 1, 2]),
        "f: devices.big.units.block.microbatch[1]: found 1, expected more than 1",
    ),
    (
        "a profile without a device the cluster uses",
        without("profile", "devices", "small"),
        "f: devices.small: is missing, and the cluster uses this device type",
    ),
    (
        "a profile with a device the cluster lacks",
        renamed("profile", "devices", "small", to="smal"),
        "f: devices.small: is missing, and the cluster uses this device type",
    ),
    (
        "a profile with one device more",
        changed("profile", "devices", "other", to=document("profile")["devices"]["big"]),
        "f: devices.other: is not a device type of the cluster",
    ),
]


@pytest.mark.parametrize(("whole", "message"), [case[1:] for case in MISFITS], ids=[case[0] for case in MISFITS])
def test_values_that_do_not_fit_together_are_refused(whole: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        store.loads(json.dumps(whole).encode(), where="f")
    assert str(caught.value) == message
    assert caught.value.exit_code == 3
