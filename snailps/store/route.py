"""Which shard owns which fragment, and where that shard listens.

    keys -> fragment_of -> fragments -> Route.owner -> shards -> host, port

Owns how fragments are shared out at first, and the route's form on the wire.  Must not know sockets
or rows.  Only the master makes routes; all other processes read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.config.addresses import host_fault
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, ProtocolError

FRAG_NUM_MAX = 1 << 20
SHARD_NUM_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """The server of a shard, by number, and the address at which the shard listens."""

    server: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Fragment -> shard -> address, at one epoch; every change has a higher epoch.

    `owner` (uint32 [frag_num], read-only) has the index into `shards` of each fragment's owner.
    """

    epoch: int
    shards: tuple[ShardAddress, ...]
    owner: NDArray[np.uint32]

    @property
    def frag_num(self) -> int:
        return len(self.owner)

    @classmethod
    def build(cls, epoch: int, shards: Sequence[ShardAddress], frag_num: int) -> Route:
        """Make a first route: each shard gets an equal number of neighbouring fragments, to within
        one.

        Neighbours are no worse than any others, as hashing has mixed the keys.  They keep the route
        short on the wire and in logs, and a client that sorts keys by fragment has each shard's
        keys in one piece.
        """
        if not shards:
            raise ConfigError("a route needs at least one shard, got none: start a server")
        if not 1 <= frag_num <= FRAG_NUM_MAX:
            raise ConfigError(f"frag_num: expected 1 to {FRAG_NUM_MAX}, got {frag_num}")
        if frag_num < len(shards):
            raise ConfigError(
                f"frag_num is {frag_num}, but there are {len(shards)} shards and each needs a "
                f"fragment: raise frag_num to at least {len(shards)} or start fewer shards"
            )
        owner = np.arange(frag_num, dtype=np.uint64) * len(shards) // frag_num
        return cls(epoch, tuple(shards), _frozen(owner))

    def fragments_of(self, shard_index: int) -> NDArray[np.uint32]:
        return np.flatnonzero(self.owner == shard_index).astype(np.uint32)

    def to_dict(self) -> dict[str, Any]:
        """Return the route as values for JSON, the owners as runs ``[shard, length]``."""
        starts = np.flatnonzero(np.diff(self.owner.astype(np.int64), prepend=-1))
        lengths = np.diff(starts, append=self.frag_num)
        return {
            "epoch": self.epoch,
            "shards": [[s.server, s.host, s.port] for s in self.shards],
            "owner": [
                [int(shard), int(length)]
                for shard, length in zip(self.owner[starts], lengths, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: object) -> Route:
        """Read a value of `to_dict`; `ProtocolError` for anything else."""
        if not isinstance(data, dict) or set(data) != {"epoch", "shards", "owner"}:
            got = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
            raise ProtocolError(f"route: expected epoch, shards and owner, got {got}")
        epoch = _whole("epoch", data["epoch"], 0, (1 << 32) - 1)
        shards = tuple(_address(item) for item in _items("shards", data["shards"], SHARD_NUM_MAX))
        runs = [_run(item, len(shards)) for item in _items("owner", data["owner"], FRAG_NUM_MAX)]
        # Before any array is made: a few bytes of runs can state any number of fragments.
        frag_num = sum(length for _, length in runs)
        _whole("frag_num", frag_num, len(shards), FRAG_NUM_MAX)
        owner = np.repeat([shard for shard, _ in runs], [length for _, length in runs])
        return cls(epoch, shards, _frozen(owner))


def _frozen(owner: NDArray[Any]) -> NDArray[np.uint32]:
    result = owner.astype(np.uint32)
    result.flags.writeable = False  # threads read one route without a lock
    return result


def _whole(what: str, value: object, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise ProtocolError(
            f"route: {what}: expected an integer from {lowest} to {highest}, got {value!r:.80}"
        )
    return value


def _items(what: str, value: object, longest: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= longest:
        got = f"{len(value)} items" if isinstance(value, list) else type(value).__name__
        raise ProtocolError(f"route: {what}: expected a list of 1 to {longest} items, got {got}")
    return value


def _address(item: object) -> ShardAddress:
    if not isinstance(item, list) or len(item) != 3:
        raise ProtocolError(f"route: shard: expected [server, host, port], got {item!r:.80}")
    server, host, port = item
    if not isinstance(host, str) or (fault := host_fault(host)):
        why = fault if isinstance(host, str) else f"got {type(host).__name__}"
        raise ProtocolError(f"route: host: {why}")
    return ShardAddress(
        _whole("server", server, 0, (1 << 32) - 1), host, _whole("port", port, 1, 65535)
    )


def _run(item: object, shard_num: int) -> tuple[int, int]:
    if not isinstance(item, list) or len(item) != 2:
        raise ProtocolError(f"route: owner: expected runs [shard, length], got {item!r:.80}")
    shard, length = item
    return (
        _whole("owner's shard", shard, 0, shard_num - 1),
        _whole("owner's length", length, 1, FRAG_NUM_MAX),
    )
