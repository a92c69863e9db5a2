"""Declares what all parts of the core share: settings, the cluster's numbers, the outbox. A value.

A part gets the parts that it uses by name, in its constructor. What it asks of parts that are made
after it, which know it, is a Protocol beside it (`Above`); `MasterCore` answers.
"""

from __future__ import annotations

from snailps.config import MasterSettings
from snailps.dataclass import dataclass
from snailps.master.effects import Outbox
from snailps.master.job.session import SessionJob


@dataclass(frozen=True, slots=True)
class Context:
    settings: MasterSettings
    out: Outbox
    cluster_id: int  # number of this forming of the cluster; nodes of another one are refused
    begun: float  # monotonic seconds
    # what a session keeps, to which drivers submit jobs; None: the master runs one job and ends
    session: SessionJob | None = None
    # the session outlives its drivers; workers of a failed job restart
    lasting: bool = False
    nodes_stay: bool = True  # servers and workers outlive the process of the master
