"""Broken streams at a standby: it refuses them, and lives.  Under `make sanitize`, too."""

import random
import socket
import struct
import threading

import numpy as np
from fuzz.mutate import mutated
from products import batch
from replicas import Replicas
from shards import ADD, FTRL, LIMIT_S
from without import is_there, where_there

from snailps.api.tables import Table
from snailps.store.checkpoint._sections import FragmentCursor
from snailps.transport.frame import HEADER, HEADER_BYTES

STREAMS = 40


def declare(cluster):
    cluster.add_table(1, 4, ADD, track=1)
    cluster.add_table(2, 6, FTRL, hyper=(0.1, 1.0, 0.1, 0.1))
    cluster.declare(Table("p", 3, access="python_methods:Momentum", lr=0.5), 3)
    limits = where_there("retention", rows_max=160, admit_after=2, admit_bytes=1 << 10)
    cluster.declare(Table("limited", 5, **limits), 4)


def work(cluster):
    """Something of all that is streamed; slot 0 of the clock stays open."""
    client, rng, shard = cluster.client(), np.random.default_rng(1), cluster.threads[0]
    keys = np.arange(60, dtype=np.uint64)
    for table, dim in ((1, 4), (2, 6), (3, 3), (4, 5), (4, 5)):
        client.push(table, keys, np.ones((60, dim), np.float32))
    if is_there("server_products"):
        forward = client.forward_async(1, *batch(rng, 5, 60, 4), 4)
        forward.wait()
        client.backward_async(forward, np.ones((5, 4), np.float32)).wait()
    client.push_async(1, keys, np.ones((60, 4), np.float32), clock=0).wait()
    shard.set_tick(1)
    shard.expire_one(1, 1, 0)
    shard.fence(99)


def restore(cluster):
    """The rows that a shard has, as a checkpoint gives them back."""
    shard, buffer = cluster.threads[0], np.empty(1 << 16, np.uint8)
    _, sections = shard.copy_next(FragmentCursor(shard.fragments()), buffer)
    tables = {number: number for number in (1, 2, 3, 4)}
    shard.clear(list(tables))
    for _, start, length, _ in sections:
        shard.put_section(buffer[start : start + length].copy(), tables)


def recorded():
    """Frames of a stream: what there was, copied, and what came behind it."""
    got = []

    def carry(source, sink, taken):
        while data := source.recv(1 << 16):
            taken.append(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    with Replicas(frag_num=4) as cluster:
        declare(cluster)
        work(cluster)
        near, far = socket.socketpair()
        _, port = cluster.standby()
        with far, socket.socket(fileno=cluster.stream_to(port)) as standby:
            standby.setblocking(True)
            ways = [(far, standby, got), (standby, far, [])]
            carriers = [threading.Thread(target=carry, args=way) for way in ways]
            for carrier in carriers:
                carrier.start()
            shard = cluster.threads[0]
            shard.back_up(near.detach(), sync=True, report=lambda *words: cluster.told.put(words))
            assert cluster.told.get(timeout=LIMIT_S) == ("ready", "")
            work(cluster)
            restore(cluster)
            cluster.settle()
            shard.unback()
            for carrier in carriers:
                carrier.join(LIMIT_S)
    data, frames = b"".join(got), []
    while data:
        fields = HEADER.unpack_from(data)
        end = HEADER_BYTES + fields[-1]
        frames.append(data[:end])
        data = data[end:]
    return frames


def broken(frames, rng):
    """The frames, one of them with another body."""
    frames = list(frames)
    at = rng.randrange(len(frames))
    body = mutated(frames[at][HEADER_BYTES:], rng)
    body += bytes(-len(body) % 8)
    frames[at] = frames[at][: HEADER_BYTES - 8] + struct.pack("<Q", len(body)) + body
    return b"".join(frames)


def test_standby_refuses_broken_streams_and_lives():
    frames, refused = recorded(), 0
    assert len(frames) > 20
    with Replicas(frag_num=4) as cluster:
        declare(cluster)
        for seed in range(STREAMS):
            thread, port = cluster.standby()
            with socket.socket(fileno=cluster.stream_to(port)) as sock:
                sock.settimeout(LIMIT_S)
                sock.sendall(broken(frames, random.Random(seed)))
                sock.shutdown(socket.SHUT_WR)
                said = b""
                while data := sock.recv(1 << 16):
                    said += data
            refused += b'"code":' in said
            assert thread.stats()["replica"]["role"] == "standby"
            assert thread.stop(LIMIT_S)
            cluster.spares.pop()
    assert refused > STREAMS // 4
