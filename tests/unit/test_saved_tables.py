"""Checkpoints read by key: the rows are those of the store that wrote it, and damage is found."""

import threading
from functools import partial

import numpy as np
import pytest
from test_checkpoint_files import FRAG_NUM, LIFE, make_store, write_store
from waiting import run_all

import snailps
from snailps import Table, Tensor
from snailps.abi.key_hash import fragment_of
from snailps.api.access_method import load_method
from snailps.errors import CheckpointError, DataError, MisuseError
from snailps.serving.saved_tables import SavedTable, SavedTables
from snailps.store.checkpoint._row_index import RowIndex
from snailps.store.checkpoint.folder import CheckpointFolder, write_course
from snailps.store.checkpoint.manifest import Manifest

ROWS = 3_000
DECLARED = {
    1: Table("admitted", 2, access="sgd", lr=1.0, admit_after=2, admit_bytes=1 << 12),
    2: Table("ada", 5, access="adagrad", init="uniform", scale=0.5, seed=3, lr=0.1),
    3: Table("adam", 3, access="adam", init="normal", seed=4, lr=0.1, track="touch"),
    4: Table("ftrl", 2, access="ftrl", lr=0.1, l1=0.01),
    5: Table("average", 2, access="average"),
    6: Table("empty", 2, init="uniform", scale=0.5),
    7: Table("rowwise", 4, access="rowwise_adagrad", lr=0.1, init="uniform", rows_max=1 << 20),
    8: Table("plain", 16),
    9: Table("python", 3, access="python_methods:Momentum", lr=1.0),
}
FILLED = {
    number: table
    for number, table in DECLARED.items()
    if table.name != "empty" and not table.in_python
}
KEYS_MAX = (1 << 64) - 1


def filled_store(fragments):
    store = make_store(fragments, tables={})
    for number, table in DECLARED.items():
        state = table.state_floats if table.in_python else 0
        store.add_table(number, *table.store_arguments(), state_floats=state)
    return store


def keys_of(number):
    """Keys of a table in no order, the greatest among them; half of those below their number."""
    rng = np.random.default_rng(number)
    keys = rng.permutation(2 * ROWS)[:ROWS].astype(np.uint64)
    return np.append(keys, np.uint64(KEYS_MAX))


def fill(store, fragments):
    """Pushes to the keys of some fragments."""
    for number, table in FILLED.items():
        keys = keys_of(number)
        keys = keys[np.isin(fragment_of(keys, FRAG_NUM), list(fragments))]
        for seq in (1, 2):
            width = table.dim + (table.access == "average")
            values = np.sin((keys % np.uint64(997))[:, None] + seq + np.arange(width) / 3)
            store.push(number, 7, number * 10 + seq, keys, values)


def write(folder, number, stores):
    """A finished checkpoint, of a file for each store."""
    part = folder.begin(number)
    entries = []
    for at, store in enumerate(stores):
        entry = write_store(part / f"server-{at}-shard-0.rows", store, number, 1 << 20)
        entries.append(entry)
    tables = tuple({"number": n, "table": table.to_dict()} for n, table in DECLARED.items())
    job = {"progress": 0.25 * number}
    course = write_course(part, b"course")
    return folder.complete(
        part, Manifest(number, LIFE, "now", FRAG_NUM, tables, tuple(entries), job, course)
    )


@pytest.fixture(scope="module")
def stores():
    shares = (range(3), range(3, FRAG_NUM))
    made = []
    for share in shares:
        store = filled_store(share)
        fill(store, share)
        made.append(store)
    return made


@pytest.fixture(scope="module")
def path(stores, tmp_path_factory):
    folder = CheckpointFolder(tmp_path_factory.mktemp("saved") / "out.checkpoints")
    folder.take()
    write(folder, 1, [filled_store(range(FRAG_NUM))])
    write(folder, 2, stores)
    folder.release()
    return folder.path


