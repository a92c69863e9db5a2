"""files.matrix_file: the format, blocks of it, damaged files."""

import gzip
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps.data.examples import ExampleReader, examples_of
from snailps.errors import DataError
from snailps.files.blocks import InputFile, cut, expand, head_of, place_in_file, read_block
from snailps.files.matrix_file import (
    HEADER_BYTES,
    MAGIC,
    Flags,
    Header,
    even_rows,
    read_header,
)
from snailps.files.scratch import Scratch

KINDS = [
    Flags(0),
    Flags.VALUES,
    Flags.VALUES | Flags.FIELDS,
    Flags.WIDE | Flags.FIELDS,
    Flags.VALUES | Flags.WIDE | Flags.HASHED,
]


@pytest.fixture
def scratch(tmp_path):
    found = Scratch(str(tmp_path / "scratch"), 1 << 20)
    yield found
    found.close()


def packed(header, **arrays):
    """A matrix file, by the format's page."""
    out = bytearray(header.size)
    out[:HEADER_BYTES] = header.pack()
    for name, section in header.sections().items():
        content = np.asarray(arrays[name], section.dtype).tobytes()
        assert len(content) == section.stop - section.start
        out[section.start : section.stop] = content
    return bytes(out)


def arrays_of(rows, flags, seed=0):
    """Random examples: labels, ptr, keys, values, fields."""
    rng = np.random.default_rng(seed)
    ptr = np.concatenate(([0], np.cumsum(rng.integers(0, 5, rows))))
    nnz = int(ptr[-1])
    limit = 1 << 63 if Flags.HASHED in flags else 1000
    values = rng.normal(size=nnz) if Flags.VALUES in flags else np.ones(nnz)
    return {
        "labels": rng.integers(0, 3, rows).astype(np.float32),
        "ptr": ptr.astype(np.int64),
        "keys": rng.integers(0, limit, nnz, np.uint64),
        "values": values.astype(np.float32),
        "fields": rng.integers(0, 7, nnz).astype(np.int32),
    }


def file_of(rows=20, flags=Flags.VALUES, seed=0):
    """Header, arrays and bytes of a random file."""
    arrays = arrays_of(rows, flags, seed)
    columns = 0 if Flags.HASHED in flags else 1000
    header = Header(flags, 1, rows, int(arrays["ptr"][-1]), columns)
    return header, arrays, packed(header, **arrays)


def rows_of(found):
    """Each example's label, keys, values, fields."""
    spans = zip(found.ptr[:-1].tolist(), found.ptr[1:].tolist(), strict=True)
    fields = found.fields if len(found.fields) else np.zeros(len(found.keys), int)
    return [
        (label, found.keys[a:b].tolist(), found.values[a:b].tolist(), fields[a:b].tolist())
        for label, (a, b) in zip(found.labels.tolist(), spans, strict=True)
    ]


def joined(parts):
    return [row for part in parts for row in rows_of(part)]


# --- the format ----------------------------------------------------------------------------------


def test_file_known_bytes():
    """One example, label 1, entry 3:0.5, and where everything lies."""
    header = Header(Flags.VALUES, 1, 1, 1, 10)
    data = packed(header, labels=[1], ptr=[0, 1], keys=[3], values=[0.5])
    assert data[:8] == b"\x93SNAILX\n"
    assert data[8:56] == struct.pack("<IIQQQQI", 1, 1, 1, 1, 10, 0, 1) + bytes(4)
    assert data[64:68] == struct.pack("<f", 1)
    assert data[128:144] == struct.pack("<qq", 0, 1)
    assert data[192:196] == struct.pack("<I", 3)
    assert data[256:260] == struct.pack("<f", 0.5)
    assert len(data) == 320
    earlier = data[:48] + b"\2" + data[49:]  # a kind of labels that is no longer written
    assert rows_of(examples_of(earlier, "a")) == rows_of(examples_of(data, "a"))


@pytest.mark.parametrize("flags", KINDS, ids=repr)
def test_examples_of_file_are_its_arrays(flags):
    _, arrays, data = file_of(flags=flags)
    found = ExampleReader().read(data)
    for name in ("labels", "ptr", "keys", "values"):
        assert getattr(found, name).tolist() == arrays[name].tolist()
    assert found.fields.tolist() == (arrays["fields"].tolist() if Flags.FIELDS in flags else [])


@given(st.integers(1, 60), st.sampled_from(KINDS), st.integers(0, 9), st.integers(1, 700))
def test_blocks_of_any_cut_partition_the_rows(tmp_path_factory, rows, flags, seed, block_bytes):
    _, _, data = file_of(rows, flags, seed)
    folder = tmp_path_factory.getbasetemp() / "cuts"
    folder.mkdir(exist_ok=True)
    path = folder / "file"
    path.write_bytes(data)
    scratch = Scratch(str(folder / "scratch"), 0)
    parts, first = [], 0
    for block in cut([InputFile(str(path), len(data))], block_bytes):
        part = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
        if part:
            header = read_header(part, len(part), "block")
            assert header.first_row == first
            first += header.rows
            parts.append(examples_of(part, "block"))
    assert first == rows
    assert joined(parts) == rows_of(examples_of(data, "file"))


