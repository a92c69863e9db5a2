"""A shard over real sockets: its frames, who waits, who is refused, and that nobody is starved."""

import json
import os
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from shards import (
    ADAGRAD,
    ADD,
    FRAG_NUM,
    JOB,
    LIMIT_S,
    SGD,
    UNIFORM,
    ZEROS,
    Raw,
    Shards,
    pull_frame,
    push_frame,
    scan_frame,
)

from snailps import kernels
from snailps.errors import ConnectionLost, MisuseError, ProtocolError, RemoteError
from snailps.roles._shard import ShardThread
from snailps.store.route import fragment_of
from snailps.transport.frame import (
    DATA_BODY_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Frame,
    Kind,
    encode_frame,
)
from snailps.transport.session import Channel, Hello, Role, ServerSession, remote_error


@pytest.fixture
def shard():
    with Shards(1) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


NO_ROWS = struct.pack("<QII", 0, 0, 4)


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


# --- bodies --------------------------------------------------------------------------------------


def test_push_then_pull_gives_the_row_and_the_mark(shard):
    a, b = keys_of(3, 2)
    (c,) = keys_of(9, 1)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with shard.raw() as one:
        pushed = one.ask(push_frame({3: [a, b], 9: [c]}, values, seq=5, request=77))
        assert pushed == Frame(Kind.PUSHED, request=77)
        pulled = one.ask(pull_frame({3: [b], 9: [c], 11: []}, request=78))
        marks, rows = rows_of(pulled, 3, 2, 4)
    assert pulled.request == 78
    assert marks == [5, 5, 0]
    assert np.array_equal(rows, values[1:])
    assert shard.stats("rows") == 3


def test_pull_of_nothing_is_answered(shard):
    with shard.raw() as one:
        assert one.ask(pull_frame({})) == Frame(Kind.PULLED, b"", request=1)


def test_pull_never_changes_the_store(shard):
    with shard.raw() as one:
        one.ask(pull_frame({3: keys_of(3, 2)}))
    assert shard.stats("rows") == 0


