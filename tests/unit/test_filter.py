"""filtering: what is kept of files, in files of the same format, and what is told of it."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import zstandard
from filter_command import command
from test_folders import delta, grown_delta, put

import snailps
from snailps.cli import printing
from snailps.cli.main import app_for
from snailps.data.formats import parquet
from snailps.data.formats import table as table_module
from snailps.data.formats.arrow import codec_of_messages
from snailps.data.formats.lines import LineTarget
from snailps.data.formats.table import TableFile
from snailps.data.table_files import complete
from snailps.errors import ConfigError, DataError
from snailps.filtering import job, results, scores, tasks
from snailps.filtering.job import FilterCommand, FilterJob, settings_for
from snailps.filtering.results import FilterResults
from snailps.filtering.rows import OpenTask
from snailps.filtering.tasks import names_of, tasks_of
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_files import LabelWriter, read_texts
from snailps.vectors.label_prediction import LabelModel

TEXTS = ["up up", "down", None, "up down", "other", "down down up", "up\nup", "größe up", ""]
LABEL = '"__label__plus"'
KEEP = f"hq[{LABEL}] >= .6"


def write_model(path, words=(b"</s>", b"up", b"down"), loss="softmax", label=b"__label__plus"):
    """``up`` says plus, ``down`` minus; other words, and the end of a line, say little."""
    inputs = np.array([[0.0, 0], [3.0, 0], [0, 3.0]][: len(words)], np.float32)
    outputs = np.array([[1.0, 0.2], [0.1, 1.0]], np.float32)
    header = BinHeader(dim=2, model="supervised", loss=loss, min_count=1)
    labels = [label, b"__label__minus"]
    write_bin(
        path, header, list(words), [3, 2, 1][: len(words)], [inputs], [outputs], labels, [2, 1]
    )
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "hq.bin")


def plus(model, texts=TEXTS):
    """Probability of plus, NaN for no text."""
    there = [text for text in texts if text is not None]
    found = iter(LabelModel(model).probabilities(there)[:, 0].tolist())
    return [float("nan") if text is None else next(found) for text in texts]


def keep(model, path, output, condition=KEEP, column="text", **options):
    return snailps.filter(
        path, output=output, models={"hq": model}, keep=condition, column=column, **options
    )


def write_parquet(path, rows=None, **options):
    table = rows or pa.table({
        "n": pa.array(range(len(TEXTS)), pa.int16()), "text": TEXTS,
        "tags": pa.array([["a", "b"], None, *[[]] * (len(TEXTS) - 2)], pa.list_(pa.string())),
    })  # fmt: skip
    pq.write_table(table, path, **options)
    return table


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [16, 3])
def test_parquet_keeps_its_columns_and_gets_scores(model, tmp_path, monkeypatch, threads, batch):
    monkeypatch.setattr(TableFile, "batch_rows", batch)
    table = write_parquet(tmp_path / "a.parquet", row_group_size=4, compression="gzip")
    done = keep(
        model, tmp_path / "a.parquet", tmp_path / "out", threads=threads,
        add=[f"good=hq[{LABEL}]", "hq"],
    )  # fmt: skip
    wanted = [at for at, p in enumerate(plus(model)) if p >= 0.6]
    found = pq.read_table(tmp_path / "out" / "a.parquet")
    assert found.select(table.column_names).equals(table.take(wanted))
    assert found["good"].to_pylist() == [plus(model)[at] for at in wanted]
    assert found["hq.top"].to_pylist() == ["__label__plus"] * len(wanted)
    assert found["hq.p"].to_pylist() == found["good"].to_pylist()
    assert (
        pq.ParquetFile(tmp_path / "out" / "a.parquet").metadata.row_group(0).column(0).compression
        == "GZIP"
    )
    assert (done["rows"], done["kept"], done["without_text"]) == (9, len(wanted), 1)
    assert done["refused"] == [{"clause": KEEP, "texts": 8 - len(wanted)}]
    assert sum(done["scores"][f"hq[{LABEL}]"]["bins"]) == 8


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_keeps_its_types_codec_and_kind(model, tmp_path, kind, codec, monkeypatch):
    """Dictionaries, views, extension types and metadata of fields; conditions and scores, too."""
    monkeypatch.setattr(TableFile, "batch_rows", 3)
    codes = pa.array([*"abcabcab", None]).dictionary_encode()
    table = pa.table({
        "n": pa.array(range(9), pa.int16()), "text": pa.array(TEXTS, pa.string_view()), "c": codes,
        "j": pa.array(["{}"] * 9, pa.json_()), "at": pa.array([1] * 9, pa.duration("ms")),
    })  # fmt: skip
    fields = [*table.schema]
    fields[0] = fields[0].with_metadata({"unit": "m"})
    table = table.cast(pa.schema(fields, {"of": "table"}))
    options, path = pa.ipc.IpcWriteOptions(compression=codec), tmp_path / "a.arrow"
    opener = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind]
    with path.open("wb") as file, opener(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=4)
    done = keep(model, path, tmp_path / "out", f"{KEEP} and n < 7", add=["hq"])
    wanted = [at for at, p in enumerate(plus(model)) if p >= 0.6 and at < 7]
    assert (done["rows"], done["kept"]) == (9, len(wanted))
    out = (tmp_path / "out" / "a.arrow").read_bytes()
    assert out.startswith(b"ARROW1") == (kind == "file")
    found = {"file": pa.ipc.open_file, "stream": pa.ipc.open_stream}[kind](out).read_all()
    assert found.schema.remove(6).remove(5).equals(table.schema, check_metadata=True)
    assert found.select(table.column_names).to_pylist() == [table.to_pylist()[at] for at in wanted]
    assert found["hq.top"].to_pylist() == ["__label__plus"] * len(wanted)
    with path.open("rb") as before, io.BytesIO(out) as after:
        for file in (before, after):
            file.seek(8 if kind == "file" else 0)
        assert codec_of_messages(before) == codec_of_messages(after) == codec


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "arrow", "orc"])
def test_columns_in_names_of_folders_are_in_conditions(model, tmp_path, ending):
    """As a number beside a number, as a text beside a text; the output is a folder of that name."""
    put(tmp_path / "in", *(f"day={day}/a.{ending}" for day in ("7", "8", "x")),
        table=pa.table({"text": ["up", "down"]}))  # fmt: skip
    days = str(tmp_path / "in" / "day=[78]" / f"*.{ending}")
    for number, condition in enumerate(["day > 7", 'day == "8"', 'day in ["8", "9"]', "day != 7"]):
        done = keep(model, days, tmp_path / f"out{number}", f"hq.p >= 0 and {condition}")
        assert (done["rows"], done["kept"]) == (4, 2)
        assert (tmp_path / f"out{number}" / "day=8" / f"a.{ending}").stat().st_size
    whole = str(tmp_path / "in")
    assert keep(model, whole, tmp_path / "all", 'hq.p >= 0 and day != "7"')["kept"] == 4
    for added, condition, refused in (
        ([], "day > 7", r"column 'day' has texts: compare it|is compared with a number"),
        (["day=hq.p"], "hq.p > 0", r"--add day: .*has"),
    ):
        with pytest.raises(ConfigError, match=refused):
            keep(model, whole, tmp_path / "none", f"hq.p >= 0 and {condition}", add=added)


def test_orc_keeps_its_types_and_codec_and_is_cut_between_stripes(model, tmp_path):
    table = pa.table({
        "n": pa.array(range(9), pa.int16()), "text": TEXTS, "tags": [["a"], None, *[[]] * 7],
        "text.en": ["x"] * 9,
    })  # fmt: skip
    for path, rows in (("a.orc", table), ("none.orc", table.slice(0, 0))):
        orc.write_table(rows, tmp_path / path, compression="zlib")
    keep(model, str(tmp_path / "*.orc"), tmp_path / "out", f"{KEEP} and n < 7", add=["hq"])
    wanted = [at for at, p in enumerate(plus(model)) if p >= 0.6 and at < 7]
    kept = orc.ORCFile(tmp_path / "out" / "a.orc")
    assert kept.compression == "ZLIB"
    assert kept.read().select(table.column_names).equals(table.take(wanted))
    assert kept.read()["hq.top"].to_pylist() == ["__label__plus"] * len(wanted)
    none = orc.ORCFile(tmp_path / "out" / "none.orc")
    assert (none.nrows, none.schema) == (0, kept.schema)
    many = pa.table({"text": [f"up {at} {at * 7919 % 10007}" for at in range(40_000)]})
    orc.write_table(many, tmp_path / "many.orc", stripe_size=1 << 10)
    tasks = tasks_of([str(tmp_path / "many.orc")], "text", 20_000)
    assert [task.name for task in tasks] == [f"many-{at:05d}.orc" for at in range(len(tasks))]
    batches = [batch for task in tasks for batch in OpenTask(task, "text").batches()]
    assert sum(batch.rows for batch in batches) == len(many)
    assert len(tasks) > 2


PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("ending", PACKED)
def test_lines_of_json_stay_as_they_are(model, tmp_path, ending):
    lines = [
        json.dumps({"id": at, "text": text}, ensure_ascii=bool(at % 2)).encode()
        for at, text in enumerate(TEXTS)
    ]
    lines[0] = b'  {"text" :"up up", "x": 1.50 } '
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACKED[ending](b"\n\n".join(lines)))
    keep(model, path, tmp_path / "out")
    wanted = [at for at, p in enumerate(plus(model)) if p >= 0.6]

    def written(folder):
        data = (folder / path.name).read_bytes()
        unpacked = {"": bytes, ".gz": gzip.decompress}.get(ending)
        return (
            unpacked(data)
            if unpacked
            else zstandard.ZstdDecompressor().decompressobj().decompress(data)
        )

    assert written(tmp_path / "out").splitlines() == [lines[at] for at in wanted]
    keep(model, path, tmp_path / "more", add=["hq.top", f"p=hq[{LABEL}]"])
    rows = [json.loads(line) for line in written(tmp_path / "more").splitlines()]
    assert [row.pop("p") for row in rows] == pytest.approx([plus(model)[at] for at in wanted])
    assert {row.pop("hq.top") for row in rows} == {"__label__plus"}
    assert rows == [json.loads(lines[at]) for at in wanted]
    assert written(tmp_path / "more").startswith(b'  {"text" :"up up", "x": 1.50, "hq.top": ')


def test_lines_of_text_stay_as_they_are(model, tmp_path):
    raw = b"up up\r\ndown\n\xff up\nup </s> down\n\nup"
    (tmp_path / "a.txt").write_bytes(raw)
    done = keep(model, tmp_path / "a.txt", tmp_path / "out", column="")
    assert (tmp_path / "out" / "a.txt").read_bytes() == b"up up\r\n\xff up\nup </s> down\nup"
    assert done["kept"] == 4


@pytest.mark.parametrize("condition", [KEEP, 'hq.top == "__label__plus"'])
def test_words_behind_an_end_are_told_once_a_run(model, tmp_path, monkeypatch, caplog, condition):
    monkeypatch.setattr(TableFile, "batch_rows", 2)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("up </s> down down\n" * 5)
    done = keep(model, str(tmp_path / "*.txt"), tmp_path / "out", condition, column="")
    assert (done["kept"], done["unread"]) == (10, {"hq": 20})
    (record,) = caplog.records
    assert record.getMessage().startswith("model hq: 20 words were not read")


def test_names_of_outputs_are_those_of_inputs_below_their_folder(model, tmp_path):
    for name in ("x/a.txt", "x/y/a.txt", "b.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("up\ndown\n")
    keep(model, tmp_path / "in", tmp_path / "out", column="")
    for name in ("x/a.txt", "x/y/a.txt", "b.txt"):
        assert (tmp_path / "out" / name).read_text() == "up\n"


def test_names_of_outputs_have_the_columns_in_names_of_folders(model, tmp_path):
    """Even if all files have the same: a reader of the output has no other place to find them."""
    (tmp_path / "in" / "day=7").mkdir(parents=True)
    (tmp_path / "in" / "day=7" / "a.jsonl").write_text('{"text": "up"}\n{"text": "down"}\n')
    keep(model, tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out" / "day=7" / "a.jsonl").read_text() == '{"text": "up"}\n'
    paths = ["/d/./c=1/a.jsonl", "/d/./c=1/b.jsonl", "s3://b/t/./c=1/d=2/a.jsonl"]
    assert names_of(paths) == ["c=1/a.jsonl", "c=1/b.jsonl", "c=1/d=2/a.jsonl"]


def test_large_parquet_is_cut_between_groups_of_rows(model, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "TASK_BYTES", 700)
    rows = pa.table({"text": [f"up {at}" if at % 3 else "down" for at in range(400)]})
    write_parquet(tmp_path / "a.parquet", rows, row_group_size=50)
    tasks = tasks_of([str(tmp_path / "a.parquet")], "text", 700)
    assert len(tasks) > 2
    assert all(task.groups[0] < task.groups[1] for task in tasks)
    done = keep(model, tmp_path / "a.parquet", tmp_path / "out")
    files = sorted(tmp_path.glob("out/*.parquet"))
    assert [file.name for file in files] == [f"a-{at:05d}.parquet" for at in range(len(tasks))]
    found = pa.concat_tables(map(pq.read_table, files))["text"].to_pylist()
    assert found == [text for text in rows["text"].to_pylist() if text != "down"]
    assert [file["rows"] for file in done["files"]] == [
        50 * (task.groups[1] - task.groups[0]) for task in tasks
    ]


@pytest.mark.parametrize("ordered", [False, True])
def test_dictionary_costs_no_more_than_its_values(model, tmp_path, monkeypatch, ordered):
    """Batches of a few rows have only what they use of it, or an order all of it."""
    monkeypatch.setattr(TableFile, "batch_rows", 16)
    urls = [f"https://example.org/{at * 7919 % 997:08d}/{'p' * 100}" for at in range(997)]
    codes = pa.array([None, *range(996, 0, -1)], pa.int16())
    column = pa.DictionaryArray.from_arrays(codes, urls, ordered=ordered)
    table = pa.table({"text": ["up"] * 997, "url": column})
    write_parquet(tmp_path / "a.parquet", table)
    groups = []
    write_group = parquet.ParquetTarget.write_group
    monkeypatch.setattr(
        parquet.ParquetTarget, "write_group",
        lambda target: (groups.append(target._bytes), write_group(target)),
    )  # fmt: skip
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    found = pq.read_table(tmp_path / "out" / "a.parquet")
    assert found.schema.equals(table.schema)
    assert found["url"].to_pylist() == table["url"].to_pylist()
    if not ordered:
        assert sum(groups) < 2 * table["url"].cast("string").nbytes
        sizes = [(tmp_path / name / "a.parquet").stat().st_size for name in (".", "out")]
        assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_text_of_parquet_that_is_no_utf8_is_as_in_other_files(model, tmp_path, kind):
    raw = pa.array([b"up", b"up gr\xf6\xdfe", None], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    write_parquet(tmp_path / "a.parquet", pa.table({"text": texts, "more": texts}))
    condition = f"hq[{LABEL}] >= .6 and more != 'up'"
    done = keep(model, tmp_path / "a.parquet", tmp_path / "out", condition)
    assert (done["kept"], done["without_text"]) == (1, 1)
    found = pq.read_table(tmp_path / "out" / "a.parquet")["more"].cast("large_binary")
    assert found.to_pylist() == [b"up gr\xf6\xdfe"]
    assert "up gr\ufffd\ufffde" in (tmp_path / "out" / "_report.html").read_text()


def test_texts_of_json_have_the_bytes_of_the_file(tmp_path):
    """Latin-1 is read as trained; halves of pairs are other bytes that are no text."""
    words = (b"</s>", b"\xe9", b"\xed\xa0\x80")
    model = write_model(tmp_path / "hq.bin", words)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\xe9"}\n{"text": "\\ud800 \xe9 \xe9"}\n')
    (tmp_path / "a.txt").write_bytes(b"\xe9\n\xed\xa0\x80 \xe9 \xe9\n")
    condition = f"hq[{LABEL}] > 1"
    found = [
        keep(model, tmp_path / name, tmp_path / f"{name}.out", condition, column)["scores"]
        for name, column in (("a.jsonl", "text"), ("a.txt", ""))
    ]
    assert found[0] == found[1]
    written = [
        b"".join(bytes(piece.data) for piece in read_texts(str(tmp_path / name), column))
        for name, column in (("a.jsonl", "text"), ("a.txt", ""))
    ]
    assert written[0] == written[1]


def test_old_timestamps_keep_their_dates(model, tmp_path):
    dates = [datetime(9999, 12, 31, 23, 59, 59, 1), datetime(1, 1, 1), None]
    rows = pa.table({"text": ["up"] * 3, "t": pa.array(dates, pa.timestamp("us"))})
    write_parquet(tmp_path / "a.parquet", rows, use_deprecated_int96_timestamps=True)
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    found = pq.ParquetFile(tmp_path / "out" / "a.parquet")
    instants = rows.set_column(1, "t", rows["t"].cast(pa.timestamp("us", "UTC")))
    assert found.read().equals(instants)
    assert found.schema.column(1).physical_type == "INT64"


def test_times_of_int96_are_instants_wherever_they_are(model, tmp_path):
    """INT96 is UTC for its writers; as INT64 without zone Spark would read the time of the wall."""
    time, kind = datetime(2024, 1, 1, 12, 0, 0, 123456), pa.timestamp("us")
    rows = pa.table({
        "n": pa.array([7], pa.int8()), "text": ["up"], "time": pa.array([time], kind),
        "list": pa.array([[time]], pa.list_(kind)),
        "large": pa.array([[time]], pa.large_list(kind)),
        "struct": pa.array([{"n": 1, "t": time}], pa.struct({"n": pa.int8(), "t": kind})),
        "map": pa.array([[("a", time)]], pa.map_(pa.string(), kind)),
        "words": pa.array(["up"]).dictionary_encode(),
    })  # fmt: skip
    for name, options in (("plain", {"store_schema": False}), ("stored", {})):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(rows, path, use_deprecated_int96_timestamps=True, **options)
        keep(model, path, tmp_path / name)
        found = pq.ParquetFile(tmp_path / name / path.name)
        times = [column for column in map(found.schema.column, range(10))
                 if column.path.partition(".")[0] in ("time", "list", "large", "struct", "map")
                 and column.path not in ("struct.n", "map.key_value.key")]  # fmt: skip
        assert len(times) == 5
        for column in times:
            assert column.physical_type == "INT64", column.path
            assert "isAdjustedToUTC=true" in str(column.logical_type), column.path
        read = found.read()
        for column in ("time", "list", "large", "struct", "map"):
            stored = read[column].combine_chunks()
            while not pa.types.is_timestamp(stored.type):
                stored = (
                    stored.field("t")
                    if pa.types.is_struct(stored.type)
                    else (stored.items if pa.types.is_map(stored.type) else stored.flatten())
                )
            assert stored.cast("int64").to_pylist() == [1704110400123456], column
        assert read["n"].type == pa.int8()
        assert read["words"].to_pylist() == ["up"]


def test_column_that_a_table_got_later_is_null_in_conditions(model, tmp_path, monkeypatch):
    """A comparison with null is neither true nor false; a kept row has what its file has."""
    grown_delta(tmp_path / "t", monkeypatch, True, False)

    def kept(condition, column="text"):
        options = {"overwrite": True, "column": column}
        done = keep(model, tmp_path / "t", tmp_path / "out", condition, **options)
        return done["kept"], done["rows"], done["without_text"]

    assert kept("n >= 6 and hq.p >= 0") == (1, 4, 2)  # the older file's rows have no text
    put(tmp_path / "t", "a.parquet", table=pa.table({"text": ["up", "up"], "x": [1.0, 2.0]}))
    assert kept("n >= 6 and hq.p >= 0") == (1, 4, 0)
    assert kept("not (n >= 6) and hq.p >= 0") == (1, 4, 0)
    assert kept("x >= 2 and hq.p >= 0") == (3, 4, 0)
    with pytest.raises(ConfigError, match="has a column of that name"):
        keep(model, tmp_path / "t", tmp_path / "added", add=["n=hq.p"])
    with pytest.raises(DataError, match=r"has no column 'z', but .*"):
        kept("z > 1 and hq.p >= 0")


def test_field_that_a_table_got_later_is_null_in_conditions(model, tmp_path, monkeypatch):
    """Structs of a Delta table grow as its columns do."""
    source = {"name": "from", "type": "string"}
    meta = {"type": "struct", "fields": [{"name": "n", "type": "long"}, source]}
    tags = {"type": "map", "keyType": "string", "valueType": "string"}
    kinds = {"text": "string", "meta": meta, "extra": meta, "tags": tags}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = {"schemaString": json.dumps({"type": "struct", "fields": fields})}
    folder = tmp_path / "t"
    (folder / "_delta_log").mkdir(parents=True)
    (folder / f"_delta_log/{0:020}.json").write_text(f"{json.dumps({'metaData': schema})}\n")
    old = pa.table({"text": ["up"], "meta": [{"n": 1}]})
    grown = {"n": 1, "from": "web"}
    pairs = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    new = pa.table({"text": ["up"], "meta": [grown], "extra": [grown], "tags": pairs})
    put(folder, "a.parquet", table=old)
    put(folder, "b.parquet", table=new)
    delta(monkeypatch, files=("a.parquet", "b.parquet"))

    def kept(condition):
        done = keep(model, folder, tmp_path / "out", f"{condition} and hq.p >= 0", overwrite=True)
        return done["kept"], done["rows"]

    for condition in ('meta["from"] == "web"', 'extra["from"] == "web"', "extra.n == 1"):
        assert kept(condition) == (1, 2)
        assert kept(f"not ({condition})") == (0, 2)
    assert kept('tags.a == "b"') == (1, 2)
    assert kept("meta.n == 1") == (2, 2)
    for condition in ("extra.z == 1", "meta.z == 1"):
        with pytest.raises(DataError, match="has no column"):
            kept(condition)


SPARK, AVRO = b"org.apache.spark.sql.parquet.row.metadata", b"parquet.avro.schema"


def test_other_writers_copies_of_the_schema_have_the_added_columns(model, tmp_path):
    """Spark and Avro read the columns that their own copy of the schema lists, and no others."""
    spark = {"type": "struct", "fields": [
        {"name": "text", "type": "string", "nullable": True, "metadata": {}}]}  # fmt: skip
    avro = {"type": "record", "name": "r", "fields": [{"name": "text", "type": "string"}]}
    rows = pa.table({"text": TEXTS})
    copies = {SPARK: json.dumps(spark), AVRO: json.dumps(avro), b"writer": b"kept"}
    for name, copy in (("a", copies), ("damaged", {SPARK: b"{", AVRO: b"[]"})):
        write_parquet(tmp_path / f"{name}.parquet", rows.replace_schema_metadata(copy))

    def copies_of(name, output, **options):
        keep(model, tmp_path / f"{name}.parquet", tmp_path / output, **options)
        return pq.read_metadata(tmp_path / output / f"{name}.parquet").metadata

    plain = copies_of("a", "plain")
    assert (json.loads(plain[SPARK]), json.loads(plain[AVRO])) == (spark, avro)
    added = copies_of("a", "added", add=[f"score=hq[{LABEL}]", "top=hq.top"])
    assert json.loads(added[SPARK])["fields"] == [
        *spark["fields"],
        {"name": "score", "type": "float", "nullable": True, "metadata": {}},
        {"name": "top", "type": "string", "nullable": True, "metadata": {}},
    ]
    assert json.loads(added[AVRO])["fields"] == [
        *avro["fields"],
        {"name": "score", "type": ["null", "float"], "default": None},
        {"name": "top", "type": ["null", "string"], "default": None},
    ]
    assert added[b"writer"] == b"kept"
    dotted = copies_of("a", "dotted", add=["hq"])  # hq.top is no name in Avro
    assert AVRO not in dotted
    assert len(json.loads(dotted[SPARK])["fields"]) == 3
    damaged = copies_of("damaged", "damaged", add=["hq"])
    assert damaged is None or not {SPARK, AVRO} & {*damaged}


def test_code_of_a_null_is_no_text(model, tmp_path):
    """A dictionary may have null among its values."""
    codes = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(["up", None]))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file:
        rows = pa.table({"text": codes})
        with pa.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows)
    done = keep(model, tmp_path / "a.arrow", tmp_path / "out")
    assert (done["rows"], done["kept"], done["without_text"]) == (3, 2, 1)


def test_parquet_is_asked_for_a_batch_at_a_time(model, tmp_path, monkeypatch):
    """Rows by the size of their group, and bytes in steps: not all of a group."""
    sizes, asked, read = [10] * 64 + [5000] * 32 + [10] * 64, [], []
    rows = pa.table({"text": [("up " * size)[:size] + str(at) for at, size in enumerate(sizes)]})
    write_parquet(
        tmp_path / "a.parquet", rows, row_group_size=32, compression="none", use_dictionary=False,
        data_page_size=1000, write_batch_size=1,
    )  # fmt: skip
    monkeypatch.setattr(TableFile, "batch_bytes", 20_000)
    monkeypatch.setattr(parquet, "STEP_BYTES", 8000)
    iter_batches = pq.ParquetFile.iter_batches

    class File(io.FileIO):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    def noted(self, rows, row_groups, columns):
        if not asked:
            read.clear()  # of the file's end
        asked.append((rows, row_groups))
        return iter_batches(self, rows, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    monkeypatch.setattr(table_module, "open_content", File)
    assert keep(model, tmp_path / "a.parquet", tmp_path / "out")["kept"] == len(sizes)
    assert asked == [(1024, [0, 1]), (2, [2]), (1024, [3, 4])]
    assert max(read) < 20_000  # of 160,000


def test_later_models_are_asked_of_what_earlier_ones_keep(model, tmp_path, monkeypatch):
    other = write_model(tmp_path / "other.bin")
    write_parquet(tmp_path / "a.parquet")
    asked = []
    predict = LabelModel.predict_arrays

    def noted(self, texts, *more, **options):
        asked.append((self._path, texts.to_pylist()))
        return predict(self, texts, *more, **options)

    monkeypatch.setattr(LabelModel, "predict_arrays", noted)
    done = snailps.filter(
        tmp_path / "a.parquet", output=tmp_path / "out", column="text", threads=1,
        models={"a": model, "b": other},
        keep='n < 4 and a.top == "__label__plus" and b.p > .8 and b.top == "__label__plus"',
    )  # fmt: skip
    assert asked == [(str(model), ["up up", "down", "up down"]), (str(other), ["up up", "up down"])]
    assert [one["texts"] for one in done["refused"]] == [5, 1, 1, 0]
    assert done["scores"]["b.p"]["bins"].count(0) == 48


def test_ended_run_goes_on_and_its_bytes_are_the_same(model, tmp_path, monkeypatch):
    for name in "abc":
        write_parquet(tmp_path / f"{name}.parquet", row_group_size=2)
    keep(model, str(tmp_path / "*.parquet"), tmp_path / "whole")
    begun = []

    def note(job, task, counts):
        if counts is None:
            begun.append(task.name)
            if task.name == "b.parquet":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, str(tmp_path / "*.parquet"), tmp_path / "out", note=note)
    there = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert there == [".snailps", "a.parquet"]
    with pytest.raises(
        ConfigError, match="results of another command: choose another --o"
    ) as error:
        keep(model, str(tmp_path / "*.parquet"), tmp_path / "out", "hq.p > .9", add=["hq"])
    assert str(error.value).splitlines()[1:] == [
        f"  keep: {KEEP} there, hq.p > .9 here",
        "  add: none there, hq.top, hq.p here",
    ]
    begun.clear()
    done = keep(
        model, str(tmp_path / "*.parquet"), tmp_path / "out",
        note=lambda job, task, counts: begun.append(task.name) if counts is None else None,
    )  # fmt: skip
    assert begun == ["b.parquet", "c.parquet"]
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_manifest.json", "_report.html", "a.parquet", "b.parquet", "c.parquet",
    ]  # fmt: skip
    assert keep(model, str(tmp_path / "*.parquet"), tmp_path / "out") == done
    (tmp_path / "out" / "mine").write_text("stays")
    assert pq.read_table(tmp_path / "whole").num_rows == done["kept"]  # a folder of Parquet
    assert keep(model, tmp_path / "whole", tmp_path / "twice")["rows"] == done["kept"]
    again = keep(model, tmp_path / "a.parquet", tmp_path / "out", overwrite=True)
    assert again["rows"] == 9
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_manifest.json", "_report.html", "a.parquet", "mine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "nix.parquet"}, "does not exist"),
        ({"column": ""}, "name the column of its texts"),
        ({"column": "txt"}, "no column 'txt', but n, text, tags"),
        ({"path": "t.txt"}, "t.txt is text, by its name"),
        ({"path": "t.csv"}, "is csv: filter reads Parquet, Arrow, ORC, JSON lines and text"),
        ({"condition": "hq.p > .5 and m > 1"}, "no column 'm'"),
        ({"condition": "tags == 1"}, "column 'tags' has type list"),
        ({"condition": "hq.q > .5"}, "--keep: hq has no q"),
        ({"add": ["hq.q"]}, "--add: hq has no q"),
        ({"add": ["n=hq.p"]}, "--add n: .* has a column of that name"),
        ({"threads": -1}, "threads: expected 0"),
        ({"threads": 1.5}, "threads: expected 0.* got 1.5"),
        ({"output": "."}, "has the input in it"),
        ({"path": "**/*.parquet", "output": "kept"}, "the next run would read them as input"),
        ({"path": "late.jsonl", "column": "txt"}, "has no column 'txt', but text, m"),
        ({"condition": 5}, "keep: expected a condition"),
        ({"path": "full", "column": "", "output": "full/o"}, "is in the input's folder"),
        ({"output": "t.txt"}, "--output .*t.txt"),
        ({"output": "t.txt/x"}, "--output .*t.txt/x"),
        ({"path": "_report.html", "column": ""}, "keeps _report.html for its own file"),
        ({"condition": "hq.p > .5 # and more\n and n > 3"}, "has no comments"),
        (
            {"path": "late.jsonl", "add": ["m=hq.p"], "condition": "hq.p > 1"},
            "--add m: .*late.jsonl has that name",
        ),
        ({"add": ["x=hq.p", "x=hq.p"]}, "an earlier --add makes the column x"),
        ({"path": "twice.parquet"}, "has 2 columns 'text'"),
        ({"output": "full"}, "is not empty"),
        ({"path": "bad.jsonl"}, "bad.jsonl, line 4: no JSON"),
        ({"path": "list.jsonl"}, "line 1: expected an object"),
        ({"path": "number.jsonl"}, "line 2: expected a text in 'text', got 5"),
        ({"path": "mixed.jsonl", "condition": "m > 1"}, "lines 2 to 4: 'm' has int, str"),
        ({"path": "packed.parquet.gz"}, "a file that is not packed"),
        ({"path": "pipe.txt", "column": ""}, "pipe.txt is no regular file"),
        ({"column": "n"}, "a.parquet: column 'n': expected a column of texts, got one of int16"),
        ({"path": "late.jsonl", "condition": "m > 1"}, "late.jsonl: column 'm' has texts"),
        ({"add": ['hq["__label__\udce9"]'], "model": "odd.bin"}, "name in Parquet is UTF-8"),
    ],
)
def test_mistake_is_told_and_leaves_nothing(model, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    write_parquet("a.parquet")
    for name, text in {
        "t.txt": "up\n", "t.csv": "text\nup\n", "bad.jsonl": '\n{"text": "up"}\n \r\n{"text"\n',
        "list.jsonl": "[1]\n", "number.jsonl": '\n{"text": 5}\n', "full/x": "",
        "mixed.jsonl": '\n{"text": "up", "m": 1}\n\n{"text": "up", "m": "a"}\n',
        "late.jsonl": '{"text": "up", "m": 1}\n' * 20 + '{"text": "up", "m": "a"}\n' * 20,
        "packed.parquet.gz": "", "_report.html": "up\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    os.mkfifo("pipe.txt")
    write_model("odd.bin", label=b"__label__\xe9")
    monkeypatch.setattr(TableFile, "batch_rows", 20)
    texts = pa.array(["up"])
    pq.write_table(pa.Table.from_arrays([texts, texts], ["text", "text"]), "twice.parquet")
    asked = {"model": model, "path": "a.parquet", "output": "out", **change}
    if "odd.bin" in asked.values():
        asked["condition"] = "hq.p > .5"
    with pytest.raises((ConfigError, DataError), match=words):
        keep(**asked)
    assert not list(tmp_path.glob("out/[!.]*"))
    assert keep(model, "a.parquet", "out")["rows"] == 9  # what failed at its beginning is no result


def test_error_names_the_line_of_the_file_in_later_batches(model, tmp_path, monkeypatch):
    monkeypatch.setattr(TableFile, "batch_rows", 2)
    (tmp_path / "a.jsonl").write_text('\n\n\n{"text": "up"}\n\n{"text": 5}\n')
    with pytest.raises(DataError, match=r"line 6: expected a text in 'text', got 5"):
        keep(model, tmp_path / "a.jsonl", tmp_path / "out")


def test_what_has_changed_since_is_noticed(model, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("up\ndown\n")
    inputs = [tmp_path / "a.txt", tmp_path / "b.txt"]

    def stop(job, task, counts):
        if task.name == "b.txt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, inputs, tmp_path / "out", column="", note=stop)
    (tmp_path / "a.txt").write_text("up\nxown\n")  # as long as before
    with pytest.raises(ConfigError, match=r"another command.*\n  inputs: a.txt \(it was changed"):
        keep(model, inputs, tmp_path / "out", column="")
    with pytest.raises(ConfigError, match=r"\n  inputs: a.txt \(not here now\)$"):
        keep(model, inputs[1:], tmp_path / "out", column="")
    keep(model, inputs, tmp_path / "out", column="", overwrite=True)
    (tmp_path / "out" / "b.txt").unlink()
    with pytest.raises(ConfigError, match=r"b.txt is not what this command .*Add --overwrite"):
        keep(model, inputs, tmp_path / "out", column="")
    keep(model, inputs, tmp_path / "out", column="", overwrite=True)
    assert (tmp_path / "out" / "b.txt").read_text() == "up\n"
    keep(model, inputs, tmp_path / "out", column="")
    (tmp_path / "c.txt").write_text("up\n" * 300_000)

    def change(job, task, counts):
        if counts is None:
            (tmp_path / "c.txt").write_text("down\n")

    with pytest.raises(DataError, match="was changed while it was read"):
        keep(model, tmp_path / "c.txt", tmp_path / "late", column="", note=change)
    assert not (tmp_path / "late" / "c.txt").exists()


def test_inputs_are_never_overwritten(model, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("up\ndown\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for path, output in (("link", "in"), ("in", "link"), ("in/a.txt", "link"), ("in", "in/deep")):
        with pytest.raises(ConfigError, match="--output"):
            keep(model, tmp_path / path, tmp_path / output, column="", overwrite=True)
    (tmp_path / "out").mkdir()
    for name in ("a.txt", "_report.html", "_manifest.json"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "in" / "a.txt")
    keep(model, tmp_path / "in", tmp_path / "out", column="", overwrite=True)
    assert (tmp_path / "in" / "a.txt").read_text() == "up\ndown\n"
    (tmp_path / "in" / "x").mkdir()
    (tmp_path / "in" / "x" / "b.txt").write_text("up\ndown\n")
    (tmp_path / "out" / "x").symlink_to(tmp_path / "in" / "x")
    with pytest.raises(ConfigError, match="has the input in it"):
        keep(model, tmp_path / "in", tmp_path / "out", column="", overwrite=True)
    assert (tmp_path / "out" / "a.txt").read_text() == "up\n"
    names = names_of(["https://h/x/a.txt?y=1/2", "/data/c/b.txt", "/data/c/d/../b.txt"])
    assert names == ["a.txt", "b.txt", "d/b.txt"]


def test_model_that_is_another_file_than_before_is_noticed(tmp_path):
    (tmp_path / "a.txt").write_text("up\n")
    model = write_model(tmp_path / "hq.bin")
    touch = lambda job, task, counts: os.utime(model, ns=(1, 1))  # noqa: E731
    with pytest.raises(DataError, match=r"hq.bin was changed while it was read"):
        keep(model, tmp_path / "a.txt", tmp_path / "out", column="", note=touch)
    with pytest.raises(ConfigError, match=r"\n  models: hq \(it was changed since\)"):
        keep(model, tmp_path / "a.txt", tmp_path / "out", column="")
    done = keep(model, tmp_path / "a.txt", tmp_path / "out", column="", overwrite=True)
    assert done["models"]["hq"]["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.mark.parametrize("appears", [False, True])
def test_model_that_is_replaced_while_it_is_opened_is_noticed(tmp_path, monkeypatch, appears):
    """Else the manifest would name the new model, whose scores no output has."""
    (tmp_path / "a.txt").write_text("up\n")
    model, other = write_model(tmp_path / "hq.bin"), write_model(tmp_path / "new.bin", loss="ova")
    if appears:  # between the look at its version and the opening
        model.unlink()

    def opened(path, **options):
        if appears:
            other.replace(path)
        model = LabelModel(path, **options)
        if not appears:
            other.replace(path)
        return model

    monkeypatch.setattr(job, "LabelModel", opened)
    with pytest.raises(DataError, match=r"hq.bin was changed while it was read: run it again"):
        keep(model, tmp_path / "a.txt", tmp_path / "out", column="")


@pytest.mark.parametrize("limit", [1 << 30, 1])
def test_model_that_is_written_over_amid_a_run_ends_no_process(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("snailps.vectors.fasttext_bin.COPIED_BYTES", limit)
    path, models = tmp_path / "t.txt", write_model(tmp_path / "hq.bin")
    path.write_text("up\n")
    (tmp_path / "t2.txt").write_text("up\n")
    real = scores.ConditionJudge.decide

    def decide(*given):  # after the first file was begun
        found = real(*given)
        os.truncate(models, 50)
        return found

    monkeypatch.setattr(scores.ConditionJudge, "decide", decide)
    with pytest.raises(DataError, match=r"hq.bin was changed while it was read: run it again"):
        keep(models, str(tmp_path / "t*.txt"), tmp_path / "o", column="", threads=1)


def test_inputs_are_those_of_the_folder_whose_name_looks_like_a_pattern(
    model, tmp_path, monkeypatch
):
    for folder in ("a[bc]", "ab"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.txt").write_text("up\n")
    monkeypatch.chdir(tmp_path / "a[bc]")
    monkeypatch.setenv("HOME", str(tmp_path))
    keep(model, "*.txt", "../out", column="")
    assert [path.name for path in (tmp_path / "out").glob("*.txt")] == ["a[bc].txt"]
    with pytest.raises(ConfigError, match="is in the input's folder, ~/ab"):
        keep(model, "~/ab", tmp_path / "ab" / "out", column="")
    assert keep(model, "~/ab", "~/home", column="")["kept"] == 1
    assert (tmp_path / "home" / "ab.txt").is_file()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": ""}, "input: expected a path, got ''"),
        ({"input": None}, "input: expected a path, got None"),
        ({"input": [["a.parquet"]]}, "input: expected a path, got \\['a.parquet'\\]"),
        ({"output": ""}, "output: expected a path, got ''"),
        ({"models": {"hq": ""}}, "model hq: expected a path, got ''"),
        ({"keep_scores": 3}, "keep_scores: expected a path, got 3"),
    ],
)
def test_empty_paths_and_what_is_no_path_are_refused(model, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    write_parquet("a.parquet")
    asked = {"input": "a.parquet", "output": "out", "models": {"hq": model}, "keep": "hq.p > .5"}
    with pytest.raises(ConfigError, match=words):
        snailps.filter(**{**asked, "column": "text", **change})
    assert not (tmp_path / "out").exists()


def test_added_score_may_be_called_as_a_field_of_an_object(model, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "up", "hq": {"p": 9}}\n')
    snailps.filter(tmp_path / "a.jsonl", output=tmp_path / "out", models={"hq": model},
                   keep="hq.p > 0", column="text", add=["hq.p"])  # fmt: skip
    row = json.loads((tmp_path / "out" / "a.jsonl").read_text())
    assert row["hq"] == {"p": 9}
    assert 0 < row["hq.p"] < 1


def test_inputs_may_be_bytes_and_conditions_come_from_files_of_any_system(
    model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_parquet("a.parquet")
    models = {"hq": model}
    counts = [
        snailps.filter(b"a.parquet", output=output, models=models, keep=condition, column="text")
        for output, condition in (("a", "hq.p > .5\r\nand n > 1\r\n"), ("b", "hq.p > .5 and n > 1"))
    ]
    assert counts[0]["kept"] == counts[1]["kept"] > 0
    assert counts[0]["keep"] == counts[1]["keep"]


def test_condition_of_several_lines_is_one_line_for_workers(model, tmp_path):
    condition = f"{KEEP}\n  and hq.top == {LABEL}"
    command = FilterCommand((), "text", {"hq": str(model)}, condition, (), str(tmp_path / "out"))
    sent = settings_for(FilterJob(command))["keep"]
    assert sent == condition.replace("\n", " ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_that_ends_a_command_leaves_no_unfinished_file(
    model, tmp_path, monkeypatch, request, number
):
    (tmp_path / "a.txt").write_text("up\n")
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored, as it must be
    request.addfinalizer(lambda: signal.signal(number, before))
    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    kill = lambda *_: os.kill(os.getpid(), number)  # noqa: E731
    monkeypatch.setattr(LineTarget, "write", kill)
    monkeypatch.setattr(LabelWriter, "write", kill)
    out, read = tmp_path / "out", ["--input", str(tmp_path / "a.txt")]
    for words in (
        ["filter", "--model", f"hq={model}", "--keep", KEEP, *read, "--output", str(out / "texts")],
        ["predict", str(model), *read, "--output", str(out / "labels")],
    ):
        with pytest.raises(SystemExit) as ended:
            app_for(words[:1])(words, standalone_mode=False)
        assert ended.value.code == 128 + number
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]
    assert handlers == [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]


def test_url_without_a_version_is_never_taken_as_finished(model, tmp_path, monkeypatch):
    """Whether it is what it was is not known: it is read again, or the folder is refused."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("up\ndown\n")
    pattern = str(tmp_path / "*.txt")
    known = tasks.version_now
    monkeypatch.setattr(tasks, "version_now", lambda path: "" if "b.txt" in path else known(path))
    monkeypatch.setattr(job, "version_now", tasks.version_now)
    begun = []

    def note(job, task, counts):
        if counts is None:
            begun.append(task.name)
            if len(begun) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, pattern, tmp_path / "out", column="", note=note)
    monkeypatch.setattr(FilterJob, "finish", lambda job: None)
    keep(model, pattern, tmp_path / "out", column="", note=note)
    keep(model, pattern, tmp_path / "out", column="", note=note)
    monkeypatch.undo()
    assert begun == ["a.txt", "b.txt", "b.txt", "b.txt"]
    monkeypatch.setattr(tasks, "version_now", lambda path: "" if "b.txt" in path else known(path))
    monkeypatch.setattr(job, "version_now", tasks.version_now)
    keep(model, pattern, tmp_path / "out", column="")
    with pytest.raises(ConfigError, match=r"b.txt has neither an ETag nor a date.*--overwrite"):
        keep(model, pattern, tmp_path / "out", column="")
    keep(model, pattern, tmp_path / "out", column="", overwrite=True)


