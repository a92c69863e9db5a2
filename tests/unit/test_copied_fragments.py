"""Fragments that are copied in several sections, while their rows change: what a checkpoint has."""

import contextlib
import json
import random

import numpy as np
import pytest
from stores import sections_of
from test_checkpoint_files import FRAG_NUM, LIFE, contents, filled_store, make_store, write_store

import snailps
from snailps import Table, kernels
from snailps.abi.key_hash import fragment_of
from snailps.api.export_progress import ExportProgress
from snailps.errors import CheckpointError, SnailError
from snailps.local.offline_export import CheckpointSource, rows_of_piece
from snailps.store._store import ShardStore
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint._row_index import RowIndex
from snailps.store.checkpoint._sections import (
    FragmentCursor,
    copy_fragments,
    put_section,
    read_section,
)
from snailps.store.checkpoint.folder import CheckpointFolder, open_checkpoint, verify
from snailps.store.checkpoint.shard_file import FileEntry, ShardFile, ShardFileWriter, new_buffer

KEYS = 4000
SAME = {1: 1, 2: 2, 5: 5}
DECLARED = {
    1: Table("plain", 3),
    2: Table("touched", 2, access="adagrad", lr=0.1, init="uniform", scale=0.5, track="touch"),
    3: Table("limited", 2, access="sgd", lr=1.0, rows_max=600),
    4: Table("aged", 2, age_max=1500, admit_after=2, admit_bytes=1 << 12),
}


def busy_store(frag_num=2):
    store = ShardStore(frag_num, kernels.row_ops())
    store.own(range(frag_num))
    for number, table in DECLARED.items():
        store.add_table(number, *table.store_arguments())
    return store


def rows_in(section):
    """(table, key) and bytes of each row of a section, with its state."""
    for piece in read_section(section).tables:
        lie = section[piece.at : piece.at + piece.rows * piece.row_bytes]
        lie = lie.reshape(piece.rows, piece.row_bytes)
        keys = lie[:, :8].copy().view("<u8")[:, 0].tolist()
        for key, row in zip(keys, lie[:, 8 : 8 + 4 * piece.floats], strict=True):
            yield (piece.table, key), row.tobytes()


def keys_there(store):
    """Keys of all tables, each with its table in the upper bits."""
    return np.concatenate([store.keys(number) | np.uint64(number << 32) for number in DECLARED])


class Traffic:
    """Pushes, ticks and expiries of keys from few enough that rows go and come again."""

    def __init__(self, store, seed):
        self.store, self.seq, self.tick = store, 0, 1
        self.random = random.Random(seed)
        self.draws = np.random.default_rng(seed)

    def go(self, times):
        for _ in range(times):
            number = self.random.choice(list(DECLARED))
            keys = np.unique(self.draws.integers(0, KEYS, self.random.randrange(1, 300)))
            values = self.draws.standard_normal((len(keys), DECLARED[number].dim))
            self.seq += 1
            self.store.push(number, 7, self.seq, keys.astype(np.uint64), values)
            if self.random.random() < 0.1:
                self.tick += 1
                self.store.set_tick(self.tick)
                self.store.expire(2, self.tick - 2, range(2))
            if self.random.random() < 0.02:
                self.store.delete(1, self.draws.integers(0, KEYS, 40).astype(np.uint64))


@pytest.mark.parametrize("seed", range(8))
def test_rows_copied_between_pushes_are_whole_once_each_and_none_is_missed(seed):
    store = busy_store()
    traffic = Traffic(store, seed)
    traffic.go(200)
    lasting = keys_there(store)
    cursor, buffer = FragmentCursor(store.fragments()), np.zeros(2560, np.uint8)
    found, copied = {}, []
    while True:
        _, sections = copy_fragments(store, cursor, buffer)
        if not sections:
            break
        for _, begin, length, rows in sections:
            section = buffer[begin : begin + length].copy()
            copied.append(section)
            inside = dict(rows_in(section))
            assert len(inside) == rows
            twice = inside.keys() & found.keys()
            assert not twice, f"{twice} are in two sections"
            for number in DECLARED:
                keys = np.array([key for table, key in inside if table == number], np.uint64)
                now = store.pull(number, keys, state=True)
                for key, row in zip(keys.tolist(), now, strict=True):
                    assert row.tobytes() == inside[number, key], f"{key} as it was when copied"
            found |= inside
        for _ in range(traffic.random.randrange(3)):
            traffic.go(1)
            lasting = np.intersect1d(lasting, keys_there(store))
    assert len(copied) > 40
    assert np.isin(lasting, [number << 32 | key for number, key in found]).all()

    other = busy_store()
    traffic.random.shuffle(copied)  # lanes write in any order
    assert sum(put_section(other, section, {n: n for n in DECLARED}) for section in copied) == len(
        found
    )
    again = {}
    for section in sections_of(other):
        again |= rows_in(section)
    assert again == found


