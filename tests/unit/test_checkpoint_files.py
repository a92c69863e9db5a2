"""Checkpoints on disk: sections, files of shards, manifests and folders; every kind of damage."""

import errno
import fcntl
import gc
import json
import os
import struct
from functools import partial

import numpy as np
import pytest
from machine import fails
from stores import MARK, SECTION, marks_of, sections_of, ticks_of
from waiting import run_all

from snailps.abi import loops
from snailps.abi.key_hash import fragment_of
from snailps.errors import CheckpointError, MisuseError, SnailError
from snailps.store._store import ShardStore
from snailps.store.checkpoint._crc32c import HAS_INSTRUCTION, crc32c
from snailps.store.checkpoint._sections import FragmentCursor, copy_fragments, put_section
from snailps.store.checkpoint.disk import OS_DISK
from snailps.store.checkpoint.folder import (
    COURSE,
    LOCK,
    PASSED,
    CheckpointFolder,
    found_at,
    open_checkpoint,
    verify,
    write_course,
)
from snailps.store.checkpoint.manifest import NAME, Manifest
from snailps.store.checkpoint.shard_file import (
    PAGE,
    FileEntry,
    ShardFile,
    ShardFileWriter,
    new_buffer,
)

FRAG_NUM = 8
LIFE = 0xFEDCBA9876543210
ADD, ADAGRAD, ADAM = 0, 2, 3
# number -> (dim, access, init, scale, seed, hyper, track)
TABLES = {
    1: (3, ADD, 0, 0.0, 1, (), 0),
    2: (2, ADAGRAD, 1, 0.5, 2, (0.1, 1e-6), 1),
    5: (7, ADAM, 2, 0.1, 3, (0.1, 1e-6, 0.9, 0.99), 1),
}


def make_store(fragments=range(FRAG_NUM), tables=TABLES):
    store = ShardStore(FRAG_NUM, loops.row_ops())
    store.own(list(fragments))
    for number, settings in tables.items():
        store.add_table(number, *settings)
    return store


def filled_store(rows=500, seed=1):
    """A store with rows in every table, ticks, marks, and holes where rows were."""
    store = make_store()
    rng = np.random.default_rng(seed)
    for seq, (number, (dim, *_)) in enumerate(TABLES.items(), 1):
        keys = np.unique(rng.integers(0, 1 << 63, rows, dtype=np.uint64))
        store.set_tick(seq)
        store.push(number, 77, seq, keys, rng.standard_normal((len(keys), dim)))
        store.push(number, 5, seq, keys[::3], rng.standard_normal((len(keys[::3]), dim)))
        if number != 5:
            store.delete(number, keys[::7])
    return store


def contents(store, tables=TABLES):
    """All that a checkpoint keeps of a store, keys in order."""
    found = {}
    for number, settings in tables.items():
        keys = np.sort(store.keys(number))
        found[number, "keys"] = keys.tolist()
        found[number, "rows"] = store.pull(number, keys, state=True).tobytes()
        if settings[-1] & 1:
            found[number, "ticks"] = ticks_of(store, number)
    return found


def write_store(path, store, number=1, capacity=1 << 16):
    writer = ShardFileWriter(path, LIFE, number, FRAG_NUM)
    cursor, buffer = FragmentCursor(store.fragments()), new_buffer(capacity)
    while True:
        used, sections = copy_fragments(store, cursor, buffer)
        if not sections:
            return writer.close()
        writer.write(buffer, used, sections)


def write_checkpoint(folder, store, number=None, life=LIFE):
    """A finished checkpoint of one store; its path."""
    number = folder.next_number() if number is None else number
    part = folder.begin(number)
    entry = write_store(part / "server-1-shard-0.rows", store, number)
    course = write_course(part, b"course")
    tables = tuple({"number": n, "table": {"name": f"t{n}"}} for n in TABLES)
    manifest = Manifest(number, life, "now", FRAG_NUM, tables, (entry,), {}, course)
    return folder.complete(part, manifest)


@pytest.fixture
def folder(tmp_path):
    folder = CheckpointFolder(tmp_path / "saved")
    folder.take()
    yield folder
    folder.release()


