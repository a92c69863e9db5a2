"""Kernels of a build, applied to one row."""

from snailps import kernels
from snailps._kernel_probes import Probes


def probes_of(build: str = kernels.BUILD) -> Probes:
    """The functions of a build, for one row at a time."""
    return Probes(kernels.load(build).capsule)
