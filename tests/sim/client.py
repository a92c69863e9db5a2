"""The fan-out client: pulls, pushes, seals and waits by real frames, by the real client's rules.

    Client.push(keys, values) -> parts, numbered -> frames -> shards -> replies -> Future

The rules of `snailps/transport/client`: a part is numbered when it is made, belongs to its shard,
and is sent again on each new connection, in the original order and with its number, before
anything new; a connection that a shard ends with `stale-route` is made anew to the address in the
route.
"""

from __future__ import annotations

import functools
import json
import struct

import numpy as np

from snailps.abi.key_hash import fragment_of
from snailps.errors import ConnectionLost, SnailError
from snailps.node.limits import Limits
from snailps.transport.frame import Frame, FrameDecoder, Kind, Option, encode_frame
from snailps.transport.handshake import Channel, remote_error
from tests.sim.scheduler import Future, first_of

MEND_PAUSE_S = 0.1
FRUITLESS_MAX = 9


class Request(Future):
    """A pull, push, seal, wait for a clock, or scan.

    Attributes
    ----------
    rows : dict
        The rows of a pull, by key.
    refused : str
        Code of the first refusal; empty without one.
    """

    __slots__ = ("clock", "kind", "open", "refused", "replies", "rows", "what")

    def __init__(self, kind, what):
        super().__init__()
        self.kind, self.what, self.open = kind, what, 0
        self.rows, self.refused, self.replies = {}, None, []


class Part:
    """A frame of a request that one shard answers."""

    __slots__ = (
        "body",
        "groups",
        "keys",
        "number",
        "on_answer",
        "request",
        "seq",
        "shard",
        "table",
    )

    def __init__(self, request, shard, number, body, table, keys=(), groups=0, on_answer=None):
        self.request, self.shard, self.number = request, shard, number
        self.body, self.table, self.keys, self.groups = body, table, keys, groups
        self.on_answer = on_answer
        self.seq = 0


class Link:
    """The connection to one shard, and its open parts, in order."""

    def __init__(self, index):
        self.index, self.end, self.parts = index, None, {}
        self.fruitless, self.lost_at, self.mend_at = 0, 0.0, 0.0
        self.nudge = Future()
        self.generation = 0