def test_command_says_what_is_finished(model, tmp_path, capsys, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("up\ndown\n")

    def stop(job, task, counts):
        if task.name == "c.txt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="", note=stop)
    words = [str(tmp_path / "*.txt")], [f"hq={model}"], KEEP, tmp_path / "out"
    command(*words)
    said = capsys.readouterr()
    assert said.err == "2 of 3 files are already finished: continuing with the others\n"
    assert said.out.startswith("3 of 6 texts kept")
    command(*words)
    assert capsys.readouterr().err == "3 of 3 files are already finished: nothing is left to do\n"


def test_command_tells_its_progress_where_there_is_no_terminal(
    model, tmp_path, capsys, monkeypatch
):
    (tmp_path / "a.txt").write_text("up\ndown\n" * 10)
    monkeypatch.setattr(TableFile, "batch_rows", 1)
    monkeypatch.setattr(printing, "LINE_S", 0.002)
    monkeypatch.setattr(printing, "LINE_S_MAX", 0.002)
    command([str(tmp_path / "a.txt")], [f"hq={model}"], KEEP, tmp_path / "out")
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert re.fullmatch(r"\d+ texts, \d[\d,]* a second, \d+ kept(, file 1 of 1)?", lines[-1])


def test_folder_that_is_in_use_is_refused(model, tmp_path):
    (tmp_path / "a.txt").write_text("up\ndown\n")

    def again(job, task, counts):
        with pytest.raises(ConfigError, match="another snailps filter is at work"):
            keep(model, tmp_path / "a.txt", tmp_path / "out", "hq.p < .5", column="")

    keep(model, tmp_path / "a.txt", tmp_path / "out", column="", note=again)
    assert not (tmp_path / "out" / ".snailps").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        {"inputs": 5}, {"inputs": ["a.txt"]}, {"identity": 5},
        {"identity": {"inputs": [5, "x", {"output": "a\0b"}]}},
        {"identity": {"inputs": [{"output": "../mine"}, {"output": "/ABS"}, {"output": 5}]}},
    ],
)  # fmt: skip
def test_overwriting_removes_nothing_outside_the_folder(model, tmp_path, manifest):
    (tmp_path / "a.txt").write_text("up\n")
    (tmp_path / "mine").write_text("stays")
    (tmp_path / "out").mkdir()
    text = json.dumps(manifest).replace("/ABS", str(tmp_path / "mine"))
    (tmp_path / "out" / "_manifest.json").write_text(text)
    keep(model, tmp_path / "a.txt", tmp_path / "out", column="", overwrite=True)
    assert (tmp_path / "mine").read_text() == "stays"


