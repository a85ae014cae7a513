"""Sharded units, their optimizer and the numbers of a step, without other ranks."""

import math
from collections.abc import Sequence

import pytest
import torch

from cephalo_cli.errors import TrainingError
from cephalo_cli.executor.flat import flat_layout
from cephalo_cli.executor.numbers import LossScale, StepNumbers, step_numbers
from cephalo_cli.executor.optimizer import OptimizerSettings, ShardOptimizer, clip_factor
from cephalo_cli.executor.sharded_unit import ShardedUnit, dtypes_of
from cephalo_cli.layout import shard_ranges
from cephalo_cli.models import build_unit, initialise_
from cephalo_cli.units import model_units
from tests.executor.plans import make_model

CPU = torch.device("cpu")
MODEL = make_model()


def make_units(
    shares: Sequence[float], rank: int, *, dtype: str = "float32", replicated: bool = False, seed: int | None = 0
) -> list[ShardedUnit]:
    units = []
    for unit in model_units(MODEL):
        sharded = ShardedUnit(
            unit=unit,
            model=MODEL,
            ranges=shard_ranges(unit.num_parameters, shares),
            rank=rank,
            replicated=replicated,
            dtypes=dtypes_of(dtype),
            device=CPU,
        )
        if seed is not None:
            sharded.initialise(seed)
        units.append(sharded)
    return units


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_starting_weights_do_not_depend_on_the_cut(dtype: str) -> None:
    whole = [unit.master for unit in make_units([1.0], 0, dtype=dtype)]
    for shares in ([0.5, 0.3, 0.2], [0.0, 1.0], [0.17, 0.83]):
        parts = [make_units(shares, rank, dtype=dtype) for rank in range(len(shares))]
        for index, expected in enumerate(whole):
            assert torch.equal(torch.cat([units[index].master for units in parts]), expected)
    assert not torch.equal(whole[0], make_units([1.0], 0, dtype=dtype, seed=1)[0].master)


def test_master_weights_are_the_modules_weights_in_the_state_dtype() -> None:
    for unit in make_units([1.0], 0, dtype="bfloat16"):
        module = build_unit(MODEL, unit.unit.kind)
        initialise_(module, MODEL, unit.unit.index, 0)
        for slot in unit.layout.slots:
            value = module.get_parameter(slot.name).detach()
            assert torch.equal(slot.view(unit.master), value)
            assert torch.equal(unit.parameters[slot.name], value.bfloat16())


def test_a_rank_keeps_its_shard_and_nothing_else() -> None:
    for unit in make_units([0.25, 0.75], 0):
        assert all(parameter.untyped_storage().nbytes() == 0 for parameter in unit.parameters.values())
        assert len(unit.master) == len(unit.own) == round(unit.unit.num_parameters / 4)
        assert unit.full_grad is None


def test_a_rank_that_keeps_everything_makes_no_copy() -> None:
    for units in (make_units([1.0], 0), make_units([1.0, 1.0], 1, replicated=True), make_units([0.0, 1.0], 1)):
        for unit in units:
            storage = unit.master.untyped_storage().data_ptr()
            assert all(parameter.untyped_storage().data_ptr() == storage for parameter in unit.parameters.values())
    for unit in make_units([1.0], 0):
        unit.hold_gradient()
        assert unit.full_grad is unit.grad


def test_matrices_come_first() -> None:
    with torch.device("meta"):
        layout = flat_layout(build_unit(MODEL, "block"))
    assert [len(slot.shape) for slot in layout.slots] == sorted(
        (len(slot.shape) for slot in layout.slots), reverse=True
    )
    assert layout.num_decayed == sum(math.prod(slot.shape) for slot in layout.slots if len(slot.shape) == 2)
    assert layout.slots[-1].stop == layout.num_elements


def test_microbatches_accumulate_in_float32() -> None:
    """In bfloat16 256 + 1 is 256, and a thousand ones are 256."""
    unit = make_units([0.5, 0.5], 0, dtype="bfloat16")[1]
    unit.hold_gradient()
    for value in (256.0, 1.0):
        for parameter in unit.parameters.values():
            parameter.grad = torch.full(parameter.shape, value, dtype=torch.bfloat16)
        unit.fold_gradient()
    assert unit.full_grad is not None
    assert unit.full_grad.dtype == torch.float32
    assert set(unit.full_grad.tolist()) == {257.0}
    assert all(parameter.grad is None for parameter in unit.parameters.values())


