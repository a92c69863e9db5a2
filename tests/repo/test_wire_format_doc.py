"""docs/wire_format.md says what the code does: its tables, its limits, its bytes."""

import re
import socket
from pathlib import Path

import numpy as np
import pytest
from shards import ADAGRAD, ADD, JOB, LIMIT_S, ZEROS, Raw, Shards, push_frame
from twins.frame import (
    BATCHES,
    ROW_BYTES_MAX,
    STREAM_BODY_MAX,
    ProductOption,
    Replica,
)

from snailps.abi.key_hash import fragment_of
from snailps.kernels import WIRE_TYPES, wire_ops
from snailps.transport import messages
from snailps.transport.client._client import Client
from snailps.transport.frame import (
    BATCHES_BYTES,
    CONTROL_BODY_MAX,
    DATA_BODY_MAX,
    HANDSHAKE_BODY_MAX,
    HEADER_BYTES,
    PART_BYTES,
    SLOTS_MAX,
    VERSION,
    Frame,
    FrameDecoder,
    Kind,
    Option,
    encode_frame,
)
from snailps.transport.handshake import Channel, Hello, Role
from snailps.transport.messages import codec

DOC = (Path(__file__).resolve().parents[2] / "docs" / "wire_format.md").read_text()


def block(name):
    """The bytes of a hex listing, its remarks left out."""
    listing = re.search(rf"```{name}\n(.*?)```", DOC, re.S).group(1)
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)(?:  .*)?$", listing, re.M)
    data = b""
    for offset, digits in lines:
        assert int(offset, 16) == len(data)
        data += bytes.fromhex(digits)
    return data


