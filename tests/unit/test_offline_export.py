"""Tables of a checkpoint, read from its files: as the store had them, and never all in memory."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_checkpoint_files import FRAG_NUM, LIFE, make_store, write_store

from snailps import JobSettings, Table
from snailps.api.results import Results
from snailps.files import row_sorter
from snailps.local import offline_export
from snailps.local.offline_export import StoredTables, settings_of_checkpoint
from snailps.models import CLASSES
from snailps.store.checkpoint.shard_file import ShardFile

DECLARED = {
    1: Table("a", 16),
    2: Table("b", 4, access="adagrad", init="uniform", scale=0.5, seed=3, lr=0.1),
    3: Table("empty", 2, init="uniform", scale=0.5),
    4: Table("python", 3, access="python_methods:Momentum", lr=1.0),
}
ROWS = 20_000


@pytest.fixture
def store():
    store = make_store(tables={})
    rng = np.random.default_rng(1)
    for number, table in DECLARED.items():
        state = table.state_floats if table.in_python else 0
        store.add_table(number, *table.store_arguments(), state_floats=state)
    for number, width in ((1, 16), (2, 4)):
        keys = rng.permutation(2 * ROWS)[:ROWS].astype(np.uint64)
        store.push(number, 7, number, keys, rng.standard_normal((ROWS, width)))
    return store


@pytest.fixture
def tables(tmp_path, store):
    entry = write_store(tmp_path / "server-1-shard-0.rows", store, capacity=1 << 20)
    file = ShardFile(tmp_path, entry, LIFE, 1, FRAG_NUM)
    return StoredTables([file], FRAG_NUM, DECLARED, tmp_path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_scans_and_pulls_give_what_the_store_had(store, tables, monkeypatch, number):
    monkeypatch.setattr(row_sorter, "RUN_BYTES", 100_000)
    monkeypatch.setattr(offline_export, "_SCAN_ROWS", 1000)
    dim, found, ended = DECLARED[number].dim, {}, []
    for keys, rows in tables.scan(number, dim, range(FRAG_NUM), ended.append):
        found |= dict(zip(keys.tolist(), rows.tolist(), strict=True))
    keys = np.sort(store.keys(number))
    assert found == dict(zip(keys.tolist(), store.pull(number, keys).tolist(), strict=True))
    assert sum(ended) == FRAG_NUM
    wanted = np.arange(2 * ROWS, dtype=np.uint64)[::-1].copy()  # half of them were never pushed
    rows = tables.pull(number, wanted, np.empty((2 * ROWS, dim), np.float32))
    assert np.array_equal(rows, store.pull(number, wanted))
    width = dim + DECLARED[number].state_floats
    rows = tables.pull(number, wanted, np.empty((2 * ROWS, width), np.float32), True)
    assert np.array_equal(rows, store.pull(number, wanted, state=True))


def test_only_the_fragments_that_are_asked_for_are_scanned(store, tables):
    keys = np.concatenate([keys for keys, _ in tables.scan(1, 16, [2, 5], lambda _: None)])
    mine = np.concatenate([store.scan(1, fragment, 0, 1 << 20)[1] for fragment in (2, 5)])
    assert sorted(keys.tolist()) == sorted(mine.tolist())


def test_results_of_a_checkpoint_give_all_rows_and_count_the_fragments(store, tables):
    """`scan` and `ended` of stored tables and of a client are alike."""
    results = Results(JobSettings(), b"", {}, tables, {"a": 1}, {"a": DECLARED[1]}, FRAG_NUM)
    keys = np.concatenate([keys for keys, _ in results.scan("a")])
    assert sorted(keys.tolist()) == sorted(store.keys(1).tolist())
    assert f"{FRAG_NUM} of {FRAG_NUM} fragments" in results.exporting.text


@pytest.mark.parametrize("output", ["out/m", "out/m.npz"])
def test_output_of_a_model_from_a_checkpoint_may_name_its_file(output):
    job = {"worker_class": CLASSES["logistic"], "settings": {"input": "a.txt"}}
    _, settings = settings_of_checkpoint(Path("c"), SimpleNamespace(job=job), output)
    assert settings.output == "out/m"


def test_scan_holds_one_section_in_memory(store, tables, monkeypatch):
    tracemalloc.start()
    for _ in tables.scan(1, 16, range(FRAG_NUM), lambda _: None):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