def test_overwriting_goes_on_with_the_same_command(model, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("up\ndown\n")
    begun = []

    def stop(job, task, counts):
        begun.append(task.name)
        if task.name == "b.txt" and len(begun) < 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="", note=stop)
    (tmp_path / "out" / ".b.txt.0a0a0a0a0a0a0a0a.part").write_text("of a killed run")
    begun[:] = [""] * 4
    keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="", note=stop, overwrite=True)
    assert set(begun[4:]) == {"b.txt"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_manifest.json", "_report.html", "a.txt", "b.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "state", ["", "[" * 100_000, "5", {"bytes": "x"}, {"counts": 5}, {"counts": {"near": {"x": 5}}}]
)
def test_damaged_notes_of_an_ended_run_have_their_files_made_again(model, tmp_path, state):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("up\ndown\n")

    def stop(job, task, counts):
        if task.name == "b.txt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="", note=stop)
    (note,) = (tmp_path / "out" / ".snailps" / "tasks").iterdir()
    note.write_text(
        state if isinstance(state, str) else json.dumps(json.loads(note.read_text()) | state)
    )
    done = keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="")
    assert done["kept"] == 2


@pytest.mark.parametrize("condition", ['hq["__label__\udce9"] > .6', 'hq.top == "__label__\udce9"'])
def test_label_that_is_no_utf8_is_named_as_the_command_line_has_it(tmp_path, condition):
    odd = write_model(tmp_path / "odd.bin", label=b"__label__\xe9")
    (tmp_path / "a.jsonl").write_text('{"text": "up"}\n{"text": "down"}\n')
    keep(odd, tmp_path / "a.jsonl", tmp_path / "out", condition, add=['hq["__label__\udce9"]'])
    (line,) = (tmp_path / "out" / "a.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {"text", 'hq["__label__\udce9"]'}


def test_checksums_of_files_are_read_and_written(model, tmp_path):
    rows = pa.table({"text": ["up"] * 9, "other": ["neither read nor asked for"] * 9})
    write_parquet(tmp_path / "a.parquet", rows, compression="none", write_page_checksum=True)
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(raw.replace(b"neither read", b"neither reed", 1))
    with pytest.raises(DataError, match=r"a\.parquet"):
        keep(model, tmp_path / "a.parquet", tmp_path / "out")
    (tmp_path / "a.jsonl.zst").write_bytes(PACKED[".zst"](b'{"text": "up"}\n' * 99))
    keep(model, tmp_path / "a.jsonl.zst", tmp_path / "lines")
    made = (tmp_path / "lines" / "a.jsonl.zst").read_bytes()
    assert zstandard.get_frame_parameters(made).has_checksum


def test_odd_texts_and_columns_stop_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(TableFile, "batch_bytes", 1000)
    monkeypatch.setattr(scores, "SCORES_MAX", 8)
    lines = [b'\xef\xbb\xbf{"text": "up"}', b'{"text": "up \\ud800"}', b"", b'{"text": null}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert keep(model, tmp_path / "a.jsonl", tmp_path / "lines")["kept"] == 2
    table = pa.table({
        "text": pa.array(["up " * 50, "down"] * 40, pa.string_view()), "none": pa.nulls(80),
        "big": pa.array([2**63 + at for at in range(80)], pa.uint64()),
    })  # fmt: skip
    write_parquet(tmp_path / "a.parquet", table)
    condition = f"{KEEP} and big > 5 and not none > 1"
    assert keep(model, tmp_path / "a.parquet", tmp_path / "none", condition)["kept"] == 0
    done = keep(model, tmp_path / "a.parquet", tmp_path / "out", f"{KEEP} and big > 5")
    assert done["kept"] == 40
    assert pq.read_table(tmp_path / "out" / "a.parquet")["big"].to_pylist()[0] == 2**63


IDS = [2**53, 2**53 + 1, None, -(2**53) - 1, 2**53 + 2]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("id == 9007199254740993", [1]),
        ("id != 9007199254740993", [0, 3, 4]),
        ("id in [9007199254740993, 9007199254740994]", [1, 4]),
        ("id not in [-9007199254740993]", [0, 1, 4]),
        ("id > 9007199254740992", [1, 4]),
        ("hash == 18446744073709551615", [0]),
        ("hash > id and flag == True", [0, 4]),
        ("flag != 1", [1]),
        ("id == code", [1]),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_whole_numbers_of_any_size_are_compared_exactly(model, tmp_path, kind, condition, rows):
    columns = {
        "text": ["up"] * 5, "id": IDS, "hash": [2**64 - 1, 5, 7, None, 2**63],
        "flag": [True, False, None, True, True], "code": [2**53 + 1] * 5,
    }  # fmt: skip
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        kinds = {"hash": pa.uint64(), "code": pa.dictionary(pa.int8(), pa.int64())}
        arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
        pq.write_table(pa.table(arrays), path)
    else:
        lines = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    keep(model, path, tmp_path / "out", condition)
    kept_rows = read_rows(tmp_path / "out" / path.name)
    assert [row["id"] for row in kept_rows] == [IDS[row] for row in rows]


def read_rows(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_float32_of_a_table_is_compared_as_one(model, tmp_path, kind):
    scores = pa.array([0.9, 0.7, None, 0.1], pa.float32())
    table = pa.table({"text": ["up"] * 4, "score": scores})
    path = tmp_path / f"a.{kind}"
    orc.write_table(table, path) if kind == "orc" else pq.write_table(table, path)
    for at, (condition, rows) in enumerate([("score >= .9", 1), ("score in [.7, .1]", 2)]):
        assert keep(model, path, tmp_path / f"out{at}", condition)["kept"] == rows


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_scores_of_an_earlier_run_equal_those_of_this_one(model, tmp_path, kind):
    table = pa.table({"text": ["up", "down", "up down", "up up down", "other"]})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    assert keep(model, path, tmp_path / "a", "hq.p >= 0", add=["was=hq.p"])["kept"] == 5
    assert keep(model, tmp_path / "a" / path.name, tmp_path / "b", "hq.p == was")["kept"] == 5


def test_output_among_many_named_inputs_is_compared_with_patterns_only(
    model, tmp_path, monkeypatch
):
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{at}.txt" for at in range(12)]
    for path in paths:
        path.write_text("up\n")
    compared = []
    matches = job.fnmatchcase
    monkeypatch.setattr(job, "fnmatchcase", lambda *pair: compared.append(pair) or matches(*pair))
    done = keep(model, paths, tmp_path / "out", column="", keep_scores=tmp_path / "scores")
    assert (done["rows"], compared) == (12, [])
    keep(model, [*paths[:3], tmp_path / "in" / "[45].txt"], tmp_path / "more", column="")
    assert compared
    with pytest.raises(ConfigError, match="choose another folder"):
        keep(model, paths, tmp_path / "in", column="")


def test_list_of_a_commands_inputs_is_read_once_and_not_for_each_output(
    model, tmp_path, monkeypatch
):
    for at in range(12):
        (tmp_path / f"{at}.txt").write_text("up\n")
    read, read_bytes = Counter(), Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read.update([path.name]) or read_bytes(path)
    )
    keep(model, str(tmp_path / "*.txt"), tmp_path / "out", column="")
    assert read["command.json"] <= 2


@pytest.mark.parametrize("condition", ["n > 1", "s.n > 1"])
def test_column_of_a_later_file_that_is_not_compared_is_refused_before_scoring(
    model, tmp_path, monkeypatch, condition
):
    (tmp_path / "in").mkdir()
    for at, kind in enumerate([pa.int32(), pa.timestamp("us")]):
        values = pa.array([1, 2], kind)
        inner = pa.StructArray.from_arrays([values], ["n"])
        table = pa.table({"text": ["up", "down"], "n": values, "s": inner})
        pq.write_table(table, tmp_path / "in" / f"{at}.parquet")
    monkeypatch.setattr(LabelModel, "predict_arrays", None)
    with pytest.raises(DataError, match=r"1\.parquet: column .*n' has type timestamp\[us\]"):
        keep(model, tmp_path / "in", tmp_path / "out", f"hq.p > .1 and {condition}")
    assert not (tmp_path / "out").exists()


def command_of(model, folder, condition=KEEP):
    files = str(folder / "a.txt"), "", {"hq": str(model)}, condition, (), str(folder / "out")
    return FilterCommand((files[0],), *files[1:])


def test_worker_that_outlives_its_run_notices_another_command(model, tmp_path):
    """It looks again once the folder has another command's list, or a manifest."""
    (tmp_path / "a.txt").write_text("up\n")
    assert not FilterResults(tmp_path / "out", "0" * 64).is_current()
    first = FilterJob(command_of(model, tmp_path))
    first.begin()
    worker = FilterResults(tmp_path / "out", first.results.key)
    assert worker.is_current()
    first.close()
    other = FilterJob(command_of(model, tmp_path, "hq.p > .1"))
    other.run(other.begin(), 1)
    assert not worker.is_current()
    other.finish()
    assert not worker.is_current()
    other.close()
    assert not worker.is_current()


def test_lock_on_a_folder_that_an_ended_run_removes_is_taken_again(model, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("up\n")
    first, second = (FilterJob(command_of(model, tmp_path, f"hq.p > .{at}")) for at in (1, 2))
    flock, removed = results.fcntl.flock, []

    def late(descriptor, how):  # the run that had it ends just before this one gets it
        if not removed:
            removed.append(tmp_path / "out" / ".snailps")
            shutil.rmtree(removed[0])
        flock(descriptor, how)

    monkeypatch.setattr(results.fcntl, "flock", late)
    first.begin()
    assert removed
    with pytest.raises(ConfigError, match="another snailps filter is at work"):
        second.begin()
    first.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": {"hq": 5}}, "models: expected paths by name"),
        ({"models": {5: "hq.bin"}}, "models: expected paths by name"),
        ({"column": 5}, "column: expected a name"),
        ({"keep": None}, "keep: expected a condition"),
        ({"add": [5]}, "add: expected scores"),
        ({"add": None}, "add: expected scores"),
        ({"cluster": "node1:16831"}, r"cluster: expected .*snailps\.connect\('node1:16831'\)"),
    ],
)
def test_argument_of_another_type_is_named(model, tmp_path, change, words):
    (tmp_path / "a.txt").write_text("up\n")
    options = {"output": tmp_path / "out", "models": {"hq": model}, "keep": "hq.p > .5"}
    with pytest.raises(ConfigError, match=words):
        snailps.filter(tmp_path / "a.txt", **options | change)


def test_floats_of_parquet_are_not_compared_with_a_number_that_they_cannot_have(model, tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["up"], "id": [2.0**53]}))
    with pytest.raises(ConfigError, match=r"a\.parquet: column 'id' has float64 numbers"):
        keep(model, tmp_path / "a.parquet", tmp_path / "out", "id == 9007199254740993")


