"""data._examples: plain lines read by bits are what the reader byte by byte makes of them."""

import random

import numpy as np
import pytest

from snailps.data._examples import BUILDS, EntryReader
from snailps.data.examples import ExampleReader

BYTES = b"0123456789:: \n\r\t#-+.e1x\0\xff"
LONG = 20_000
"""Bytes of several windows of 8 KiB."""


def line(rng, most=40):
    """A plain line, of keys of few and of many digits."""
    keys = (
        rng.randrange(10 ** rng.choice([1, 2, 5, 7, 8, 9, 15])) for _ in range(rng.randrange(most))
    )
    label = rng.choice(["0", "1", "-1", "+1", "7", "12"])
    return " ".join([label, *(f"{key}:1" for key in keys)]) + rng.choice(["\n"] * 9 + [" \n"])


def same(text, build, hash_bits=0):
    """Both readers agree: examples, what is left out, the first fault."""
    for skip in (True, False):
        expected, fault = EntryReader(False, hash_bits, skip, "none").read(text)
        found, found_fault = EntryReader(False, hash_bits, skip, build).read(text)
        assert found_fault == fault
        assert found.bad == expected.bad
        for mine, theirs in zip(found[:5], expected[:5], strict=True):
            assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("hash_bits", [0, 22])
def test_plain_lines_are_read_as_byte_by_byte(build, hash_bits):
    rng = random.Random(7)
    text = "".join(line(rng) for _ in range(200)).encode()
    assert len(text) > LONG
    same(text, build, hash_bits)
    found, fault = EntryReader(False, hash_bits, False, build).read(text)
    assert fault is None
    assert len(found.labels) == 200


@pytest.mark.parametrize("build", BUILDS)
def test_plain_lines_with_any_byte_changed_are_read_as_byte_by_byte(build):
    rng = random.Random(8)
    for _ in range(250):
        text = bytearray("".join(line(rng, 12) for _ in range(rng.randrange(1, 9))).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.choice([0, 1, 1, 2])] = bytes([rng.choice(BYTES)])
        same(bytes(text), build)


@pytest.mark.parametrize("build", BUILDS)
def test_plain_lines_with_any_byte_at_any_place_of_a_mask_are_read_as_byte_by_byte(build):
    for size in range(1, 20):
        text = (b"1 " + b"1" * size + b":1 22:1 333:1\n") * 6
        for at in range(64, 96):
            for byte in b": \n1x":
                same(text[:at] + bytes([byte]) + text[at:], build)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    "odd",
    [b"", b"0", b"1 ", b"1 2:1 7", b"1 2:1 7 3:1", b"1 :1", b"2:1 3:1", b"1 2:11", b"1 2:1:1",
     b"1 2:2", b"1 9223372036854775807:1", b"1 9223372036854775808:1", b"1 0000000000000000003:1",
     b"0.5 2:1", b"nan 2:1", b"1 qid:3 2:1", b"1 2:1 # 3:1", b"1 2:1\r", b"1\t2:1", b"1  2:1",
     b" 1 2:1", b"1 2:1  ", b"# 2:1", b"1" + b" 1234567:1" * 2000],
)  # fmt: skip
def test_odd_line_among_plain_ones_is_read_as_byte_by_byte(build, odd):
    rng = random.Random(9)
    some = "".join(line(rng) for _ in range(20)).encode()
    for text in (odd, odd + b"\n" + some, some + odd, some + odd + b"\n" + some):
        same(text, build)


@pytest.mark.parametrize("build", BUILDS)
def test_many_odd_lines_between_plain_ones_are_read_as_byte_by_byte(build):
    rng = random.Random(10)
    parts = []
    for odd_num in (1, 3, 40, 900, 1, 0):
        parts += [f"1 {i}:0.5\n" for i in range(odd_num)]
        parts += [line(rng) for _ in range(30)]
    same("".join(parts).encode(), build)


@pytest.mark.parametrize("build", ["none", *BUILDS])
def test_part_of_a_text_is_read_as_if_it_were_all(build):
    rng = random.Random(11)
    lines = ["".join(line(rng) for _ in range(count)).encode() for count in (3, 50, 2, 0, 1)]
    text, reader = b"".join(lines), EntryReader(False, 0, False, build)
    begin = 0
    for part in lines:
        found, fault = reader.read(text, begin, begin + len(part))
        assert fault is None
        alone = reader.read(part)[0]
        for mine, theirs in zip(found[:5], alone[:5], strict=True):
            assert mine.tobytes() == theirs.tobytes()
        begin += len(part)
    for wrong in ((-1, 3), (3, 2), (0, len(text) + 1)):
        with pytest.raises(ValueError, match="expected a part of"):
            reader.read(text, *wrong)


def test_fault_of_a_part_is_where_the_text_has_it():
    text = b"1 1:1\n" * 50 + b"1 x:1\n" + b"1 1:1\n" * 50
    with pytest.raises(ValueError, match="the text, line 51, column 3: expected"):
        ExampleReader("libsvm").read(text, part=(120, 450))
    skipping = ExampleReader("libsvm", on_bad_line="skip")
    found = skipping.read(text, "file", part=(120, 450))
    assert (len(found.labels), found.bad) == (54, 1)
    assert skipping.first_bad.startswith("file, line 51, column 3")
    assert np.array_equal(found.keys, np.ones(54, np.uint64))