@pytest.mark.parametrize("capacity", [1 << 9, 1 << 12, 1 << 14])
def test_fragments_in_several_sections_are_those_in_one(capacity):
    store, other = filled_store(2000), make_store()
    sections = sections_of(store, capacity)
    assert len(sections) > FRAG_NUM
    for section in sections:
        assert len(section) <= capacity
        put_section(other, section, SAME)
    assert contents(other) == contents(store)
    assert [other.keys(n).tolist() for n in SAME] == [store.keys(n).tolist() for n in SAME]


def test_marks_are_in_the_first_section_of_a_fragment_only():
    marks = {}
    for section in sections_of(filled_store(2000), 1 << 12):
        about = read_section(section)
        marks.setdefault(about.fragment, []).append(about.marks)
    assert all(each[0] == 2 and not any(each[1:]) for each in marks.values())


def test_second_copy_ends_the_first():
    store, buffer = filled_store(2000), np.zeros(1 << 12, np.uint8)
    first, second = (FragmentCursor(store.fragments()) for _ in range(2))
    copy_fragments(store, first, buffer)
    copy_fragments(store, second, buffer)
    copy_fragments(store, second, buffer)
    with pytest.raises(SnailError, match="given up for another"):
        for _ in iter(lambda: copy_fragments(store, first, buffer)[1], []):
            pass


@pytest.mark.parametrize("what", ["disown", "drop", "clear"])
def test_copy_outlives_what_happens_to_its_table(what):
    store, buffer = filled_store(2000), np.zeros(1 << 12, np.uint8)
    cursor = FragmentCursor(store.fragments())
    copy_fragments(store, cursor, buffer)  # some of table 1 in fragment 0
    if what == "disown":
        store.disown(0)
        with pytest.raises(SnailError, match="not owned"):
            copy_fragments(store, cursor, buffer)
        store.own([0])  # as a shard that moved away and back
        with pytest.raises(SnailError, match="given up"):
            copy_fragments(store, cursor, buffer)
        return
    if what == "drop":
        store.drop_tables([1])
    else:
        store.clear([1])
        store.push(1, 9, 1, np.arange(500, dtype=np.uint64), np.ones((500, 3)))
    keys = []
    for sections in iter(lambda: copy_fragments(store, cursor, buffer)[1], []):
        for _, begin, length, _ in sections:
            keys += [row for row, _ in rows_in(buffer[begin : begin + length].copy())]
    mine = [key for number, key in keys if number == 1]
    # rows that are made once the walk has begun are of pushes that are made again
    made = [] if what == "drop" else np.arange(500)[fragment_of(np.arange(500), FRAG_NUM) > 0]
    assert sorted(mine) == sorted(made)
    assert {number for number, _ in keys} >= {2, 5}


# --- files ------------------------------------------------------------------------------------


def test_file_of_split_fragments_is_read_back_in_any_order_of_its_sections(tmp_path):
    store, other = filled_store(2000), make_store()
    sections = sections_of(store, 1 << 12)
    random.Random(3).shuffle(sections)
    writer = ShardFileWriter(tmp_path / "a.rows", LIFE, 1, FRAG_NUM)
    for section in sections:
        buffer = new_buffer(len(section))
        buffer[: len(section)] = section
        about = read_section(section)
        writer.write(buffer, len(section), [(about.fragment, 0, len(section), about.rows)])
    entry = writer.close()
    assert (entry.fragments, entry.sections) == (FRAG_NUM, len(sections))
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    index = RowIndex(2, FRAG_NUM, 4)
    for _, section in file.sections(np.ones(FRAG_NUM, bool)):
        put_section(other, section, SAME)
        index.add(section.copy())
    index.build()
    assert contents(other) == contents(store)
    keys = np.sort(store.keys(2))
    rows = np.empty((len(keys), 4), np.float32)
    assert index.find(keys, rows).all()
    assert np.array_equal(rows, store.pull(2, keys, state=True))
    assert index.rows == len(keys)
    found = np.concatenate([index.keys_of(fragment) for fragment in range(FRAG_NUM)])
    assert np.array_equal(np.sort(found), keys)
    assert not index.find(keys + np.uint64(1)).any()


def test_index_that_lists_a_section_twice_or_overlapping_or_less_is_refused(tmp_path):
    entry = write_store(tmp_path / "a.rows", filled_store(2000), capacity=1 << 12)
    data = bytearray((tmp_path / "a.rows").read_bytes())
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    assert entry.sections > entry.fragments
    index = file.index.copy()

    def refused(changed, **more):
        body = changed.tobytes()
        data[entry.index_at : entry.index_at + len(body)] = body
        (tmp_path / "a.rows").write_bytes(data)
        sums = {"index_crc32c": crc32c(body), "sections": len(changed), **more}
        damaged = FileEntry(**{**entry.to_dict(), **sums})
        with pytest.raises(CheckpointError, match="index contradicts itself"):
            ShardFile(tmp_path, damaged, LIFE, 1, FRAG_NUM)

    twice = index.copy()
    twice[1] = twice[0]
    refused(twice)
    overlapping = index.copy()
    overlapping["at"][1] = overlapping["at"][0] + 8
    refused(overlapping)
    refused(index[1:])  # its rows are those of all
    refused(index, fragments=FRAG_NUM - 1)