def codecs_of(path):
    group = pq.ParquetFile(path).metadata.row_group(0)
    return [group.column(at).compression for at in range(group.num_columns)]


def with_old_lz4(path):
    """The file as Hadoop would have packed it: pyarrow reads that codec, but cannot write it."""
    data = path.read_bytes()
    at = data.rindex(b"\x15\x0e\x16")  # codec 7, LZ4_RAW, before a number of values
    path.write_bytes(data[: at + 1] + b"\x0a" + data[at + 2 :])


def test_codec_that_can_only_be_read_is_replaced(model, tmp_path):
    rows = pa.table({"text": ["up", "down"]})
    write_parquet(tmp_path / "a.parquet", rows, compression="lz4", use_dictionary=False)
    with_old_lz4(tmp_path / "a.parquet")
    assert codecs_of(tmp_path / "a.parquet") == ["UNKNOWN"]
    assert keep(model, tmp_path / "a.parquet", tmp_path / "out")["kept"] == 1
    assert codecs_of(tmp_path / "out" / "a.parquet") == ["ZSTD"]
    write_parquet(tmp_path / "b.parquet", rows, compression="brotli")
    keep(model, tmp_path / "b.parquet", tmp_path / "same")
    assert codecs_of(tmp_path / "same" / "b.parquet") == ["BROTLI"]