@pytest.mark.parametrize("dim", [1, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_bodies_of_odd_length_are_padded_to_eight(dim, n):
    with Shards(1) as shard:
        shard.add_table(1, dim, ADD, ZEROS)
        keys = keys_of(3, n)
        values = np.arange(1, n * dim + 1, dtype=np.float32).reshape(n, dim)
        with shard.raw() as one:
            one.ask(push_frame({3: keys}, values))
            pulled = one.ask(pull_frame({3: keys}, dim=dim))
            scanned = one.ask(scan_frame(3))
    assert np.array_equal(rows_of(pulled, 1, n, dim)[1], values)
    assert len(scanned.body) == (16 + 8 * n + 4 * n * dim + 7) // 8 * 8
    assert np.array_equal(
        np.frombuffer(scanned.body, "<f4", n * dim, 16 + 8 * n).reshape(n, dim), values
    )
    for frame, used in ((pulled, 8 + 4 * n * dim), (scanned, 16 + 8 * n + 4 * n * dim)):
        assert not any(frame.body[used:])


def test_repeated_push_has_no_effect_and_is_answered_the_same(shard):
    keys = keys_of(3, 2)
    ones = np.ones((2, 4), np.float32)
    with shard.raw() as one:
        first = one.ask(push_frame({3: keys}, ones, seq=5, request=1))
        again = one.ask(push_frame({3: keys}, ones, seq=5, request=1))
        lower = one.ask(push_frame({3: keys}, ones, seq=4, request=1))
        assert first == again == lower
        _, rows = rows_of(one.ask(pull_frame({3: keys})), 1, 2, 4)
    assert np.array_equal(rows, ones)
    assert shard.stats("repeated") == 2
    assert shard.stats("rows_pushed") == 2


def test_marks_are_kept_by_fragment_and_by_incarnation(shard):
    (a,), (b,) = keys_of(3, 1), keys_of(4, 1)
    one_row, two_rows = np.ones((1, 4), np.float32), np.ones((2, 4), np.float32)
    with shard.raw() as one:
        one.ask(push_frame({3: [a]}, one_row, seq=5))
        one.ask(push_frame({3: [a], 4: [b]}, two_rows, seq=5))  # 3 has it already, 4 has not
        one.ask(push_frame({3: [a]}, one_row, seq=5, incarnation=2))
        marks, rows = rows_of(one.ask(pull_frame({3: [a], 4: [b]})), 2, 2, 4)
        others, _ = rows_of(one.ask(pull_frame({3: [a], 4: [b]}, incarnation=2)), 2, 2, 4)
    assert marks == [5, 5]
    assert others == [5, 0]
    assert rows[:, 0].tolist() == [2.0, 1.0]


def test_push_of_many_small_groups_is_applied_in_full():
    """Few keys a fragment take the path that fetches ahead."""
    with Shards(1, frag_num=1024) as shard:
        shard.add_table(1, 2, ADD, ZEROS)
        keys = np.arange(3000, dtype=np.uint64)
        groups = {}
        for key, fragment in zip(keys.tolist(), fragment_of(keys, 1024).tolist(), strict=True):
            groups.setdefault(fragment, []).append(key)
        groups = dict(sorted(groups.items()))
        order = [key for of_one in groups.values() for key in of_one]
        values = np.array([[key, -key] for key in order], np.float32)
        with shard.raw() as one:
            assert one.ask(push_frame(groups, values)).kind == Kind.PUSHED
            _, rows = rows_of(one.ask(pull_frame(groups, dim=2)), len(groups), 3000, 2)
    assert np.array_equal(rows, values)


@pytest.mark.parametrize(("access", "expected"), [(ADD, 2.0), (SGD, -1.0), (ADAGRAD, -0.5)])
def test_push_does_what_the_access_method_says(access, expected):
    with Shards(1) as shard:
        shard.add_table(1, 1, access, ZEROS, lr=0.5)
        (key,) = keys_of(3, 1)
        with shard.raw() as one:
            one.ask(push_frame({3: [key]}, [[2.0]]))
            _, rows = rows_of(one.ask(pull_frame({3: [key]}, dim=1)), 1, 1, 1)
    assert rows[0, 0] == pytest.approx(expected, abs=1e-6)


def test_first_values_do_not_depend_on_the_shard_or_the_order():
    rows = []
    for count in (1, 4):
        with Shards(count) as shards:
            shards.add_table(1, 8, ADD, UNIFORM, scale=0.5, seed=11)
            keys = np.arange(1000, dtype=np.uint64)[:: 1 if count == 1 else -1]
            out = np.empty((1000, 8), np.float32)
            shards.client().pull_async(1, keys, out).wait()
            rows.append(out[:: 1 if count == 1 else -1])
    assert np.array_equal(rows[0], rows[1])
    assert np.abs(rows[0]).max() <= 0.5
    assert len(np.unique(rows[0])) > 7900


# --- scan ----------------------------------------------------------------------------------------


def test_scan_gives_every_row_once_in_pieces(shard):
    keys = keys_of(3, 10)
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    with shard.raw() as one:
        one.ask(push_frame({3: keys}, values))
        cursor, found, rows = 0, [], []
        while True:
            body = one.ask(scan_frame(3, cursor, keys_max=3)).body
            cursor, n = struct.unpack_from("<QI", body)
            assert n <= 3
            found += np.frombuffer(body, "<u8", n, 16).tolist()
            rows += np.frombuffer(body, "<f4", 4 * n, 16 + 8 * n).reshape(n, 4).tolist()
            if cursor == 0:
                break
    assert found == keys
    assert rows == values.tolist()


def test_scan_of_an_empty_fragment_ends_at_once(shard):
    with shard.raw() as one:
        assert one.ask(scan_frame(3)).body == NO_ROWS


@pytest.mark.parametrize("cursor", [11, 2**32, 2**32 + 5, 2**64 - 1])
def test_scan_from_a_position_that_is_not_there_ends_at_once(shard, cursor):
    with shard.raw() as one:
        one.ask(push_frame({3: keys_of(3, 10)}, np.ones((10, 4))))
        assert one.ask(scan_frame(3, cursor)).body == NO_ROWS


# --- what is refused, the connection going on ----------------------------------------------------


def corrupt(frame, at, data):
    return Frame(
        frame.kind,
        frame.body[:at] + data + frame.body[at + len(data) :],
        frame.table, frame.epoch, frame.job, frame.incarnation, frame.request,
    )  # fmt: skip


def bad_requests():
    a, b = keys_of(3, 2)
    pull, push = pull_frame({3: [a, b]}), push_frame({3: [a, b]}, np.ones((2, 4)))
    return {
        "no table": (pull_frame({3: [a]}, table=9), "table"),
        "no table, huge number": (pull_frame({3: [a]}, table=2**32 - 1), "table"),
        "empty pull body": (Frame(Kind.PULL, b"", 1, 1, JOB, 1, 1), "length"),
        "empty push body": (Frame(Kind.PUSH, b"", 1, 1, JOB, 1, 1), "length"),
        "short body": (Frame(Kind.PULL, bytes(16), 1, 1, JOB, 1, 1), "length"),
        "more keys than body": (corrupt(pull, 8, b"\x03"), "length"),
        "keys beyond counting": (corrupt(pull, 8, b"\xff\xff\xff\xff"), "length"),
        "groups beyond counting": (corrupt(pull, 12, b"\xff\xff\xff\xff"), "length"),
        "both beyond counting": (corrupt(push, 8, b"\xff" * 8), "length"),
        "group larger than all": (corrupt(pull, 28, b"\x09"), "length"),
        "group larger than can be": (corrupt(pull, 28, b"\xff\xff\xff\xff"), "length"),
        "group smaller than all": (corrupt(pull, 28, b"\x01"), "length"),
        "no such fragment": (corrupt(pull, 24, b"\x40"), "stale-route"),
        "fragment beyond counting": (corrupt(pull, 24, b"\xff\xff\xff\xff"), "stale-route"),
        "key of another fragment": (corrupt(pull, 24, b"\x04"), "fragment"),
        "pushed to another fragment": (corrupt(push, 24, b"\x04"), "fragment"),
        "fragment twice": (corrupt(pull_frame({3: [a], 4: []}), 32, b"\x03"), "order"),
        "fragments out of order": (pull_frame({4: [], 3: [a]}), "order"),
        "push without a number": (push_frame({3: [a]}, np.ones((1, 4)), seq=0), "seq"),
        "push of nobody": (push_frame({3: [a]}, np.ones((1, 4)), incarnation=0), "seq"),
        "pull of narrow rows": (pull_frame({3: [a]}, dim=3), "dim"),
        "pull of wide rows": (pull_frame({3: [a]}, dim=2**32 - 1), "dim"),
        "push of narrow rows": (push_frame({3: [a]}, np.ones((1, 3))), "dim"),
        "push of wide rows": (push_frame({3: [a]}, np.ones((1, 5))), "dim"),
        "rows that are not there": (
            corrupt(push_frame({3: [a]}, np.ones((1, 2))), 16, b"\x04"),
            "length",
        ),
        "long scan": (Frame(Kind.SCAN, bytes(24), 1, 1, JOB, 1, 1), "length"),
        "scan of nothing": (scan_frame(3, keys_max=0), "length"),
        "scan of no fragment": (scan_frame(64), "stale-route"),
        "another job": (pull_frame({3: [a]}, job=8), "job"),
    }


@pytest.mark.parametrize("name", list(bad_requests()))
def test_bad_request_is_refused_and_the_connection_goes_on(shard, name):
    frame, code = bad_requests()[name]
    (key,) = keys_of(5, 1)
    with shard.raw() as one:
        reply = one.ask(frame)
        error = error_of(reply)
        assert (error.code, reply.request) == (code, 1)
        assert str(error)
        assert one.ask(pull_frame({5: [key]}, request=2)).kind == Kind.PULLED
    assert shard.stats("rows") == 0


def test_pull_whose_reply_would_be_too_long_is_refused():
    with Shards(1) as shard:
        shard.add_table(1, 65_536, ADD, ZEROS)
        keys = keys_of(3, 4)
        with shard.raw() as one:
            assert one.ask(pull_frame({3: keys[:3]}, dim=65536)).kind == Kind.PULLED
            assert error_of(one.ask(pull_frame({3: keys}, dim=65536))).code == "too-long"


def test_fragment_of_another_shard_is_refused():
    with Shards(2) as shards:
        shards.add_table()
        theirs = int(shards.route.fragments_of(1)[0])
        with shards.raw(0) as one:
            error = error_of(one.ask(pull_frame({theirs: keys_of(theirs, 1)})))
    assert error.code == "stale-route"
    assert "epoch 1" in str(error)


def test_table_with_rows_too_wide_to_travel_is_refused():
    with Shards(1) as shard:
        shard.add_table(1, 65_536)
        with pytest.raises(MisuseError, match="65,537 floats"):
            shard.add_table(2, 65_537)


# --- what is refused, the connection closed ------------------------------------------------------


def head(kind=16, **changed):
    fields = {
        "magic": MAGIC, "version": 1, "kind": kind, "flags": 0, "table": 0, "epoch": 0,
        "job": 0, "incarnation": 0, "request": 9, "body_bytes": 0, **changed,
    }  # fmt: skip
    return HEADER.pack(*fields.values())


BAD_HEADERS = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), "magic"),
    "version": (head(version=2), "version"),
    "kind 0": (head(0), "kind"),
    "kind 200": (head(200), "kind"),
    "flag": (head(flags=2), "flag"),
    "packed": (head(flags=1), "flag"),
    "control kind": (head(32), "kind"),
    "reply kind": (head(17), "kind"),
    "unaligned": (head(body_bytes=9) + bytes(9), "length"),
    "oversize": (head(18, body_bytes=DATA_BODY_MAX + 8), "too-long"),
    "beyond counting": (head(18, body_bytes=2**64 - 8), "too-long"),
}


