"""What the kernels of a build do with one row."""

from snailps import kernels
from snailps._kernel_probes import Probes


def probes_of(build: str = kernels.BUILD) -> Probes:
    """The functions of a build, one row at a time."""
    return Probes(kernels.load(build).capsule)
