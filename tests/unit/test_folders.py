"""Folders of tables as the field reads them: hidden names, columns in names, lists of files."""

import gzip
import json
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from door import reached

from snailps.data.columns import ColumnKind, columns_by_name
from snailps.data.formats.table import open_table
from snailps.data.table_files import complete, label_kind, read_rows
from snailps.errors import ConfigError, DataError
from snailps.estimators.files import matrix_of_files
from snailps.files import lakes
from snailps.files.blocks import files_of
from snailps.files.partitions import columns_of_folders

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
orc = pytest.importorskip("pyarrow.orc")
NULL = "__HIVE_DEFAULT_PARTITION__"
TABLE = pa.table({"x": [1.0, 2.0], "y": [0, 1], "text": ["a b", "c d"]})


def put(folder, *names, table=TABLE):
    """Files of a table below a folder, in the format of each name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            path.write_text(table.to_pandas().to_csv(index=False))
        elif path.suffix == ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
        elif path.suffix == ".arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
                out.write_table(table)
        elif path.suffix == ".orc":
            orc.write_table(table, path)
        else:
            pq.write_table(table, path)
    return str(folder)


def below(folder, inputs=None):
    return [path.replace(f"{folder}/", "") for path in files_of([inputs or str(folder)])]


# --- hidden names --------------------------------------------------------------------------------


def test_names_with_a_dot_or_underscore_are_hidden(tmp_path):
    """As in Hadoop, Spark, Hive, Trino and pyarrow; a column's name may begin so."""
    hidden = (
        "_temporary/0/p.parquet", "__magic_job-1/p.parquet", "_change_data/cdc-0.parquet",
        "_tmp.-ext-1/p.parquet", "_p.parquet", "_spark_metadata/0", ".x/p.parquet", "sub/_SUCCESS",
    )  # fmt: skip
    put(tmp_path, "a.parquet", "sub/b.parquet", "_day=7/c.parquet", *hidden)
    assert below(tmp_path) == ["a.parquet", "./_day=7/c.parquet", "sub/b.parquet"]
    assert below(tmp_path, f"{tmp_path}/**/*.parquet") == [
        "./_day=7/c.parquet", "_p.parquet", "a.parquet", "sub/b.parquet"
    ]  # fmt: skip
    assert below(tmp_path, f"{tmp_path}/_p.parquet") == ["_p.parquet"]  # it is named


def test_a_pattern_names_hidden_folders_itself(tmp_path):
    """As a shell's for names with a dot: `*` is none of them, `_*` is."""
    put(tmp_path, "d/_x/a.parquet", "d/y/a.parquet", ".e/_z/a.parquet")
    assert below(tmp_path, f"{tmp_path}/*/_x/*.parquet") == ["d/_x/a.parquet"]
    assert below(tmp_path, f"{tmp_path}/d/_*/*.parquet") == ["d/_x/a.parquet"]
    assert below(tmp_path, f"{tmp_path}/d/*/*.parquet") == ["d/y/a.parquet"]
    assert below(tmp_path, f"{tmp_path}/.e/_z/*.parquet") == [".e/_z/a.parquet"]
    with pytest.raises(DataError, match="matches no file"):
        files_of([f"{tmp_path}/.e/*/*.parquet"])


# --- columns in names of folders -----------------------------------------------------------------


def test_columns_begin_below_the_folder_that_is_named(tmp_path):
    put(tmp_path / "lr=0.1", "c=red/d=1/p.parquet", "notes=x/t.txt")
    root = f"{tmp_path}/lr=0.1"
    table, text = files_of([root])
    assert (table, text) == (f"{root}/./c=red/d=1/p.parquet", f"{root}/notes=x/t.txt")
    assert columns_of_folders(table) == {"c": "red", "d": "1"}
    assert files_of([f"{root}/*/d=*/p.parquet"]) == [table]
    assert files_of([f"{root}/c=red"]) == [f"{root}/c=red/./d=1/p.parquet"]
    assert files_of([f"{root}/c=red/d=1/p.parquet"]) == [f"{root}/c=red/d=1/p.parquet"]
    assert files_of([f"{root}/c=red/d=1/*"]) == [f"{root}/c=red/d=1/p.parquet"]