@pytest.mark.parametrize("name", list(BAD_HEADERS))
def test_bad_header_is_answered_closed_and_harms_nobody(shard, name):
    data, code = BAD_HEADERS[name]
    (key,) = keys_of(5, 1)
    with shard.raw() as one, shard.raw() as other:
        one.sock.sendall(data)
        assert error_of(one.next()).code == code
        assert one.next() is None
        assert other.ask(pull_frame({5: [key]})).kind == Kind.PULLED
    assert shard.stats("refused") == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "magic"),
        (b"abcd", "magic"),
        (head(1, version=9), "version"),
        (head(16), "kind"),
        (head(1, body_bytes=5000), "too-long"),
        (head(1), "handshake"),
        (head(2), "handshake"),
        (head(4), "handshake"),
    ],
)
def test_bad_handshake_is_answered_and_closed(shard, data, code):
    with shard.raw(shake=False) as one:
        one.sock.sendall(data)
        assert error_of(one.next()).code == code
        assert one.next() is None


def test_reason_reaches_a_peer_that_goes_on_sending(shard):
    """Bytes that nobody will read must not reset the connection before the reason is read."""
    with shard.raw(shake=False) as one:
        one.sock.sendall(b"x" * (1 << 20))
        assert error_of(one.next()).code == "magic"


