"""The frame: golden bytes, every way to cut a stream, and everything that must be refused."""

import contextlib
import random
import re
import struct
from pathlib import Path

import lz4.block
import pytest
from cases import each, examples
from hypothesis import given
from hypothesis import strategies as st
from twins.frame import (
    BATCHES,
    EXAMPLE_ENTRIES_MAX,
    ROW_BYTES_MAX,
    STREAM_BODY_MAX,
    ProductOption,
    Replica,
)

from snailps.errors import MisuseError, ProtocolError
from snailps.transport.frame import (
    BATCHES_BYTES,
    CONTROL_BODY_MAX,
    DATA_BODY_MAX,
    FLAGS,
    HANDSHAKE_BODY_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PART_BYTES,
    SCAN_FRAGMENTS_MAX,
    SLOTS_MAX,
    VERSION,
    Flag,
    Frame,
    FrameDecoder,
    Kind,
    Option,
    body_limit,
    check_control_kind,
    encode_frame,
    unpack,
)

PXD = Path(__file__).resolve().parents[2] / "snailps" / "transport" / "_frame.pxd"
FIELDS = {"table": 0x01020304, "epoch": 5, "job": 6, "incarnation": 7, "request": 8}
# table, epoch, job, incarnation and request of FIELDS, then a body length of 3
TAIL = (
    "04030201 05000000 0600000000000000 0700000000000000 0800000000000000 0300000000000000 616263"
)
NUMBERS = {
    "HELLO": 1, "PROOF": 2, "READY": 3, "ERROR": 4, "HEARTBEAT": 5,
    "PULL": 16, "PULLED": 17, "PUSH": 18, "PUSHED": 19, "SCAN": 20, "SCANNED": 21,
    "FORWARD": 22, "PRODUCT": 23, "BACKWARD": 24, "STEPPED": 25,
    "SEAL": 26, "SEALED": 27, "REACH": 28, "REACHED": 29,
    "REPLICATE": 30, "REPLICATED": 31,
    "CALL": 32, "ANSWER": 33, "NOTE": 34,
}  # fmt: skip


def decode_all(data, body_max=CONTROL_BODY_MAX):
    return list(FrameDecoder(body_max).feed(data))


def header(**changed):
    """A good NOTE header with some fields changed."""
    fields = {
        "magic": MAGIC, "version": VERSION, "kind": 34, "flags": 0, "table": 0, "epoch": 0,
        "job": 0, "incarnation": 0, "request": 0, "body_bytes": 0, **changed,
    }  # fmt: skip
    return HEADER.pack(*fields.values())


def packed_frame(body):
    return header(flags=1, body_bytes=len(body)) + body


PACKED = lz4.block.compress(b"x" * 100, store_size=False)
frames = st.builds(
    Frame,
    kind=st.sampled_from(list(Kind)),
    body=st.binary(max_size=600),
    table=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**32 - 1),
    job=st.integers(0, 2**64 - 1),
    incarnation=st.integers(0, 2**64 - 1),
    request=st.integers(0, 2**64 - 1),
)


@pytest.mark.parametrize("kind", list(Kind))
def test_frame_of_each_kind_has_golden_bytes(kind):
    golden = bytes.fromhex(f"534e5053 02 {NUMBERS[kind.name]:02x} 0000 {TAIL}")
    frame = Frame(kind, b"abc", **FIELDS)
    assert encode_frame(frame) == golden
    assert decode_all(golden) == [frame]


def test_kinds_are_all_known_to_this_test():
    assert {kind.name: int(kind) for kind in Kind} == NUMBERS


def test_frame_without_body_has_golden_bytes():
    golden = bytes.fromhex("534e5053 02 05 0000" + "00" * 40)
    assert encode_frame(Frame(Kind.HEARTBEAT)) == golden


def test_packed_frame_unpacks_to_the_same_body():
    frame = Frame(Kind.NOTE, b"snail " * 1000, request=9)
    data = encode_frame(frame, pack=True)
    assert len(data) < 200
    assert data[6:8] == b"\x01\x00"
    assert data[48:52] == (6000).to_bytes(4, "little")
    assert decode_all(data) == [frame]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.NOTE, b"x" * 511),  # too short to be worth it
        Frame(Kind.PULL, b"x" * 4096),  # data frames are never packed
        Frame(Kind.NOTE, random.Random(1).randbytes(1024)),  # lz4 would make it longer
    ],
)
def test_frame_that_packing_does_not_help_stays_plain(frame):
    assert encode_frame(frame, pack=True) == encode_frame(frame)


def test_decoder_fed_byte_by_byte_gives_the_same_frames():
    sent = [Frame(Kind.CALL, b"one" * 300, request=1), Frame(Kind.HEARTBEAT), Frame(Kind.NOTE, b"")]
    data = b"".join(encode_frame(frame, pack=True) for frame in sent)
    decoder = FrameDecoder()
    got = [frame for i in range(len(data)) for frame in decoder.feed(data[i : i + 1])]
    assert got == sent
    assert decoder.pending_bytes == 0