def test_codec_that_this_build_lacks_is_named_or_replaced(model, tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["up"]}), compression="brotli")
    lacking = SimpleNamespace(is_available=lambda name: name == "gzip")
    monkeypatch.setattr(pa, "Codec", lacking)
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    assert codecs_of(tmp_path / "out" / "a.parquet") == ["UNCOMPRESSED"]

    def refused(*words):
        raise pa.ArrowNotImplementedError("Support for codec 'brotli' not built")

    monkeypatch.setattr(parquet, "batches_of", refused)
    with pytest.raises(
        DataError, match=r"cannot read .*a.parquet: .*'brotli' not.* another .* codec"
    ):
        keep(model, tmp_path / "a.parquet", tmp_path / "none")


def test_codec_is_that_of_the_texts(model, tmp_path):
    rows = pa.table({"id": [1, 2], "text": ["up", "down"]})
    write_parquet(tmp_path / "a.parquet", rows, compression={"id": "none", "text": "gzip"})
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    assert codecs_of(tmp_path / "out" / "a.parquet") == ["GZIP", "GZIP"]


def test_views_within_other_columns_are_kept(model, tmp_path):
    views = pa.array([{"a": "x", "n": 1}, None, {"a": None, "n": 2}],
                     pa.struct([("a", pa.string_view()), ("n", pa.int8())]))  # fmt: skip
    lists = pa.array([["x"], ["y"], None], pa.list_(pa.binary_view()))
    table = pa.table({"text": ["up", "down", "up"], "s": views, "l": lists})
    write_parquet(tmp_path / "a.parquet", table)
    done = keep(model, tmp_path / "a.parquet", tmp_path / "out")
    assert done["kept"] == 2
    found = pq.read_table(tmp_path / "out" / "a.parquet")
    assert found.schema == table.schema
    assert found.to_pylist() == [table.to_pylist()[at] for at in (0, 2)]


