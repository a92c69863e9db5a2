"""`RowSorter`: rows come out in the order of their keys, however little memory there is."""

import errno
import os
import tracemalloc

import numpy as np
import pytest

from snailps.errors import ModelFileError
from snailps.files import row_sorter
from snailps.files.row_sorter import RowSorter


@pytest.fixture
def small(monkeypatch):
    """Runs of some hundred rows, merged some twenty at a time."""
    monkeypatch.setattr(row_sorter, "RUN_BYTES", 4096)
    monkeypatch.setattr(row_sorter, "MERGE_BYTES", 2048)
    monkeypatch.setattr(row_sorter, "PIECE_BYTES", 512)


def made_rows(n, dim, seed=1, apart=0):
    keys = np.random.default_rng(seed).permutation(n).astype(np.uint64) * np.uint64(
        apart or 2**64 // (n + 2)
    )
    return keys, np.repeat(keys[:, None].astype(np.float32), dim, axis=1)


def added(sorter, keys, rows, step=37):
    for at in range(0, len(keys), step):
        sorter.add(keys[at : at + step], rows[at : at + step])


@pytest.mark.parametrize("n", [0, 1, 15, 341, 342, 5000])
@pytest.mark.parametrize("dim", [1, 7])
@pytest.mark.parametrize("apart", [0, 1, 2, 3])
def test_rows_come_out_in_the_order_of_their_keys(tmp_path, small, n, dim, apart):
    keys, rows = made_rows(n, dim, apart=apart)
    keys, rows = keys + np.uint64(5), rows + np.float32(5)
    with RowSorter(tmp_path / "out", dim) as sorter:
        added(sorter, keys, rows)
        found_keys = np.concatenate([*sorter.keys(), keys[:0]])
        pieces = list(sorter.pieces())
        ends = (sorter.count, sorter.first, sorter.last)
    assert found_keys.tolist() == sorted(keys.tolist())
    assert [key for some, _ in pieces for key in some.tolist()] == found_keys.tolist()
    for some, values in pieces:
        assert np.array_equal(values, np.repeat(some[:, None].astype(np.float32), dim, axis=1))
    assert ends == (n, min(keys.tolist(), default=0), max(keys.tolist(), default=0))


def test_runs_of_very_different_ranges_are_merged_in_order(tmp_path, small):
    keys = np.arange(5000, dtype=np.uint64)[::-1].copy()  # each run lies below the one before
    with RowSorter(tmp_path / "out", 1) as sorter:
        added(sorter, keys, keys[:, None].astype(np.float32))
        assert np.concatenate(list(sorter.keys())).tolist() == list(range(5000))


def test_widest_rows_are_merged_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(row_sorter, "RUN_BYTES", 4 << 20)
    monkeypatch.setattr(row_sorter, "MERGE_BYTES", 1 << 20)
    dim, total = 65_536, 64 << 20
    with RowSorter(tmp_path / "out", dim) as sorter:
        for key in np.random.default_rng(1).permutation(total // (4 * dim)).tolist():
            sorter.add(np.array([key], np.uint64), np.full((1, dim), key, np.float32))
        tracemalloc.start()
        try:
            found = [
                (key, row[-1])
                for keys, rows in sorter.pieces()
                for key, row in zip(keys, rows, strict=True)
            ]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found == [(key, key) for key in range(total // (4 * dim))]
    assert peak < total // 2, f"{peak:,} bytes"


def test_rows_added_after_a_look_come_out_too(tmp_path):
    with RowSorter(tmp_path / "out", 1) as sorter:
        for keys in ([7, 3], [5], [4]):
            sorter.add(np.array(keys, np.uint64), np.array(keys, np.float32)[:, None])
            list(sorter.keys())
        ((keys, rows),) = sorter.pieces()
    assert keys.tolist() == rows[:, 0].tolist() == [3, 4, 5, 7]


def test_what_fits_into_memory_never_touches_the_disk(tmp_path):
    keys, rows = made_rows(100, 3)
    with RowSorter(tmp_path / "missing" / "out", 3) as sorter:
        added(sorter, keys, rows)
        assert sum(len(some) for some, _ in sorter.pieces()) == 100


def test_scratch_space_has_no_name(tmp_path, small):
    keys, rows = made_rows(1000, 3)
    with RowSorter(tmp_path / "out", 3) as sorter:
        added(sorter, keys, rows)
        assert list(tmp_path.iterdir()) == []
        assert sum(len(some) for some, _ in sorter.pieces()) == 1000


def test_full_disk_is_told_of_the_result(tmp_path, small, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    keys, rows = made_rows(1000, 3)
    monkeypatch.setattr(os, "pwrite", full)
    with (
        RowSorter(tmp_path / "model.npz", 3) as sorter,
        pytest.raises(ModelFileError, match=r"model\.npz: cannot be written, .* is full"),
    ):
        added(sorter, keys, rows)
