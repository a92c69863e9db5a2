"""Declares what all parts of the core share: settings, the cluster's numbers, the outbox. A value.

A part gets the parts that it uses by name, in its constructor. What it asks of parts that are made
after it, which know it, is a function, named in its constructor too, or a value of functions
(`JobHooks`); `MasterCore` gives them.
"""

from __future__ import annotations

from snailps.config import MasterSettings, RawConfig
from snailps.dataclass import dataclass, field
from snailps.master.effects import Outbox
from snailps.master.job.session import SessionJob
from snailps.master.life import COMMAND, Life


@dataclass(frozen=True, slots=True)
class Context:
    settings: MasterSettings
    out: Outbox
    cluster_id: int  # number of this forming of the cluster; nodes of another one are refused
    begun: float  # monotonic seconds
    life: Life = COMMAND
    # what journal and checkpoints hold of drivers' tables; not used where drivers only watch
    session: SessionJob = field(default_factory=lambda: SessionJob(RawConfig([])))
    nodes_stay: bool = True  # servers and workers outlive the process of the master
