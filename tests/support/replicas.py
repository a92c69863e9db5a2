"""Shards with standbys over loopback: real sockets, real threads, no other process."""

import contextlib
import queue
import socket
import struct
import threading

import numpy as np
from blocking_shard import BlockingShard
from shards import JOB, LIMIT_S, Shards
from waiting import until

from snailps.abi import loops
from snailps.api.access_method import load_method
from snailps.store.checkpoint._sections import FragmentCursor
from snailps.transport.control import dial
from snailps.transport.handshake import Channel, Role

_SECTION = struct.Struct("<IIIIQQ")
_TABLE = struct.Struct("<IIIIQQQQ")


class Replicas(Shards):
    """Shards that can have standbys, at which each table is declared as well."""

    def __init__(self, count=1, **options):
        self.declared, self.spares, self.relays = [], [], []
        self.told = queue.SimpleQueue()
        super().__init__(count, **options)
        self.failover_s = LIMIT_S

    def connect(self, index, incarnation=1):
        again = threading.current_thread().name.startswith("snailps-mender")
        sock = dial(
            ("127.0.0.1", self.ports[index]),
            Channel.DATA,
            Role.WORKER,
            peer_name=f"shard {index}",
            limit_s=0.5 if again else LIMIT_S,  # by then the shard may be elsewhere
            incarnation=incarnation,
            job=JOB,
            give_up=lambda: self.over,
        )
        sock.setblocking(False)
        return sock.detach()

    def __exit__(self, *failure):
        super().__exit__(*failure)
        assert all(thread.stop(LIMIT_S) for thread, _ in self.spares)
        for relay in self.relays:
            relay.close()

    def add_table(self, *args, **options):
        super().add_table(*args, **options)
        self.declared.append(lambda threads: _on(self, threads, super(Replicas, self).add_table,
                                                 *args, **options))  # fmt: skip

    def declare(self, table, number=1):
        super().declare(table, number)

        def again(threads):
            for thread in threads:
                method = load_method(table) if table.in_python else None
                thread.add_table(number, *table.store_arguments(), method=method)

        self.declared.append(again)

    def standby(self, index=0, tables=True, route=True):
        """A new standby of a shard: its thread and port."""
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        thread = BlockingShard(
            listener,
            self._session,
            loops.row_ops(),
            loops.wire_ops(),
            self.frag_num,
            30.0,
            f"standby-{index}",
            60.0,
            standby=True,
        )
        thread.start()
        self.spares.append((thread, port))
        if route:
            thread.take_route(1, self.route.fragments_of(index))
        if tables:
            self.declare_at(thread)
        return thread, port

    def declare_at(self, thread):
        for again in self.declared:
            again([thread])

    def stream_to(self, port):
        """Descriptor of a connection of a primary to a standby."""
        sock = dial(
            ("127.0.0.1", port),
            Channel.DATA,
            Role.SERVER,
            peer_name="standby",
            limit_s=LIMIT_S,
            job=JOB,
        )
        return sock.detach()

    def back_up(self, index=0, sync=True, ready=True, standby=None, relay=0, slow=False):
        """Gives a shard a standby; the standby's thread and port."""
        made = standby or self.standby(index)
        if relay:
            self.relays.append(Relay(made[1], relay))
        if slow:
            self.relays[-1].slow()
        fd = self.stream_to(self.relays[-1].port if relay else made[1])
        self.told = told = queue.SimpleQueue()  # of this stream, and no other
        self.threads[index].back_up(fd, sync=sync, report=lambda *words: told.put(words))
        if ready:
            assert self.told.get(timeout=LIMIT_S) == ("ready", "")
        return made

    def promote(self, made, index=0, epoch=2):
        """Promotes a standby in place of a shard, which may be dead; clients follow."""
        thread, port = made
        thread.promote(epoch)
        old = (self.threads[index], self.ports[index])
        self.threads[index] = thread
        self.spares = [old if spare == made else spare for spare in self.spares]
        self.reroute(port, index, epoch)

    def reroute(self, port, index=0, epoch=2):
        """Moves a shard to another port for all clients."""
        self.ports[index] = port
        for client in self.clients:
            client.reroute(epoch, client.names)
            client.cut(index)  # as a worker does that follows a route

    def settle(self, index=0):
        """Waits until the standby has everything."""
        settle(self.threads[index])
        return self.threads[index].stats()["replica"]


def settle(*threads):
    """Waits until each stream is acknowledged, from the first to the last."""
    for thread in threads:
        replica = {}

        def acknowledged(thread=thread, replica=replica):
            replica.update(thread.stats()["replica"])
            return replica["sent"] == replica["acknowledged"]

        until(acknowledged, lambda replica=replica: f"all acknowledged: {replica}")


def _on(shards, threads, call, *args, **options):
    mine, shards.threads = shards.threads, threads
    try:
        call(*args, **options)
    finally:
        shards.threads = mine


