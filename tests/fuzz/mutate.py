"""What the fuzzer sends: a corpus of good frames, and ways to break them.  Sans-IO, seeded.

Random -> handshake, data_frames, control_frames -> bytes
"""

import dataclasses
import struct

import numpy as np
import test_clock_bodies as clocks
import test_product_bodies as products
from shards import pull_frame, push_frame, scan_frame

from snailps.abi.key_hash import fragment_of
from snailps.transport import messages
from snailps.transport.frame import Flag, Frame, Kind, encode_frame
from snailps.transport.handshake import Channel, Hello, Role

EDGES = [
    0, 1, 2, 7, 8, 255, 256, 4095, 4096, 4097, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 1 << 28,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
]  # fmt: skip
HEADER_FIELDS = [("<H", 4), ("<H", 6), ("<I", 8), ("<I", 12)] + [
    ("<Q", at) for at in (16, 24, 32, 40)
]
STRANGER = 1 << 40
"""Incarnation of all who push: marks of honest ones must not rise."""
KEYS = 8
"""Per fragment: few, so that pushes that are still good make few rows."""


def mutated(data, random, times=None):
    """Bytes with one to four things wrong with them."""
    data = bytearray(data)
    for _ in range(times or random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        way = random.randrange(8)
        if way <= 1 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        elif way == 2 and data:
            data[at % len(data)] = random.randrange(256)
        elif way == 3 and len(data) >= 8:
            form = random.choice(("<H", "<I", "<Q"))
            size = struct.calcsize(form)
            at = random.randrange(0, len(data) - size + 1, min(size, 4))
            struct.pack_into(form, data, at, random.choice(EDGES) & ((1 << 8 * size) - 1))
        elif way == 4:
            del data[at:]
        elif way == 5:
            data[at:at] = random.randbytes(random.choice((1, 4, 8, 64)))
        elif way == 6:
            size = random.choice((1, 4, 8, 24))
            del data[at : at + size]
        else:
            size = random.choice((4, 8, 24))
            data[at:at] = data[at : at + size]
    return bytes(data)


def broken_header(data, random):
    """An encoded frame with one field of its header changed."""
    data = bytearray(data)
    form, at = random.choice(HEADER_FIELDS)
    top = (1 << 8 * struct.calcsize(form)) - 1
    value = random.choice((random.choice(EDGES), random.getrandbits(64)))
    struct.pack_into(form, data, at, value & top)
    return bytes(data)


def handshake(random, channel, job, proof=None):
    """A HELLO and a PROOF, at least one of them wrong; the number of frames."""
    channel = random.choice((channel, channel, channel, *Channel))
    hello = Hello(
        channel, random.choice(list(Role)), random.randbytes(16), random.getrandbits(16),
        random.getrandbits(8), random.choice((job, job, 0, 1)),
    )  # fmt: skip
    first = encode_frame(hello.to_frame())
    second = encode_frame(Frame(Kind.PROOF, proof or random.randbytes(32)))
    way = random.randrange(6)
    if way == 0:
        first = mutated(first, random)
    elif way == 1:
        first = broken_header(first, random)
    elif way == 2:
        second = mutated(second, random)
    elif way == 3:
        second = broken_header(second, random)
    elif way == 4:
        packed = struct.pack("<I", random.choice(EDGES) & 0xFFFFFFFF) + random.randbytes(40)
        first = encode_frame(Frame(random.choice(list(Kind)), packed))
        first = first[:6] + struct.pack("<H", int(Flag.PACKED)) + first[8:]
    return first + second, 2


class DataCorpus:
    """Good data frames to begin with, in the job of a live shard."""

    def __init__(self, job, frag_num, table):
        keys = np.arange(4000, dtype=np.uint64)
        of = fragment_of(keys, frag_num)
        self.groups = {
            fragment: keys[of == fragment][:KEYS].tolist() for fragment in range(frag_num)
        }
        few = {f: self.groups[f] for f in range(0, frag_num, 3)}
        n = sum(map(len, few.values()))
        values = np.ones((n, 4), np.float32)
        frames = [
            pull_frame(few), pull_frame(self.groups), pull_frame(few, options=16),
            push_frame(few, values), push_frame({0: self.groups[0]}, values[:KEYS], seq=7),
            push_frame({1: self.groups[1]}, values[:KEYS], seq=8, options=1),
            scan_frame(0), scan_frame(frag_num - 1, cursor=5, keys_max=3),
            clocks.push({0: self.groups[0]}), clocks.pull(), clocks.seal(), clocks.reach(),
            products.forward(), products.forward(floats=4), products.backward(),
            products.forward(counts=(1,) * 8, keys=range(8), values=[1.0] * 8, floats=4, batch=3),
            products.backward(rows=[[1.0] * 4] * 8, floats=4, batch=3, examples=8, count=8),
            *self._narrow(),
            Frame(Kind.HEARTBEAT), Frame(Kind.REPLICATE, bytes(64)), Frame(Kind.PULLED, bytes(16)),
        ]  # fmt: skip
        self._frames = [
            dataclasses.replace(
                frame,
                job=job,
                table=table if frame.table else 0,
                request=number + 1,
                incarnation=STRANGER,
            )
            for number, frame in enumerate(frames)
        ]

    def _narrow(self):
        """Narrow keys, and an option that is reserved."""
        keys = np.array(self.groups[0], np.uint64)
        plain = pull_frame({0: keys.tolist()})
        base = int(keys.min())
        for width in (1, 2, 4, 7):
            narrow = b"".join((int(key) - base).to_bytes(8, "little")[:width] for key in keys)
            body = plain.body[24:32] + struct.pack("<Q", base) + narrow
            yield with_options(plain, width << 12, body + bytes(-len(body) % 8))
        yield with_options(plain, 1 << 3, plain.body[24:] + bytes(8 * len(keys)))

    def frame(self, random):
        """Encoded; its header is good, so that what follows is looked at, too."""
        frame = random.choice(self._frames)
        body = mutated(frame.body, random)
        body += bytes(-len(body) % 8)
        return encode_frame(dataclasses.replace(frame, body=body[: 1 << 20]))

    def broken(self, random):
        """Encoded; the header is wrong, or the length: nothing behind it makes sense."""
        data = encode_frame(random.choice(self._frames))
        return random.choice((mutated, broken_header))(data, random)


class ControlCorpus:
    """Messages that nodes send, with what they carry changed.

    But for those that a member may well end or fill a cluster with: members are trusted.
    """

    def __init__(self):
        self._messages = [
            messages.Ask("status"), messages.Ask("clock"), messages.Lease("train"),
            messages.Summarise(), messages.Leaving("SIGTERM"), messages.Bye({"peak_rss_mb": 1.0}),
            messages.Declare([{"name": "t", "dim": 4}]), messages.Drain(1), messages.Drain(9),
            messages.Finished({"a": 1.0}), messages.Enough(),
            messages.Durable([1, 2, 3]), messages.Ok(), messages.Report({"a": 1}),
        ]  # fmt: skip

    def frame(self, random):
        """Encoded; the header is good, the message is of the right form or not."""
        message = random.choice(self._messages)
        fields = dataclasses.fields(message)
        if fields and random.random() < 0.6:
            field = random.choice(fields)
            message = dataclasses.replace(
                message, **{field.name: _other(getattr(message, field.name), random)}
            )
            body = messages.encode(message)
        else:
            body = mutated(messages.encode(message), random)
        kind = random.choice((Kind.CALL, Kind.CALL, Kind.NOTE, Kind.ANSWER, Kind.ERROR))
        frame = Frame(kind, body, request=random.choice((1, 2, random.getrandbits(64))))
        return encode_frame(frame, pack=random.random() < 0.2)

    def broken(self, random):
        """Encoded; something of the whole is wrong."""
        data = encode_frame(Frame(Kind.CALL, messages.encode(random.choice(self._messages))))
        return random.choice((mutated, broken_header))(data, random)


def with_options(frame, options, rest):
    """A PULL or PUSH with other options and another body behind its GroupHead."""
    return dataclasses.replace(frame, body=frame.body[:20] + struct.pack("<I", options) + rest)


def _other(value, random):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((random.choice(EDGES), -random.choice(EDGES), random.getrandbits(80)))
    if isinstance(value, float):
        return random.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
    if isinstance(value, str):
        return random.choice(
            ("", "x" * 3000, "\x00", "é\u4e2d\ud800", value * 2, "../../x", "%s%n")
        )
    if isinstance(value, bytes):
        return random.randbytes(random.choice((0, 1, 1000)))
    if isinstance(value, list):
        return random.choice(([], [None], value * 100, [_other(v, random) for v in value], [[[]]]))
    if isinstance(value, dict):
        return random.choice(({}, {"": 0}, {k: _other(v, random) for k, v in value.items()}))
    return value