def test_handshake_fed_byte_by_byte_works(shard):
    (key,) = keys_of(5, 1)
    with shard.raw(shake=False) as one:
        send = one.sock.sendall

        class Slowly:
            def sendall(self, data):
                for i in range(len(data)):
                    send(data[i : i + 1])

            def __getattr__(self, name):
                return getattr(real, name)

        real, one.sock = one.sock, Slowly()
        again = Raw.__new__(Raw)
        again.sock, again.decoder, again.frames = one.sock, one.decoder, []
        shake(again)
        assert again.ask(pull_frame({5: [key]})).kind == Kind.PULLED


def shake(one, secret=b""):
    from snailps.transport.session import ClientSession

    session = ClientSession(Hello(Channel.DATA, Role.WORKER, b"n" * 16, 1, 1, JOB), secret)
    one.send(session.start())
    while not session.ready:
        answer = session.receive(one.next())
        if answer is not None:
            one.send(answer)


def test_requests_sent_together_with_the_proof_are_served(shard):
    """The handshake's frames are of odd length: what follows must still be aligned."""
    from snailps.transport.session import ClientSession

    (key,) = keys_of(5, 1)
    with shard.raw(shake=False) as one:
        session = ClientSession(
            Hello(Channel.DATA, Role.WORKER, b"n" * 16, 1, 1, JOB, agent="12345")
        )
        one.send(session.start())
        proof = session.receive(one.next())
        one.send(
            proof,
            push_frame({5: [key]}, np.full((1, 4), 3.0)),
            pull_frame({5: [key]}, request=2),
        )
        assert one.next().kind == Kind.READY
        assert one.next().kind == Kind.PUSHED
        assert rows_of(one.next(), 1, 1, 4)[1].tolist() == [[3.0] * 4]


