"""The fan-out client when connections break, when shards misbehave, and at the end."""

import contextlib
import gc
import os
import queue
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from frame_socket import FrameSocket
from shards import ADD, JOB, LIMIT_S, ZEROS, Shards, a_table, pull, u64
from waiting import acquired, until

from snailps.abi.key_hash import fragment_of
from snailps.errors import ConnectionLost, MisuseError, ProtocolError, WaitTimeout
from snailps.transport.client._client import SCANS_AHEAD, Client
from snailps.transport.frame import Frame, Kind, encode_frame
from snailps.transport.handshake import Channel, Hello, Role, ServerSession, error_frame


def open_descriptors():
    """What they are, by number: what earlier tests left may be closed at any time."""
    gc.collect()
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add((path.name, path.readlink()))
    return found


# --- lost connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_cut_in_the_middle_of_pushes_keeps_sums_exact(shards):
    with a_table(8, shards=shards, frag_num=256) as (_, client):
        keys = np.arange(60_000, dtype=np.uint64)
        ones = np.ones((60_000, 8), np.float32)
        for turn in range(15):
            pushes = [client.push_async(1, keys, ones) for _ in range(2)]
            client.cut(turn % shards)
            rows = pull(client, keys[::100].copy(), 8)
            client.cut((turn + 1) % shards)
            for pending in pushes:
                pending.wait()
            assert np.all(rows == 2 * (turn + 1))
        assert np.all(pull(client, keys, 8) == 30)
        assert client.counters()["reconnects"] > 0


def test_cut_in_the_middle_of_scans_gives_each_row_once():
    with a_table(64, shards=2) as (cluster, client):
        keys = np.arange(20_000, dtype=np.uint64)
        client.push_async(1, keys, np.ones((20_000, 64), np.float32)).wait()
        found = []
        for some, _ in client.scan(1, 64, range(cluster.frag_num)):
            found += some.tolist()
            client.cut(len(found) % 2)
        assert sorted(found) == keys.tolist()


@pytest.mark.parametrize(
    ("frag_num", "rows", "dim", "pieces_before"),
    [(2, 12_000, 64, 1), (32, 6000, 1024, 1), (32, 6000, 1024, 20)],
)
def test_scan_that_goes_on_at_another_shard_with_its_rows_elsewhere_gives_each_once(
    frag_num, rows, dim, pieces_before
):
    """A standby that was promoted has the same rows, but not where deleted ones left gaps.

    With 32 fragments each request is for two, and its first piece ends in the second one.
    """
    keys = np.arange(rows, dtype=np.uint64)
    ones = np.ones((len(keys), dim), np.float32)
    with Shards(frag_num=frag_num) as first, Shards(frag_num=frag_num) as second:
        for cluster, order in ((first, keys), (second, keys[::-1].copy())):
            cluster.add_table(1, dim, ADD, ZEROS)
            cluster.client().push_async(1, order, ones).wait()
        client = first.client()
        found, ended, pieces = [], [], 0
        for some, _ in client.scan(1, dim, range(frag_num), ended.append):
            found += some.tolist()
            pieces += 1
            if pieces == pieces_before:
                second.take_route(2)
                first.ports = second.ports
                client.reroute(2, client.names)
                client.cut(0)
    assert pieces > max(pieces_before, min(frag_num, SCANS_AHEAD))  # a range has several
    assert sorted(found) == keys.tolist()
    assert sum(ended) == frag_num


def test_scan_of_a_small_table_takes_few_requests_and_counts_all_fragments():
    """One request a fragment took ten milliseconds for a table of five rows."""
    with a_table(4, shards=2, frag_num=512) as (_, client):
        client.push_async(1, np.arange(5, dtype=np.uint64), np.ones((5, 4), np.float32)).wait()
        before, ended = client.counters()["bytes_out"], []
        pieces = list(client.scan(1, 4, range(512), ended.append))
        sent = client.counters()["bytes_out"] - before
        apart = list(client.scan(1, 4, range(0, 512, 2)))
    assert sorted(key for keys, _ in pieces for key in keys) == [0, 1, 2, 3, 4]
    assert sum(ended) == 512
    assert sent <= SCANS_AHEAD * (48 + 24)
    assert {int(key) for keys, _ in apart for key in keys} == {
        key for key in range(5) if fragment_of(u64([key]), 512)[0] % 2 == 0
    }


