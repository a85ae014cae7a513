"""One sound document of each kind, as plain JSON values, and ways to spoil it."""

import json
from typing import Any

Document = dict[str, Any]


def document(kind: str) -> Document:
    """Give a fresh document of a kind."""
    makers = {"cluster": _cluster, "model": _model, "profile": _profile, "plan": _plan, "report": _report}
    fresh: Document = json.loads(json.dumps(makers[kind]()))
    return fresh


def changed(kind: str, *path: int | str, to: object) -> Document:
    """Give a document with the value at a path replaced or added."""
    whole = document(kind)
    here: Any = whole
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = to
    return whole


def without(kind: str, *path: int | str) -> Document:
    """Give a document with the value at a path left out."""
    whole = document(kind)
    here: Any = whole
    for part in path[:-1]:
        here = here[part]
    del here[path[-1]]
    return whole


def renamed(kind: str, *path: int | str, to: str) -> Document:
    """Give a document with the key at a path renamed."""
    whole = document(kind)
    here: Any = whole
    for part in path[:-1]:
        here = here[part]
    here[to] = here.pop(path[-1])
    return whole


def _cluster() -> Document:
    return {
        "kind": "cluster",
        "schema_version": "1.0",
        "name": "two hosts",
        "device_types": {
            "big": {
                "catalog": "a100-80gb",
                "backend": "cuda",
                "memory_bytes": 85899345920,
                "peak_flops": {"float32": 1.95e13, "bfloat16": 312e12},
                "host_link": {"bandwidth_bytes_per_s": 2.5e10, "latency_s": 1e-5},
            },
            "small": {"backend": "cpu", "memory_bytes": 2147483648, "emulated_speed": 0.4},
        },
        "nodes": [
            {"name": "a", "devices": ["big", "big"], "link": {"bandwidth_bytes_per_s": 3e11, "latency_s": 2e-6}},
            {"name": "b", "devices": ["small"]},
        ],
        "network": {"bandwidth_bytes_per_s": 1.25e9, "latency_s": 5e-5},
    }


def _model() -> Document:
    return {
        "kind": "model",
        "schema_version": "1.0",
        "name": "mini",
        "family": "gpt",
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 2,
        "ffn_size": 32,
        "vocab_size": 50,
        "max_seq_len": 16,
    }


def _basis() -> Document:
    curve = {
        "microbatch": [1, 2, 4],
        "forward_s": [0.001, 0.0018, 0.0034],
        "backward_s": [0.002, 0.0036, 0.0068],
        "working_bytes": [1000, 2000, 4000],
        "saved_bytes": [500, 1000, 2000],
        "flags": ["noisy at 2"],
    }
    device = {
        "method": "measured",
        "units": {"embedding": curve, "block": curve, "head": curve},
        "optimizer_s_per_parameter": 1e-9,
        "host_copy": {"to_device_bytes_per_s": 1e10, "to_host_bytes_per_s": 9e9},
        "reserve_bytes": 1000000,
        "identity": {"name": "Some GPU", "memory_bytes": 85899345920, "torch": "2.13.0"},
    }
    fit = {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9, "residual": 0.05}
    points = [{"unit_bytes": 1000, "shares": [0.5, 0.25, 0.25], "seconds": 0.001}]
    return {
        "inputs": [{"path": "clusters/é.json", "sha256": "0" * 64}],
        "cluster": _cluster(),
        "model": _model(),
        "seq_len": 16,
        "dtype": "float32",
        "num_parameters": 2680,
        "devices": {"big": device, "small": device},
        "network": {
            "method": "measured",
            "algorithm": "direct",
            "all_gather": fit | {"points": points},
            "reduce_scatter": fit,
        },
    }


def _profile() -> Document:
    return {"kind": "profile", "schema_version": "1.0", "created_by": "cephalo 0.1.0", **_basis()}


def _memory() -> Document:
    terms = {"state_bytes": 100, "buffers_bytes": 20, "working_bytes": 3, "saved_bytes": 4, "reserve_bytes": 5}
    return {**terms, "total_bytes": 132, "limit_bytes": 1000}


def _rank(rank: int, node: str, device: str, sizes: list[int], share: float) -> Document:
    return {
        "rank": rank,
        "node": node,
        "device": device,
        "microbatch_sizes": sizes,
        "state_share": share,
        "recompute": True,
        "offload": False,
        "memory": _memory(),
        "expected": {"forward_s": 0.01, "backward_s": 0.03, "optimizer_s": 0.001},
    }


def _plan() -> Document:
    return {
        "kind": "plan",
        "schema_version": "1.0",
        **_basis(),
        "strategy": "cephalo",
        "schedule": "layer-major",
        "global_batch_size": 8,
        "settings": {"memory_fraction": 0.9, "recompute": "auto", "offload": "auto"},
        "ranks": [
            _rank(0, "a", "big", [3, 3, 1], 0.1),
            _rank(1, "a", "big", [], 0.2),
            _rank(2, "b", "small", [1], 0.7),
        ],
        "expected": {"step_s": 0.5, "samples_per_s": 16.0, "tokens_per_s": 256.0, "bound": "compute"},
        "solver": {"status": "optimal", "lower_bound_s": 0.5, "gap": 0.0},
        "alternatives": [{"strategy": "fsdp", "feasible": False, "reason": "rank 2 lacks 3 bytes"}],
    }


def _report() -> Document:
    rank = {
        "rank": 0,
        "node": "a",
        "device": "big",
        "num_samples": 8,
        "state_share": 1.0,
        "compute_s": 0.4,
        "wait_s": 0.1,
        "peak_memory_bytes": 132,
        "memory": _memory(),
    }
    return {
        "kind": "report",
        "schema_version": "1.0",
        "source": "measured",
        "strategy": "cephalo",
        "schedule": "layer-major",
        "cluster_name": "one",
        "model_name": "mini",
        "dtype": "float32",
        "seq_len": 16,
        "global_batch_size": 8,
        "step_s": 0.5,
        "samples_per_s": 16.0,
        "tokens_per_s": 256.0,
        "ranks": [rank],
        "steps": [
            {"step": 1, "loss": 3.912023005428146, "grad_norm": 1.0, "tokens": 128, "step_s": 0.9},
            {"step": 2, "tokens": 0, "step_s": 0.5},
        ],
        "numerics": {"compute": "float32", "master": "float32"},
    }
