"""Plans with the whole state on every rank, against enumeration with the cost model itself."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from cephalo_cli.artifacts.plan import PlanSettings
from cephalo_cli.artifacts.profile import CollectiveFit, HostCopy, NetworkProfile, Profile
from cephalo_cli.costmodel import RankChoice, rank_memory, step_estimate
from cephalo_cli.errors import ArtifactError
from cephalo_cli.planner import check_plan, make_plan
from cephalo_cli.planner.even_out import even_out
from cephalo_cli.planner.groups import startup_bytes
from cephalo_cli.planner.make import proof_of_both
from cephalo_cli.planner.problem import Space, make_problem
from cephalo_cli.planner.replicated import best_replicated
from cephalo_cli.schedule import step_stages
from cephalo_cli.units import boundary_bytes, model_units

Make = Callable[..., Profile]
AMPLE = 10**9


def roomy(profile: Profile, seed: int) -> Profile:
    """The same with memory for the whole state and a little more."""
    rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
    types = {}
    for name, device in profile.cluster.device_types.items():
        memory = int(16 * profile.num_parameters * rng.uniform(1.06, 1.6) / 0.9)
        types[name] = device.model_copy(update={"memory_bytes": memory})
    return profile.model_copy(update={"cluster": profile.cluster.model_copy(update={"device_types": types})})


def partitions(samples: int, most: int) -> Iterator[tuple[int, ...]]:
    if not samples:
        yield ()
    for size in range(min(samples, most), 0, -1):
        for others in partitions(samples - size, size):
            yield (size, *others)


def rank_choices(profile: Profile, settings: PlanSettings, device: str, samples: int) -> Iterator[RankChoice]:
    """Everything that one rank may do with so many samples, as far as the order of microbatches matters."""
    layers = profile.model.num_layers
    block = profile.devices[device].units.get("block")
    may_keep = block is None or block.saved_bytes is not None
    counts = range(layers + 1) if settings.recompute == "blocks" else (0, layers)
    only = settings.microbatch_size
    for sizes in partitions(samples, samples):
        if only is not None and sizes and (sizes[0] > only or any(size != only for size in sizes[:-1])):
            continue
        for last in sorted(set(sizes)) if sizes else [0]:
            ordered = [*sizes, last] if sizes else []
            if sizes:
                ordered.remove(last)
            for count in counts:
                if (count == layers or may_keep) and (count == layers or settings.offload != "on"):
                    yield RankChoice(
                        device=device,
                        microbatch_sizes=tuple(ordered),
                        state_share=1.0,
                        recompute=count > 0,
                        offload=settings.offload == "on",
                        recompute_blocks=None if count in (0, layers) else count,
                    )


def enumerated_s(profile: Profile, settings: PlanSettings, batch: int) -> float:
    """The best step of all plans with the state replicated; infinite where none fits."""
    members = [place.device for place in profile.cluster.ranks]
    units = model_units(profile.model)
    best = math.inf
    for split in itertools.product(range(batch + 1), repeat=len(members)):
        if sum(split) != batch:
            continue
        every = (
            list(rank_choices(profile, settings, name, samples)) for name, samples in zip(members, split, strict=True)
        )
        for choices in itertools.product(*every):
            step = step_stages("replicated", units, max(len(choice.microbatch_sizes) for choice in choices))
            seconds = step_estimate(profile, choices, step).step_s
            if seconds >= best:
                continue
            memories = [rank_memory(profile, settings, choice, step=step, num_ranks=len(members)) for choice in choices]
            starts = startup_bytes(profile, 1.0)
            if all(
                memory.total_bytes <= memory.limit_bytes and starts + memory.reserve_bytes <= memory.limit_bytes
                for memory in memories
            ):
                best = seconds
    return best


def sizes_leave_no_gaps(profile: Profile) -> bool:
    return all(
        list(unit.working_bytes) == sorted(unit.working_bytes)
        for device in profile.devices.values()
        for unit in device.units.values()
    )


SETTINGS = (
    PlanSettings(offload="off"),
    PlanSettings(offload="off", recompute="blocks"),
    PlanSettings(offload="off", microbatch_size=2),
    PlanSettings(offload="off", optimizer_in_backward=True),
)


@pytest.mark.parametrize("settings", SETTINGS, ids=["auto", "blocks", "one size", "updates in backward"])
@pytest.mark.parametrize("moving", [False, True])
def test_equals_enumeration(settings: PlanSettings, random_profile: Make, *, moving: bool) -> None:
    assert held_against_enumeration(settings, random_profile, moving=moving)["proven"] >= 5


def test_equals_enumeration_where_ranks_offload(random_profile: Make) -> None:
    seen = held_against_enumeration(PlanSettings(offload="on"), random_profile, moving=False)
    assert seen["proven"] >= 5
    assert seen["slowed by copies"] >= 3


def held_against_enumeration(settings: PlanSettings, random_profile: Make, *, moving: bool) -> Counter[str]:
    seen = Counter[str]()
    for seed in range(24):
        profile = roomy(random_profile(seed, moving=moving, num_ranks=2 + (seed % 4 == 0)), seed)
        batch = 3 + seed % 4 - (seed % 4 == 0)
        wanted_s = enumerated_s(profile, settings, batch)
        problem = make_problem(profile, settings, batch, Space(partial=settings.recompute == "blocks"))
        found = best_replicated(problem, math.inf)
        if found.decided is None:
            assert found.lower_bound_s == wanted_s == math.inf
            seen["nothing"] += 1
            continue
        assert found.decided.misfit is None
        found_s = found.decided.estimate.step_s
        assert found.lower_bound_s <= wanted_s * (1 + 1e-9)
        assert found_s >= wanted_s * (1 - 1e-9)
        if sizes_leave_no_gaps(profile):
            assert found_s == pytest.approx(wanted_s, rel=1e-9)
            assert found.lower_bound_s == pytest.approx(found_s, rel=1e-9)
            seen["proven"] += 1
        seen["rounds"] += found.decided.step.num_rounds > 1
        here = [replace(choice, offload=False) for choice in found.decided.choices]
        seen["slowed by copies"] += step_estimate(profile, here, found.decided.step).step_s < found_s * (1 - 1e-9)
    return seen


def test_a_replicated_plan_that_offloads_takes_as_long_as_its_copies(simple_profile: Make) -> None:
    profile = with_network(simple_profile({"only": (2, AMPLE, 1e-3)}), 1e7)
    copies = HostCopy(to_device_bytes_per_s=1e4, to_host_bytes_per_s=1e4, latency_s=0.25)
    slow = {name: device.model_copy(update={"host_copy": copies}) for name, device in profile.devices.items()}
    profile = profile.model_copy(update={"devices": slow})
    choices = [
        RankChoice(device="only", microbatch_sizes=sizes, state_share=1.0, recompute=True, offload=True)
        for sizes in ((2, 1), (1,))
    ]
    step = step_stages("replicated", model_units(profile.model), 2)
    moved_s = 0.25 + boundary_bytes(profile.model, profile.seq_len, profile.dtype, 1) / 1e4
    twice_s = 0.25 + boundary_bytes(profile.model, profile.seq_len, profile.dtype, 2) / 1e4
    blocks = profile.model.num_layers
    # Forward of the embedding and the blocks moves one boundary out, the head one in, the backward of a block two in.
    per_copy = 1 + blocks + 1 + 2 * blocks + 1
    estimate = step_estimate(profile, choices, step)
    reductions_s = estimate.step_s - per_copy * (moved_s + twice_s)
    assert 0 <= reductions_s < 0.02 * estimate.step_s
    assert estimate.bound == "copy"
    offloads, keeps = (  # both are counted again by `check_plan`
        make_plan(with_network(profile, 1e3), 4, settings=PlanSettings(offload=switch)) for switch in ("on", "off")
    )
    assert offloads.schedule == keeps.schedule == "replicated"
    assert all(rank.offload for rank in offloads.ranks)
    # Copies of the backward are hidden behind reductions, those before them are not.
    assert offloads.expected.step_s > keeps.expected.step_s + (blocks + 2) * 0.25 * 0.99


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_evened_out_over_any_costs(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - test instances, not secrets
    counts = [rng.randint(1, 2), rng.randint(1, 2)]
    costs = [
        np.array([0.0, *(rng.choice([math.inf, rng.uniform(0, 9)]) for _ in range(rng.randint(1, 5)))]) for _ in counts
    ]
    batch = rng.randint(1, 8)
    members = [cost for cost, count in zip(costs, counts, strict=True) for _ in range(count)]
    wanted = min(
        (
            float(max(cost[samples] for cost, samples in zip(members, split, strict=True)))
            for split in itertools.product(*(range(len(cost)) for cost in members))
            if sum(split) == batch
        ),
        default=math.inf,
    )
    found = even_out(costs, counts, batch)
    if found is None:
        assert wanted == math.inf
        return
    assert found.least_s == found.limit_s == wanted
    assert sum(map(sum, found.samples)) == batch
    for cost, mine in zip(costs, found.samples, strict=True):
        assert all(cost[samples] <= found.limit_s for samples in mine)


def with_network(profile: Profile, bandwidth_bytes_per_s: float) -> Profile:
    fit = CollectiveFit(latency_s=0.0, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    network = NetworkProfile(method="measured", algorithm="ring", all_gather=fit, reduce_scatter=fit)
    return profile.model_copy(update={"network": network})


def test_a_replicated_plan_is_proven_where_it_is_best(simple_profile: Make) -> None:
    profile = with_network(simple_profile({"only": (2, AMPLE, 1e-3)}), 1e7)
    plan = make_plan(profile, 8)
    assert plan.schedule == "replicated"
    assert (plan.solver.status, plan.solver.gap, plan.solver.bound_schedule) == ("optimal", 0.0, None)
    assert [rank.microbatch_sizes for rank in plan.ranks] == [(4,), (4,)]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_number_of_blocks_is_kept_though_a_replicated_plan_is_faster(simple_profile: Make, kept: int) -> None:
    profile = with_network(simple_profile({"only": (2, AMPLE, 1e-3)}), 1e7)
    plan = make_plan(profile, 8, settings=PlanSettings(keep_unsharded=kept))
    assert (plan.schedule, plan.num_kept_unsharded) == ("layer-major", kept)
    assert plan.solver.status == "optimal"
    assert plan.expected.step_s > make_plan(profile, 8).expected.step_s
    ignored = make_plan(profile, 8).model_copy(update={"settings": plan.settings})
    with pytest.raises(ArtifactError, match=f'schedule: found "replicated", but the settings keep {kept} blocks'):
        check_plan(ignored)


def test_the_lesser_of_two_bounds_holds_for_both_kinds(simple_profile: Make) -> None:
    decided = best_replicated(make_problem(simple_profile({"only": (2, AMPLE, 1e-3)}), PlanSettings(), 8), math.inf)
    assert decided.decided is not None
    step_s = decided.decided.estimate.step_s
    for layer_major_s, replicated_s, wanted in (
        (step_s * 2, step_s, ("optimal", None)),
        (math.inf, step_s * (1 - 1e-10), ("optimal", None)),
        (step_s * 0.9, step_s, ("time-limit", "layer-major")),
        (step_s, step_s * 0.9, ("time-limit", None)),
    ):
        proof = proof_of_both(decided.decided, {"layer-major": layer_major_s, "replicated": replicated_s})
        assert (proof.status, proof.bound_schedule) == wanted
        assert proof.gap == pytest.approx(0.0 if wanted[0] == "optimal" else 0.1)