def test_a_file_is_read_once_with_the_columns_of_the_topmost_folder(tmp_path):
    root = put(tmp_path, "c=1/d=2/p.parquet", "c=1/d=3/p.parquet")
    files = [f"{root}/./c=1/d={d}/p.parquet" for d in (2, 3)]
    first = f"{root}/c=1/d=2/p.parquet"
    assert files_of([root, f"{root}/c=1", first, f"{root}/c=1/*/p.parquet"]) == files
    assert files_of([first, f"{root}/c=1", root]) == files


def test_patterns_through_another_folder_have_columns_below_links(tmp_path):
    root = put(tmp_path / "elsewhere", "p.parquet")
    (tmp_path / "t" / "w").mkdir(parents=True)
    (tmp_path / "t" / "c=1").symlink_to(root)
    expected = [f"{tmp_path}/t/./c=1/p.parquet"]
    assert files_of([f"{tmp_path}/t/w/../*/p.parquet"]) == expected
    assert files_of([f"{tmp_path}/t"]) == expected


def test_values_are_as_hive_writes_them(tmp_path):
    names = ("c=a%20b%2Fc/p.parquet", f"c={NULL}/p.parquet", "c=7/p.parquet")
    files = files_of([put(tmp_path, *names)])
    assert [columns_of_folders(path)["c"] for path in files] == ["7", None, "a b/c"]
    assert complete(files, (), "y")[-1] == "c:categorical"
    assert complete(files[:2], (), "y")[-1] == "c:numeric"  # of all files
    assert label_kind(files[:2], "c").name == "NUMERIC"
    assert label_kind(files, "c").name == "CATEGORICAL"


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "arrow", "orc"])
@pytest.mark.parametrize(("text", "value"), [("red", "red"), ("7", 7), (NULL, None)])
def test_rows_are_those_of_a_table_with_the_column(tmp_path, ending, text, value):
    """In each format; however the column is declared, and as the labels of texts."""
    parts, whole = tmp_path / "parts", tmp_path / "whole.parquet"
    put(parts, f"c={text}/p.{ending}")
    put(tmp_path, whole.name, table=TABLE.append_column("c", [[value] * 2]))
    declared = [(), ("c:hashed 9", "text:categorical"), ("c:ignore",), ("text:ignore",)]
    for columns in declared if value != "red" else [*declared, ("c:categorical", "x:ignore")]:
        how = {"label_column": "y", "columns": list(columns)}
        expected = reached("logistic", whole, tmp_path, **how)
        assert reached("logistic", parts, tmp_path, **how).rows == expected.rows
    if value is not None:
        how = {"column": "text", "label_column": "c"}
        expected = reached("classifier", whole, tmp_path, **how)
        assert reached("classifier", parts, tmp_path, **how) == expected


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "arrow", "orc"])
@pytest.mark.parametrize(("texts", "values"), [(("7", "red"), ("7", "red")), (("7", "8"), (7, 8))])
def test_kind_of_a_column_is_decided_by_all_files(tmp_path, ending, texts, values):
    """As features, by name; as labels of rows."""
    put(tmp_path / "parts", *(f"c={text}/p.{ending}" for text in texts))
    column = np.repeat(np.array(values, object), 2).tolist()
    put(tmp_path, "whole.parquet", table=pa.concat_tables([TABLE] * 2).append_column("c", [column]))
    for label in ("y", "c"):
        read = []
        for name in ("parts", "whole.parquet"):
            matrix = matrix_of_files(
                str(tmp_path / name), label, None, (), None, None, use="fit", width=False
            )
            pieces = [
                sorted(
                    zip(
                        piece.fields[first:last],
                        piece.keys[first:last],
                        piece.values[first:last],
                        strict=True,
                    )
                )
                for piece in matrix.files.pieces()
                for first, last in pairwise(piece.ptr)
            ]
            read.append((list(matrix.names), pieces, matrix.files.labels().tolist()))
        assert read[0] == read[1]
        assert len(read[0][1]) == 4