def test_small_updates_reach_the_master_weights() -> None:
    """A bfloat16 weight of 1 would stay 1: steps of 6e-4 are below its resolution."""
    units = make_units([1.0], 0, dtype="bfloat16")
    optimizer = ShardOptimizer(units, OptimizerSettings(learning_rate=6e-4, weight_decay=0.0, clip=None), CPU)
    for unit in units:
        unit.master.fill_(1.0)
        unit.grad.fill_(0.5)
    for _ in range(100):
        optimizer.step(1.0, 1.0)
    for unit in units:
        unit.refresh()
        torch.testing.assert_close(unit.master, torch.full_like(unit.master, 0.94), rtol=1e-4, atol=0)
        assert all(parameter.max() < 0.95 for parameter in unit.parameters.values())


@pytest.mark.parametrize("shares", [[1.0], [0.1, 0.9], [0.6, 0.4], [0.99, 0.01]])
def test_decay_touches_matrices_alone_wherever_the_cut(shares: list[float]) -> None:
    parts = []
    for rank in range(len(shares)):
        units = make_units(shares, rank)
        optimizer = ShardOptimizer(units, OptimizerSettings(learning_rate=0.1, weight_decay=0.5), CPU)
        for unit in units:
            unit.master.fill_(1.0)
        optimizer.step(0.0, 1.0)
        parts.append(units)
    for shards in zip(*parts, strict=True):
        whole, num_decayed = torch.cat([unit.master for unit in shards]), shards[0].layout.num_decayed
        torch.testing.assert_close(whole[:num_decayed], torch.full((num_decayed,), 0.95))
        assert torch.equal(whole[num_decayed:], torch.ones(len(whole) - num_decayed))


def test_a_rank_without_state_has_no_optimizer_and_takes_part() -> None:
    optimizer = ShardOptimizer(make_units([0.0, 1.0], 0), OptimizerSettings(), CPU)
    assert optimizer.squared_norm().item() == 0
    optimizer.step(3.0, 1.0)
    optimizer.set_num_steps(4)


def test_the_norm_for_clipping_is_that_of_all_shards() -> None:
    """Shards with gradients [3] and [4]: norm 5, factor 0.2."""
    for shares in ([0.9, 0.1], [0.5, 0.5]):
        optimizers, squares = [], 0.0
        for rank, value in enumerate((3.0, 4.0)):
            units = make_units(shares, rank)
            units[0].grad[0] = value
            optimizers.append((ShardOptimizer(units, OptimizerSettings(clip=1.0), CPU), units, value))
            squares += optimizers[-1][0].squared_norm().item()
        assert math.sqrt(squares) == 5.0
        for optimizer, units, value in optimizers:
            optimizer.step(5.0, 1.0)
            assert units[0].grad[0].item() == pytest.approx(value / 5)
    assert clip_factor(5.0, None) == clip_factor(0.5, 1.0) == 1.0


def test_the_scale_of_the_loss_is_taken_out_before_clipping() -> None:
    units = make_units([1.0], 0)
    units[0].grad[0] = 8.0 * 1024
    ShardOptimizer(units, OptimizerSettings(clip=2.0), CPU).step(8.0, 1024.0)
    assert units[0].grad[0].item() == 2.0


def numbers(loss_sum: float, squared_norm: float, scale: LossScale, num_tokens: int = 4) -> StepNumbers:
    return step_numbers(loss_sum=loss_sum, squared_norm=squared_norm, num_tokens=num_tokens, scale=scale, step=9)


def test_loss_is_the_mean_over_tokens_and_none_without() -> None:
    scale = LossScale(is_dynamic=False)
    assert numbers(10.0, 25.0, scale) == StepNumbers(loss=2.5, grad_norm=5.0)
    assert numbers(0.0, 0.0, scale, num_tokens=0) == StepNumbers(loss=None, grad_norm=0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stops_the_training(value: float) -> None:
    with pytest.raises(TrainingError, match="the loss of step 9 is not finite"):
        numbers(value, 1.0, LossScale(is_dynamic=True))
    with pytest.raises(TrainingError, match="the gradient norm of step 9 is not finite"):
        numbers(1.0, value, LossScale(is_dynamic=False))


def test_float16_leaves_out_overflowing_steps_and_halves_its_scale() -> None:
    scale = LossScale(is_dynamic=True)
    assert scale.value == 65536.0
    assert numbers(4.0, math.inf, scale) == StepNumbers(loss=1.0, grad_norm=None)
    assert scale.value == 32768.0
    assert numbers(4.0, (3.0 * 32768) ** 2, scale) == StepNumbers(loss=1.0, grad_norm=3.0)
    scale.good_steps = 1999
    numbers(4.0, 1.0, scale)
    assert (scale.value, scale.good_steps) == (65536.0, 0)
    scale.value = 1.0
    with pytest.raises(TrainingError, match="gradient norm"):
        numbers(4.0, math.inf, scale)
