"""What the kernels of a build do with one row."""

from snailps._kernel_probes import Probes

from snailps import kernels


def probes_of(build: str = kernels.BUILD) -> Probes:
    """The functions of a build, one row at a time."""
    return Probes(kernels.load(build).capsule)