def test_column_of_the_file_wins_and_files_alike_are_needed(tmp_path):
    put(tmp_path / "a", "x=9/p.parquet")
    (path,) = files_of([str(tmp_path / "a")])
    with open_table(path) as table:
        assert (table.names, table.folders) == (["x", "y", "text"], {})
    put(tmp_path / "b", "a/q.parquet", "c=1/p.parquet")
    with pytest.raises(DataError, match=r"/b/./c=1/p.parquet has columns that .* lacks: 'c'"):
        reached("logistic", tmp_path / "b", tmp_path, label_column="y", columns=["text:ignore"])
    with pytest.raises(DataError, match=r"no column 'c'; .* name the folder above c=\.\.\. as the"):
        label_kind([str(tmp_path / "b" / "c=1" / "p.parquet")], "c")


# --- lists of files ------------------------------------------------------------------------------


def delta(
    monkeypatch, features=(), partitions=(), files=("b.parquet",), mapping=None, removed=None
):
    """deltalake as these functions know it; `removed`: rows of each batch of marks, if it has
    them."""
    configuration = {} if mapping is None else {"delta.columnMapping.mode": mapping}

    class DeltaTable:
        if removed is not None:

            def deletion_vectors(self):
                return [SimpleNamespace(num_rows=rows) for rows in removed]

        def __init__(self, folder):
            self.folder = folder

        def protocol(self):
            return SimpleNamespace(reader_features=list(features) or None)

        def metadata(self):
            return SimpleNamespace(partition_columns=list(partitions), configuration=configuration)

        def file_uris(self):
            return [f"{self.folder}/{name}" for name in files]

    monkeypatch.setitem(sys.modules, "deltalake", SimpleNamespace(DeltaTable=DeltaTable))


def test_delta_table_has_the_files_of_its_log(tmp_path, monkeypatch):
    put(tmp_path / "t", "a.parquet", "b.parquet", "c=1/d.parquet", "_delta_log/0.json")
    folder = str(tmp_path / "t")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    refused = r"/t is a Delta table, and reading its log needs deltalake.*'snailps\[lakes\]'"
    for inputs in (folder, f"{folder}/*.parquet", f"{folder}/a.parquet", str(tmp_path)):
        with pytest.raises(ConfigError, match=refused):
            files_of([inputs])
    delta(monkeypatch, files=("b.parquet", "c=1/d.parquet"))
    assert below(folder) == ["b.parquet", "./c=1/d.parquet"]
    assert below(folder, str(tmp_path)) == [
        "b.parquet",
        f"{tmp_path}/t/./c=1/d.parquet".replace(f"{folder}/", ""),
    ]
    assert below(folder, f"{folder}/*.parquet") == ["b.parquet"]
    assert below(folder, f"{folder}/c=1") == ["c=1/d.parquet"]
    assert below(folder, f"{folder}/b.parquet") == ["b.parquet"]
    with pytest.raises(
        DataError, match=r"a.parquet is in the Delta table .*whose list does not have it"
    ):
        files_of([f"{folder}/a.parquet"])
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert files_of([str(link)])[0] == f"{link}/b.parquet"


