"""The planner: who computes how much and who stores how much, proven best under the cost model."""

from cephalo_cli.planner.batches import choose_batch
from cephalo_cli.planner.check import check_plan
from cephalo_cli.planner.explain import explain
from cephalo_cli.planner.make import make_all_plans, make_plan
from cephalo_cli.planner.subsets import choose_devices, cost_per_token

__all__ = [
    "check_plan",
    "choose_batch",
    "choose_devices",
    "cost_per_token",
    "explain",
    "make_all_plans",
    "make_plan",
]