@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT, errno.EINVAL])
def test_checkpoint_whose_names_are_lost_is_refused_and_without_syncs_of_folders_taken(
    folder, monkeypatch, error
):
    monkeypatch.setattr(OS_DISK, "sync_folder", fails(error))
    store = filled_store(50)
    if error == errno.EINVAL:
        assert write_checkpoint(folder, store).exists()
    else:
        with pytest.raises(CheckpointError, match="cannot be written"):
            write_checkpoint(folder, store)


# --- checksums --------------------------------------------------------------------------------


def plain_crc32c(data):
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("by_tables", [False, True])
@pytest.mark.parametrize(
    ("data", "known"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_has_the_known_answers(data, known, by_tables):
    assert crc32c(data, by_tables=by_tables) == known == plain_crc32c(data)


def test_crc32c_in_pieces_and_by_tables_is_the_same():
    data = np.random.default_rng(6).integers(0, 256, 30_000, dtype=np.uint8)
    for cut in (0, 1, 7, 8, 9, 1500, 5424, 5425, 17_712, 17_713, 29_999):
        whole = crc32c(data[cut:])
        assert whole == crc32c(data[cut:], by_tables=True) == plain_crc32c(data[cut:].tolist())
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert isinstance(HAS_INSTRUCTION, bool)


# --- sections ---------------------------------------------------------------------------------


def test_section_put_into_an_empty_store_gives_all_of_it_back():
    store = filled_store()
    other = make_store()
    same = {number: number for number in TABLES}
    rows = sum(put_section(other, section, same) for section in sections_of(store))
    assert rows == store.stats()["rows"] > 1000
    assert contents(other) == contents(store)
    assert not any(marks_of(other).values())  # it has its own
    # Slots are in the same order, too: a store that goes on does so in the same way.
    assert [other.keys(n).tolist() for n in TABLES] == [store.keys(n).tolist() for n in TABLES]


def test_section_of_before_0_1_with_versions_of_rows_is_refused():
    section = np.array(next(iter(sections_of(filled_store()))))
    table = SECTION.size + SECTION.unpack_from(section)[3] * MARK.size
    struct.pack_into("<I", section, table + 8, 2)  # track
    with pytest.raises(CheckpointError, match=r"rows of \d+ floats \(track 2\)"):
        put_section(make_store(), section, {1: 1, 2: 2, 5: 5})


def test_sections_put_into_a_cleared_table_leave_nothing_of_before():
    store, other = filled_store(), make_store()
    keys = np.arange(300, dtype=np.uint64)
    other.push(1, 1, 1, keys, np.ones((300, 3)))
    other.clear([1, 77])
    for section in sections_of(store):
        put_section(other, section, {1: 1})
    assert contents(other, {1: TABLES[1]}) == contents(store, {1: TABLES[1]})


def test_section_with_tables_of_other_numbers_goes_where_it_is_told():
    store = filled_store()
    other = make_store(tables={9: TABLES[2]})
    for section in sections_of(store):
        put_section(other, section, {2: 9})
    keys = np.sort(store.keys(2))
    assert np.sort(other.keys(9)).tolist() == keys.tolist()
    assert (other.pull(9, keys, state=True) == store.pull(2, keys, state=True)).all()


@pytest.mark.parametrize("length", [0, 63, 64, 128])
def test_copy_into_a_buffer_without_room_for_a_row_refuses(length):
    with pytest.raises(MisuseError, match="no room for"):
        sections_of(filled_store(), length)


def test_section_of_a_store_without_rows_is_one_cache_line():
    assert [len(section) for section in sections_of(make_store())] == [64] * FRAG_NUM


def test_copy_of_a_fragment_that_is_not_owned_refuses():
    store = make_store([1, 2])
    with pytest.raises(SnailError, match="fragment 3 is not owned"):
        copy_fragments(store, FragmentCursor(np.array([1, 3], np.uint32)), new_buffer(1))


def test_section_cut_off_anywhere_refuses_and_touches_nothing_beyond():
    section = sections_of(filled_store(60))[2]
    for length in range(0, len(section), 8):
        with pytest.raises(CheckpointError):
            put_section(make_store(), section[:length].copy(), {1: 1, 2: 2, 5: 5})


def test_section_with_any_header_word_changed_never_reads_outside():
    section = sections_of(filled_store(60))[2]
    rng = np.random.default_rng(3)
    for _ in range(400):
        damaged = section.copy()
        at = int(rng.integers(0, 160))
        damaged[at] = rng.integers(0, 256)
        store = make_store()
        try:
            put_section(store, damaged, {1: 1, 2: 2, 5: 5})
        except SnailError:
            continue
        assert store.stats()["rows"] <= 180


def test_section_of_a_table_of_another_width_refuses():
    section = sections_of(filled_store(60))[0]
    other = make_store(tables={1: (4, ADD, 0, 0.0, 1, (), 0)})
    with pytest.raises(CheckpointError, match=r"rows of 3 floats .* the table here 4"):
        put_section(other, section, {1: 1})


# --- files of shards --------------------------------------------------------------------------


def test_shard_file_gives_back_what_was_written(tmp_path):
    store, other = filled_store(), make_store()
    entry = write_store(tmp_path / "a.rows", store)
    assert entry.bytes == (tmp_path / "a.rows").stat().st_size
    assert (entry.fragments, entry.rows) == (FRAG_NUM, store.stats()["rows"])
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    for fragment, section in file.sections(np.ones(FRAG_NUM, bool)):
        assert fragment in range(FRAG_NUM)
        put_section(other, section, {number: number for number in TABLES})
    assert contents(other) == contents(store)


def test_shard_file_read_in_part_gives_the_fragments_asked_for(tmp_path):
    entry = write_store(tmp_path / "a.rows", filled_store())
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    owned = np.zeros(FRAG_NUM, bool)
    owned[[1, 6]] = True
    assert [fragment for fragment, _ in file.sections(owned)] == [1, 6]


def test_shard_file_written_by_threads_holds_all(tmp_path):
    store = filled_store()
    writer = ShardFileWriter(tmp_path / "a.rows", LIFE, 1, FRAG_NUM)

    def write(at):
        buffer = new_buffer(1 << 20)
        cursor = FragmentCursor(np.array([at], np.uint32))
        used, sections = copy_fragments(store, cursor, buffer)
        writer.write(buffer, used, sections)

    run_all(*(partial(write, one) for one in range(FRAG_NUM)))
    entry = writer.close()
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    found = {f: bytes(section) for f, section in file.sections(np.ones(FRAG_NUM, bool))}
    assert found == {f: bytes(section) for f, section in enumerate(sections_of(store))}


def test_shard_file_with_any_byte_changed_is_recognised(tmp_path):
    store = filled_store(40)
    entry = write_store(tmp_path / "a.rows", store)
    good = (tmp_path / "a.rows").read_bytes()
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    used = [(0, 40), (entry.index_at, entry.index_at + 32 * entry.fragments)]
    used += [(int(e["at"]), int(e["at"] + e["bytes"])) for e in file.index]
    places = [at for begin, end in used for at in range(begin, end)]
    rng = np.random.default_rng(4)
    everything = np.ones(FRAG_NUM, bool)
    for at in [*places[:40], *rng.choice(places, 300).tolist()]:
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "a.rows").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.rows"):
            for _ in ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM).sections(everything):
                pass