def test_delta_table_whose_rows_are_not_those_of_files_is_refused(tmp_path, monkeypatch):
    folder = put(tmp_path, "b.parquet", "_delta_log/0.json")
    for removed in (None, [2]):
        delta(monkeypatch, features=["deletionVectors", "timestampNtz"], removed=removed)
        refused = r"is a Delta table whose rows are not .*: it has deletionVectors of removed rows"
        with pytest.raises(DataError, match=refused):
            files_of([folder])
    delta(monkeypatch, features=["deletionVectors"], removed=[])  # it may have some, and has none
    assert below(folder) == ["b.parquet"]
    delta(monkeypatch, mapping="name")  # of readers of version 2, which have no features
    with pytest.raises(DataError, match="it maps columns by name"):
        files_of([folder])
    delta(monkeypatch, features=["columnMapping"], mapping="none")
    assert below(folder) == ["b.parquet"]
    delta(monkeypatch, partitions=["day"])
    with pytest.raises(DataError, match="column 'day' is in its log only"):
        files_of([folder])
    delta(monkeypatch, files=())
    with pytest.raises(DataError, match="has no rows in its current version"):
        files_of([folder])
    delta(monkeypatch, files=("gone.parquet",))
    with pytest.raises(DataError, match=r"its list names .*gone.parquet, which is no file"):
        files_of([folder])


def iceberg(monkeypatch, files, deletes=(), older=()):
    fields = [SimpleNamespace(field_id=1, name="x")]
    schemas = [SimpleNamespace(fields=fields), SimpleNamespace(fields=list(older))]
    tasks = [SimpleNamespace(file=SimpleNamespace(file_path=f"file://{f}"), delete_files=deletes)
             for f in files]  # fmt: skip
    opened = []

    def from_metadata(path):
        opened.append(path)
        return SimpleNamespace(
            schema=lambda: schemas[0],
            metadata=SimpleNamespace(schemas=schemas),
            scan=lambda: SimpleNamespace(plan_files=lambda: tasks),
        )

    module = SimpleNamespace(StaticTable=SimpleNamespace(from_metadata=from_metadata))
    monkeypatch.setitem(sys.modules, "pyiceberg.table", module)
    return opened


def test_iceberg_table_has_the_files_of_its_newest_metadata(tmp_path, monkeypatch):
    names = ("00001-a.metadata.json", "00010-b.metadata.json", "x.avro")
    data = ("data/a.parquet", "data/at_day=7/b.parquet")
    folder = put(tmp_path / "t", *data, *(f"metadata/{name}" for name in names))
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(
        ConfigError, match="is an Iceberg table, and reading its metadata needs pyi"
    ):
        files_of([f"{folder}/data"])
    opened = iceberg(monkeypatch, [f"{folder}/{data[1]}"])
    for inputs in (folder, f"{folder}/data", f"{folder}/data/**/*.parquet", f"{folder}/*/*/*"):
        assert files_of([inputs]) == [f"{folder}/{data[1]}"]  # a transform is no column
    assert opened[0].endswith("00010-b.metadata.json")
    iceberg(monkeypatch, [f"{folder}/{data[1]}"], deletes=("d",))
    with pytest.raises(DataError, match=r"is an Iceberg table .*: it has files of deleted rows"):
        files_of([folder])
    older = [SimpleNamespace(field_id=1, name="before")]
    iceberg(monkeypatch, [f"{folder}/{data[1]}"], older=older)
    with pytest.raises(DataError, match="its column 'before' was renamed or dropped"):
        files_of([folder])
    put(tmp_path / "t", "metadata/00010-c.metadata.json")
    with pytest.raises(DataError, match=r"only its catalog knows .*00010-b.* or 00010-c"):
        files_of([folder])


def test_folders_of_save_to_disk_have_the_files_of_their_list(tmp_path):
    for split in ("test", "train"):
        put(tmp_path / split, "data-0.arrow", "data-1.arrow", "cache-9.arrow")
        state = {"_data_files": [{"filename": f"data-{number}.arrow"} for number in (0, 1)]}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
        (tmp_path / split / "dataset_info.json").write_text("{}")
    assert below(tmp_path / "train") == ["data-0.arrow", "data-1.arrow"]
    assert below(tmp_path / "train", f"{tmp_path}/train/*.arrow") == [
        "data-0.arrow",
        "data-1.arrow",
    ]
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"several datasets.*: name one, such as .*/test; it has test, train"
    ):
        files_of([str(tmp_path)])
    (tmp_path / "train" / "state.json").write_text(json.dumps({"_indices_data_files": ["i.arrow"]}))
    with pytest.raises(
        DataError, match="rows are not simply what its files have: it selects rows by indices"
    ):
        files_of([str(tmp_path / "train")])
    (tmp_path / "train" / "state.json").write_text("{")
    with pytest.raises(DataError, match="cannot read the save_to_disk table"):
        files_of([str(tmp_path / "train")])


