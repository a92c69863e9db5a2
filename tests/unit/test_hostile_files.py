"""Files of strangers that announce more than they hold: refused, before memory is taken for it."""

import functools
import io
import struct
import tracemalloc
import zipfile
import zlib
from functools import partial

import numpy as np
import pytest

import snailps
from snailps.data.array_files import read_array
from snailps.data.example_files import example_files
from snailps.data.vocabulary import Vocabulary
from snailps.errors import CheckpointError, DataError, ModelFileError, SnailError
from snailps.estimators.loading import load
from snailps.files.matrix_file import HEADER_BYTES, Flags, Header
from snailps.files.scratch import Scratch
from snailps.master.job.state import unpack
from snailps.models.mlp import files as nets
from snailps.models.packed_tables import read_packed
from snailps.models.sparse.export import read_npz
from snailps.store.checkpoint.folder import read_course
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import FileEntry, ShardFile
from snailps.vectors.fasttext_bin import MAGIC

PEAK_BYTES = 64 << 20
"""Of all that is allocated; a deflated bomb may expand to `EXPANDED_BYTES` before it is refused."""
HUGE = 10**13


def npy(shape, dtype="<f4", content=b"", version=1):
    file = io.BytesIO()
    head = {"descr": dtype, "fortran_order": False, "shape": shape}
    getattr(np.lib.format, f"write_array_header_{version}_0")(file, head)
    return file.getvalue() + content


def archive(method=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def whole(**members):
    """An archive in which the members that every model has are sound."""
    return archive(about=npy((2,), "|u1", b"{}"), **members)


def patched(data, central, local, value):
    """A byte of each member's headers, in the directory and before its content, is another one."""
    data = bytearray(data)
    for mark, place in ((b"PK\x01\x02", central), (b"PK\x03\x04", local)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + place] = value
    return bytes(data)


def deflated_badly():
    good = archive(zipfile.ZIP_DEFLATED, keys=npy((1000,), "<f8", np.arange(1000.0).tobytes()))
    return good[:90] + b"\xff" * 20 + good[110:]


def announcing_more(data):
    """The directory says that a member is longer than it is."""
    at = data.find(b"PK\x01\x02")
    return data[: at + 24] + struct.pack("<I", 1 << 31) + data[at + 28 :]


@functools.cache
def bomb():
    """Two GB of zeros in two MB."""
    zeros = 1 << 31
    head = npy((zeros - 128,), "|u1")
    assert len(head) == 128
    name, packer = b"keys.npy", zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = bytes(1 << 24)
    sum_ = zlib.crc32(head)
    parts = [packer.compress(head)]
    # All pieces but the first are one run of the same bytes: compressed once, and repeated.
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    parts.append(packed)
    again = zlib.compressobj(9, zlib.DEFLATED, -15)
    run = again.compress(piece) + again.flush(zlib.Z_FULL_FLUSH)
    parts += [run] * ((zeros - 128) // len(piece) - 1)
    data = b"".join(parts)
    sizes = struct.pack("<III", sum_, len(data), zeros)
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes
    local += struct.pack("<HH", len(name), 0) + name
    central = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + sizes
    central += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local + data), 0)
    return local + data + central + end


ARCHIVES = {
    "shape_beyond_file": whole(keys=npy((HUGE,))),
    "shape_overflows": whole(keys=npy((1 << 62, 1 << 62))),
    "shape_negative": whole(keys=npy((-1,))),
    "objects": whole(keys=npy((5,), "|O")),
    "no_array": whole(keys=b"no array"),
    "later_npy": whole(keys=b"\x93NUMPY\x09\x00" + bytes(100)),
    "no_bytes_each": whole(keys=npy((HUGE,), "<U0")),
    "encrypted": patched(whole(keys=npy((1,), content=bytes(4))), 8, 6, 1),
    "unknown_method": patched(whole(keys=npy((1,), content=bytes(4))), 10, 8, 77),
    "damaged_deflate": deflated_badly(),
    "directory_lies": announcing_more(whole(keys=npy((1,), content=bytes(4)))),
    "cut": whole(keys=npy((1,), content=bytes(4)))[:-30],
    "nothing": b"",
}
MODELS = {
    "sparse": read_npz,
    "net": nets.read_npz,
    "state": lambda path: read_packed(str(path)),
    "any": load,
}