def dump(thread):
    """All content of a shard, in an order that does not depend on the place of rows."""
    cursor, buffer, sections_by_fragment = (
        FragmentCursor(thread.fragments()),
        np.empty(64 << 20, np.uint8),
        {},
    )
    while True:
        used, sections = thread.copy_next(cursor, buffer)
        if not sections:
            assert used == 0
            break
        for fragment, start, length, _ in sections:
            sections_by_fragment[fragment] = _section(bytes(buffer[start : start + length]))
    stats = thread.stats()
    names = ("clock", "slots", "slots_sealed", "waits_for")
    return sections_by_fragment, {name: stats[name] for name in names}


def _section(data):
    _, _, tables, marks, _, _ = _SECTION.unpack_from(data)
    at = _SECTION.size + 16 * marks
    seen = dict(struct.iter_unpack("<QQ", data[_SECTION.size : at]))
    rows = {}
    for _ in range(tables):
        table, floats, track, row_bytes, count, counts, *_ = _TABLE.unpack_from(data, at)
        at += _TABLE.size
        body = data[at : at + count * row_bytes]
        each = {
            int.from_bytes(body[i : i + 8], "little"): body[i + 8 : i + row_bytes]
            for i in range(0, len(body), row_bytes)
        }
        at += (count * row_bytes + 7) // 8 * 8
        rows[table] = (floats, track, data[at : at + counts], each)
        at += counts
    return seen, rows


def assert_equal(a, b):
    """Two dumps are the same; names the first difference."""
    assert a[0].keys() == b[0].keys()
    for fragment, (marks, tables) in a[0].items():
        other_marks, other_tables = b[0][fragment]
        assert marks == other_marks, f"marks of fragment {fragment}"
        assert tables.keys() == other_tables.keys(), f"tables of fragment {fragment}"
        for table, one in tables.items():
            two = other_tables[table]
            assert one[:3] == two[:3], f"table {table} of fragment {fragment}"
            assert one[3].keys() == two[3].keys(), f"keys of table {table}, fragment {fragment}"
            for key, row in one[3].items():
                assert row == two[3][key], f"row {key} of table {table}"
    assert a[1] == b[1]


class Relay:
    """A relay to a port that a test can close, slow down or narrow; sent bytes wait in it."""

    def __init__(self, port, chunk=1 << 16):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * chunk)
        self.chunk = chunk
        self.port, self.target = self.listener.getsockname()[1], port
        self.open, self.pause_s, self.ends = threading.Event(), None, []
        self.open.set()
        self.main = threading.Thread(target=self._accept, daemon=True)
        self.main.start()

    def _accept(self):
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.target), LIMIT_S)
        self.ends = [near, far]
        for a, b in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(self.chunk):
                self.open.wait(self.pause_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def slow(self, pause_s=0.002):
        """Delays each piece until it is opened again, so that a copy takes long."""
        self.pause_s = pause_s
        self.open.clear()

    def close(self):
        self.open.set()
        self.main.join(LIMIT_S)
        for end in [*self.ends, self.listener]:
            end.close()


class Counting:
    """Workers that add 1 to keys of a table, and count acknowledged pushes."""

    def __init__(self, cluster, workers=3, keys=400):
        self.cluster, self.keys = cluster, keys
        self.clients = [cluster.client(incarnation=50 + i) for i in range(workers)]
        self.acknowledged = np.zeros(keys, np.int64)
        self.lock, self.over, self.errors = threading.Lock(), threading.Event(), []
        self.threads = [threading.Thread(target=self._work, args=(c,)) for c in self.clients]
        for thread in self.threads:
            thread.start()

    def _work(self, client):
        rng = np.random.default_rng(id(client) & 0xFFFF)
        try:
            while not self.over.is_set():
                pushes = []
                for _ in range(8):
                    keys = np.unique(rng.integers(0, self.keys, 100)).astype(np.uint64)
                    values = np.ones((len(keys), 4), np.float32)
                    pushes.append((keys, client.push_async(1, keys, values)))
                for keys, push in pushes:
                    push.wait()
                    with self.lock:
                        self.acknowledged[keys.astype(np.int64)] += 1
        except BaseException as error:
            self.errors.append(error)

    def more(self, pushes=500):
        """Waits until this many more pushes are acknowledged."""
        begin = self.acknowledged.sum()
        until(
            lambda: self.acknowledged.sum() >= begin + pushes,
            f"{pushes} more acknowledged pushes",
            over=lambda: str(self.errors or ""),
        )

    def end(self):
        """Ends the workers; each acknowledged push must be in the table once."""
        self.over.set()
        for thread in self.threads:
            thread.join(2 * LIMIT_S)
            assert not thread.is_alive()
        assert not self.errors, self.errors
        keys = np.arange(self.keys, dtype=np.uint64)
        rows = self.clients[0].pull(1, keys, np.zeros((self.keys, 4), np.float32))
        return rows[:, 0].astype(np.int64), self.acknowledged