def test_wrong_secret_is_refused_on_both_sides():
    with Shards(1, secret=b"right") as shard:
        for secret in (b"wrong", b""):
            with pytest.raises(ProtocolError, match="secret"):
                Raw(shard.ports[0], secret)
        with shard.raw(shake=False) as one:
            one.send(Hello(Channel.DATA, Role.WORKER, b"n" * 16, 1, 1, JOB).to_frame())
            one.next()
            one.send(Frame(Kind.PROOF, bytes(32)))
            assert error_of(one.next()).code == "secret"
        with shard.raw():
            pass


def test_peer_that_is_not_admitted_is_told_why(shard):
    shard.refuse = ProtocolError("you belong to another cluster \u4e2d", "job")
    with pytest.raises(RemoteError, match="another cluster \u4e2d"):
        shard.raw()


def test_session_that_fails_is_answered_and_harms_nobody(shard):
    shard.refuse = ZeroDivisionError("a bug")
    with pytest.raises(RemoteError, match="handshake failed: ZeroDivisionError"):
        shard.raw()
    shard.refuse = None
    with shard.raw():
        pass


@pytest.mark.parametrize("length", [1, 3, 4, 47, 48, 49, 100, 0])
def test_half_a_frame_and_then_nothing_blocks_nobody(shard, length):
    (key,) = keys_of(5, 1)
    data = encode_frame(push_frame({5: [key]}, np.ones((1, 4))))
    with shard.raw() as half, shard.raw() as other:
        half.sock.sendall(data[:length])
        assert other.ask(pull_frame({5: [key]})).kind == Kind.PULLED
        half.sock.sendall(data[length:])
        assert half.next().kind == Kind.PUSHED
    with shard.raw() as half:
        half.sock.sendall(data[:length])
    shard.until("connections", lambda n: n == 0)
    assert shard.stats("rows") == 1


def test_frames_fed_byte_by_byte_are_served(shard):
    (key,) = keys_of(5, 1)
    frames = [push_frame({5: [key]}, np.ones((1, 4)), seq=i, request=i) for i in range(1, 4)]
    with shard.raw() as one:
        for byte in b"".join(encode_frame(frame) for frame in frames):
            one.sock.sendall(bytes([byte]))
        assert [one.next().request for _ in range(3)] == [1, 2, 3]


def test_heartbeats_on_a_data_connection_are_ignored(shard):
    (key,) = keys_of(5, 1)
    with shard.raw() as one:
        one.send(Frame(Kind.HEARTBEAT), Frame(Kind.HEARTBEAT))
        assert one.ask(pull_frame({5: [key]})).kind == Kind.PULLED


# --- parking -------------------------------------------------------------------------------------


def test_request_of_a_newer_route_waits_for_that_route():
    with Shards(1, routed=False) as shard:
        shard.add_table(1, 4, ADD, ZEROS)
        (key,) = keys_of(5, 1)
        with shard.raw() as one, shard.raw() as other:
            one.send(push_frame({5: [key]}, np.ones((1, 4)), epoch=1))
            one.send(pull_frame({5: [key]}, request=2, epoch=1))
            shard.until("parked", lambda n: n == 2)
            assert error_of(other.ask(pull_frame({5: [key]}, epoch=0))).code == "stale-route"
            shard.take_route(1)
            assert one.next() == Frame(Kind.PUSHED, request=1)
            assert rows_of(one.next(), 1, 1, 4)[1].tolist() == [[1.0] * 4]
        assert shard.stats("parked") == 0


