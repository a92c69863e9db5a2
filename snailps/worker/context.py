"""What the parts of a worker's job share, as one value: its model, its connections, its limits.

`process.py` makes one for each job. `Reports`, `Leases` and `Training` get it, and the parts that
they use by name; each keeps only what it needs.
"""

from __future__ import annotations

from snailps.api.worker import Worker
from snailps.dataclass import dataclass
from snailps.node.metric_samples import BlockTally
from snailps.transport.client._client import Client
from snailps.worker.calls import MasterCalls
from snailps.worker.orders import Orders
from snailps.worker.resume_state import ResumeState


@dataclass(frozen=True, slots=True)
class JobContext:
    model: Worker
    client: Client  # to the shards
    calls: MasterCalls
    progress: ResumeState  # what this worker reports to a master that takes over
    orders: Orders  # from the master, meanwhile: leave, another number of workers
    tally: BlockTally
    limit_s: float  # for an answer of the master, and until all pushes are acknowledged