def read_in_every_way(section):
    """What reads sections; SnailError is right, nothing else."""
    store, index = make_store(), RowIndex(2, FRAG_NUM, 4)
    with contextlib.suppress(SnailError):
        put_section(store, section, SAME)
    with contextlib.suppress(SnailError):
        index.add(section)
        index.build()
        index.find(np.arange(50, dtype=np.uint64), np.empty((50, 4), np.float32))
        index.keys_of(0)
    with contextlib.suppress(SnailError):
        for piece in read_section(section).tables:
            sum(len(keys) for keys, _ in rows_of_piece(section, piece, piece.floats))
    return store.stats()["rows"]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_sections_of_a_split_fragment_are_read_or_refused(seed):
    """In a file that somebody has made checksums are right: lengths and counts are checked."""
    random_ = random.Random(seed)
    sections = sections_of(filled_store(300), 1 << 9)
    for _ in range(300):
        section = random_.choice(sections).copy()
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(0, len(section) // 4) * 4
            value = random_.choice([0, 1, 2, 0x7FFFFFFF, 0xFFFFFFFF, random_.getrandbits(32)])
            section[at : at + 4].view("<u4")[0] = value
        cut = random_.choice([len(section), random_.randrange(len(section))])
        assert read_in_every_way(section[:cut].copy()) <= 100


# --- format 1 ---------------------------------------------------------------------------------

OLD_FILE = {
    0x0000: "53 4e 41 49 4c 43 4b 50 01 00 00 00 00 10 00 00"
            "ef cd ab 89 67 45 23 01 05 00 00 00 00 00 00 00"
            "01 00 00 00 35 cf 04 85",
    0x1000: "46 52 41 47 00 00 00 00 01 00 00 00 01 00 00 00"
            "80 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00"
            "03 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00"
            "01 00 00 00 02 00 00 00 00 00 00 00 10 00 00 00"
            "01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
            "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
            "07 00 00 00 00 00 00 00 00 00 c0 3f 00 00 00 c0",
    0x2000: "00 00 00 00 95 6a 01 35 00 10 00 00 00 00 00 00"
            "80 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00",
}  # fmt: skip
"""A shard's file as 0.1.0 wrote it: key 7 of table 1 is (1.5, -2)."""


def old_checkpoint(path):
    """The folder of a checkpoint of 0.1.0."""
    data = bytearray(12288)
    for at, digits in OLD_FILE.items():
        piece = bytes.fromhex(digits)
        data[at : at + len(piece)] = piece
    path.mkdir()
    (path / "server-1-shard-0.rows").write_bytes(data)
    (path / "course.npz").write_bytes(b"course")
    entry = {
        "name": "server-1-shard-0.rows", "bytes": 12288, "index_at": 8192, "fragments": 1,
        "rows": 1, "index_crc32c": 3530223329,
    }  # fmt: skip
    course = {"name": "course.npz", "bytes": 6, "index_at": 0, "fragments": 0, "rows": 0}
    plain = {
        "format": 1, "crc32c": "00000000", "number": 5, "life": 0x0123456789ABCDEF,
        "saved_at": "2026-11-22T10:00:00+00:00", "frag_num": 1,
        "tables": [{"number": 1, "table": Table("w", 2).to_dict()}], "files": [entry],
        "job": {"progress": 0.5}, "course": course | {"index_crc32c": crc32c(b"course")},
    }  # fmt: skip
    text = json.dumps(plain, indent=1) + "\n"
    (path / "manifest.json").write_text(text.replace("00000000", f"{crc32c(text.encode()):08x}", 1))
    return path


def test_checkpoint_of_format_1_is_read(tmp_path):
    path = old_checkpoint(tmp_path / "checkpoint-000005")
    (found,) = CheckpointFolder(tmp_path).found()
    assert (found.state, found.why) == ("good", "")
    assert verify(path).rows == 1
    store = ShardStore(1, kernels.row_ops())
    store.own([0])
    store.add_table(8, *Table("w", 2).store_arguments())
    _, (file,) = open_checkpoint(path)
    for _, section in file.sections(np.ones(1, bool)):
        assert put_section(store, section, {1: 8}) == 1
    assert store.pull(8, np.uint64([7])).tolist() == [[1.5, -2.0]]
    assert snailps.open_checkpoint(path)["w"].pull([7]).tolist() == [[1.5, -2.0]]
    source = CheckpointSource(path)
    pieces = list(source.pieces("w", False, ExportProgress()))
    assert [(keys.tolist(), rows.tolist()) for keys, rows in pieces] == [([7], [[1.5, -2.0]])]