def test_scan_asks_for_many_fragments_at_once():
    with Shards(2) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        client = cluster.client(epoch=2)  # its requests park
        pieces = client.scan(1, 4, range(cluster.frag_num))
        ahead = threading.Thread(target=list, args=(pieces,), daemon=True)
        ahead.start()
        cluster.until("parked", lambda n: n == min(SCANS_AHEAD, cluster.frag_num))
        cluster.take_route(2)
        ahead.join(LIMIT_S)
        assert not ahead.is_alive()


def test_shard_that_cannot_be_reached_again_ends_the_client(shard):
    client = shard.client()
    pull(client, u64([1]), 4)
    shard.refuse = ProtocolError("this port was given to another cluster", "job")
    client.cut(0)
    with pytest.raises(ConnectionLost, match=r"pull of 1 rows.*given to another cluster"):
        pull(client, u64([1]), 4)
    with pytest.raises(ConnectionLost):
        client.push_async(1, u64([1]), np.ones((1, 4), np.float32)).wait()


def test_connect_that_breaks_ends_the_client_with_its_reason(shard):
    def connect(index):
        if broken.is_set():
            raise OSError("no route to host")
        return shard.connect(index)

    broken = threading.Event()
    client = Client(connect, ["the shard"], shard.route.owner, 1, JOB, 1, LIMIT_S)
    shard.clients.append(client)
    client.start()
    broken.set()
    client.cut(0)
    with pytest.raises(ConnectionLost, match=r"cannot reconnect to the shard: .*no route to host"):
        pull(client, u64([1]), 4)


# --- the end -------------------------------------------------------------------------------------


def test_fail_ends_what_waits_and_what_comes(shard):
    client = shard.client(epoch=2)  # its requests park
    waiting = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
    shard.until("parked", lambda n: n == 1)
    assert not waiting.done
    client.fail("the master ended the job: \u4e2d")
    with pytest.raises(ConnectionLost, match="the master ended the job: \u4e2d"):
        waiting.wait()
    assert waiting.done
    client.fail("another reason")
    with pytest.raises(ConnectionLost, match="ended the job"):
        pull(client, u64([1]), 4)
    with pytest.raises(ConnectionLost):
        list(client.scan(1, 4, [0]))


def test_close_fails_open_requests_and_twice_is_harmless(shard):
    client = shard.client(epoch=2)
    waiting = [
        client.push_async(1, u64(range(1000)), np.ones((1000, 4), np.float32)) for _ in range(5)
    ]
    shard.until("parked", lambda n: n == 5)
    client.close()
    client.close()
    for pending in waiting:
        with pytest.raises(ConnectionLost, match="the client was closed"):
            pending.wait()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        pull(client, u64([1]), 4)
    with pytest.raises(MisuseError, match="starts once"):
        client.start()
    assert client.counters()["open"] == 0


def test_close_of_a_client_that_never_started_fails_its_requests(shard):
    client = shard.client(start=False)
    waiting = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
    client.close()
    with pytest.raises(ConnectionLost):
        waiting.wait()


def test_requests_made_before_the_start_are_served(shard):
    client = shard.client(start=False)
    waiting = client.pull_async(1, u64([1]), np.full((1, 4), 9, np.float32))
    client.start()
    assert waiting.wait().tolist() == [[0.0] * 4]