def test_request_that_waits_too_long_is_told_for_what():
    with Shards(1, park_limit_s=0.05) as shard:
        shard.add_table()
        with shard.raw() as one:
            error = error_of(one.ask(pull_frame({5: keys_of(5, 1)}, epoch=2, request=33)))
            assert error.code == "timeout"
            assert "the master has yet to send it" in str(error)
            assert one.ask(pull_frame({5: keys_of(5, 1)})).kind == Kind.PULLED
        assert shard.stats("parked") == 0


def test_parked_pull_does_not_block_its_connection(shard):
    (key,) = keys_of(5, 1)
    with shard.raw() as one:
        one.send(pull_frame({5: [key]}, request=1, epoch=2))
        assert one.ask(push_frame({5: [key]}, np.ones((1, 4)), request=2)).request == 2
        assert one.ask(pull_frame({5: [key]}, request=3)).request == 3
        shard.take_route(2)
        assert one.next().request == 1


def test_push_never_overtakes_a_parked_push_of_its_connection(shard):
    """Overtaken, the earlier one would come second, count as repeated, and be lost."""
    (key,) = keys_of(5, 1)
    with shard.raw() as one:
        one.send(push_frame({5: [key]}, np.full((1, 4), 1.0), seq=1, request=1, epoch=2))
        one.send(push_frame({5: [key]}, np.full((1, 4), 2.0), seq=2, request=2, epoch=1))
        one.send(pull_frame({5: [key]}, request=3, epoch=1))
        shard.until("parked", lambda n: n == 3)
        shard.take_route(2)
        assert [one.next().request for _ in range(2)] == [1, 2]
        assert rows_of(one.next(), 1, 1, 4)[1].tolist() == [[3.0] * 4]
    assert shard.stats("repeated") == 0


def test_many_pushes_that_race_with_a_new_route_are_all_applied():
    """The route comes at any moment of a stream of pushes that some time need it."""
    (key,) = keys_of(5, 1)
    for turn in range(20):
        with Shards(1, routed=False) as shard:
            shard.add_table(1, 4, ADD, ZEROS)
            with shard.raw() as one:
                comes = threading.Thread(target=shard.take_route, args=(1,))
                for seq in range(1, 101):
                    if seq == 5 * turn + 1:
                        comes.start()
                    one.send(push_frame({5: [key]}, np.ones((1, 4)), seq=seq, request=seq))
                assert [one.next().request for _ in range(100)] == list(range(1, 101))
                comes.join(LIMIT_S)
                _, rows = rows_of(one.ask(pull_frame({5: [key]})), 1, 1, 4)
            assert rows[0, 0] == 100
            assert shard.stats("repeated") == 0


def test_timed_out_push_lets_those_behind_it_go_on():
    with Shards(1, park_limit_s=0.05) as shard:
        shard.add_table(1, 4, ADD, ZEROS)
        (key,) = keys_of(5, 1)
        with shard.raw() as one:
            one.send(push_frame({5: [key]}, np.ones((1, 4)), seq=1, request=1, epoch=2))
            one.send(push_frame({5: [key]}, np.ones((1, 4)), seq=2, request=2, epoch=1))
            replies = {frame.request: frame.kind for frame in (one.next(), one.next())}
            assert replies[1] == Kind.ERROR
            _, rows = rows_of(one.ask(pull_frame({5: [key]}, request=3)), 1, 1, 4)
            # Behind it, the second either had its turn or reached the same limit; it never
            # half-happened.
            assert rows[0, 0] == (1.0 if replies[2] == Kind.PUSHED else 0.0)


def test_parked_requests_of_a_lost_connection_are_dropped(shard):
    (key,) = keys_of(5, 1)
    with shard.raw() as one, shard.raw() as other:
        one.send(*[pull_frame({5: [key]}, request=i, epoch=2) for i in range(1, 51)])
        other.send(pull_frame({5: [key]}, request=99, epoch=2))
        shard.until("parked", lambda n: n == 51)
        one.sock.close()
        shard.until("parked", lambda n: n == 1)
        shard.take_route(2)
        assert other.next().request == 99


