"""snailps: a parameter server for plain CPU machines.

Users need this much: `Worker` to subclass, `Table`, `JobSettings` and `setting` to declare with,
`local_cluster` to try it, and the command ``snailps``.  docs/ and examples/ show how.
"""

from snailps._version import __version__
from snailps.config import JobSettings, setting
from snailps.errors import SnailError
from snailps.roles.local import LocalCluster, local_cluster
from snailps.roles.tables import Table, Tensor
from snailps.roles.worker import Block, Results, Worker

__all__ = [
    "Block",
    "JobSettings",
    "LocalCluster",
    "Results",
    "SnailError",
    "Table",
    "Tensor",
    "Worker",
    "__version__",
    "local_cluster",
    "setting",
]