def test_close_while_others_call_ends_every_wait():
    with Shards(2) as cluster:
        cluster.add_table(1, 4, ADD, ZEROS)
        for _ in range(10):
            client, started = cluster.client(), threading.Semaphore(0)

            def run(client=client, started=started):
                keys, rows = u64(range(500)), np.ones((500, 4), np.float32)
                try:
                    while True:
                        client.push_async(1, keys, rows)
                        client.pull_async(1, keys, rows.copy()).wait()
                        started.release()
                except ConnectionLost:
                    pass

            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(6):
                assert started.acquire(timeout=LIMIT_S)
            client.close()
            for thread in threads:
                thread.join(LIMIT_S)
                assert not thread.is_alive()
            assert client.counters()["open"] == 0


def test_start_that_fails_half_way_closes_what_it_opened():
    with Shards(2) as cluster:
        before = open_descriptors()

        def connect(index):
            if index == 1:
                raise WaitTimeout("cannot reach shard 1")
            return cluster.connect(index)

        client = Client(connect, ["a", "b"], cluster.route.owner, 1, JOB, 1)
        with pytest.raises(WaitTimeout, match="shard 1"):
            client.start()
        client.close()
        del client
        cluster.until("connections", lambda n: n == 0)
        assert open_descriptors() <= before


def test_connection_that_comes_after_the_end_is_closed(shard):
    let_go, asked = threading.Event(), threading.Event()
    first = []

    def connect(index):
        if first:
            asked.set()
            let_go.wait(LIMIT_S)
        first.append(None)
        return shard.connect(index)

    client = Client(connect, ["a"], shard.route.owner, 1, JOB, 1)
    client.start()
    client.cut(0)
    assert asked.wait(LIMIT_S)
    client.close()
    let_go.set()
    shard.until("accepted", lambda n: n == 2)
    shard.until("connections", lambda n: n == 0)


def test_clients_leave_no_descriptor_behind(shard):
    before = open_descriptors()
    for _ in range(3):
        client = shard.client()
        pull(client, u64(range(10)), 4)
        client.cut(0)
        pull(client, u64(range(10)), 4)
        client.close()
        shard.clients.remove(client)
        del client
    # A connection that was under way when its client closed ends behind it.
    until(lambda: open_descriptors() <= before, lambda: f"{open_descriptors()}, not {before}")


FIRST = 1024  # what a client calls its first part

# --- a scripted shard ----------------------------------------------------------------------------


class Script:
    """A shard whose connections are served by functions of the test; they stay open behind that."""

    def __init__(self, *connections):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections, self.socks, self.errors = list(connections), [], queue.Queue()
        self.clients = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for client in self.clients:  # else it would dial on for a while, in the next test
            client.close()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the reader; closing alone would not
            sock.close()
        self.thread.join(LIMIT_S)
        assert self.errors.empty(), self.errors.get()

    def _run(self):
        try:
            for serve in self.connections:
                sock, _ = self.listener.accept()
                self.socks.append(sock)
                sock.settimeout(LIMIT_S)
                wire = Wire(sock)
                session = ServerSession(Hello(Channel.DATA, Role.SERVER, os.urandom(16), job=JOB))
                while not session.ready:
                    wire.send(session.receive(wire.next()))
                serve(wire)
        except OSError:
            pass
        except BaseException as error:
            self.errors.put(error)

    def client(self, shards, timeout_s=LIMIT_S):
        shards.ports = [self.listener.getsockname()[1]]
        self.clients.append(shards.client(timeout_s=timeout_s))
        return self.clients[-1]


class Wire(FrameSocket):
    def next(self):
        if (frame := super().next()) is None:
            raise ConnectionError("closed")
        return frame


def groups_of(frame):
    return int.from_bytes(frame.body[12:16], "little")


def seq_of(frame):
    return int.from_bytes(frame.body[:8], "little")


