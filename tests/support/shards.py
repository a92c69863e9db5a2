"""Shards and clients over loopback: real sockets, real threads, no other process."""

import contextlib
import os
import socket
import struct
from pathlib import Path

import numpy as np
from blocking_shard import BlockingShard
from frame_socket import FrameSocket
from waiting import LIMIT_S, until

from snailps.abi import loops
from snailps.abi.key_hash import fragment_of
from snailps.api.access_method import load_method
from snailps.store.route import Route, ShardAddress
from snailps.transport.client._client import Client
from snailps.transport.control import dial
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import (
    NONCE_BYTES,
    Channel,
    Hello,
    Role,
    ServerSession,
    remote_error,
)
from snailps.transport.security.trust import Trust

FRAG_NUM = 64
JOB = 7
ADD, SGD, ADAGRAD, ADAM, FTRL, AVERAGE, MOMENTUM, ROWWISE = range(8)
PYTHON = 14
ZEROS, UNIFORM = 0, 1


class Shards:
    """Shards of one cluster, with a route of epoch 1, and their clients.

    Parameters
    ----------
    count : int
        Shards.
    park_limit_s : float
        Seconds that a request may wait at a shard.
    clock_limit_s : float
        Seconds that a request may wait there for a clock.
    staged_bytes_max : int
        Bytes that may be staged there for a clock.
    """

    def __init__(
        self, count=1, frag_num=FRAG_NUM, park_limit_s=LIMIT_S, secret=b"", routed=True,
        clock_limit_s=LIMIT_S, staged_bytes_max=2 << 30,
    ):  # fmt: skip
        self.count, self.frag_num, self.secret = count, frag_num, secret
        self.threads, self.ports, self.clients = [], [], []
        self.refuse = None  # what a shard's handshake raises
        self.failover_s = 0.0  # how long clients look for a shard that is gone
        self.over = False  # no client need connect any more
        for index in range(count):
            listener = socket.create_server(("127.0.0.1", 0))
            self.ports.append(listener.getsockname()[1])
            thread = BlockingShard(
                listener,
                self._session,
                loops.row_ops(),
                loops.wire_ops(),
                frag_num,
                park_limit_s,
                f"shard-{index}",
                clock_limit_s,
                staged_bytes_max,
            )
            thread.start()
            self.threads.append(thread)
        self.route = Route.build(
            1, [ShardAddress(0, "127.0.0.1", port) for port in self.ports], frag_num
        )
        if routed:
            self.take_route(1)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.over = True
        for client in self.clients:
            client.close()
        assert all(thread.stop(LIMIT_S) for thread in self.threads)

    def _session(self):
        def admit(peer):
            if self.refuse is not None:
                raise self.refuse

        hello = Hello(Channel.DATA, Role.SERVER, os.urandom(NONCE_BYTES), job=JOB)
        return ServerSession(hello, self.secret, admit)

    def take_route(self, epoch):
        for index, thread in enumerate(self.threads):
            thread.take_route(epoch, self.route.fragments_of(index))

    def add_table(
        self, number=1, dim=4, access=ADD, init=UNIFORM, scale=0.1, seed=5, lr=0.0, hyper=None,
        track=0,
    ):  # fmt: skip
        for thread in self.threads:
            thread.add_table(number, dim, access, init, scale, seed, hyper or (lr,), track)

    def declare(self, table, number=1):
        """Adds a table as a server does."""
        for thread in self.threads:
            method = load_method(table) if table.in_python else None
            thread.add_table(number, *table.store_arguments(), method=method)

    def stats(self, name):
        """A counter, summed over the shards."""
        return sum(thread.stats()[name] for thread in self.threads)

    def until(self, name, condition):
        """Waits until a counter, summed over the shards, fulfils a condition."""
        until(lambda: condition(self.stats(name)), lambda: f"{name} is {self.stats(name)}")

    def expire(self, number, before_tick):
        """Deletes rows untouched since a tick; their number."""
        return sum(
            thread.expire_one(number, before_tick, fragment)
            for thread in self.threads
            for fragment in thread.fragments().tolist()
        )

    def connect(self, index, incarnation=1):
        """Descriptor of a new data connection."""
        sock = dial(
            ("127.0.0.1", self.ports[index]),
            Channel.DATA,
            Role.WORKER,
            peer_name=f"shard {index}",
            limit_s=LIMIT_S,
            incarnation=incarnation,
            job=JOB,
            trust=Trust(self.secret),
            give_up=lambda: self.over,
        )
        sock.setblocking(False)
        return sock.detach()

    def client(self, incarnation=1, epoch=1, timeout_s=LIMIT_S, start=True):
        """A started client; closed at the end."""
        made = Client(
            lambda index: self.connect(index, incarnation),
            [f"shard {index}" for index in range(self.count)],
            self.route.owner.astype(np.uint32),
            epoch,
            JOB,
            incarnation,
            timeout_s,
            loops.wire_ops(),
            self.failover_s,
        )
        self.clients.append(made)
        if start:
            made.start()
        return made

    def raw(self, index=0, shake=True):
        """A connection on which the test sends any frames."""
        return Raw(self.ports[index], self.secret, shake)