def test_parked_bytes_of_a_connection_are_bounded_and_none_is_lost():
    """Beyond 16 MiB the connection is not read until some have been answered."""
    with Shards(1, routed=False) as shard:
        shard.add_table(1, 65_536, ADD, ZEROS)
        (key,) = keys_of(5, 1)
        value = np.ones((1, 65_536), np.float32)
        with shard.raw() as one:
            frames = [push_frame({5: [key]}, value, seq=i, request=i) for i in range(1, 121)]
            sender = threading.Thread(target=one.send, args=frames)  # 30 MiB: it will block
            sender.start()
            shard.until("parked", lambda n: n >= 60)
            assert shard.stats("parked") <= 65
            shard.take_route(1)
            assert [one.next().request for _ in range(120)] == list(range(1, 121))
            sender.join(LIMIT_S)
            _, rows = rows_of(one.ask(pull_frame({5: [key]}, dim=65536)), 1, 1, 65_536)
    assert np.array_equal(rows, 120 * value)


# --- many at once --------------------------------------------------------------------------------


def test_stalled_reader_is_not_served_ahead_and_loses_nothing():
    with Shards(1) as shard:
        shard.add_table(1, 65_536, ADD, UNIFORM)  # 256 KiB a row
        (key,) = keys_of(5, 1)
        with shard.raw() as stalled, shard.raw() as other:
            before = shard.stats("frames_in")
            stalled.send(*[pull_frame({5: [key]}, request=i, dim=65536) for i in range(1, 401)])
            rows_of(other.ask(pull_frame({5: [key]}, request=1, dim=65536)), 1, 1, 65_536)
            sent_b = -1  # until what the kernel takes has been taken
            while sent_b != shard.stats("bytes_out"):
                sent_b = shard.stats("bytes_out")
                rows_of(other.ask(pull_frame({5: [key]}, request=1, dim=65536)), 1, 1, 65_536)
                sent_b += HEADER_BYTES + 8 + 4 * 65_536
            assert shard.stats("frames_in") - before < 300
            got = [stalled.next() for _ in range(400)]
        assert [frame.request for frame in got] == list(range(1, 401))
        assert len({frame.body for frame in got}) == 1


def test_small_pulls_make_progress_while_another_connection_pulls_without_end():
    with Shards(1) as shard:
        shard.add_table(1, 65_536, ADD, UNIFORM)
        shard.add_table(2, 4, ADD, UNIFORM)
        (key,) = keys_of(5, 1)
        enough, greedy_got = threading.Event(), []
        with shard.raw() as greedy, shard.raw() as small:

            def pull_greedily():
                request = 64
                greedy.send(*[pull_frame({5: [key]}, request=i, dim=65_536) for i in range(1, 65)])
                while not enough.is_set():
                    greedy_got.append(greedy.next().request)
                    request += 1
                    greedy.send(pull_frame({5: [key]}, request=request, dim=65_536))

            thread = threading.Thread(target=pull_greedily)
            thread.start()
            shard.until("frames_in", lambda n: n > 100)
            for i in range(1, 301):
                assert small.ask(pull_frame({5: [key]}, request=i, table=2)).request == i
            enough.set()
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert greedy_got == list(range(1, len(greedy_got) + 1))


def test_turn_ends_before_a_long_queue_of_one_connection_does():
    """Both queues are full of work when the loop looks: the answers interleave."""
    with Shards(1) as shard:
        shard.add_table(1, 16_384, ADD, UNIFORM)  # 64 KiB a row: 16 of them are a turn
        (key,) = keys_of(5, 1)
        with shard.raw() as first, shard.raw() as second:
            hold = threading.Event()
            held = threading.Thread(
                target=lambda: shard.threads[0].take_route(_after(hold), range(FRAG_NUM))
            )
            frames = [pull_frame({5: [key]}, request=i, dim=16384) for i in range(1, 201)]
            held.start()
            first.send(*frames)
            second.send(*frames)
            hold.set()
            held.join(LIMIT_S)
            assert [second.next().request for _ in range(200)] == list(range(1, 201))
            assert [first.next().request for _ in range(200)] == list(range(1, 201))


def _after(event):
    event.wait(LIMIT_S)
    return 1