@examples(40)
@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 900), max_size=30), st.booleans())
def test_decoder_gives_the_same_frames_however_the_stream_is_cut(sent, cuts, pack):
    data = b"".join(encode_frame(frame, pack=pack) for frame in sent)
    decoder, got, at = FrameDecoder(), [], 0
    for size in [*cuts, len(data)]:
        got += decoder.feed(memoryview(data)[at : at + size])
        at += size
    assert got == sent


def test_every_truncation_gives_no_frame_and_no_error():
    data = encode_frame(Frame(Kind.ANSWER, b"abcdef", **FIELDS))
    for length in range(len(data)):
        decoder = FrameDecoder()
        assert list(decoder.feed(data[:length])) == []
        assert decoder.pending_bytes == length
        assert list(decoder.feed(data[length:])) == [Frame(Kind.ANSWER, b"abcdef", **FIELDS)]


def test_missing_bytes_never_reads_past_the_frame():
    data = encode_frame(Frame(Kind.READY, b"ab")) + encode_frame(Frame(Kind.HEARTBEAT))
    decoder, at, got = FrameDecoder(), 0, []
    while not got:
        step = decoder.missing_bytes
        assert step > 0
        got += decoder.feed(data[at : at + step])
        at += step
    assert got == [Frame(Kind.READY, b"ab")]
    assert at == 50


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "magic", "is this a snailps peer"),
        (b"SNPX", "magic", "b'SNPX'"),
        (b"X", "magic", "b'X'"),
        (header(version=1), "version", f"wire format 1, this side {VERSION}"),
        (header(version=0), "version", "wire format 0"),
        (header(kind=0), "kind", "unknown frame kind 0"),
        (header(kind=6), "kind", "unknown frame kind 6"),
        (header(kind=255), "kind", "unknown frame kind 255"),
        (header(flags=2), "flag", "0x0002"),
        (header(flags=0x8001), "flag", "0x8001"),
        (header(kind=16, flags=1), "flag", "frame kind 16"),
        (header(body_bytes=CONTROL_BODY_MAX + 1), "too-long", "268,435,457 bytes, limit"),
        (header(body_bytes=2**64 - 1), "too-long", "NOTE body of"),
        (header(kind=18, body_bytes=DATA_BODY_MAX + 1), "too-long", "limit 1,048,576"),
        (header(kind=1, body_bytes=HANDSHAKE_BODY_MAX + 1), "too-long", "limit 4,096"),
        (packed_frame(b""), "packed", ""),
        (packed_frame(b"\x01\x00\x00"), "packed", ""),
        (packed_frame(b"\x10\x00\x00\x00"), "packed", ""),  # 16 bytes stated, nothing there
        (packed_frame(b"\x10\x00\x00\x00\xff\xff\xff"), "packed", ""),  # damaged
        *((packed_frame(struct.pack("<I", size) + PACKED), "packed", "") for size in (0, 7, 101)),
        (packed_frame(struct.pack("<I", CONTROL_BODY_MAX + 1) + b"\x00" * 9), "too-long", ""),
        (packed_frame(b"\xff\xff\xff\xff" + b"\x00" * 9), "too-long", ""),
    ],
)
def test_decoder_refuses_a_bad_header_or_packed_body(data, code, words):
    with pytest.raises(ProtocolError) as caught:
        decode_all(data)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_decoder_refuses_garbage_before_a_whole_header_came():
    decoder = FrameDecoder()
    assert list(decoder.feed(b"SN")) == []
    with pytest.raises(ProtocolError) as caught:
        list(decoder.feed(b"A"))
    assert caught.value.code == "magic"


def test_decoder_refuses_garbage_between_two_frames():
    decoder = FrameDecoder()
    stream = decoder.feed(encode_frame(Frame(Kind.NOTE, b"x")) + b"junk" * 12)
    assert next(stream) == Frame(Kind.NOTE, b"x")
    with pytest.raises(ProtocolError):
        next(stream)


def test_decoder_with_a_lower_limit_refuses_what_is_over_it():
    data = encode_frame(Frame(Kind.NOTE, b"x" * 101))
    assert decode_all(data, body_max=101)
    with pytest.raises(ProtocolError, match="101 bytes, limit 100"):
        decode_all(data, body_max=100)


def test_decoder_refuses_oversize_without_the_body():
    decoder = FrameDecoder(4096)
    with pytest.raises(ProtocolError):
        list(decoder.feed(header(body_bytes=4097)))
    assert decoder.pending_bytes <= HEADER_BYTES


def test_packed_bomb_is_refused_by_its_stated_length():
    bomb = lz4.block.compress(bytes(1 << 20), store_size=True)
    assert len(bomb) < 5000
    with pytest.raises(ProtocolError, match="unpacks to 1,048,576 bytes, limit 65,536"):
        decode_all(packed_frame(bomb), body_max=1 << 16)


