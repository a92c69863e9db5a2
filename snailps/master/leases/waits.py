"""Names whom a worker without an entry waits for, in words for users.

schedule.wait_of(worker) -> Wait: workers, and what they are to do
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

ANY_WORKER, MASTER = 0, -1
"""Stand in for a worker's number, where no worker has the entry, or the master is at work."""


NAMED_MAX = 8
"""Workers that a message names one by one."""


class Wait(NamedTuple):
    """The workers (`ANY_WORKER`, `MASTER`) that a worker waits for, and what they are to do.
    Without workers it waits for its own last block."""

    nodes: tuple[int, ...]
    text: str

    @classmethod
    def for_some(cls, nodes: Iterable[int], text: str) -> Wait:
        """Takes the first few workers only: a thousand may wait for a thousand."""
        return cls(tuple(sorted(islice(nodes, NAMED_MAX + 1))), text)

    def __str__(self) -> str:
        others = {ANY_WORKER: "the next free worker", MASTER: "the master"}
        names = [others.get(node, f"worker {node}") for node in self.nodes[:NAMED_MAX]]
        names += ["..."] * (len(self.nodes) > NAMED_MAX)
        return f"{', '.join(names) or 'its own last block'} to {self.text}"
