"""Cephalo: plan, predict and run transformer training on clusters of different GPUs."""

__version__ = "0.1.0"
__all__ = ["__version__"]