@examples(100)
@given(st.binary(max_size=80))
def test_unpack_of_any_bytes_gives_bytes_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        assert len(unpack(data, 1 << 16)) <= 1 << 16


@examples(100)
@given(frames, st.integers(0, 47), st.integers(1, 255))
def test_decoder_of_a_mutated_header_gives_frames_or_a_protocol_error(frame, at, change):
    data = bytearray(encode_frame(frame))
    data[at] ^= change
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(frame, Frame) for frame in decode_all(bytes(data)))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(Kind.PUSH, DATA_BODY_MAX), (Kind.HELLO, HANDSHAKE_BODY_MAX), (Kind.ERROR, 4096)],
)
def test_encode_of_an_oversize_body_is_our_own_fault(kind, limit):
    assert body_limit(kind) == limit
    assert len(encode_frame(Frame(kind, bytes(limit)))) == HEADER_BYTES + limit
    with pytest.raises(MisuseError, match=f"{limit + 1:,} bytes, limit {limit:,}"):
        encode_frame(Frame(kind, bytes(limit + 1)))


@each("kind", [k for k in Kind if k not in (Kind.CALL, Kind.NOTE)])
def test_control_kind_other_than_call_and_note_is_refused(kind):
    with pytest.raises(ProtocolError, match=kind.name):
        check_control_kind(Frame(kind, request=1))


def test_call_without_a_number_is_refused():
    check_control_kind(Frame(Kind.NOTE))
    check_control_kind(Frame(Kind.CALL, request=1))
    with pytest.raises(ProtocolError, match="without a number"):
        check_control_kind(Frame(Kind.CALL))


# --- the compiled side ---------------------------------------------------------------------------


def c_numbers():
    """name -> value of every enum item in _frame.pxd."""
    found = re.findall(r"^    ([A-Z_0-9]+) = ([0-9xA-F]+(?: << \d+)?)", PXD.read_text(), re.M)
    return {name: eval(value, {"__builtins__": {}}) for name, value in found}


def test_compiled_constants_equal_those_of_python():
    numbers = c_numbers()
    assert numbers.pop("FRAME_MAGIC") == int.from_bytes(MAGIC, "little")
    assert numbers.pop("FRAME_VERSION") == VERSION
    assert numbers.pop("FRAME_HEADER_BYTES") == HEADER_BYTES
    assert numbers.pop("DATA_BODY_MAX") == DATA_BODY_MAX
    assert numbers.pop("HANDSHAKE_BODY_MAX") == HANDSHAKE_BODY_MAX
    assert numbers.pop("ROW_BYTES_MAX") == ROW_BYTES_MAX
    assert numbers.pop("FLAG_PACKED") == Flag.PACKED
    for option in Option:
        assert numbers.pop(f"OPTION_{option.name}") == option
    for name in ("OPTION_WIRE_SHIFT", "OPTION_KEY_SHIFT", "OPTIONS_KNOWN"):
        del numbers[name]
    assert numbers.pop("PART_BYTES") == PART_BYTES
    for option in ProductOption:
        assert numbers.pop(f"PRODUCT_{option.name}") == option
    del numbers["PRODUCT_OPTIONS_KNOWN"]
    assert numbers.pop("BATCHES") == BATCHES
    assert numbers.pop("BATCHES_BYTES") == BATCHES_BYTES
    assert numbers.pop("SCAN_FRAGMENTS_MAX") == SCAN_FRAGMENTS_MAX
    assert numbers.pop("EXAMPLE_ENTRIES_MAX") == EXAMPLE_ENTRIES_MAX
    assert numbers.pop("ERROR_BYTES_MAX") <= HANDSHAKE_BODY_MAX  # room in a standby's replies
    assert numbers.pop("SLOTS_MAX") == SLOTS_MAX
    assert numbers.pop("STREAM_BODY_MAX") == STREAM_BODY_MAX
    for replica in Replica:
        assert numbers.pop(f"REPLICA_{replica.name}") == replica
    del numbers["NO_SLOT"]
    assert len(numbers) == 18
    for name, value in numbers.items():
        assert Kind[name.removeprefix("KIND_")] == value


def test_compiled_header_has_the_fields_of_python_in_order():
    sizes = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}
    text = PXD.read_text().partition("cdef packed struct FrameHeader:")[2].partition("\n\n")[0]
    fields = re.findall(r"^    (\w+) (\w+)$", text, re.M)
    assert "<" + "".join(sizes[kind] for kind, _ in fields).replace("I", "4s", 1) == HEADER.format
    assert [name for _, name in fields] == [
        "magic", "version", "kind", "flags", "table", "epoch", "job", "incarnation", "request",
        "body_bytes",
    ]  # fmt: skip


def test_flags_are_those_that_this_test_knows():
    assert int(Flag.PACKED) == FLAGS == 1
