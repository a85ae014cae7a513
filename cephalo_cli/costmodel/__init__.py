"""The cost model: pure functions from curves and choices to seconds and bytes, used by planner and simulator alike."""

from cephalo_cli.costmodel.compute import RankChoice
from cephalo_cli.costmodel.memory import rank_memory
from cephalo_cli.costmodel.network import network_from_links
from cephalo_cli.costmodel.step import StepEstimate, step_estimate

__all__ = ["RankChoice", "StepEstimate", "network_from_links", "rank_memory", "step_estimate"]