def test_a_folder_above_that_may_not_be_listed_is_no_table(tmp_path, monkeypatch):
    file = f"{put(tmp_path, 'bob/p.parquet')}/bob/p.parquet"
    (tmp_path / "metadata").mkdir()
    lists = lakes.Path.iterdir

    def iterdir(path):
        if path.name == "metadata":
            raise PermissionError(13, "Permission denied", str(path))
        return lists(path)

    monkeypatch.setattr(lakes.Path, "iterdir", iterdir)
    assert files_of([file]) == files_of([f"{tmp_path}/bob"]) == [file]


@pytest.mark.parametrize(
    ("kind", "mark", "data"),
    [
        ("Hudi", ".hoodie/x.parquet", "a.parquet"),
        ("Lance", "_versions/1.manifest", "data/a.parquet"),
        ("Paimon", "snapshot/snapshot-1", "bucket-0/data-0.parquet"),
        ("Hive ACID", "delta_0000001_0000001/bucket_00000", "base_0000002/bucket_00000"),
    ],
)
def test_tables_that_are_not_read_are_refused_by_name(tmp_path, kind, mark, data):
    folder = put(tmp_path / "t", mark, data, "schema/schema-0" if kind == "Paimon" else mark)
    for name in (folder, str(tmp_path), f"{folder}/**/*", f"{folder}/{data}"):
        with pytest.raises(DataError, match=f"is a {kind} table, a kind that is not read here"):
            files_of([name])


UUID = "01a22dbf-5940-7f78-9e02-572357b0312b"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("DuckLake", f"ducklake-{UUID}.parquet"),
        ("DuckLake", f"ducklake-{UUID}-delete.parquet"),
        ("Iceberg", f"00000-4-{UUID}-00001.parquet"),
        ("Iceberg", f"00000-4-{UUID}-0-00001.parquet"),
        ("Iceberg", f"00001-0-{UUID}.parquet"),
        ("Iceberg", f"00000-4-{UUID}-00001-deletes.orc"),
        ("Delta", f"deletion_vector_{UUID}.bin"),
    ],
)
def test_files_whose_list_is_elsewhere_are_refused_by_name(tmp_path, kind, name):
    """The folder has files of earlier versions too, and nothing in it says which."""
    folder = put(tmp_path / "main" / "t", f"c=1/{name}")
    for inputs in (folder, str(tmp_path), f"{folder}/*/*", f"{folder}/c=1/{name}"):
        with pytest.raises(DataError, match=f"is a file of an? {kind} table, and the list of"):
            files_of([inputs])
    memory = pytest.importorskip("fsspec").filesystem("memory")
    try:
        memory.pipe(f"/elsewhere/{name}", b"x")
        with pytest.raises(DataError, match=f"is a file of an? {kind} table"):
            files_of(["memory://elsewhere"])
    finally:
        memory.rm("/elsewhere", recursive=True)


def test_files_of_other_writers_are_no_tables_of_a_list(tmp_path):
    names = (f"part-00000-{UUID}-c000.snappy.parquet", f"{UUID}.parquet", "00000-4.parquet",
             "ducklake.parquet", f"0-{UUID}-0.parquet")  # fmt: skip
    assert below(put(tmp_path, *names)) == sorted(names)


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        ("_delta_log/0.json", "Delta"),
        ("metadata/v1.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("_versions/1.manifest", "Lance"),
        ("schema/schema-0", "Paimon"),
        ("delta_0000001_0000001_0000/bucket_00000", "Hive ACID"),
    ],
)
def test_url_of_a_table_with_a_list_is_refused_and_columns_are_read(mark, kind):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    try:
        memory.pipe("/folders/c=red/p.csv", b"x,y\n1,0\n")
        (path,) = files_of(["memory://folders"])
        assert path.endswith("folders/./c=red/p.csv")
        with open_table(path) as table:
            assert table.names == ["x", "y", "c"]
        memory.pipe(f"/folders/{mark}", b"{}")
        with pytest.raises(DataError, match=f"is an? {kind} table, .*folder of this host only"):
            files_of(["memory://folders"])
    finally:
        memory.rm("/folders", recursive=True)


