"""A shard's loop over real sockets: who waits, who is served when, and its thread's life."""

import contextlib
import os
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from blocking_shard import BlockingShard
from shards import (
    ADD,
    FRAG_NUM,
    JOB,
    LIMIT_S,
    UNIFORM,
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

from snailps.abi import loops
from snailps.errors import ConnectionLost
from snailps.transport.frame import (
    HEADER_BYTES,
    Frame,
    Kind,
    encode_frame,
)
from snailps.transport.handshake import Channel, Hello, Role, ServerSession

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
            assert "the master has not sent it" in str(error)
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


def test_many_connections_come_and_go(shard):
    (key,) = keys_of(5, 1)
    open_ones = [shard.raw() for _ in range(90)]
    order = np.random.default_rng(3).permutation(90)
    for i in order[:60]:
        open_ones[i].sock.close()
    shard.until("connections", lambda n: n == 30)
    fresh = [shard.raw() for _ in range(50)]
    assert shard.stats("connections") == 80
    for request, one in enumerate([*[open_ones[i] for i in order[60:]], *fresh], 1):
        push = push_frame({5: [key]}, np.ones((1, 4)), seq=request, request=request)
        assert one.ask(push).request == request
    for one in [*[open_ones[i] for i in order[60:]], *fresh]:
        one.sock.close()
    shard.until("connections", lambda n: n == 0)
    assert shard.stats("accepted") == 140
    assert shard.stats("rows_pushed") == 80


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


# --- half a push ---------------------------------------------------------------------------------


def test_answer_to_a_pull_does_not_wait_for_the_push_behind_it(shard):
    keys = keys_of(0, 200)
    push = encode_frame(push_frame({0: keys}, np.ones((200, 4)), request=2))
    with shard.raw() as one:
        one.sock.settimeout(LIMIT_S)
        one.sock.sendall(encode_frame(pull_frame({0: keys[:50]})) + push[:-8])
        assert one.next().kind == Kind.PULLED
        one.sock.sendall(push[-8:])
        assert one.next() == Frame(Kind.PUSHED, request=2)


def test_answers_to_pushes_come_once_the_next_push_is_whole(shard):
    keys = keys_of(0, 200)
    first, second = (
        encode_frame(push_frame({0: keys}, np.ones((200, 4)), seq=seq, request=seq))
        for seq in (1, 2)
    )
    with shard.raw() as one:
        one.sock.sendall(first + second[:-8])
        shard.until("pushes", lambda pushes: pushes == 1)
        one.sock.sendall(second[-8:])
        assert [one.next().request for _ in range(2)] == [1, 2]


def test_parked_pulls_are_all_answered_behind_half_a_push():
    """More than a socket holds, so that the rest has to wait for room in it."""
    with Shards(1, routed=False) as one:
        one.add_table(1, 65_536, ADD, UNIFORM)
        one.add_table(2, 4, ADD, ZEROS)
        keys = keys_of(0, 60)
        push = encode_frame(push_frame({0: keys}, np.ones((60, 4)), table=2, request=99))
        with one.raw() as raw:
            raw.sock.settimeout(LIMIT_S)
            for number, key in enumerate(keys):
                raw.send(pull_frame({0: [key]}, request=number + 1, dim=65_536))
            raw.sock.sendall(push[:-8])
            one.until("parked", lambda parked: parked == 60)
            one.take_route(1)
            assert {raw.next().request for _ in keys} == set(range(1, 61))
            raw.sock.sendall(push[-8:])
            assert raw.next() == Frame(Kind.PUSHED, request=99)


# --- the thread ----------------------------------------------------------------------------------


def make_thread():
    # An address that no other test uses, so that no other process listens at this port afterwards.
    listener = socket.create_server(("127.0.0.2", 0))
    hello = Hello(Channel.DATA, Role.SERVER, os.urandom(16), job=JOB)
    thread = BlockingShard(
        listener, lambda: ServerSession(hello), loops.row_ops(), loops.wire_ops(), FRAG_NUM,
        1.0, "shard",
    )  # fmt: skip
    return thread, listener.getsockname()


def open_descriptors():
    """What they are, by number: what earlier tests left may be closed at any time."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add((path.name, path.readlink()))
    return found


def test_stopped_shard_refuses_connections_and_orders():
    thread, address = make_thread()
    thread.start()
    assert thread.stats()["epoch"] == 0
    assert thread.stop(LIMIT_S)
    assert thread.stop(LIMIT_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1.0)
    with pytest.raises(ConnectionLost, match="stopped serving"):
        thread.stats()


def test_shard_that_never_started_closes_its_listener():
    before = open_descriptors()
    thread, address = make_thread()
    assert thread.stop(LIMIT_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1.0)
    del thread
    assert open_descriptors() <= before


def test_stop_closes_open_connections():
    before = open_descriptors()
    with Shards(1) as shard:
        one = shard.raw()
    assert one.next() is None
    one.sock.close()
    del shard
    assert open_descriptors() <= before


def test_order_that_fails_raises_where_it_was_given():
    with Shards(1) as shard:
        shard.add_table(1, 4)
        with pytest.raises(Exception, match="table"):
            shard.add_table(1, 5)
        assert shard.stats("rows") == 0


def test_shard_lives_as_long_as_its_thread():
    """Only its loop keeps the thread's object."""
    thread, address = make_thread()
    thread.start()
    thread.take_route(1, range(FRAG_NUM))
    thread.add_table(1, 4, ADD, ZEROS, 0.0, 1, (0.0, 0.0, 0.0, 0.0))
    stop = thread.stop
    del thread
    with Raw(address[1], host=address[0]) as one:
        assert one.ask(pull_frame({5: keys_of(5, 1)})).kind == Kind.PULLED
    assert stop()


def test_stats_count_what_happened(shard):
    keys = keys_of(5, 3)
    with shard.raw() as one:
        one.ask(push_frame({5: keys}, np.ones((3, 4))))
        pulled = one.ask(pull_frame({5: keys[:2]}))
        one.ask(scan_frame(5))
        one.ask(pull_frame({5: keys}, table=9))
    (stats,) = [thread.stats() for thread in shard.threads]
    expected = {
        "frames_in": 6, "refused": 1, "accepted": 1, "epoch": 1, "pulls": 1, "pushes": 1,
        "repeated": 0, "rows_pulled": 2, "rows_pushed": 3, "rows_scanned": 3, "rows": 3,
        "pull_bytes": len(pulled.body),
        "push_bytes": len(push_frame({5: keys}, np.ones((3, 4))).body),
    }  # fmt: skip
    assert {name: stats[name] for name in expected} == expected
    assert stats["bytes_in"] > 0 < stats["bytes_out"]