def answer(frame, value=0.0, dim=4):
    """The reply to a PULL (rows all `value`) or a PUSH."""
    if frame.kind == Kind.PUSH:
        return Frame(Kind.PUSHED, request=frame.request)
    keys = int.from_bytes(frame.body[8:12], "little")
    body = bytes(8 * groups_of(frame)) + np.full(keys * dim, value, "<f4").tobytes()
    return Frame(Kind.PULLED, body + bytes(-len(body) % 8), request=frame.request)


@pytest.fixture
def one():
    with Shards(1) as made:
        yield made


ROWS = np.ones((1, 4), np.float32)


def test_unanswered_parts_are_sent_again_in_order_before_anything_new(one):
    seen = []

    def first(wire):
        for _ in range(6):
            seen.append(wire.next())
        wire.send(answer(seen[1]), answer(seen[4]))
        again.wait(LIMIT_S)
        wire.sock.close()

    def second(wire):
        for _ in range(5):
            seen.append(wire.next())
        wire.send(*[answer(frame) for frame in seen[6:]])

    again = threading.Event()
    with Script(first, second) as script:
        client = script.client(one)
        pending = [client.push_async(1, u64([i]), ROWS) for i in range(6)]
        pending[1].wait()
        pending[4].wait()
        again.set()
        pending.append(client.push_async(1, u64([6]), ROWS))
        for each in pending:
            each.wait()
    assert [seq_of(frame) for frame in seen] == [1, 2, 3, 4, 5, 6, 1, 3, 4, 6, 7]
    for number in (0, 2, 3, 5):
        assert seen[number] in seen[6:]


def test_replies_in_any_order_and_repeated_ones_find_their_requests(one):
    def serve(wire):
        frames = [wire.next() for _ in range(10)]
        for value, frame in reversed(list(enumerate(frames, 1))):
            reply = answer(frame, value=float(value))
            wire.send(reply, reply, reply)
        wire.send(answer(frames[0], value=99.0), Frame(Kind.PULLED, bytes(24), request=12345))
        wire.send(answer(wire.next(), value=11.0))

    with Script(serve) as script:
        client = script.client(one)
        pending = [client.pull_async(1, u64([i]), np.zeros((1, 4), np.float32)) for i in range(10)]
        got = [each.wait()[0, 0] for each in pending]
        assert pull(client, u64([3]), 4)[0, 0] == 11.0
        assert [each.rows[0, 0] for each in pending] == got == list(range(1, 11))
        assert client.counters()["reconnects"] == 0


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64),
        encode_frame(Frame(Kind.PUSHED))[:4] + b"\x02" + bytes(43),
        encode_frame(Frame(Kind.PUSHED, request=FIRST)),  # of another kind than was asked
        encode_frame(Frame(Kind.SCANNED, bytes(16), request=FIRST)),
        encode_frame(Frame(Kind.PULLED, request=FIRST))[:40] + b"\xff" * 8,  # beyond all limits
        encode_frame(Frame(Kind.PULLED, bytes(24), request=FIRST))[:-1],  # half, then the end
        b"",
    ],
)
def test_reply_that_breaks_the_format_costs_only_the_connection(one, reply):
    def first(wire):
        wire.next()
        wire.sock.sendall(reply)
        wire.sock.close()

    def second(wire):
        wire.send(answer(wire.next(), value=3.0))

    with Script(first, second) as script:
        client = script.client(one)
        assert pull(client, u64([1]), 4)[0, 0] == 3.0
        assert client.counters()["reconnects"] == 1


@pytest.mark.parametrize(("fragment", "cursor"), [(0, 0), (2, 0), (1, 7)])
def test_scan_that_goes_on_nowhere_or_beyond_its_end_is_an_error(one, fragment, cursor):
    """Of the one fragment there is; the same place would be asked for again without end."""

    def serve(wire):
        request = wire.next().request
        body = struct.pack("<QIIII", cursor, fragment, 0, 4, 0)
        wire.send(Frame(Kind.SCANNED, body, request=request))

    with Script(serve) as script:
        client = script.client(one)
        with pytest.raises(ProtocolError, match="SCANNED goes on at fragment"):
            list(client.scan(1, 4, [0]))


