"""Chooses the wire type of each request: the table's, or with ``auto`` by the network's speed.

    table, measured goodput, `narrow_rows` -> type of rows on the wire, error feedback or not

Owns when the speed is measured, and the decision for all tables.  Called once a request; sees no
rows and no sockets.
"""

from __future__ import annotations

import logging
import math

from snailps.abi.loops import WIRE_TYPES
from snailps.api.tables import Table
from snailps.store.route import Route
from snailps.transport.client._client import Client
from snailps.transport.security.trust import is_loopback

log = logging.getLogger(__name__)

MEASURED_BYTES = 4 << 20
"""Traffic after which the speed of the network is measured for the first time."""
AGAIN_BYTES = 256 << 20
"""Traffic after which it is measured again: it may be shared with others."""
FAST_BYTES_PER_S = 400e6
"""Speed (about 4 Gbit/s) from which converting rows costs more time than it saves."""
SLOW_BYTES_PER_S = 30e6
"""Speed (about a quarter of a Gbit/s) below which `narrow_rows` are int8: waiting for the network
takes longer than carrying rounding errors to the next push."""
_EXACT = {"add", "sgd"}
"""Access methods that add pushed values: float16's rounding is negligible beside the row.  Others
divide by the size of earlier gradients, so that small values matter as much as large ones."""


class WireChoice:
    """The wire types of one client's requests.

    ``auto`` starts as float32.  It is decided for all tables by the client's goodput, after
    `MEASURED_BYTES` and again after every `AGAIN_BYTES`.  It stays float32 if all shards are on
    this machine and connections are not encrypted (`sealed`).  A model with `narrow_rows` needs no
    measurement for float16 in tables of `_EXACT`; int8 is for a slow network, and for pushes of a
    model with `narrow_deltas`.  Jobs with clocks (`exact`) are repeatable to the bit: no
    measurement, and no rounding carried between pushes.
    """

    def __init__(
        self, client: Client, route: Route, *, sealed: bool = False, exact: bool = False
    ) -> None:
        self._client, self._exact = client, exact
        self._chosen, self._narrow = "float32", "float16"
        self._measured = (0, 0.0)  # bytes, seconds at the last decision
        self._enough: float = MEASURED_BYTES
        here = all(is_loopback(shard.host) for shard in route.shards)
        if exact or (here and not sealed):
            self._enough = math.inf

    def of_pull(self, table: Table, state: bool = False, *, narrow: bool = False) -> int:
        """Wire type of a pull, a value of `WIRE_TYPES`; `narrow`: `Worker.narrow_rows`."""
        name = table.wire
        if name == "auto":
            if self._enough < math.inf:
                self._measure()
            name = self._narrow if narrow and self._may_narrow(table) else self._chosen
        return WIRE_TYPES["float32" if state or table.access == "average" else name]

    def _may_narrow(self, table: Table) -> bool:
        return table.wire == "auto" and table.access in _EXACT and not self._exact

    def of_product(self, table: Table, shards: int) -> int:
        """Wire type of a product: with several shards float16, as each sends a part as large as
        the whole, so that bytes grow with the shards.
        """
        if table.wire == "auto" and shards > 1:
            return WIRE_TYPES["float16"]
        return self.of_pull(table)

    def of_push(
        self, table: Table, state: bool = False, *, narrow: bool = False, narrower: bool = False
    ) -> tuple[int, bool]:
        """Wire type of a push, and whether its rounding errors are added to the next push.

        `narrower`: `Worker.narrow_deltas`, for a push that `narrow` would send as float16.
        """
        wire = self.of_pull(table, state, narrow=narrow)
        if self._exact:
            return wire, False
        is_half = wire == WIRE_TYPES["float16"]
        if narrow and narrower and is_half and self._may_narrow(table):
            return WIRE_TYPES["int8"], False
        return wire, not is_half or table.access not in _EXACT

    def _measure(self) -> None:
        moved, seconds = self._client.goodput()
        if moved - self._measured[0] < self._enough:
            return
        speed = (moved - self._measured[0]) / (seconds - self._measured[1])
        chosen = "float32" if speed >= FAST_BYTES_PER_S else "float16"
        narrow = "float16" if speed >= SLOW_BYTES_PER_S else "int8"
        if self._enough == MEASURED_BYTES or (chosen, narrow) != (self._chosen, self._narrow):
            text = "wire: auto: %.0f MB/s to and from the servers: rows travel as %s, narrow: %s"
            log.info(text, speed / 1e6, chosen, narrow)
        self._chosen, self._narrow = chosen, narrow
        self._enough, self._measured = AGAIN_BYTES, (moved, seconds)