def test_real_tables_have_their_rows_of_today(tmp_path):
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    table = pa.table({"x": [1, 2], "c": ["a b", "c"]})
    for part in (table.set_column(0, "x", [[3, 4]]), table):
        deltalake.write_deltalake(str(tmp_path / "d"), part, mode="overwrite", partition_by=["c"])
    files = files_of([str(tmp_path / "d")])
    assert sorted(columns_of_folders(path)["c"] for path in files) == ["a b", "c"]
    assert sorted(pq.ParquetFile(path).read()["x"].to_pylist()[0] for path in files) == [1, 2]
    assert lakes.kind_of_folder(str(tmp_path / "d")) == "Delta"
    wider = table.append_column("n", [[True, False]])
    options = {"mode": "append", "schema_mode": "merge", "partition_by": ["c"]}
    deltalake.write_deltalake(str(tmp_path / "d"), wider, **options)
    columns = {"x": "long", "c": "string", "n": "boolean"}
    assert lakes.columns_around(files[0]) == columns
    deltalake.DeltaTable(str(tmp_path / "d")).create_checkpoint()
    for commit in (tmp_path / "d" / "_delta_log").glob("*.json"):
        commit.unlink()
    assert lakes.columns_around(files[0]) == columns


# --- columns that a table got later --------------------------------------------------------------


OLD = pa.table({"x": [1.0, 2.0], "y": [0, 1]})
NEW = pa.table({"n": [5, 6], "x": [3.0, 4.0], "y": [1, 0], "text": ["a", "b"]})


def grown_delta(folder, monkeypatch, old_first, checkpoint):
    """A Delta table whose log has two schemas; `checkpoint`: the newest is in a checkpoint only."""
    old, new = ("a.parquet", "b.parquet") if old_first else ("b.parquet", "a.parquet")
    put(folder, old, table=OLD)
    put(folder, new, table=NEW)
    kinds = {"x": "double", "y": "long", "n": "long", "text": "string", "at": "timestamp"}

    def schema(*names):
        fields = [{"name": name, "type": kinds[name]} for name in names]
        return {"schemaString": json.dumps({"type": "struct", "fields": fields})}

    newest = schema("n", "x", "y", "text")
    (folder / "_delta_log").mkdir()
    commits = [{"metaData": schema("x", "y")}, {"metaData": newest}, {"add": {}}]
    for number, commit in enumerate(commits[:1] if checkpoint else commits):
        (folder / f"_delta_log/{number:020}.json").write_text(f"{json.dumps(commit)}\n")
    if checkpoint:
        at = f"_delta_log/{7:020}.checkpoint"
        put(folder, f"{at}.parquet", table=pa.table({"metaData": [None, newest], "add": [1, 2]}))
    delta(monkeypatch, files=(old, new))
    return str(folder)


def grown_iceberg(folder, monkeypatch, old_first, version):
    old, new = ("a.parquet", "b.parquet") if old_first else ("b.parquet", "a.parquet")
    put(folder, old, table=OLD)
    put(folder, new, table=NEW)
    kinds = {"x": "double", "y": "long", "n": "int", "text": "string"}
    fields = [{"id": number, "name": name, "type": kind}
              for number, (name, kind) in enumerate(kinds.items())]  # fmt: skip
    metadata = {"schema": {"fields": fields}}
    if version == 2:
        schemas = [{"schema-id": 0, "fields": fields[:2]}, {"schema-id": 1, "fields": fields}]
        metadata = {"current-schema-id": 1, "schemas": schemas}
    (folder / "metadata").mkdir()
    raw = json.dumps(metadata).encode()
    name = "v1.gz.metadata.json" if version == 2 else "v1.metadata.json"
    (folder / "metadata" / name).write_bytes(gzip.compress(raw) if version == 2 else raw)
    iceberg(monkeypatch, [f"{folder}/{old}", f"{folder}/{new}"])
    return str(folder)