def test_categories_that_no_row_has_are_kept(model, tmp_path):
    codes = pa.DictionaryArray.from_arrays(pa.array([3, 1, None], pa.int8()), list("abcde"))
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["up", "down", "up"], "c": codes}))
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    (found,) = pq.read_table(tmp_path / "out" / "a.parquet")["c"].chunks
    assert found.dictionary.to_pylist() == list("abcde")
    assert found.indices.to_pylist() == [3, None]


def test_column_of_nulls_has_no_texts(model, tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"text": pa.nulls(3), "n": [1, 2, 3]}))
    write_parquet(tmp_path / "b.parquet", pa.table({"text": ["up", None], "n": [1, 2]}))
    done = keep(model, str(tmp_path / "*.parquet"), tmp_path / "out", f"{KEEP} and n > 0")
    assert (done["rows"], done["kept"], done["without_text"]) == (5, 1, 4)


GEOMETRIES = {
    b"{}": "Geometry(crs=)", b'{"crs": "EPSG:3857"}': "Geometry(crs=EPSG:3857)",
    b'{"edges": "spherical"}': "Geography(crs=, algorithm=spherical)",
}  # fmt: skip


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("about", GEOMETRIES)
def test_geometries_keep_their_annotation_and_system_of_coordinates(
    model, tmp_path, about, stored, caplog
):
    kind = parquet.geometry_type()(pa.binary(), about)
    points = pa.ExtensionArray.from_storage(kind, pa.array([b"p" * 21, b"q" * 21]))
    table = pa.table({"text": ["up", "down"], "at": points}).replace_schema_metadata({"geo": "{}"})
    write_parquet(tmp_path / "a.parquet", table, store_schema=stored)
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    before, after = (pq.ParquetFile(tmp_path / at / "a.parquet") for at in (".", "out"))
    assert str(after.schema.column(1).logical_type) == GEOMETRIES[about]
    assert after.read()["at"].to_pylist() == [b"p" * 21]
    assert after.schema_arrow.metadata == before.schema_arrow.metadata
    if stored:
        assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert not caplog.records