@pytest.fixture(scope="module")
def whole():
    """One store with all that the stores have."""
    store = filled_store(range(FRAG_NUM))
    fill(store, range(FRAG_NUM))
    return store


@pytest.mark.parametrize("number", [n for n in DECLARED if n != 9])
def test_rows_are_those_of_the_store_and_others_first_values(path, whole, number):
    table = DECLARED[number]
    saved = snailps.open_checkpoint(path)[table.name]
    wanted = np.concatenate(
        [np.arange(2 * ROWS, dtype=np.uint64)[::-1], np.uint64([KEYS_MAX, KEYS_MAX - 1, 5, 5])]
    )
    assert np.array_equal(saved.pull(wanted), whole.pull(number, wanted))
    stored = np.sort(whole.keys(number))
    assert np.array_equal(saved.contains(wanted), np.isin(wanted, stored))
    assert np.array_equal(np.sort(saved.keys()), stored)
    assert len(saved) == len(stored)
    out = np.empty((2, table.dim), np.float32)
    assert saved.pull([7, 3], out) is out
    assert np.array_equal(out, whole.pull(number, np.uint64([7, 3])))


def test_rows_of_a_method_in_python_are_what_it_shows():
    table = DECLARED[9]
    method = load_method(table)
    keys = np.arange(5, dtype=np.uint64)
    stored = np.arange(5 * (3 + table.state_floats), dtype=np.float32).reshape(5, -1)
    index = RowIndex(1, 1, stored.shape[1])
    index.add(section_of(stored, keys))
    index.build()
    saved = SavedTable(table, index)
    assert np.array_equal(saved.pull(keys), method.pull(stored))
    new = np.uint64([10**9])
    assert np.array_equal(saved.pull(new), method.pull(method.init(new)))


def test_pieces_have_every_row_once(path, whole):
    saved = snailps.open_checkpoint(path)["ada"]
    found = list(saved.pieces(100))
    assert max(len(keys) for keys, _ in found) == 100
    keys = np.concatenate([keys for keys, _ in found])
    assert np.array_equal(np.sort(keys), np.sort(whole.keys(2)))
    assert np.array_equal(np.concatenate([rows for _, rows in found]), whole.pull(2, keys))
    for wrong in (-1, 0, 2.5):
        with pytest.raises(DataError, match=f"rows_max: expected at least 1 row, got {wrong}"):
            next(saved.pieces(wrong))


def test_index_takes_few_bytes_and_rows_none(path):
    saved = snailps.open_checkpoint(path)["plain"]
    assert saved.index_bytes < 6.1 * len(saved) + 64 * FRAG_NUM


def test_checkpoint_is_a_mapping_of_its_tables_and_takes_the_newest(path, monkeypatch):
    saved = snailps.open_checkpoint(path)
    assert list(saved) == [table.name for table in DECLARED.values()]
    assert (saved.path.name, saved.progress) == ("checkpoint-000002", 0.5)
    assert saved["plain"] is saved["plain"]
    assert len(snailps.open_checkpoint(path / "checkpoint-000001")["plain"]) == 0
    with pytest.raises(
        KeyError, match=r"no table 'none' in .*checkpoint-000002: there are admitted, "
    ):
        saved["none"]
    monkeypatch.setattr(SavedTables, "__getitem__", None)
    assert "plain" in saved, "which needs no index"
    assert "none" not in saved


def test_tensor_has_its_shape(path, whole):
    """A tensor is a table whose keys are the numbers of its chunks."""
    wide = Tensor("plain", (3, 5)).table()
    assert wide.dim != 16  # so the declaration of another shape is refused, not misread
    with pytest.raises(MisuseError):
        snailps.open_checkpoint(path).tensor("plain", (3, 5))


def test_threads_read_at_once(path, whole):
    saved = snailps.open_checkpoint(path)["ada"]

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            keys = rng.integers(0, 3 * ROWS, 500, dtype=np.uint64)
            found = saved.pull(keys)
            with lock:
                np.testing.assert_array_equal(found, whole.pull(2, keys))

    lock = threading.Lock()
    run_all(*(partial(read, seed) for seed in range(4)))


