"""Tables in files of other programs: what these read is what the table has, whatever its size."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from snailps import Table
from snailps.api.export_progress import ExportCancelled, ExportProgress
from snailps.errors import ConfigError, MisuseError
from snailps.files import row_sorter
from snailps.local import table_export
from snailps.local.table_export import FORMATS, export_tables, files_of
from snailps.vectors.safetensors import Array, write_safetensors

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
KEYS_MAX = (1 << 64) - 1


class Made:
    """A source of tables whose rows state their keys; pieces come in descending order."""

    def __init__(self, rows=900, pieces=6, **tables):
        self.tables = {
            name: Table(name, dim, access=access, lr=0.1) for name, (dim, access) in tables.items()
        }
        self._rows, self._pieces = rows, pieces

    def keys(self):
        """All keys, ascending, the largest of 64 bits among them."""
        return np.append(np.arange(1, self._rows, dtype=np.uint64), np.uint64(KEYS_MAX))

    def rows(self, table, state):
        declared = self.tables[table]
        width = declared.dim + (declared.state_floats if state else 0)
        part = (self.keys() % np.uint64(9973)).astype(np.float32)
        return part[:, None] + np.arange(width, dtype=np.float32) / 16

    def pieces(self, table, state, progress):
        progress.begin(f"reading table {table}", self._pieces, "pieces")
        keys, rows = self.keys(), self.rows(table, state)
        for some in np.array_split(np.arange(len(keys))[::-1], self._pieces):
            progress.check()
            yield keys[some], rows[some]
            progress.add(1)


@pytest.fixture(params=["in memory", "spilled"])
def source(request, monkeypatch):
    if request.param == "spilled":
        monkeypatch.setattr(row_sorter, "RUN_BYTES", 8 << 10)
        monkeypatch.setattr(row_sorter, "MERGE_BYTES", 4 << 10)
        monkeypatch.setattr(row_sorter, "PIECE_BYTES", 2 << 10)
    return Made(users=(5, "adagrad"), items=(3, "add"))


def check(source, state, keys, rows, states):
    """What a format gave of both tables."""
    for name, table in source.tables.items():
        expected = source.rows(name, state)
        assert np.array_equal(keys[name], source.keys())
        assert keys[name].dtype == np.uint64
        assert np.array_equal(rows[name], expected[:, : table.dim])
        if state and table.state_floats:
            assert np.array_equal(states[name], expected[:, table.dim :])
        else:
            assert name not in states


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("format", ["npz", "safetensors"])
def test_arrays_of_one_file_are_those_of_the_tables(tmp_path, source, state, format):
    (path,) = export_tables(source, str(tmp_path / "out"), format, state=state)
    if format == "npz":
        with np.load(path) as file:
            arrays = dict(file)
    else:
        arrays = safetensors.load_file(path)
    parts = {part: {} for part in ("keys", "rows", "state")}
    for name, array in arrays.items():
        table, _, part = name.partition(".")
        parts[part][table] = array
    check(source, state, *parts.values())
    assert [each.name for each in tmp_path.iterdir()] == [f"out.{format}"]


@pytest.mark.parametrize("state", [False, True])
def test_parquet_has_a_file_a_table_with_keys_ascending(tmp_path, source, state):
    files = export_tables(source, str(tmp_path / "out"), "parquet", state=state)
    assert files == [f"{tmp_path}/out.{name}.parquet" for name in source.tables]
    keys, rows, states = {}, {}, {}
    for name, path in zip(source.tables, files, strict=True):
        read = pq.read_table(path)
        keys[name] = read["key"].to_numpy()
        rows[name] = np.stack(read["row"].to_numpy())
        if "state" in read.column_names:
            states[name] = np.stack(read["state"].to_numpy())
        (declared,) = json.loads(read.schema.metadata[b"snailps"])
        assert Table.from_dict(declared) == source.tables[name]
        groups = pq.ParquetFile(path).metadata
        ends = [
            (column.min, column.max)
            for column in (
                groups.row_group(number).column(0).statistics
                for number in range(groups.num_row_groups)
            )
        ]
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ends))
    check(source, state, keys, rows, states)


def test_safetensors_arrays_are_aligned_and_declared(tmp_path):
    """Odd rows of odd width: without the order of arrays later keys would lie at 4 modulo 8."""
    source = Made(rows=7, a=(1, "add"), b=(3, "add"))
    (path,) = export_tables(source, str(tmp_path / "out"), "safetensors")
    data = (tmp_path / "out.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = header.pop("__metadata__")
    assert [item["name"] for item in json.loads(about["tables"])] == ["a", "b"]
    assert (8 + length) % 64 == 0
    for name, array in header.items():
        assert array["data_offsets"][0] % (8 if name.endswith("keys") else 4) == 0
    assert path == str(tmp_path / "out.safetensors")


@pytest.mark.parametrize("format", FORMATS)
def test_table_without_rows_is_an_empty_array(tmp_path, format):
    class Empty(Made):
        def pieces(self, table, state, progress):
            return iter(())

    (path,) = export_tables(Empty(w=(4, "add")), str(tmp_path / "out"), format)
    if format == "parquet":
        assert pq.read_table(path).num_rows == 0
        return
    load = np.load if format == "npz" else safetensors.load_file
    assert load(path)["w.rows"].shape == (0, 4)


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_replaced_only_if_asked(tmp_path, format):
    source = Made(rows=20, w=(2, "add"))
    output = str(tmp_path / "out")
    (path,) = export_tables(source, output, format)
    with pytest.raises(ConfigError, match=r"exists .* To replace it, pass overwrite=True"):
        export_tables(source, output, format)
    assert export_tables(Made(rows=30, w=(2, "add")), output, format, overwrite=True) == [path]
    assert [str(each) for each in tmp_path.iterdir()] == files_of(output, format, ["w"])


@pytest.mark.parametrize("format", FORMATS)
def test_cancelled_export_leaves_nothing(tmp_path, format):
    progress = ExportProgress()
    progress.cancel()
    with pytest.raises(ExportCancelled):
        export_tables(Made(w=(2, "add")), str(tmp_path / "out"), format, progress=progress)
    assert not list(tmp_path.iterdir())


def test_progress_ends_at_one_and_names_files(tmp_path):
    progress = ExportProgress()
    source = Made(a=(2, "add"), b=(2, "add"))
    files = export_tables(source, str(tmp_path / "x"), "safetensors", progress=progress)
    assert (progress.share, progress.written) == (1.0, tuple(files))


def test_one_table_of_several_is_chosen_and_wrong_words_are_refused(tmp_path):
    source = Made(rows=9, a=(2, "add"), b=(2, "add"))
    output = str(tmp_path / "x")
    (path,) = export_tables(source, output, "npz", tables=["b"])
    with np.load(path) as file:
        assert set(file) == {"b.keys", "b.rows"}
    assert export_tables(source, output, "npz", tables="b", overwrite=True) == [path]
    with pytest.raises(ConfigError, match=r"no table 'c' to export: there are a, b"):
        export_tables(source, output, tables=["c"])
    with pytest.raises(ConfigError, match=r"format: expected npz, safetensors, parquet, got 'csv'"):
        export_tables(source, output, "csv")
    with pytest.raises(ConfigError, match="prefix of paths"):
        export_tables(source, "")
    with pytest.raises(ConfigError, match="no tables"):
        export_tables(Made(), output)


def test_safetensors_export_frees_the_disk_of_a_table_before_it_writes_the_next(
    tmp_path, monkeypatch
):
    closed, before = [], {}

    class Watched(row_sorter.RowSorter):
        def pieces(self):
            before[self.dim] = [*closed]
            yield from super().pieces()

        def close(self):
            closed.append(self.dim)
            super().close()

    monkeypatch.setattr(table_export, "RowSorter", Watched)
    source = Made(a=(2, "adagrad"), b=(3, "add"), c=(5, "add"))
    export_tables(source, str(tmp_path / "out"), "safetensors", state=True)
    assert before == {4: [], 3: [4], 5: [4, 3]}  # floats of a row with its state


def test_safetensors_file_refuses_arrays_unlike_its_header(tmp_path):
    for pieces, complaint in [
        ([np.zeros((1, 3), np.float32)], "1 rows of 2 are missing"),
        ([np.zeros((3, 3), np.float32)], "a piece"),
        ([np.zeros((2, 3))], "a piece"),
    ]:
        arrays = [Array("a", np.dtype(np.float32), (2, 3), pieces)]
        with pytest.raises(MisuseError, match=complaint):
            write_safetensors(str(tmp_path / "f"), arrays, {})
    assert not list(tmp_path.iterdir())