def test_annotation_that_is_not_written_is_warned_of_once(model, tmp_path, caplog):
    kind = parquet.geometry_type()(pa.binary(), b"{}")
    points = pa.ExtensionArray.from_storage(kind, pa.array([b"p" * 21]))
    lists = pa.ListArray.from_arrays([0, 1], points)
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", pa.table({"text": ["up"], "at": lists}))
    keep(model, str(tmp_path / "*.parquet"), tmp_path / "out")
    (record,) = caplog.records
    assert "column at.list.element is Geometry(crs=), which pyarrow" in record.getMessage()
    found = pq.read_table(tmp_path / "out" / "a.parquet")
    assert found["at"].to_pylist() == [[b"p" * 21]]


ANNOTATED = """
required group field_id=-1 schema {
  optional binary field_id=-1 text (String);
  optional int64 field_id=-1 at (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds,%s));
  optional group field_id=-1 v%s {
    required binary field_id=-1 metadata;
    optional int64 field_id=-1 typed_value%s;
  }
  optional fixed_len_byte_array(12) field_id=-1 d%s;
  optional group field_id=-1 l (List) {
    repeated group field_id=-1 %s {
      optional int32 field_id=-1 (odd) {name (Date);
    }
  }
}
"""
HISTORY = " is_from_converted_type=%s, force_set_converted_type=false"


def test_annotations_that_pyarrow_has_no_type_for_are_found(monkeypatch):
    """As pyarrow shows what duckdb writes; how lists and times are noted is no matter."""
    whole = "isAdjustedToUTC=true, timeUnit=microseconds"
    int64, old, new = " (Int(bitWidth=64, isSigned=true))", HISTORY % "true", HISTORY % "false"
    before = ANNOTATED % (old, " (Variant(1))", int64, " (Interval)", "bag")
    after = ANNOTATED % (new, "", "", "", "list")
    assert parquet.annotations_of(before) == {
        "text": [("text", "String")],
        "at": [("at", f"Timestamp({whole})")],
        "v": [("v", "Variant(1)")],
        "d": [("d", "Interval")],
        "l": [("l.bag.(odd) {name", "Date")],
    }
    lost = parquet.lost(parquet.annotations_of(before), parquet.annotations_of(after))
    assert [*lost] == [("v", "Variant(1)", "its bytes"), ("d", "Interval", "its bytes")]


def test_time_with_a_zone_is_warned_of(model, tmp_path, monkeypatch, caplog):
    """pyarrow has no type for it: it reads a time, and writes one without a zone."""
    times = pa.table({"text": ["up"], "at": pa.array([1], pa.time64("us"))})
    write_parquet(tmp_path / "a.parquet", times)
    keep(model, tmp_path / "a.parquet", tmp_path / "none")
    assert not caplog.records
    path = tmp_path / "b.parquet"
    pq.write_table(times, path, write_time_adjusted_to_utc=True)
    keep(model, path, tmp_path / "out")
    (record,) = caplog.records
    assert "column at is Time(isAdjustedToUTC=true, timeUnit=microseconds)" in record.getMessage()


def test_missing_names_of_json_refuse_and_are_warned_of(model, tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "up"}\n{"text": "up", "late": 3}\n{"x": 1}\n')
    done = keep(model, tmp_path / "a.jsonl", tmp_path / "out", "late > 1 and hq.p > .5")
    assert (done["kept"], done["without_text"]) == (1, 1)
    keep(model, tmp_path / "a.jsonl", tmp_path / "none", "never > 1")
    assert "none of its first 3 lines has 'never'" in caplog.text


@pytest.mark.parametrize(
    ("name", "is_there"),
    [("meta.source", True), ("meta.a.b", True), ("meta.sorce", False), ("meta.source.x", False),
     ("meta.a.c", False)],
)  # fmt: skip
def test_field_that_no_line_has_is_said(tmp_path, caplog, name, is_there):
    """It was silent: only a mistyped name beside the objects was said."""
    values = ({"source": "web"}, {"a": {"b": None}}, None)
    lines = [json.dumps({"text": "up", "meta": value}) for value in values]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    (task,) = tasks_of([str(tmp_path / "in.jsonl")], "text", 1 << 20)
    with OpenTask(task, "text") as source:
        remarks = source.check([name], {})
    assert remarks == ([] if is_there else [f"none of its first 3 lines has {name!r}"])


def test_report_shows_texts_of_bytes_as_text(model, tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["größe up".encode(), b"up \xff"]}))
    keep(model, tmp_path / "a.parquet", tmp_path / "out")
    page = (tmp_path / "out" / "_report.html").read_text()
    assert "<td class=t>größe up<" in page
    assert "<td class=t>up \ufffd<" in page