def test_shard_file_cut_off_is_recognised(tmp_path):
    entry = write_store(tmp_path / "a.rows", filled_store(40))
    os.truncate(tmp_path / "a.rows", entry.bytes - 1)
    with pytest.raises(CheckpointError, match="cut off or changed"):
        ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)


def test_shard_file_of_another_checkpoint_is_recognised(tmp_path):
    entry = write_store(tmp_path / "a.rows", filled_store(40))
    for life, number, frag_num in ((LIFE + 1, 1, 8), (LIFE, 2, 8), (LIFE, 1, 9)):
        with pytest.raises(CheckpointError, match="another checkpoint"):
            ShardFile(tmp_path, entry, life, number, frag_num)


def test_shard_file_on_a_full_disk_says_so_and_is_removed(tmp_path, monkeypatch):
    writer = ShardFileWriter(tmp_path / "a.rows", LIFE, 1, FRAG_NUM)
    monkeypatch.setattr(os, "pwrite", fails(errno.ENOSPC))
    with pytest.raises(CheckpointError, match=r"a\.rows: cannot be written, .* is full"):
        writer.write(new_buffer(PAGE), 5, ())
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../a", "/a", "a/b", 3, None])
def test_file_entry_with_a_name_that_is_no_plain_name_refuses(name):
    plain = FileEntry("a", 1, 2, 3, 4, 5, 6).to_dict() | {"name": name}
    with pytest.raises(CheckpointError, match="expected a name"):
        FileEntry.from_dict(plain, "here")