def test_hundreds_of_connections_come_and_go():
    with Shards(1) as shard:
        shard.add_table(1, 4, ADD, ZEROS)
        (key,) = keys_of(5, 1)
        open_ones = [shard.raw() for _ in range(150)]
        order = np.random.default_rng(3).permutation(150)
        for i in order[:100]:
            open_ones[i].sock.close()
        shard.until("connections", lambda n: n == 50)
        fresh = [shard.raw() for _ in range(80)]
        assert shard.stats("connections") == 130
        for request, one in enumerate([*[open_ones[i] for i in order[100:]], *fresh], 1):
            push = push_frame({5: [key]}, np.ones((1, 4)), seq=request, request=request)
            assert one.ask(push).request == request
        for one in [*[open_ones[i] for i in order[100:]], *fresh]:
            one.sock.close()
        shard.until("connections", lambda n: n == 0)
        assert shard.stats("accepted") == 230
        assert shard.stats("rows_pushed") == 130


def test_reset_connection_is_forgotten(shard):
    one = shard.raw()
    one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.sock.close()
    shard.until("connections", lambda n: n == 0)


def test_peer_that_closes_its_sending_side_is_let_go(shard):
    with shard.raw() as one:
        one.sock.shutdown(socket.SHUT_WR)
        assert one.next() is None
    assert shard.stats("connections") == 0


# --- the thread ----------------------------------------------------------------------------------


def make_thread():
    listener = socket.create_server(("127.0.0.1", 0))
    hello = Hello(Channel.DATA, Role.SERVER, os.urandom(16), job=JOB)
    thread = ShardThread(
        listener, lambda: ServerSession(hello), kernels.row_ops(), FRAG_NUM, 1.0, "shard"
    )
    return thread, listener.getsockname()


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_stopped_shard_refuses_connections_and_orders():
    thread, address = make_thread()
    thread.start()
    assert thread.stats()["epoch"] == 0
    assert thread.stop()
    assert thread.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1.0)
    with pytest.raises(ConnectionLost, match="stopped serving"):
        thread.stats()


def test_shard_that_never_started_closes_its_listener():
    before = open_descriptors()
    thread, address = make_thread()
    assert thread.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1.0)
    del thread
    assert open_descriptors() == before


def test_stop_closes_open_connections():
    before = open_descriptors()
    with Shards(1) as shard:
        one = shard.raw()
    assert one.next() is None
    one.sock.close()
    del shard
    assert open_descriptors() == before


def test_order_that_fails_raises_where_it_was_given():
    with Shards(1) as shard:
        shard.add_table(1, 4)
        with pytest.raises(Exception, match="table"):
            shard.add_table(1, 5)
        assert shard.stats("rows") == 0


def test_shard_lives_as_long_as_its_thread():
    """Nobody keeps the ShardThread itself: its loop does."""
    thread, address = make_thread()
    thread.start()
    thread.take_route(1, range(FRAG_NUM))
    thread.add_table(1, 4, ADD, ZEROS, 0.0, 1, (0.0, 0.0, 0.0, 0.0))
    stop = thread.stop
    del thread
    with Raw(address[1]) as one:
        assert one.ask(pull_frame({5: keys_of(5, 1)})).kind == Kind.PULLED
    assert stop()


def test_stats_count_what_happened(shard):
    keys = keys_of(5, 3)
    with shard.raw() as one:
        one.ask(push_frame({5: keys}, np.ones((3, 4))))
        one.ask(pull_frame({5: keys[:2]}))
        one.ask(scan_frame(5))
        one.ask(pull_frame({5: keys}, table=9))
    (stats,) = [thread.stats() for thread in shard.threads]
    expected = {
        "frames_in": 6, "refused": 1, "accepted": 1, "epoch": 1, "pulls": 1, "pushes": 1,
        "repeated": 0, "rows_pulled": 2, "rows_pushed": 3, "rows_scanned": 3, "rows": 3,
    }  # fmt: skip
    assert {name: stats[name] for name in expected} == expected
    assert stats["bytes_in"] > 0 < stats["bytes_out"]


def test_error_bodies_of_the_compiled_side_are_json(shard):
    with shard.raw() as one:
        for frame, code in bad_requests().values():
            fields = json.loads(one.ask(frame).body)
            assert set(fields) == {"code", "text"}
            assert fields["code"] == code
