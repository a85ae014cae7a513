"""torch.distributed underneath profiler and executor: collectives, launching, devices, emulation.

Import from the modules: the command line starts ranks without loading torch itself.
"""

__all__: list[str] = []