def test_shard_that_closes_again_and_again_ends_the_client(one):
    def close(wire):
        wire.sock.close()

    with Script(*[close] * 30) as script:
        client = script.client(one)
        with pytest.raises(ConnectionLost, match="closes the connection again and again"):
            pull(client, u64([1]), 4)
        assert 5 <= client.counters()["reconnects"] <= 20


class Pairs:
    """Connections that say nothing: what a client keeps open while it asks nothing."""

    def __init__(self, failover_s):
        self.far, self.copies = [], []
        self.refusals, self.came = 0, threading.Semaphore(0)
        self.client = Client(
            self.connect, ["server 1"], np.zeros(4, np.uint32), 1, 1, 1,
            timeout_s=LIMIT_S, failover_s=failover_s,
        )  # fmt: skip
        self.client.start()
        acquired(self.came, "a connection")

    def connect(self, shard):
        if self.refusals:
            self.refusals -= 1
            raise ConnectionRefusedError("down")
        near, far = socket.socketpair()
        near.setblocking(False)
        self.copies.append(near.dup())  # as a fork of this process has it
        self.far.append(far)
        self.came.release()
        return near.detach()

    def cut(self, refusals=0):
        """Cuts the connection; so many tries to make another one are refused."""
        self.refusals = refusals
        self.far[-1].close()

    def lose(self):
        """Cuts the connection, and waits for another one."""
        self.cut()
        acquired(self.came, "another connection")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.client.close()
        for sock in [*self.far, *self.copies]:
            sock.close()


def test_client_that_asks_nothing_outlives_any_number_of_cuts():
    with Pairs(failover_s=0.0) as pairs:
        for _ in range(12):
            pairs.lose()


def watched_here():
    """What event loops of this process watch, as the system tells it."""
    watched = ""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - that of the folder itself goes
        with contextlib.suppress(FileNotFoundError):
            if "eventpoll" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115
                watched += Path(f"/proc/self/fdinfo/{name}").read_text()
    return watched


def test_lost_connection_of_which_a_fork_has_a_copy_is_closed_and_watched_no_more():
    with Pairs(failover_s=0.0) as pairs:
        pairs.far[0].send(bytes(64))  # no frame: the client ends the connection
        acquired(pairs.came, "another connection")
        pairs.far[0].settimeout(LIMIT_S)
        assert pairs.far[0].recv(1) == b""
        lost, present = (f"ino:{os.fstat(copy.fileno()).st_ino:x} " for copy in pairs.copies)
        # It was made, and is taken in next.
        watched = until(lambda: present in (now := watched_here()) and now, "the connection")
        assert lost not in watched  # else the client's thread would never sleep again


def test_close_ends_a_connection_of_which_a_fork_has_a_copy():
    with Pairs(failover_s=0.0) as pairs:
        pairs.far[0].settimeout(LIMIT_S)
        pairs.client.close()
        assert pairs.far[0].recv(1) == b""


def outlives(patience_s):
    """Whether a client is there when its first loss is longer ago than its patience, and a second
    one costs two refusals; None: these took longer than its patience, too."""
    with Pairs(patience_s) as pairs:
        pairs.lose()
        time.sleep(1.1 * patience_s)
        begun = time.monotonic()
        pairs.cut(refusals=2)
        until(lambda: pairs.refusals < 2, "a refusal")  # the loss was noticed: nothing was asked
        asked = pairs.client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
        came = False

        def is_decided():
            nonlocal came
            came = came or pairs.came.acquire(blocking=False)
            return came or asked.done

        until(is_decided, "another connection, or the end of the client")
        return None if not came and time.monotonic() - begun > patience_s else came


def test_client_that_asks_nothing_has_all_its_patience_at_the_second_loss():
    patience_s = 0.25
    while (outlived := outlives(patience_s)) is None:
        patience_s *= 2
    assert outlived