@contextlib.contextmanager
def a_table(dim=4, access=ADD, init=ZEROS, *, shards=1, frag_num=FRAG_NUM, **settings):
    """Shards with table 1, and a client."""
    with Shards(shards, frag_num) as cluster:
        cluster.add_table(1, dim, access, init, **settings)
        yield cluster, cluster.client()


def push_out(client, dim):
    """Makes eight other batches, for which shards drop the batches that are under way."""
    keys = np.arange(50, dtype=np.uint64)  # at every shard
    others = [client.forward_async(1, np.array([0, 50]), keys, None, dim) for _ in range(8)]
    for other in others:
        other.wait()


class Raw(FrameSocket):
    """A connection to a shard."""

    def __init__(self, port, secret=b"", shake=True, incarnation=1, host="127.0.0.1"):
        super().__init__(socket.create_connection((host, port), LIMIT_S))
        if shake:
            self.shake(secret=secret, incarnation=incarnation, job=JOB)


def pull_frame(groups, request=1, table=1, epoch=1, dim=4, **changed):
    """A PULL of {fragment: keys}."""
    return _grouped(Kind.PULL, groups, 0, None, dim, request, table, epoch, changed)


def push_frame(groups, values, seq=1, request=1, table=1, epoch=1, **changed):
    """A PUSH of {fragment: keys}; `values` float32 (n, dim) in the order of the keys."""
    values = np.asarray(values, "<f4")
    dim = values.shape[1]
    return _grouped(Kind.PUSH, groups, seq, values, dim, request, table, epoch, changed)


def _grouped(kind, groups, seq, values, dim, request, table, epoch, changed):
    keys = [key for of_one in groups.values() for key in of_one]
    options = changed.pop("options", 0)
    body = struct.pack("<QIIII", seq, len(keys), len(groups), dim, options)
    for fragment, of_one in groups.items():
        body += np.array([fragment, len(of_one)], "<u4").tobytes()
    body += np.array(keys, "<u8").tobytes()
    if values is not None:
        body += values.tobytes()
    body += bytes(-len(body) % 8)
    fields = {"table": table, "epoch": epoch, "job": JOB, "incarnation": 1, "request": request}
    return Frame(kind, **{"body": body, **fields, **changed})


def scan_frame(
    fragment, cursor=0, keys_max=0xFFFFFFFF, request=1, table=1, epoch=1, *, end=None, **changed
):
    """A SCAN of the fragments up to `end`; by default of one."""
    body = struct.pack("<QIIII", cursor, fragment, end or fragment + 1, keys_max, 0)
    fields = {"table": table, "epoch": epoch, "job": JOB, "incarnation": 1, "request": request}
    return Frame(Kind.SCAN, **{"body": body, **fields, **changed})


def keys_of(fragment, n, frag_num=FRAG_NUM):
    """The first n keys of a fragment."""
    keys = np.arange(200 * n * frag_num // 64 + 4096, dtype=np.uint64)
    return keys[fragment_of(keys, frag_num) == fragment][:n].tolist()


def error_of(frame):
    assert frame is not None
    assert frame.kind == Kind.ERROR, frame
    return remote_error(frame)


def rows_of(frame, groups, n, dim):
    """Marks and rows of a PULLED."""
    assert frame.kind == Kind.PULLED, frame
    assert len(frame.body) == (8 * groups + 4 * n * dim + 7) // 8 * 8
    marks = np.frombuffer(frame.body, "<u8", groups).tolist()
    return marks, np.frombuffer(frame.body, "<f4", n * dim, 8 * groups).reshape(n, dim)


def u64(keys):
    return np.array(list(keys), np.uint64)


def pull(client, keys, dim, table=1):
    return client.pull_async(table, keys, np.full((len(keys), dim), np.nan, np.float32)).wait()


def resident_bytes():
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