@pytest.mark.parametrize("old_first", [True, False])
@pytest.mark.parametrize(
    ("make", "form"),
    [(grown_delta, False), (grown_delta, True), (grown_iceberg, 1), (grown_iceberg, 2)],
)
def test_column_that_a_table_got_later_is_null_in_older_files(
    tmp_path, monkeypatch, make, form, old_first
):
    """Whatever file comes first; by hand: the older file's rows have no entry for n and text."""
    folder = make(tmp_path / "t", monkeypatch, old_first, form)
    paths = files_of([folder])
    declared = complete(paths, [], "y")
    assert sorted(declared) == ["n:numeric", "text:categorical", "x:numeric", "y:label"]
    assert label_kind(paths, "text") is ColumnKind.CATEGORICAL
    entries = {}
    for path in paths:
        with open_table(path) as table:
            assert sorted(table.names) == ["n", "text", "x", "y"]
            (batch,) = table.batches(["n", "text", "x"])
            rows = [batch.column(name).values(0, 2) for name in ("n", "text", "x")]
        columns = columns_by_name(declared, "y")
        (piece,) = (piece for piece, _ in read_rows(path, columns, "y"))
        entries[rows[2][0]] = np.diff(piece.ptr).tolist()
        assert rows[:2] == ([[None] * 2] * 2 if rows[2][0] == 1 else [[5, 6], ["a", "b"]])
    assert entries == {1.0: [1, 1], 3.0: [3, 3]}


def test_column_of_an_odd_type_that_a_table_got_later_is_named(tmp_path, monkeypatch):
    folder = grown_delta(tmp_path / "t", monkeypatch, True, False)
    log = tmp_path / "t" / f"_delta_log/{1:020}.json"
    log.write_text(log.read_text().replace('\\"string\\"', '\\"timestamp\\"'))
    with pytest.raises(DataError, match="column 'text' has type timestamp: expected numbers"):
        complete(files_of([folder]), [], "y")
    assert "text:ignore" in complete(files_of([folder]), ["text:ignore"], "y")
    log.write_text("{")
    (tmp_path / "t" / f"_delta_log/{0:020}.json").write_text("")
    with pytest.raises(DataError, match=r"cannot read the Delta table .*: its log has no schema"):
        complete(files_of([folder]), [], "y")


def test_iceberg_default_of_older_files_is_refused(tmp_path, monkeypatch):
    """Older files lack the column, and its value there is not null."""
    folder = put(tmp_path, "a.parquet", "metadata/v1.metadata.json")
    iceberg(monkeypatch, [f"{folder}/a.parquet"])
    module = sys.modules["pyiceberg.table"]
    table = module.StaticTable.from_metadata("")
    table.metadata.schemas[0].fields[0].initial_default = 7
    with pytest.raises(DataError, match="older files lack its column 'x', whose default they have"):
        files_of([folder])


def test_list_of_a_table_is_read_once_a_version_however_many_files_ask(tmp_path, monkeypatch):
    def commit(version, *names):
        fields = [{"name": name, "type": "long"} for name in names]
        line = json.dumps({"metaData": {"schemaString": json.dumps({"fields": fields})}})
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text(line)

    read, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
    (tmp_path / "_delta_log").mkdir()
    commit(0, "x")
    for number in range(5):
        assert lakes.columns_around(f"{tmp_path}/{number}.parquet") == {"x": "long"}
    assert len(read) == 1
    commit(1, "x", "y")
    for number in range(5):
        assert lakes.columns_around(f"{tmp_path}/{number}.parquet") == {"x": "long", "y": "long"}
    assert len(read) == 2
