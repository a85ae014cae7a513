"""Boundary tensors on the device and in host memory (copies are done at once on cpu)."""

import pytest
import torch

from cephalo_cli.executor.boundaries import Boundaries, Key

CPU = torch.device("cpu")
KEY = Key("activation", 2, 0)


def make(*, offload: bool = True) -> Boundaries:
    return Boundaries(CPU, offload=offload, notice=pytest.fail)


def test_what_was_offloaded_comes_back() -> None:
    boundaries = make()
    tensor = torch.arange(6.0)
    boundaries.put(KEY, tensor)
    boundaries.offload(KEY)
    assert boundaries.is_empty
    boundaries.fetch(KEY)
    tensor.zero_()
    assert boundaries.wait(KEY)
    assert not boundaries.wait(KEY)
    assert torch.equal(boundaries.get(KEY), torch.arange(6.0))
    boundaries.leave(KEY)
    assert boundaries.is_empty
    boundaries.fetch(KEY)
    assert boundaries.wait(KEY)
    assert torch.equal(boundaries.get(KEY), torch.arange(6.0))
    boundaries.drop(KEY)
    with pytest.raises(KeyError):
        boundaries.fetch(KEY)


def test_without_a_host_copy_nothing_leaves() -> None:
    boundaries = make(offload=False)
    boundaries.put(KEY, torch.ones(2))
    boundaries.leave(KEY)
    assert boundaries.get(KEY).tolist() == [1.0, 1.0]
    with pytest.raises(AssertionError, match="does not offload"):
        boundaries.offload(KEY)


def test_host_buffers_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    empty = torch.empty

    def counting(*shape: tuple[int, ...], **options: object) -> torch.Tensor:
        made.append(shape[0])
        return empty(*shape, **options)  # type: ignore[call-overload, no-any-return]

    boundaries = make()
    monkeypatch.setattr(torch, "empty", counting)
    for step in range(4):
        for microbatch, size in enumerate((3, 3, 5)):
            key = Key("activation", 0, microbatch)
            boundaries.put(key, torch.full((size,), float(step * 10 + microbatch)))
            boundaries.offload(key)
        for microbatch in range(3):
            key = Key("activation", 0, microbatch)
            boundaries.fetch(key)
            boundaries.wait(key)
            assert set(boundaries.get(key).tolist()) == {float(step * 10 + microbatch)}
            boundaries.drop(key)
    fetched, buffers = 4 * 3, 3
    assert len(made) == fetched + buffers