def test_error_about_the_whole_connection_ends_the_client_with_its_words(one):
    def serve(wire):
        wire.next()
        wire.send(error_frame(ProtocolError("speak version 2", "version")))

    with Script(serve) as script:
        client = script.client(one)
        with pytest.raises(ConnectionLost, match="pull of 1 rows of table 1: speak version 2"):
            pull(client, u64([1]), 4)


def test_wait_keeps_its_limit_while_other_requests_are_answered(one):
    def serve(wire):
        while True:
            frame = wire.next()
            if frame.table != 2:
                wire.send(answer(frame))

    with Script(serve) as script:
        client = script.client(one)
        slow = client.pull_async(2, u64([1]), np.zeros((1, 4), np.float32))
        pull(client, u64([1]), 4)  # it is answered: so the one before it was sent
        over = threading.Event()

        def busy():
            while not over.is_set():
                pull(client, u64([1]), 4)

        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"pull of 1 rows of table 2 .* shard 0 \(1 parts"):
            slow.wait(0.3)
        assert time.monotonic() - begin >= 0.3
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not slow.done


def test_request_that_timed_out_is_still_served(one):
    def serve(wire):
        frame = wire.next()
        late.wait(LIMIT_S)
        wire.send(answer(frame, value=7.0))

    late = threading.Event()
    with Script(serve) as script:
        client = script.client(one, timeout_s=0.01)
        pending = client.pull_async(1, u64([1]), np.zeros((1, 4), np.float32))
        with pytest.raises(WaitTimeout):
            pending.wait()
        late.set()
        assert pending.wait(LIMIT_S)[0, 0] == 7.0


def test_blocked_sending_never_stops_receiving(one):
    """The shard reads nothing more until its replies to what it has read were all taken."""

    def serve(wire):
        pulls = [wire.next() for _ in range(64)]
        for frame in pulls:  # 16 MiB of replies, while 32 MiB of pushes wait to be read
            wire.send(answer(frame, value=1.0, dim=65_536))
        for _ in range(128):
            wire.send(answer(wire.next()))

    with Script(serve) as script:
        client = script.client(one)
        rows = np.zeros((1, 65_536), np.float32)
        pulls = [client.pull_async(1, u64([i]), rows.copy()) for i in range(64)]
        pushes = [client.push_async(1, u64([i]), rows) for i in range(128)]
        assert all(each.wait().all() for each in pulls)
        for each in pushes:
            each.wait()


def test_one_request_that_waits_long_holds_up_no_other(one):
    """Far more parts than the window are answered while the very first is not."""

    def serve(wire):
        waiting = wire.next()
        for _ in range(3000):
            wire.send(answer(wire.next()))
        wire.send(answer(waiting, value=5.0))

    with Script(serve) as script:
        client = script.client(one)
        first = client.pull_async(1, u64([0]), np.zeros((1, 4), np.float32))
        for _ in range(3000):
            client.push_async(1, u64([1]), ROWS)
        client.flush()
        assert first.wait()[0, 0] == 5.0


# --- another route -------------------------------------------------------------------------------


def test_connection_dialled_under_an_older_route_is_not_used(cluster):
    """The port of a shard that moved may be given to a standby, which lets requests wait."""
    client, home = cluster.client(), cluster.ports[0]
    _, elsewhere = cluster.standby()
    dialled, may_go, usual = threading.Event(), threading.Event(), cluster.connect

    def connect(index, incarnation=1):
        late = cluster.ports[0] == elsewhere
        fd = usual(index, incarnation)
        if late:
            dialled.set()
            assert may_go.wait(LIMIT_S)
        return fd

    cluster.connect, cluster.ports[0] = connect, elsewhere
    client.cut(0)
    assert dialled.wait(LIMIT_S)
    cluster.take_route(2)
    cluster.reroute(home)
    client.cut(0)
    may_go.set()
    assert pull(client, u64([1]), 4).shape == (1, 4)