def test_report_shows_counts_scores_and_texts_near_the_bound(model, tmp_path):
    other = write_model(tmp_path / "x.bin", label=b"__label__<i>")
    texts = ["up <b>bold</b>", "up up up", "down", "up down", "other & more"]
    write_parquet(tmp_path / "a.parquet", pa.table({"text": texts}))
    snailps.filter(
        tmp_path / "a.parquet", output=tmp_path / "out", column="text",
        models={"hq": model, "x": other},
        keep=f'{KEEP} and hq.top == "__label__plus" or x.p > 1 and x.top == "__label__<i>"',
    )  # fmt: skip
    page = (tmp_path / "out" / "_report.html").read_text()
    chances = dict(zip(texts, plus(model, texts), strict=True))
    assert f"{sum(p >= 0.6 for p in chances.values())} of 5 texts kept" in page
    assert "up &lt;b&gt;bold&lt;/b&gt;" in page
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
    assert "<b>" not in page.replace("<body>", "")
    kept, refused = page.index(">kept by"), page.index(">refused by <code>hq")
    for text, p in chances.items():
        at = page.index(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"), kept)
        assert (at < refused) == (p >= 0.6)


def test_report_shows_the_rows_of_the_first_clause_of_a_bound(model, tmp_path):
    (tmp_path / "a.txt").write_text("up\ndown\n")
    condition = f"{KEEP} and ({KEEP} or hq.p > 1)"
    keep(model, tmp_path / "a.txt", tmp_path / "out", condition, column="")
    page = (tmp_path / "out" / "_report.html").read_text()
    kept, refused = (page.index(f">{side} by <code>hq[&quot;") for side in ("kept", "refused"))
    assert kept < page.index("<td class=t>up") < refused < page.index("<td class=t>down")
    assert "x1=720.0" in page  # a bound beyond the picture is at its edge
    assert "x1=5040" not in page


def test_command_prints_what_came_of_it(model, tmp_path, capsys):
    write_parquet(tmp_path / "a.parquet")
    options = {"column": "text", "add": f"hq,good=hq[{LABEL}]"}
    command([str(tmp_path / "a.parquet")], [f"hq={model}"], KEEP, tmp_path / "out", **options)
    kept = sum(p >= 0.6 for p in plus(model))
    out = capsys.readouterr().out
    assert out.startswith(f"{kept} of 9 texts kept, in {tmp_path / 'out'}\n")
    assert f"  {8 - kept} refused by {KEEP}\n  1 have no text\n" in out
    assert pq.read_schema(tmp_path / "out" / "a.parquet").names[-3:] == ["hq.top", "hq.p", "good"]
    command([str(tmp_path / "a.parquet")], [f"hq={model}"], KEEP, tmp_path / "out", **options,
            as_json=True)  # fmt: skip
    assert json.loads(capsys.readouterr().out)["kept"] == kept
    for wrong in (
        ["hq"], ["=x"], ["hq="], [f"hq={model}", f"hq={model}"], [f"a b={model}"],
        [f"None={model}"], [f"if={model}"], [f"lambda={model}"], [f"is={model}"],
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="--model"):
            command([str(tmp_path / "a.parquet")], wrong, KEEP, tmp_path / "o", column="text")


def test_text_column_of_a_type_without_values_is_data_error(tmp_path):
    kinds = pa.array([0, 1], pa.int8())
    union = pa.UnionArray.from_sparse(kinds, [pa.array([1, 2]), pa.array(["up", "down"])])
    table, path = pa.table({"text": union}), str(tmp_path / "a.arrow")
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    (task,) = tasks_of([path], "text", 1 << 20)
    with pytest.raises(DataError, match=r"cannot read .*a\.arrow: .* Write it again"):
        OpenTask(task, "text")


def test_runs_of_arrow_are_read_kept_and_trained_on(model, tmp_path):
    """Run-end encoding is the type of what is written again; by hand: n >= 2 is the last two."""
    encode = pytest.importorskip("pyarrow.compute").run_end_encode
    rows = pa.table({
        "text": encode(pa.array(["up", "up", "up", None])), "n": encode(pa.array([1, 1, 2, None])),
        "m": encode(pa.array([1.5, None, None, 2.5])), "y": [0, 1, 0, 1],
    })  # fmt: skip
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, rows.schema) as o,
    ):
        o.write_table(rows)
    done = keep(model, tmp_path / "a.arrow", tmp_path / "out", "n >= 2 and hq.p >= 0")
    assert (done["kept"], done["without_text"]) == (1, 1)
    found = pa.ipc.open_file(str(tmp_path / "out" / "a.arrow")).read_all()
    assert found.schema == rows.schema
    assert found.to_pylist() == [{"text": "up", "n": 2, "m": None, "y": 0}]
    assert sorted(complete([str(tmp_path / "a.arrow")], [], "y")) == [
        "m:numeric", "n:numeric", "text:categorical", "y:label",
    ]  # fmt: skip


def test_time_of_orc_that_pyarrow_cannot_read_is_said(model, tmp_path):
    times = pa.array([datetime(9999, 12, 31), datetime(1, 1, 1)], pa.timestamp("us"))
    orc.write_table(pa.table({"text": ["up", "up"], "t": times}), tmp_path / "a.orc")
    with pytest.raises(DataError, match="pyarrow reads times of ORC from 1677 to 2262 only"):
        keep(model, tmp_path / "a.orc", tmp_path / "out")


NESTED = [
    {"text": "up", "doc": {"text": "up up"}, "meta": {"n": 1, "lang": {"code": "en", "a b": 2}}},
    {"text": "up", "doc": {"text": "up"}, "meta": {"n": 2, "lang": {"code": "de", "a b": 3}}},
    {"text": "up", "doc": None, "meta": {"n": None, "lang": None}},
    {"text": "up", "doc": {"text": None}, "meta": None},
]


def write_nested(path):
    table = pa.Table.from_pylist(NESTED)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".orc":
        orc.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in NESTED))
    return path


@pytest.mark.parametrize("ending", ["parquet", "orc", "arrow", "jsonl"])
def test_fields_of_structs_and_objects_are_columns_of_conditions(model, tmp_path, ending):
    """By hand; a field of null is missing, so its comparison is neither true nor false."""
    path = write_nested(tmp_path / f"a.{ending}")

    def counts(condition, column="text"):
        options = {"column": column, "overwrite": True}
        done = keep(model, path, tmp_path / "out", f"{condition} and hq.p >= 0", **options)
        return done["kept"], done["without_text"]

    assert counts("meta.n >= 1") == (2, 0)
    assert counts("not (meta.n >= 2)") == (1, 0)
    assert counts('meta.lang.code in ["de", "fr"]') == (1, 0)
    assert counts('meta["lang"]["a b"] == 2') == (1, 0)
    assert counts("meta.n < meta.lang['a b']", "doc.text") == (2, 2)
    refused = {
        "text.m > 1": "which has no field 'm': expected a struct|expected an object with 'm'",
        "meta > 1": "has type struct|has dict: expected numbers or texts",
    }
    if ending != "jsonl":  # where any line may have any name
        refused |= {"meta.m > 1": "no column 'm', but", "mata.n > 1": "has no column 'mata.n', but"}
    for condition, words in refused.items():
        with pytest.raises(DataError, match=words):
            counts(condition)
    with pytest.raises(ConfigError, match="no model meta"):
        counts("meta.top == 'a'")


def test_name_with_dots_is_a_column_before_it_is_a_field(model, tmp_path):
    rows = pa.table({
        "text": ["up", "up"], "a.b": [1, 2], "a": pa.array([{"b": 7, "c.d": 3}] * 2),
        "tags": pa.array([[("x", "1")], [("y", "2")]], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    write_parquet(tmp_path / "a.parquet", rows)
    for number, (condition, kept) in enumerate([
        ("a.b == 2", 1), ("a.c.d == 3", 2), ('a["c.d"] == 3', 2), ('tags.x == "1"', 1),
        ('tags["y"] != "1"', 1),
    ]):  # fmt: skip
        path = tmp_path / "a.parquet"
        done = keep(model, path, tmp_path / f"{number}", f"{condition} and hq.p >= 0")
        assert done["kept"] == kept, condition


def test_keys_of_maps_may_be_numbers(model, tmp_path):
    """pyarrow looks up a key of the very type that the map has."""
    pairs = [[("1", 5)], [("2", 6)]]
    large = pa.array(pairs, pa.map_(pa.large_string(), pa.int64()))
    whole = large.cast(pa.map_(pa.int32(), pa.int64()))
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["up", "up"], "l": large, "w": whole}))
    for condition in ('l["1"] == 5', 'w["1"] == 5'):
        options = {"condition": f"{condition} and hq.p >= 0", "overwrite": True}
        assert keep(model, tmp_path / "a.parquet", tmp_path / "out", **options)["kept"] == 1
    with pytest.raises(DataError, match=r"cannot look up 'k' in column 'w', .* type int32"):
        keep(model, tmp_path / "a.parquet", tmp_path / "x", "w.k == 5 and hq.p >= 0")


def test_text_in_an_object_counts_as_none_where_bad_lines_are_skipped(model, tmp_path):
    lines = [{"doc": {"text": "up"}}, {"doc": 5}, {"doc": "up"}, {"doc": None}, {}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = {"column": "doc.text", "condition": "hq.p >= 0"}
    with pytest.raises(DataError, match="line 2: expected an object with 'text' in 'doc', got 5"):
        keep(model, tmp_path / "a.jsonl", tmp_path / "x", **options)
    options["on_bad_line"] = "skip"
    done = keep(model, tmp_path / "a.jsonl", tmp_path / "out", **options)
    assert (done["rows"], done["without_text"], done["bad_lines"]) == (5, 4, 0)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("threads", [1, 3])
def test_malformed_lines_are_left_out_and_counted_if_they_may(
    model, tmp_path, ending, threads, monkeypatch, caplog
):
    """By hand: of nine lines three have no object, two no text; the others keep their bytes."""
    monkeypatch.setattr(TableFile, "batch_rows", 2)
    good = [b'{"text": "up up",  "n": 1}\n', b'{"n": 2, "text": "up"}\n']
    text = good[0] + b'{"text": \n' + b"\n" + b"[1]\n" + b'{"text": 7}\n' + b'{"text": {"a": 1}}\n'
    raw = text + good[1] + b"\xff{\n" + b'{"text": "down"}\n'
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    with pytest.raises(DataError, match=r"line 2: no JSON: .*Correct the line"):
        keep(model, path, tmp_path / "stop", threads=threads)
    options = {"on_bad_line": "skip", "threads": threads, "keep_scores": tmp_path / "scores"}
    done = keep(model, path, tmp_path / "out", **options)
    assert (done["rows"], done["kept"], done["without_text"], done["bad_lines"]) == (5, 2, 2, 3)
    assert done["files"][0]["bad_lines"] == 3
    assert f"3 malformed lines were left out: {path}, line 2: no JSON" in caplog.text
    written = (tmp_path / "out" / path.name).read_bytes()
    assert (gzip.decompress(written) if ending.endswith("gz") else written) == b"".join(good)
    added = keep(model, path, tmp_path / "added", add=["p=hq.p"], **options)
    assert (added["kept"], added["scored"]) == (2, {"hq": 0})  # the scores are of the same rows
    with pytest.raises(ConfigError, match="expected stop or skip, got 'ignore'"):
        keep(model, path, tmp_path / "x", on_bad_line="ignore")
    write_parquet(tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match="the input has no JSON lines"):
        keep(model, tmp_path / "b.parquet", tmp_path / "x", on_bad_line="skip")
    both = keep(model, [path, tmp_path / "b.parquet"], tmp_path / "both", on_bad_line="skip")
    assert (both["rows"], both["bad_lines"]) == (14, 3)