def test_damaged_row_is_found_when_its_table_is_first_used(stores, tmp_path):
    folder = CheckpointFolder(tmp_path / "saved")
    folder.take()
    made = write(folder, 1, stores)
    folder.release()
    file = made / "server-1-shard-0.rows"
    data = bytearray(file.read_bytes())
    data[4096 + 400] ^= 1
    file.write_bytes(data)
    saved = snailps.open_checkpoint(made)
    with pytest.raises(CheckpointError, match=r"server-1-shard-0.rows: the section of fragment"):
        saved["plain"]


def test_paths_that_are_no_checkpoints_are_named(tmp_path, path):
    with pytest.raises(DataError, match="no such folder"):
        snailps.open_checkpoint(tmp_path / "none")
    with pytest.raises(DataError, match="no checkpoints here"):
        snailps.open_checkpoint(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="checkpoints are folders"):
        snailps.open_checkpoint(tmp_path / "file")
    folder = CheckpointFolder(tmp_path / "bad")
    folder.take()
    bad = write(folder, 1, [filled_store(range(FRAG_NUM))])
    folder.release()
    (bad / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        snailps.open_checkpoint(tmp_path / "bad")


# --- the index ---------------------------------------------------------------------------------


def section_of(rows, keys, table=1, row_bytes=None, magic=b"FRAG", count=None):
    """Bytes of a section with one table."""
    rows = np.array(rows, np.float32)
    body = b"".join(
        int(key).to_bytes(8, "little") + np.float32(row).tobytes()
        for key, row in zip(keys, rows, strict=True)
    )
    count = len(keys) if count is None else count
    head = np.array([table, rows.shape[1], 0, row_bytes or 8 + 4 * rows.shape[1]], "<u4").tobytes()
    head += np.array([count, 0, 0, 0], "<u8").tobytes()
    length = 32 + len(head) + len(body)
    begin = magic + np.array([0, 1, 0], "<u4").tobytes()
    begin += np.array([length, count], "<u8").tobytes()
    return np.frombuffer(begin + head + body, np.uint8)


def test_index_of_many_equal_hashes_finds_each_key():
    """Keys of one place follow each other: those behind the last entry begin anew at the first."""
    keys = np.arange(1, 200, dtype=np.uint64)
    rows = np.stack([keys, keys + 1], 1).astype(np.float32)
    index = RowIndex(1, 1, 2)
    index.add(section_of(rows, keys))
    index.build()
    found = np.empty((199, 2), np.float32)
    assert index.find(keys, found).all()
    assert np.array_equal(found, rows)
    assert not index.find(keys + np.uint64(1000)).any()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (np.zeros(20, np.uint8), "no section"),
        (section_of([(1, 2)], [5], magic=b"GARF"), "no section"),
        (section_of([(1, 2)], [5])[:-8], "no section"),
        (section_of([(1, 2)], [5], row_bytes=4), "do not fit"),
        (section_of([(1, 2)], [5], count=2), "ends in the middle"),
        (section_of([(1, 2)], [5], count=1 << 62), "do not fit"),
    ],
)
def test_index_refuses_bytes_that_are_no_section(section, words):
    with pytest.raises(CheckpointError, match=words):
        RowIndex(1, 1, 2).add(section)


def test_index_refuses_rows_of_another_width_and_use_out_of_order():
    section = section_of([(1, 2)], [5])
    with pytest.raises(CheckpointError, match="rows of 2 floats"):
        RowIndex(1, 1, 3).add(section)
    index = RowIndex(1, 1, 2)
    with pytest.raises(MisuseError, match="build"):
        index.find(np.uint64([5]))
    index.add(section)
    index.build()
    with pytest.raises(MisuseError, match="built"):
        index.add(section)
    with pytest.raises(MisuseError, match="got"):
        index.find(np.uint64([5]), np.empty((1, 3), np.float32))