# --- manifests --------------------------------------------------------------------------------


def some_manifest():
    file = FileEntry("a.rows", 8192, 4096, FRAG_NUM, FRAG_NUM, 4, 5)
    table = {"number": 1, "table": {"name": "counts", "crc32c": "00000000"}}
    job = {"worker_class": "a:B", "text": '"crc32c": "00000000"'}
    course = FileEntry("c", 1, 0, 0, 0, 0, 9)
    return Manifest(3, LIFE, "now", FRAG_NUM, (table,), (file,), job, course)


def test_manifest_comes_back_as_it_was():
    assert Manifest.from_bytes(some_manifest().to_bytes(), "here") == some_manifest()


def test_manifest_with_any_byte_changed_is_recognised():
    good = some_manifest().to_bytes()
    rng = np.random.default_rng(5)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(CheckpointError, match="here"):
            Manifest.from_bytes(bytes(damaged), "here")


def test_manifest_cut_off_anywhere_is_recognised():
    good = some_manifest().to_bytes()
    for length in range(len(good) - 1):
        with pytest.raises(CheckpointError, match="here"):
            Manifest.from_bytes(good[:length], "here")


def test_manifest_of_a_later_format_says_which():
    text = some_manifest().to_bytes().replace(b'"format": 2', b'"format": 3')
    with pytest.raises(CheckpointError, match="checkpoint format 3, this version reads 1 to 2"):
        Manifest.from_bytes(text, "here")


@pytest.mark.parametrize(
    "wrong",
    [{"number": 0}, {"cluster_id": -1}, {"frag_num": "8"}, {"files": 3}, {"tables": [3]},
     {"job": 1}, {"course": {}}, {"files": []}],
)  # fmt: skip
def test_manifest_with_right_checksum_and_wrong_values_refuses(wrong):
    plain = json.loads(some_manifest().to_bytes()) | wrong | {"crc32c": "00000000"}
    text = json.dumps(plain, indent=1)
    sum_ = f'"crc32c": "{crc32c(text.encode()):08x}"'
    with pytest.raises(CheckpointError, match="here"):
        Manifest.from_bytes(text.replace('"crc32c": "00000000"', sum_, 1).encode(), "here")


# --- folders ----------------------------------------------------------------------------------


def test_folder_with_checkpoints_finds_them_in_order(folder):
    store = filled_store(40)
    for _ in range(3):
        write_checkpoint(folder, store)
    assert [(one.number, one.state) for one in folder.found()] == [
        (1, "good"), (2, "good"), (3, "good"),
    ]  # fmt: skip
    assert [one.number for one in folder.candidates()] == [3, 2, 1]
    assert verify(folder.found()[1].path).rows == store.stats()["rows"]


@pytest.mark.parametrize(
    "name",
    ["checkpoint-", "checkpoint-monday", "checkpoint-7", "checkpoint-20261130",
     "checkpoint-000001", "checkpoint-000001.part", "checkpoint-000001.old", "manifest.json.d"],
)  # fmt: skip
def test_folder_of_checkpoints_may_have_any_name(tmp_path, name):
    store, outer = filled_store(40), CheckpointFolder(tmp_path)
    folder = CheckpointFolder(tmp_path / name)
    folder.take()
    path = write_checkpoint(folder, store)
    assert [(one.path, one.state) for one in found_at(folder.path)] == [(path, "good")]
    assert [(one.path, one.state) for one in found_at(path)] == [(path, "good")]
    # a folder beside its own checkpoints is nothing to them, whatever they remove
    mine = [write_checkpoint(outer, store) for _ in range(3)]
    assert [one.path for one in found_at(tmp_path)] == mine
    outer.clear()
    outer.prune(1)
    assert [one.path for one in found_at(tmp_path)] == mine[-1:]
    assert [one.path for one in found_at(folder.path)] == [path]
    folder.release()


