"""The data bodies of a shard, over real sockets: what is answered and what is refused."""

import struct

import numpy as np
import pytest
from cases import each
from shards import (
    ADD,
    JOB,
    ZEROS,
    Raw,
    Shards,
    error_of,
    keys_of,
    pull_frame,
    push_frame,
    rows_of,
    scan_frame,
)

from snailps import Table
from snailps.abi.key_hash import fragment_of
from snailps.errors import MisuseError, ProtocolError, RemoteError
from snailps.transport.frame import (
    DATA_BODY_MAX,
    HEADER,
    MAGIC,
    VERSION,
    Frame,
    Kind,
    encode_frame,
)
from snailps.transport.handshake import Channel, ClientSession, Hello, Role

NO_ROWS = struct.pack("<QIIII", 0, 4, 0, 4, 0)
"""A SCANNED that goes on at fragment 4."""


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
    assert len(scanned.body) == (24 + 8 * n + 4 * n * dim + 7) // 8 * 8
    assert np.array_equal(
        np.frombuffer(scanned.body, "<f4", n * dim, 24 + 8 * n).reshape(n, dim), values
    )
    for frame, used in ((pulled, 8 + 4 * n * dim), (scanned, 24 + 8 * n + 4 * n * dim)):
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"rows_max": 64, "admit_after": 2}, marks=pytest.mark.needs("retention")),
        pytest.param({"age_max": 900}, marks=pytest.mark.needs("retention")),
    ],
)
def test_pushes_of_many_groups_do_what_pushes_of_one_do(options):
    """Rows are looked up ahead of their turn, across groups: rows made, moved, deleted, passed over
    and pushed twice meanwhile are as if each key was looked up when its turn comes."""
    table = Table("t", 3, access="adagrad", lr=0.5, **options)
    rng = np.random.default_rng(1)
    with Shards(1, frag_num=8) as many, Shards(1, frag_num=8) as single:
        many.declare(table)
        single.declare(table)
        with many.raw() as all_at_once, single.raw() as one_by_one:
            for seq in range(1, 9):
                keys = rng.integers(0, 150 * seq, 400).astype(np.uint64)
                owners = fragment_of(keys, 8)
                keys, owners = keys[np.argsort(owners)], np.sort(owners)
                groups = {f: keys[owners == f].tolist() for f in range(8)}
                values = rng.normal(size=(400, 3)).astype(np.float32)
                done = 3 if seq % 2 else 8  # this fragment has had the push already
                for fragment, some in groups.items():
                    frame = push_frame({fragment: some}, values[owners == fragment], seq)
                    assert one_by_one.ask(frame).kind == Kind.PUSHED
                    if fragment == done:
                        assert all_at_once.ask(frame).kind == Kind.PUSHED
                assert all_at_once.ask(push_frame(groups, values, seq)).kind == Kind.PUSHED
                frames = [one.ask(pull_frame(groups, dim=3)) for one in (all_at_once, one_by_one)]
                assert frames[0].body == frames[1].body
                assert many.stats("rows") == single.stats("rows")


# --- scan ----------------------------------------------------------------------------------------


def test_scan_gives_every_row_once_in_pieces(shard):
    keys = keys_of(3, 10)
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    with shard.raw() as one:
        one.ask(push_frame({3: keys}, values))
        cursor, found, rows = 0, [], []
        while True:
            body = one.ask(scan_frame(3, cursor, keys_max=3)).body
            cursor, fragment, n = struct.unpack_from("<QII", body)
            assert n <= 3
            found += np.frombuffer(body, "<u8", n, 24).tolist()
            rows += np.frombuffer(body, "<f4", 4 * n, 24 + 8 * n).reshape(n, 4).tolist()
            if fragment == 4:
                break
    assert found == keys
    assert rows == values.tolist()


def test_scan_of_several_fragments_goes_through_them_in_order(shard):
    """A reply may end in the midst of a fragment, or with one; empty fragments cost no request."""
    groups = {3: keys_of(3, 5), 7: keys_of(7, 1), 12: keys_of(12, 4), 20: keys_of(20, 3)}
    keys = [key for of_fragment in groups.values() for key in of_fragment]
    with shard.raw() as one:
        one.ask(push_frame(groups, np.ones((13, 4))))
        fragment, cursor, found, places = 0, 0, [], []
        while fragment < 20:
            asked = scan_frame(fragment, cursor, keys_max=3, end=20)
            body = one.ask(asked).body
            cursor, fragment, n = struct.unpack_from("<QII", body)
            found += np.frombuffer(body, "<u8", n, 24).tolist()
            places.append(fragment)
    assert found == keys[:10]
    assert places == [3, 7, 12, 20]


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
        "keys beyond counting": (corrupt(pull, 8, b"\xff\xff\xff\xff"), "too-long"),
        "groups beyond counting": (corrupt(pull, 12, b"\xff\xff\xff\xff"), "length"),
        "both beyond counting": (corrupt(push, 8, b"\xff" * 8), "too-long"),
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
        "push of incarnation 0": (push_frame({3: [a]}, np.ones((1, 4)), incarnation=0), "seq"),
        "pull of narrow rows": (pull_frame({3: [a]}, dim=3), "dim"),
        "pull of wide rows": (pull_frame({3: [a]}, dim=2**32 - 1), "dim"),
        "push of narrow rows": (push_frame({3: [a]}, np.ones((1, 3))), "dim"),
        "push of wide rows": (push_frame({3: [a]}, np.ones((1, 5))), "dim"),
        "rows that are not there": (
            corrupt(push_frame({3: [a]}, np.ones((1, 2))), 16, b"\x04"),
            "length",
        ),
        "wire type 2, which is none": (corrupt(pull, 21, b"\x02"), "option"),
        "unknown option of a pull": (corrupt(pull, 20, b"\x40"), "option"),
        "unknown option of a push": (corrupt(push, 23, b"\x80"), "option"),
        "state of narrow rows": (pull_frame({3: [a]}, dim=5, options=1), "dim"),
        "long scan": (Frame(Kind.SCAN, bytes(32), 1, 1, JOB, 1, 1), "length"),
        "scan that ends before it begins": (scan_frame(3, end=2), "length"),
        "scan of too many fragments": (scan_frame(3, end=2000), "length"),
        "scan that goes beyond the last fragment": (scan_frame(60, end=65), "stale-route"),
        "scan of nothing": (scan_frame(3, keys_max=0), "length"),
        "scan of no fragment": (scan_frame(64), "stale-route"),
        "another job": (pull_frame({3: [a]}, job=8), "job"),
    }


@each("name", bad_requests())
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
        "magic": MAGIC, "version": VERSION, "kind": kind, "flags": 0, "table": 0, "epoch": 0,
        "job": 0, "incarnation": 0, "request": 9, "body_bytes": 0, **changed,
    }  # fmt: skip
    return HEADER.pack(*fields.values())


BAD_HEADERS = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), "magic"),
    "version": (head(version=VERSION + 1), "version"),
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
    """Bytes that will not be read must not reset the connection before the reason is read."""
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
        one.shake(job=JOB)
        assert one.ask(pull_frame({5: [key]})).kind == Kind.PULLED


def test_requests_sent_together_with_the_proof_are_served(shard):
    """The handshake's frames are of odd length: what follows must still be aligned."""
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