def table(first):
    """Rows of the table whose head begins with these cells."""
    rows = DOC.partition(f"| {' | '.join(first)} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_title_names_the_version():
    assert DOC.startswith(f"# Wire format, version {VERSION}\n")


def test_kinds_are_those_of_the_code():
    rows = table(["kind", "name", "plane", "body"])
    assert {name: int(number) for number, name, _, _ in rows} == {k.name: int(k) for k in Kind}
    for number, _, plane, _ in rows:
        kind = int(number)
        assert plane == ("any" if kind < 16 else "data" if kind < 32 else "control")


def test_control_messages_are_those_of_the_code():
    rows = table(["message", "from", "answer", "fields", "meaning"])
    described = {
        name: (by.split(", "), answers.split(" or "), re.findall(r"`(\w+)`", fields))
        for name, by, answers, fields, _ in rows
    }
    assert described == {
        name: (list(spec.by), list(spec.answers) or [""], list(spec.shapes))
        for name, spec in ((name, codec.SPECS[cls]) for name, cls in codec.REGISTRY.items())
    }
    assert all(meaning for *_, meaning in rows)


def test_header_fields_lie_where_the_table_says():
    data = encode_frame(Frame(Kind.NOTE, b"x" * 9, 1, 2, 3, 4, 5))
    values = {
        "magic": int.from_bytes(b"SNPS", "little"), "version": VERSION, "kind": 34, "flags": 0,
        "table": 1, "epoch": 2, "job": 3, "incarnation": 4, "request": 5, "body_bytes": 9,
    }  # fmt: skip
    end = 0
    for offset, size, name, _ in table(["offset", "bytes", "field", "meaning"]):
        assert int(offset) == end
        end += int(size)
        assert int.from_bytes(data[int(offset) : end], "little") == values.pop(name)
    assert not values
    assert end == HEADER_BYTES


def test_hello_fields_lie_where_the_table_says():
    hello = Hello(Channel.PULSE, Role.DRIVER, b"n" * 16, node=5, mac=b"m" * 32, agent="a")
    body = hello.to_frame().body
    values = {
        "channel": b"\x02", "role": b"\x04", "reserved": b"\0\0", "node": b"\5\0\0\0",
        "nonce": b"n" * 16, "mac": b"m" * 32, "agent": b"a",
    }  # fmt: skip
    for offset, size, name, _ in table(["offset", "bytes", "field of HELLO", "meaning"]):
        stop = int(offset) + int(size) if size.isdigit() else None
        assert body[int(offset) : stop] == values.pop(name)
    assert not values


def test_limits_are_those_of_the_code():
    limits = [int(number.replace(",", "")) for _, number in table(["limit", "bytes"])]
    assert limits == [
        HANDSHAKE_BODY_MAX, DATA_BODY_MAX, STREAM_BODY_MAX, CONTROL_BODY_MAX,
        messages.JSON_BYTES_MAX,
    ]  # fmt: skip
    assert f"about {PART_BYTES:,} bytes" in DOC
    assert f"at most {ROW_BYTES_MAX // 4:,} floats" in DOC
    assert f"most {3 * ROW_BYTES_MAX // 4 + 1:,}." in DOC
    assert (3 * ROW_BYTES_MAX // 4 + 1) * 4 + 64 < DATA_BODY_MAX


@pytest.mark.parametrize(
    "place",
    [
        "shard/_requests.pyx",
        "shard/_clock_requests.pyx",
        "shard/_product_requests.pyx",
        "shard/_standby.pyx",
        "transport/loop/_event_loop.pyx",
        "transport/loop/_authentication.pyx",
    ],
)
def test_codes_of_the_compiled_side_are_listed(place):
    source = (Path(__file__).resolve().parents[2] / "snailps" / place).read_text()
    codes = set(re.findall(r'reply, b"([a-z-]+)",', source))
    codes |= set(re.findall(r'RemoteError\(.*, "([a-z-]+)"\)', source))
    codes |= set(re.findall(r'head.request, b"([a-z-]+)",', source))
    codes |= set(re.findall(r'ProtocolError\([^()]*"([a-z-]+)"\)', source)) - {"handshake"}
    assert codes
    assert not {code for code in codes if f"`{code}`" not in DOC}


def test_parts_of_a_stream_are_those_of_the_code():
    rows = table(["what", "name", "then"])
    assert {name: int(number) for number, name, _ in rows} == {r.name: int(r) for r in Replica}


def test_worked_hello_is_what_the_code_sends():
    hello = Hello(Channel.DATA, Role.WORKER, bytes(range(16)), 3, 9, 7, agent="0.1.0")
    assert encode_frame(hello.to_frame()) == block("hello")


# Name of the listing, table, access method, lr, what was pushed before, what is pulled, the rows.
WORKED = [
    ("", 1, ADD, 0.0, [[1.0, -2.0]], [5, 11], [[0.0, 0.0], [1.0, -2.0]]),
    ("-state", 2, ADAGRAD, 1.0, [[1.0, 2.0]], [11], [[-1.0, -1.0, 1.0, 4.0]]),
    ("-narrow", 1, ADD, 0.0, [[1.0, -2.0]], [11, 12, 13, 15], [[1.0, -2.0], *[[0.0, 0.0]] * 3]),
]


@pytest.mark.parametrize(("name", "number", "access", "lr", "pushed", "keys", "found"), WORKED)
def test_worked_pull_is_what_the_client_sends_and_the_shard_answers(
    name, number, access, lr, pushed, keys, found
):
    pull, pulled = block(f"pull{name}"), block(f"pulled{name}")
    rows = np.full((len(found), len(found[0])), np.nan, np.float32)
    ours, theirs = socket.socketpair()
    theirs.settimeout(LIMIT_S)
    client = Client(
        lambda shard: ours.detach(), ["s"], np.zeros(64), 1, JOB, 9, LIMIT_S, wire_ops()
    )
    client.start()
    try:
        pending = client.pull_async(
            number, np.array(keys, np.uint64), rows, name == "-state", name == "-narrow"
        )
        sent = b""
        while len(sent) < len(pull):
            sent += theirs.recv(4096)
        assert sent == pull
        with Shards(1, frag_num=64) as shard:
            shard.add_table(number, 2, access, ZEROS, lr=lr)
            with Raw(shard.ports[0], incarnation=9) as one:
                one.ask(push_frame({20: [11]}, pushed, 5, table=number, incarnation=9))
                one.sock.sendall(sent)
                assert encode_frame(one.next()) == pulled
        theirs.sendall(pulled)
        assert pending.wait().tolist() == found
    finally:
        client.close()
        theirs.close()


def test_worked_batch_is_what_the_client_sends_and_the_shard_answers():
    """Both sides of FORWARD and BACKWARD, byte for byte."""
    ptr, keys = np.array([0, 2, 3]), np.array([11, 5, 11], np.uint64)
    values, dz = np.array([2.0, 1.0, 0.5], np.float32), np.array([[1, 1], [2, 0]], np.float32)
    ours, theirs = socket.socketpair()
    theirs.settimeout(LIMIT_S)
    client = Client(lambda shard: ours.detach(), ["s"], np.zeros(64), 1, JOB, 9, LIMIT_S)
    client.start()
    try:
        with Shards(1, frag_num=64) as shard:
            shard.add_table(1, 2, ADD, ZEROS)
            with Raw(shard.ports[0], incarnation=8) as one:
                one.ask(push_frame({20: [11]}, [[1.0, -2.0]], 5, table=1, incarnation=8))
            with Raw(shard.ports[0], incarnation=9) as one:
                forward = client.forward_async(1, ptr, keys, values, 2)
                assert theirs.recv(4096) == block("forward")
                one.sock.sendall(block("forward"))
                assert encode_frame(one.next()) == block("product")
                theirs.sendall(block("product"))
                assert forward.wait().tolist() == [[2.0, -4.0], [0.5, -1.0]]
                backward = client.backward_async(forward, dz)
                assert theirs.recv(4096) == block("backward")
                one.sock.sendall(block("backward"))
                assert encode_frame(one.next()) == block("stepped")
                theirs.sendall(block("stepped"))
                backward.wait()
            look = shard.client(10)
            rows = look.pull(1, np.array([11, 5], np.uint64), np.empty((2, 2), np.float32))
            assert rows.tolist() == [[4.0, 0.0], [1.0, 1.0]]
    finally:
        client.close()
        theirs.close()


def test_worked_clock_is_what_the_client_sends_and_the_shard_answers():
    ours, theirs = socket.socketpair()
    theirs.settimeout(LIMIT_S)
    client = Client(lambda shard: ours.detach(), ["s"], np.zeros(64), 1, JOB, 9, LIMIT_S)
    client.start()
    try:
        with Shards(1, frag_num=64) as shard:
            shard.add_table(1, 2, ADD, ZEROS)
            shard.threads[0].set_clock(17)
            shard.client(8).seal_async(17, 0, 2).wait()
            with Raw(shard.ports[0], incarnation=9) as one:
                for name, answer, call in (
                    ("push-clock", None, lambda: client.push_async(
                        1, np.array([11], np.uint64), np.array([[1, 2]], np.float32),
                        clock=17, slot=1)),
                    ("seal", "sealed", lambda: client.seal_async(17, 1, 2)),
                    ("reach", "reached", lambda: client.reach_async(18)),
                ):  # fmt: skip
                    pending = call()
                    assert theirs.recv(4096) == block(name)
                    one.sock.sendall(block(name))
                    answered = encode_frame(one.next())
                    if answer is not None:
                        assert answered == block(answer)
                    theirs.sendall(answered)
                    pending.wait()
            rows = np.empty((1, 2), np.float32)
            shard.client(10).pull(1, np.array([11], np.uint64), rows, clock=18)
            assert rows.tolist() == [[1.0, 2.0]]
    finally:
        client.close()
        theirs.close()


def test_options_of_products_are_those_of_the_code():
    rows = table(["bits", "option of FORWARD, BACKWARD", "meaning"])
    named = {name: 1 << int(bits) for bits, name, _ in rows if name.isupper()}
    assert named == {option.name: int(option) for option in ProductOption}


def test_bounds_of_clocks_are_those_of_the_code():
    assert f"1 to {SLOTS_MAX:,}, the same in all seals" in DOC


def test_bounds_of_products_are_those_of_the_code():
    assert f"stores at most {BATCHES} batches" in DOC.replace("\n", " ")
    assert f"and {BATCHES_BYTES:,} bytes: 16 an entry" in DOC


def test_options_are_those_of_the_code():
    rows = table(["bits", "option", "meaning"])
    named = {name: 1 << int(bits) for bits, name, _ in rows if name.isupper()}
    assert named == {option.name: int(option) for option in Option}
    for name, number in WIRE_TYPES.items():
        assert f"{number}: {name}" in {name: meaning for _, name, meaning in rows}["wire"]


def test_hash_is_that_of_the_page():
    """Fragments of keys, worked out as the page says."""
    wrap = 2**64 - 1
    listing = "\n".join(re.findall(r"^    (?:x|hash) = .*$", DOC, re.M))
    numbers = [int(number, 16) for number in re.findall(r"0x[0-9a-f]{16}", listing)]
    shifts = [int(x) for x in re.findall(r"x >> (\d+)\)", listing)]
    assert len(numbers) == len(shifts) == 3
    keys = np.random.default_rng(1).integers(0, 2**63, 100).astype(np.uint64)
    for key, fragment in zip(keys, fragment_of(keys, 1000), strict=True):
        x = (int(key) + numbers[0]) & wrap
        x = ((x ^ (x >> shifts[0])) * numbers[1]) & wrap
        x = ((x ^ (x >> shifts[1])) * numbers[2]) & wrap
        x ^= x >> shifts[2]
        assert (x >> 32) * 1000 >> 32 == fragment


def test_worked_frames_are_whole_frames():
    names = ["hello", "pull", "pulled", "pull-state", "pulled-state"]
    frames = FrameDecoder().feed(b"".join(block(name) for name in names))
    assert [f.kind for f in frames] == [Kind.HELLO, *[Kind.PULL, Kind.PULLED] * 2]
