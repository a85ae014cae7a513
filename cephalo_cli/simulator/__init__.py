"""Plays a plan's schedule with the cost model's durations: how long, who waits, who fills up, what would help."""

from cephalo_cli.simulator.run import SimulatedRun, simulate, sweep

__all__ = ["SimulatedRun", "simulate", "sweep"]