@pytest.fixture
def bounded():
    """Fails if more memory was taken at once than a small file is worth."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < PEAK_BYTES


@pytest.mark.parametrize("reader", MODELS.values(), ids=MODELS)
def test_archive_that_expands_a_thousand_times_is_refused(tmp_path, bounded, reader):
    path = tmp_path / "model.npz"
    path.write_bytes(bomb())
    with pytest.raises(ModelFileError, match=r"model\.npz"):
        reader(path)


def bin_head(dim=2, word_ngrams=1, loss=3, model=3, bucket=0, minn=0, maxn=0):
    arguments = (dim, 5, 5, 1, 5, word_ngrams, loss, model, bucket, minn, maxn, 100)
    return struct.pack("<ii 12i d", MAGIC, 12, *arguments, 1e-4)


def dictionary(words=1, labels=1, kept=-1):
    entries = b"a\0" + struct.pack("<qb", 1, 0) + b"__label__x\0" + struct.pack("<qb", 1, 1)
    return struct.pack("<iii qq", words + labels, words, labels, 9, kept) + entries


def matrix(rows, dim, quantised=b"\0"):
    return quantised + struct.pack("<qq", rows, dim)


BIG = 2**31 - 1
VECTORS = {
    "bin_words": bin_head() + dictionary(words=BIG - 1),
    "bin_dim": bin_head(dim=BIG) + dictionary() + b"\0" + matrix(1, BIG),
    "bin_bucket": bin_head(bucket=BIG, maxn=3) + dictionary() + b"\0" + matrix(1 + BIG, 2),
    "bin_maxn": bin_head(bucket=9, maxn=BIG) + dictionary() + b"\0" + matrix(10, 2),
    "ftz_rows": bin_head() + dictionary() + b"\1" + struct.pack("<?qqi", True, HUGE, 2, 4),
    "ftz_kept": bin_head(bucket=9, maxn=3) + dictionary(kept=HUGE),
    "vec": b"10000000000000 300\na 1 2\n",
    "vec_dim": b"2 1048576\na 1.0 2.0\n",
    "word2vec": b"10000000000000 300\na " + bytes(range(128, 250)),
    "glove": b"a" + b" 1.5" * 16_000 + b"\n" + b"b 1.5\n" * 5000,
    "safetensors": struct.pack("<Q", 1 << 60) + b'{"a":{}}',
}


def header(rows, nonzeros, columns, flags, labels=0):
    return Header(flags, labels, rows, nonzeros, columns).pack()


DENSE = Flags.DENSE | Flags.VALUES
EXAMPLES = {
    "dense_without_values": header(1 << 60, 0, 0, DENSE),
    "dense_rows": header(1 << 60, 1 << 60, 1, DENSE),
    "dense_rows_overflow": header(1 << 63, 0, 0, DENSE),
    "dense_rows_of_memory": header(1 << 36, 0, 0, DENSE),
    "labels_only": header(1 << 40, 0, 0, DENSE, 1),
    "sparse_rows": header(1 << 60, 0, 9, Flags.VALUES),
    "sparse_entries": header(1, 1 << 60, 9, Flags.VALUES) + bytes(128),
    "wide_labels": header(1 << 60, 0, 9, Flags.VALUES | Flags.WIDE_LABELS, 1),
    "cut": header(1, 1, 1, DENSE)[: HEADER_BYTES - 1],
}


def test_lines_with_a_column_beyond_memory_are_no_dense_rows(tmp_path):
    path = tmp_path / "a.libsvm"
    path.write_text(f"1 {1 << 60}:1\n")
    found = example_files([str(path)])
    found.count_columns()
    found.write_as(dense=True)
    with pytest.raises(DataError, match="no memory for 1 dense rows"):
        list(found.pieces())


ARRAYS = {
    "npy": npy((HUGE, 4)),
    "npy_overflows": npy((1 << 62, 1 << 62)),
    "npy_2": npy((HUGE,), version=2),
    "npy_head": b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1),
    "idx": bytes([0, 0, 0x0D, 3]) + struct.pack(">III", *[(1 << 32) - 1] * 3),
}


def rows_of(path, needs_labels=True):
    return list(example_files([str(path)], needs_labels=needs_labels).pieces())


def array_of(path):
    return read_array(str(path), Scratch(str(path.parent / "scratch"), 0))


KINDS = [  # files, the name of each, the error that is expected, its words, and what reads them
    (ARCHIVES, "model.npz", ModelFileError, r"model\.npz", MODELS.values()),
    (
        ARCHIVES,
        "snapshot",
        CheckpointError,
        "no snapshot of a job",
        [lambda path: unpack(path.read_bytes())],
    ),
    (VECTORS, "model", ModelFileError, "model", [snailps.load]),
    (
        EXAMPLES,
        "a.mx",
        DataError,
        r"a\.mx",
        [rows_of, partial(rows_of, needs_labels=False), array_of],
    ),
    (ARRAYS, "images", DataError, "images", [array_of]),
]


@pytest.mark.parametrize(
    ("data", "name", "error", "words", "reader"),
    [
        pytest.param(data, *kind, reader, id=f"{what}-{kind[0]}-{at}")
        for files, *kind, readers in KINDS
        for what, data in files.items()
        for at, reader in enumerate(readers)
    ],
)
@pytest.mark.usefixtures("bounded")
def test_hostile_file_is_an_error_of_its_kind(tmp_path, data, name, error, words, reader):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(error, match=words):
        reader(path)


ENTRIES = {
    "fragments": (100, 0, 10**12),
    "fragments_overflow": (100, 0, 10**18),
    "index_behind": (100, 10**15, 1),
    "index_at_the_end": (100, 90, 1),
}


@pytest.mark.parametrize(("length", "at", "fragments"), ENTRIES.values(), ids=ENTRIES)
@pytest.mark.usefixtures("bounded")
def test_hostile_entry_of_a_manifest_is_a_checkpoint_error(tmp_path, length, at, fragments):
    (tmp_path / "shard-0").write_bytes(b"SNAILCKP".ljust(length, b"\0"))
    entry = FileEntry("shard-0", length, at, fragments, fragments, 0, 0)
    with pytest.raises(CheckpointError, match="do not fit its 100 bytes"):
        ShardFile(tmp_path, entry, 1, 1, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"frag_num": 1 << 32},
        {"files": [FileEntry("a", 1, 0, 1, 1 << 64, 0, 0).to_dict()]},
        {"files": [FileEntry("a", 1 << 64, 0, 1, 1, 0, 0).to_dict()]},
        {"tables": [{"number": 1 << 32, "table": {}}]},
    ],
)
def test_hostile_manifest_with_a_right_checksum_is_a_checkpoint_error(wrong):
    file = FileEntry("a", 1, 0, 1, 1, 0, 0)
    manifest = Manifest(1, 1, "now", 1, (), (file,), {}, file)
    files = wrong.get("files", [file.to_dict()])
    object.__setattr__(manifest, "frag_num", wrong.get("frag_num", 1))
    object.__setattr__(manifest, "tables", tuple(wrong.get("tables", ())))
    object.__setattr__(manifest, "files", tuple(FileEntry(**one) for one in files))
    with pytest.raises(CheckpointError, match="here"):
        Manifest.from_bytes(manifest.to_bytes(), "here")


def test_course_of_another_length_is_a_checkpoint_error(tmp_path):
    (tmp_path / "course").write_bytes(b"x")
    entry = FileEntry("course", 1 << 40, 0, 0, 0, 0, 0)
    manifest = Manifest(1, 1, "now", 1, (), (), {}, entry)
    with pytest.raises(CheckpointError, match="its length or checksum is wrong"):
        read_course(tmp_path, manifest)


@pytest.mark.usefixtures("bounded")
def test_hostile_vocabulary_is_refused():
    good = Vocabulary([b"a"], np.array([1]), 1).to_bytes()
    for place in (8, 24):
        data = good[:place] + struct.pack("<Q", 1 << 61) + good[place + 8 :]
        with pytest.raises(SnailError):
            Vocabulary.from_bytes(data)