def test_checkpoint_may_be_copied_under_any_name_and_takes_no_others_in(folder):
    path = write_checkpoint(folder, filled_store(40), 5)
    other = path.rename(path.parent / "monday")
    assert [(one.number, one.path, one.state) for one in found_at(other)] == [(5, other, "good")]
    with pytest.raises(CheckpointError, match=r"monday: is a checkpoint itself.*choose another"):
        CheckpointFolder(other).take()


def test_folder_that_does_not_exist_is_empty(tmp_path):
    folder = CheckpointFolder(tmp_path / "none")
    assert folder.found() == []
    assert folder.next_number() == 1


def test_checkpoint_without_its_manifest_is_unfinished_until_the_rename(folder):
    part = folder.begin(1)
    write_store(part / "a.rows", filled_store(40))
    (one,) = folder.found()
    assert (one.number, one.state) == (1, "unfinished")
    assert "never finished" in one.why
    assert folder.next_number() == 2
    folder.clear()
    assert folder.found() == []
    assert folder.next_number() == 2  # servers of an earlier master may still report on 1


@pytest.mark.parametrize("made_before", [False, True])
def test_folder_into_which_nothing_came_goes_where_it_was_made_for_that(tmp_path, made_before):
    path = tmp_path / "out.checkpoints"
    if made_before:
        path.mkdir()
    folder = CheckpointFolder(path)
    folder.take()
    folder.release()
    assert path.exists() == made_before
    folder.take()
    part = folder.begin(1)
    folder.release()
    assert part.exists()


@pytest.mark.parametrize(
    "name", [NAME, COURSE, "server-1-shard-0.rows"]
)  # fmt: skip
def test_checkpoint_that_lacks_a_file_is_damaged_and_says_which(folder, name):
    path = write_checkpoint(folder, filled_store(40))
    (path / name).unlink()
    (one,) = folder.found()
    assert one.state == "damaged"
    assert name in one.why


def test_checkpoint_under_the_name_of_another_is_damaged(folder):
    path = write_checkpoint(folder, filled_store(40))
    path.rename(path.with_name("checkpoint-000007"))
    (one,) = folder.found()
    assert (one.number, one.state) == (7, "damaged")


def test_checkpoint_with_a_damaged_row_is_good_until_it_is_read(folder):
    path = write_checkpoint(folder, filled_store(40))
    file = path / "server-1-shard-0.rows"
    data = bytearray(file.read_bytes())
    data[PAGE + 200] ^= 1
    file.write_bytes(data)
    assert folder.found()[0].state == "good"
    with pytest.raises(CheckpointError, match=r"section of fragment 0 .* is damaged"):
        verify(path)


def test_checkpoint_whose_files_hold_a_fragment_twice_is_recognised(folder):
    store = filled_store(40)
    part = folder.begin(1)
    entries = []
    for shard, fragments in enumerate(([0, 1, 2, 3], [3, 5, 6, 7])):
        one = make_store(fragments)
        entries.append(write_store(part / f"{shard}.rows", one))
    course = write_course(part, b"")
    path = folder.complete(part, Manifest(1, LIFE, "now", 8, (), tuple(entries), {}, course))
    with pytest.raises(CheckpointError, match="every fragment once"):
        open_checkpoint(path)
    assert store.stats()["rows"]


def test_checkpoint_that_lacks_fragments_gets_no_name(folder):
    write_checkpoint(folder, filled_store(), 1)
    part = folder.begin(2)
    course = write_course(part, b"course")
    manifest = Manifest(2, LIFE, "now", FRAG_NUM, (), (), {}, course)
    with pytest.raises(CheckpointError, match=f"hold 0 of {FRAG_NUM} fragments: a shard was not"):
        folder.complete(part, manifest)
    assert [(one.number, one.state) for one in folder.found()] == [(1, "good"), (2, "unfinished")]