def test_block_of_a_packed_file_is_that_of_its_content(tmp_path, scratch):
    _, _, data = file_of(50)
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    (source,) = expand([str(tmp_path / "a.gz")], scratch)
    parts = [
        read_block(b.path, b.start, b.stop, unit="line", scratch=scratch)
        for b in cut([source], len(data) // 3 + 1)
    ]
    assert joined(examples_of(part, "a") for part in parts) == rows_of(examples_of(data, "a"))


@pytest.mark.parametrize("wide", [False, True])
def test_rows_beyond_32_bits_are_those_of_the_file(tmp_path, scratch, wide):
    """A file of holes: only its header, and the last rows of each section, are written."""
    flags = Flags.VALUES | (Flags.WIDE if wide else Flags(0))
    rows, per, last = 1 << 22, 300, 40
    header = Header(flags, 1, rows, rows * per, 1000)
    path, rng = tmp_path / "far", np.random.default_rng(4)
    first = rows - last
    arrays = {
        "labels": rng.integers(0, 9, last), "ptr": per * np.arange(first, rows + 1),
        "keys": rng.integers(0, 1000, per * last), "values": rng.normal(size=per * last),
    }  # fmt: skip
    with path.open("wb") as file:
        file.truncate(header.size)
        file.write(header.pack())
        for name, section in header.sections().items():
            data = arrays[name].astype(section.dtype).tobytes()
            file.seek(section.stop - len(data))
            file.write(data)
    start = header.size * first // rows + 1
    data = read_block(str(path), start, header.size, unit="line", scratch=scratch)
    found = examples_of(data, "far")
    count = len(found.labels)
    assert last - 1 <= count <= last
    assert found.labels.tolist() == arrays["labels"][-count:].tolist()
    assert found.keys.tolist() == arrays["keys"][-count * per :].tolist()
    assert found.values.tolist() == arrays["values"][-count * per :].astype(np.float32).tolist()
    ranges = [(start, header.size)]
    row = place_in_file(str(path), ranges, count - 1, unit="line", scratch=scratch)
    assert row == rows - 1


def test_head_of_file_has_its_first_rows(tmp_path):
    _, _, data = file_of(900)
    (tmp_path / "a").write_bytes(data)
    head = examples_of(head_of(str(tmp_path / "a")), "a")
    assert rows_of(head) == rows_of(examples_of(data, "a"))[:500]


@pytest.mark.parametrize("parts", [1, 2, 7, 100])
def test_even_rows_in_sequence_are_all(parts):
    _, _, data = file_of(40)
    edges = even_rows(data, "a", parts)
    found = [examples_of(data, "a", part=part) for part in itertools.pairwise(edges)]
    assert joined(found) == rows_of(examples_of(data, "a"))


def test_hash_bits_fold_indices_as_those_of_text():
    header = Header(Flags.VALUES, 1, 1, 3, 1000)
    data = packed(header, labels=[1], ptr=[0, 3], keys=[0, 7, 999], values=[1, 2, 3])
    text = ExampleReader("libsvm", hash_bits=8).read(b"1 0:1 7:2 999:3\n")
    assert ExampleReader(hash_bits=8).read(data).keys.tolist() == text.keys.tolist()


def test_hash_bits_fold_hashed_keys_as_those_of_csv():
    columns = "y:label, city:categorical"
    whole = ExampleReader("csv", columns=columns).read(b"1,Berlin\n")
    header = Header(KINDS[-1], 1, 1, 1, 0)
    data = packed(header, labels=[1], ptr=[0, 1], keys=whole.keys, values=[1])
    folded = ExampleReader("csv", columns=columns, hash_bits=8).read(b"1,Berlin\n")
    assert ExampleReader(hash_bits=8).read(data).keys.tolist() == folded.keys.tolist()


def test_label_below_the_least_is_refused_with_its_row():
    header = Header(Flags.VALUES, 1, 2, 0, 1000)
    data = packed(header, labels=[0, -2], ptr=[0, 0, 0], keys=[], values=[])
    assert ExampleReader().read(data).labels.tolist() == [0, -2]
    with pytest.raises(DataError, match="x, row 1: expected a label of at least 0, got -2"):
        ExampleReader(label_min=0).read(data, "x")


def test_text_and_matrix_files_may_be_read_by_one_reader():
    _, _, data = file_of(3)
    reader = ExampleReader()
    for _ in range(2):
        assert len(reader.read(b"1 3:1\n").labels) == 1
        assert len(reader.read(data).labels) == 3


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", KINDS, ids=repr)
def test_file_of_every_truncation_is_refused(tmp_path, scratch, flags):
    _, _, data = file_of(4, flags)
    path = tmp_path / "cut"
    for size in [*range(len(MAGIC), 140), *range(140, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=r"cut off"):
            read_block(str(path), 0, size, unit="line", scratch=scratch)
    path.write_bytes(data + b"x")
    with pytest.raises(DataError, match=f"expected {len(data):,} bytes for 4 rows"):
        read_block(str(path), 0, len(data), unit="line", scratch=scratch)


def test_header_with_any_bit_flipped_is_refused_or_changes_no_array():
    """Kind of labels, columns and hashing may change; where arrays lie may not."""
    header, _, data = file_of(9, Flags.VALUES | Flags.FIELDS)
    for bit in range(8 * HEADER_BYTES):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = read_header(bytes(changed), len(changed), "f")
        except DataError:
            continue
        assert found.sections().keys() == header.sections().keys()
        assert found.size == header.size


@given(st.binary(min_size=HEADER_BYTES, max_size=400))
def test_noise_behind_the_magic_is_examples_or_refused(noise):
    data = MAGIC + struct.pack("<I", 1) + noise
    try:
        found = examples_of(data, "noise")
    except DataError:
        return
    assert len(found.labels) + 1 == len(found.ptr)


@given(st.data())
def test_arrays_with_any_bytes_changed_are_examples_or_refused(data):
    """Whatever is in the sections, kernels get pointers that rise within the arrays."""
    _, _, whole = file_of(6, Flags.VALUES | Flags.FIELDS)
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, len(whole) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    try:
        found = examples_of(bytes(changed), "f")
    except DataError:
        return
    assert found.ptr[0] == 0
    assert (np.diff(found.ptr) >= 0).all()
    assert found.ptr[-1] == len(found.keys) == len(found.values) == len(found.fields)
    assert np.isfinite(found.values).all()
    assert np.isfinite(found.labels).all()
    assert len(found.keys) == 0 or found.keys.max() < 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 1, got version 2.*a newer snailps"),
        ({"flags": 1 << 9}, "flags 0x200"),
        ({"labels": 9}, "labels 9"),
        ({"rows": 1 << 60}, "expected .* bytes for 1,152,921,504,606,846,976 rows"),
        ({"nonzeros": 1 << 40}, "expected .* bytes"),
        ({"columns": (1 << 63) + 1}, "contradicts itself: 9,223,372,036,854,775,809 columns"),
        ({"columns": 1 << 40}, "but keys of 32 bits"),
        ({"flags": Flags.DENSE}, "dense rows of 1,000 values"),
        ({"flags": Flags.BYTES}, "sparse values in bytes"),
        ({"flags": Flags.HASHED}, "hashed keys"),
    ],
)
def test_header_that_lies_is_refused(change, message):
    header, _, data = file_of(4)
    fields = {
        "version": 1, "flags": header.flags, "rows": 4, "nonzeros": header.nonzeros,
        "columns": 1000, "first": 0, "labels": 2, **change,
    }  # fmt: skip
    head = MAGIC + struct.pack("<IIQQQQI", *fields.values())
    with pytest.raises(DataError, match=message) as caught:
        examples_of(head + data[len(head) :], "clicks.mx")
    assert "clicks.mx" in str(caught.value)
    assert "write_matrix" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("ptr", 1, 9, "row 1 has its entries' end before"),
        ("keys", 2, 1000, "row 1 has key 1,000: expected keys below 1,000"),
        ("values", 1, np.nan, "row 0 has value nan"),
        ("values", 3, np.inf, "row 2 has value inf"),
        ("labels", 2, np.nan, "row 2 has label nan"),
        ("fields", 0, -1, "row 0 has field -1"),
    ],
)
def test_damaged_row_is_named_and_refused(name, at, value, message):
    arrays = {
        "labels": np.ones(3, np.float32), "ptr": np.array([0, 2, 3, 4]), "keys": np.arange(4),
        "values": np.ones(4, np.float32), "fields": np.zeros(4, np.int32),
    }  # fmt: skip
    arrays[name][at] = value
    header = Header(Flags.VALUES | Flags.FIELDS, 1, 3, 4, 1000)
    with pytest.raises(DataError, match=message):
        examples_of(packed(header, **arrays), "f")


def test_block_whose_pointers_leave_the_file_is_refused(tmp_path, scratch):
    header = Header(Flags.VALUES, 1, 2, 2, 10)
    data = packed(header, labels=[1, 0], ptr=[0, 1, 1 << 40], keys=[1, 2], values=[1, 1])
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(
        DataError, match=r"rows 0 to 1 have the entries 0 to 1,099,511,627,776 of 2"
    ):
        read_block(str(tmp_path / "f"), 0, len(data), unit="line", scratch=scratch)


def test_dense_file_for_a_sparse_model_is_refused():
    header = Header(Flags.DENSE | Flags.VALUES, 1, 2, 6, 3)
    data = packed(header, labels=[0, 1], values=np.arange(6))
    with pytest.raises(DataError, match="expected sparse examples, got dense ones"):
        ExampleReader().read(data, "f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "libsvm"}, "is a matrix file, but format is libsvm: set format: auto"),
        ({"columns": "y:label, a:numeric"}, "leave columns empty"),
    ],
)
def test_settings_of_text_are_refused_with_a_matrix_file(options, message):
    _, _, data = file_of(3)
    with pytest.raises(DataError, match=message):
        ExampleReader(**options).read(data, "f")