class Client:
    """The client of one process: its connections to every shard of a route.

    Parameters
    ----------
    node : Node
        Its process, which dials.
    role, number, incarnation, cluster_id
        Sent to the shards in the handshake.
    route : Route
    on_failed : callable
        ``on_failed(text)``: it cannot go on.
    """

    def __init__(self, node, route, *, incarnation, cluster_id, on_failed, keys_max=1 << 30):
        self.node, self.world = node, node.world
        self.route, self.epoch = route, route.epoch
        self.incarnation, self.cluster_id = incarnation, cluster_id
        self.limits = Limits.of(node.settings.request_timeout)
        self.failed = ""
        self._on_failed, self._keys_max = on_failed, keys_max
        self._links = [Link(index) for index in range(len(route.shards))]
        self._seq = self._number = self.moved = 0
        self._pushes = []
        self.reconnects = 0

    # --- connections ------------------------------------------------------------------------------

    def start(self, limit_s, superseded=lambda: False):
        """Connects to every shard (`yield from` it).  Raises if one is not there."""
        for link in self._links:
            address = self.route.shards[link.index]
            end = yield from self.node.dial(
                (address.host, address.port), Channel.DATA, limit_s, superseded
            )
            self._attach(link, end)

    def follow(self, route):
        """Takes a newer route, and connects anew to shards that have moved."""
        if route.epoch <= self.route.epoch:
            return
        before, self.route, self.epoch = self.route.shards, route, route.epoch
        for link, old, new in zip(self._links, before, route.shards, strict=True):
            link.mend_at = 0.0
            nudge, link.nudge = link.nudge, Future()
            nudge.set()
            if old != new and link.end is not None:
                link.end.close()
                self._down(link)

    def close(self):
        """Closes all connections."""
        self.failed = self.failed or "the client was closed"
        for link in self._links:
            if link.end is not None:
                link.end.close()

    def fail(self, text):
        """Every request fails with these words."""
        if self.failed:
            return
        self.failed = text
        for link in self._links:
            parts, link.parts = link.parts, {}
            for part in parts.values():
                if not part.request.done:
                    part.request.fail(ConnectionLost(text))
        self._on_failed(text)

    def _attach(self, link, end):
        link.end, link.generation = end, link.generation + 1
        decoder, generation = FrameDecoder(), link.generation

        def take(data):
            for frame in decoder.feed(data):
                if link.generation == generation and link.end is end:
                    self._take(link, frame)

        def lost(why):
            if link.end is end:
                self._down(link)

        for part in list(link.parts.values()):
            self._send(link, part)
        end.listen(take, lost)

    def _down(self, link):
        """A connection is lost: its open parts are sent again on the next one."""
        link.end = None
        self.reconnects += 1
        if self.failed:
            return
        if link.fruitless == 0:
            link.lost_at = self.world.now
        link.fruitless += 1
        pause = 0.0
        for _ in range(1, min(link.fruitless, FRUITLESS_MAX)):
            pause = min(max(pause * 2, 0.05), 1.0)
        if link.fruitless > FRUITLESS_MAX and self.world.now - link.lost_at > self.limits.reach_s:
            self.fail(f"shard {link.index} closes the connection again and again")
            return
        link.mend_at = self.world.now + pause
        self.node.spawn(self._mend(link))

    def _mend(self, link):
        while not self.failed:
            while self.world.now < link.mend_at and not self.failed:
                yield first_of(self.node.sleep(link.mend_at - self.world.now), link.nudge)
            epoch, address = self.epoch, self.route.shards[link.index]
            try:
                end = yield from self.node.dial(
                    (address.host, address.port), Channel.DATA, self.limits.try_s,
                    lambda address=address: self.route.shards[link.index] != address,
                )  # fmt: skip
            except SnailError as error:
                if self.world.now - link.lost_at >= self.limits.reach_s:
                    limit_s = self.limits.reach_s
                    self.fail(f"shard {link.index} was out of reach for {limit_s:g} s: {error}")
                    return
                link.mend_at = self.world.now + MEND_PAUSE_S
                continue
            if self.failed or self.epoch != epoch:
                end.close()
                continue
            self._attach(link, end)
            return

    # --- requests ---------------------------------------------------------------------------------

    def pull(self, table, keys, width, clock=-1):
        """Pulls rows; a request, whose `rows` has them by key once it is done."""
        request = Request(Kind.PULL, f"pull of {len(keys)} keys")
        for shard, here in self._by_shard(keys):
            body, groups = _grouped(0, here, width, None, clock, 0, self.route.frag_num)
            self._add(Part(request, shard, 0, body, table, here, groups))
        return request

    def push(self, table, keys, values, clock=-1, slot=0, on_part=lambda keys: None, *, options=0):
        """Pushes values; a request. `on_part` gets the keys of each part once acknowledged.
        `options` is a sum of `Option`: with ASSIGN, values take the place of the rows."""
        request = Request(Kind.PUSH, f"push of {len(keys)} keys")
        by_key = dict(zip(keys, values, strict=True))
        for shard, here in self._by_shard(keys):
            rows = np.array([by_key[key] for key in here], "<f4")
            self._seq += 1
            body, groups = _grouped(
                self._seq, here, rows.shape[1], rows, clock, slot, self.route.frag_num,
                options,
            )  # fmt: skip
            part = Part(request, shard, 0, body, table, here, groups, on_part)
            part.seq = self._seq
            self._add(part)
        self._pushes = [push for push in self._pushes if not push.done]
        self._pushes.append(request)
        return request

    def seal(self, clock, slot, slots):
        """Seals a slot at all shards; a request."""
        return self._every(Kind.SEAL, f"seal of slot {slot} of clock {clock}", clock, slot, slots)

    def reach(self, clock):
        """Waits for a clock at all shards; a request."""
        return self._every(Kind.REACH, f"clock {clock}", clock, 0, 0)

    def scan(self, table, fragment, cursor=0):
        """Scans part of a fragment; a request, whose reply is one SCANNED body."""
        request = Request(Kind.SCAN, f"scan of fragment {fragment}")
        shard = int(self.route.owner[fragment])
        body = struct.pack("<QIIII", cursor, fragment, fragment + 1, 64, 0)
        self._add(Part(request, shard, 0, body, table))
        return request

    @property
    def parts_pushed(self):
        """Parts of pushes that were acknowledged, like `Client.counters`."""
        return self._seq

    def flush(self):
        """Open pushes."""
        return [push for push in self._pushes if not push.done]

    def open_pushes(self):
        """Open pushes, in the form that `ResumeState` takes."""
        return self.flush()

    def waits(self):
        """Open requests and their shards, for messages."""
        return [
            f"{part.request.what} at shard {link.index}"
            f" ({'no connection' if link.end is None else 'unanswered'})"
            for link in self._links
            for part in link.parts.values()
        ]

    def _every(self, kind, what, clock, slot, slots):
        request = Request(kind, what)
        for link in self._links:
            self._add(Part(request, link.index, 0, struct.pack("<QII", clock, slot, slots), 0))
        return request

    def _by_shard(self, keys):
        by_shard, owner = {}, self.route.owner
        for key in keys:
            fragment = _fragment(key, self.route.frag_num)
            by_shard.setdefault(int(owner[fragment]), []).append(key)
        for shard, here in sorted(by_shard.items()):
            for start in range(0, len(here), self._keys_max):
                yield shard, here[start : start + self._keys_max]

    def _add(self, part):
        if self.failed:
            part.request.fail(ConnectionLost(self.failed))
            return
        self._number += 1
        part.number = self._number
        part.request.open += 1
        link = self._links[part.shard]
        link.parts[part.number] = part
        if link.end is not None:
            self._send(link, part)

    def _send(self, link, part):
        frame = Frame(part.request.kind, part.body, part.table, self.epoch, self.cluster_id,
                      self.incarnation, part.number)  # fmt: skip
        link.end.send(encode_frame(frame))
        self.moved += 1

    # --- replies ----------------------------------------------------------------------------------

    def _take(self, link, frame):
        if frame.kind == Kind.ERROR:
            code = json.loads(frame.body).get("code")
            if code == "stale-route":
                link.end.close()
                self._down(link)
                return
            if frame.request == 0:
                self.fail(str(remote_error(frame)))
                return
        part = link.parts.pop(frame.request, None)
        if part is None:
            return
        link.fruitless = 0
        self.moved += 1
        request = part.request
        if frame.kind == Kind.ERROR:
            request.refused = request.refused or remote_error(frame)
        elif frame.kind == Kind.PULLED:
            width = (len(frame.body) - 8 * part.groups) // 4 // len(part.keys)
            rows = np.frombuffer(frame.body, "<f4", len(part.keys) * width, 8 * part.groups)
            for key, row in zip(_sorted(part.keys, self.route.frag_num), rows.reshape(-1, width),
                                strict=True):  # fmt: skip
                request.rows[key] = row
        elif frame.kind == Kind.PUSHED:
            part.on_answer(part.keys)
        elif frame.kind == Kind.SCANNED:
            request.replies.append(frame.body)
        request.open -= 1
        if request.open == 0 and not request.done:
            if request.refused is not None:
                request.fail(request.refused)
            else:
                request.set(request)


def _sorted(keys, frag_num):
    """Keys in the order in which they travel."""
    return [key for _, key in sorted((_fragment(key, frag_num), key) for key in keys)]


@functools.lru_cache(1 << 16)
def _fragment(key, frag_num):
    return int(fragment_of(np.array([key], np.uint64), frag_num)[0])


def _grouped(seq, keys, floats, values, clock, slot, frag_num, options=0):
    """Body of a PULL or PUSH, and its groups."""
    fragments = [_fragment(key, frag_num) for key in keys]
    order = sorted(range(len(keys)), key=lambda i: (fragments[i], keys[i]))
    groups = {}
    for i in order:
        groups[fragments[i]] = groups.get(fragments[i], 0) + 1
    body = struct.pack("<QIIII", seq, len(keys), len(groups), floats,
                       options | (Option.CLOCK if clock >= 0 else 0))  # fmt: skip
    if clock >= 0:
        body += struct.pack("<QII", clock, slot, 0)
    body += b"".join(struct.pack("<II", *group) for group in groups.items())
    body += struct.pack(f"<{len(keys)}Q", *[keys[i] for i in order])
    if values is not None:
        body += values[order].tobytes()
    return body + bytes(-len(body) % 8), len(groups)