def test_prune_keeps_the_newest_good_ones(folder):
    store = filled_store(40)
    paths = [write_checkpoint(folder, store) for _ in range(5)]
    (paths[3] / NAME).write_bytes(b"{}")
    assert folder.prune(2) == [1, 2]  # 4 is damaged and does not count
    assert [(one.number, one.state) for one in folder.found()] == [
        (3, "good"), (4, "damaged"), (5, "good"),
    ]  # fmt: skip
    assert folder.prune(3) == []
    assert folder.prune(1, {paths[2], paths[3]}) == []
    assert sorted(p.name for p in folder.path.iterdir()) == [
        "checkpoint-000003", "checkpoint-000004", "checkpoint-000005", LOCK,
    ]  # fmt: skip


def test_folder_of_a_run_that_ended_has_nothing_to_go_on_from(folder):
    store = filled_store(40)
    write_checkpoint(folder, store)
    folder.set_passed("the run ended")
    assert list(folder.candidates()) == []
    assert len(folder.found()) == 1
    write_checkpoint(folder, store)
    assert [one.number for one in folder.candidates()] == [2]
    folder.prune(1)
    (folder.path / "checkpoint-000002").rename(folder.path / "elsewhere")
    assert folder.next_number() == 2  # what was passed is never a number again
    (folder.path / PASSED).write_text("?")
    with pytest.raises(CheckpointError, match=PASSED):
        folder.passed()


@pytest.mark.parametrize("bit", range(8))
def test_word_that_runs_are_over_hides_no_checkpoint_when_a_bit_is_flipped(folder, bit):
    """Were 1 taken for 3, a job would begin anew without a word beside a good checkpoint."""
    write_checkpoint(folder, filled_store(40))
    folder.set_passed("the run ended")
    path = folder.path / PASSED
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            assert folder.passed() == 1
        except CheckpointError as error:
            assert "cannot be understood" in str(error)  # noqa: PT017 - either is right


def test_folder_that_another_master_has_refuses_and_names_it(folder):
    other = CheckpointFolder(folder.path)
    here = f"process {os.getpid()} on"
    with pytest.raises(CheckpointError, match=rf"this master itself, and not .*\({here}.*of a job"):
        other.take()
    (folder.path / LOCK).write_text("process 1 on elsewhere\n")
    words = r": another master keeps its checkpoints here \(process 1 on elsewhere\): choose"
    with pytest.raises(CheckpointError, match=words):
        other.take()
    folder.release()
    other.take()
    other.release()


def test_folder_on_a_disk_without_locks_says_so_and_names_no_other_master(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOSYS))
    gc.collect()  # files of earlier tests are not closed in the middle of this one
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths
    with pytest.raises(CheckpointError, match=r"lock: cannot be written, Function not implemented"):
        CheckpointFolder(tmp_path).take()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_manifest_on_a_full_disk_leaves_the_last_good_one(folder, monkeypatch):
    store = filled_store(40)
    write_checkpoint(folder, store)

    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    part = folder.begin(2)
    with pytest.raises(CheckpointError, match="is full"):
        write_course(part, b"x")
    monkeypatch.undo()
    assert [(one.number, one.state) for one in folder.found()] == [(1, "good"), (2, "unfinished")]


def test_sections_cover_every_key_of_their_fragment():
    store = filled_store()
    for section, fragment in zip(sections_of(store), range(FRAG_NUM), strict=True):
        other = make_store([fragment])
        put_section(other, section, {1: 1, 2: 2, 5: 5})
        for number in TABLES:
            keys = store.keys(number)
            mine = keys[fragment_of(keys, FRAG_NUM) == fragment]
            assert other.keys(number).tolist() == mine.tolist()


def test_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/ck"):
        folder = CheckpointFolder(tmp_path / name)
        for look in (folder.take, folder.passed, folder.next_number, folder.found):
            with pytest.raises(CheckpointError, match=name + r": expected a folder .* got a file"):
                look()
