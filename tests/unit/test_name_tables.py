"""data.name_tables: lines of names from tables, for training, tests and questions."""

import datetime
import json

import numpy as np
import pytest
from emulated import trained

import snailps
from snailps.data.name_columns import NameColumns
from snailps.data.table_files import text_of
from snailps.errors import DataError
from snailps.models.embeddings.files import columns_of, reading_of

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PAIRS = NameColumns(("user", "item"), valued=True)
TIMED = NameColumns(("user", "item"), valued=True, time=4)
TRIPLES = NameColumns(("head", "relation", "tail"))


def table_at(path, **columns):
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def lines_in(columns, path):
    return b"".join(text_of(reading_of(columns), path)).decode().splitlines()


@pytest.mark.parametrize(
    ("columns", "cells", "lines"),
    [
        (PAIRS, {"a": [1, 2], "b": ["x", "y"]}, ["1,x", "2,y"]),
        (PAIRS, {"a": [1.0, 2.0], "b": ["x, y", 'q"']}, ['1,"x, y"', '2,"q"""']),
        (PAIRS, {"rating": [3, 4], "item_id": ["x", "y"], "User": [1, 2]}, ["1,x,3.0", "2,y,4.0"]),
        (PAIRS, {"a": [1], "b": [2], "c": [0.5], "d": ["more"]}, ["1,2,0.5"]),
        (TIMED, {"a": [1], "b": [2], "c": [5], "d": [1700000000]}, ["1,2,5.0,1700000000.0"]),
        (
            NameColumns(("user", "item"), valued=True, time=3),
            {"a": [1], "b": [2], "c": [datetime.date(1970, 1, 2)]},
            ["1,2,86400.0"],
        ),
        (
            NameColumns(("user", "item"), valued=True, time=5),
            {"a": [1], "b": [2], "c": [5], "x": ["text"], "d": ["1970-01-02"]},
            ["1,2,5.0,0,86400.0"],
        ),
        (TRIPLES, {"tail": ["c"], "head": ["a"], "relation": ["b"]}, ["a,b,c"]),
        (TRIPLES, {"from": [1], "what": ["b"], "to": [2]}, ["1,b,2"]),
    ],
)
def test_rows_of_a_table_are_lines_of_its_columns(tmp_path, columns, cells, lines):
    path = table_at(tmp_path / "t.parquet", **cells)
    assert lines_in(columns, path) == lines
    (read,) = (read for read, _ in columns_of(columns, [path]))
    assert len(read) == len(lines)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"a": [1]}, "expected a table with the columns user item, got"),
        (
            {"a": [1, None], "b": [1, 2]},
            "user: .*; in row 2 of column 'a' of .*t.parquet it is mis",
        ),
        ({"a": [1.5], "b": [1]}, "expected a text or a whole number; in row 1 of column 'a'"),
        (
            {"a": [1], "b": [1], "c": ["x"]},
            "expected numbers, .*row 1 of column 'c'.*time_column: 3",
        ),
        ({"a": [1], "b": [1], "c": [float("nan")]}, "finite numbers; in row 1 of column 'c'"),
        ({"a": ["x\ty"], "b": [1]}, "expected text without tabs and newlines"),
    ],
)
def test_rows_that_are_no_lines_are_refused_with_their_place(tmp_path, cells, said):
    path = table_at(tmp_path / "t.parquet", **cells)
    with pytest.raises(DataError, match=said):
        lines_in(PAIRS, path)


def trained_arrays(folder, worker, settings):
    words = {
        "worker_class": f"snailps.models.embeddings.{worker}", "output": folder / "m", "dim": 4,
        "epochs": 2, **settings,
    }  # fmt: skip
    with trained({name: str(value) for name, value in words.items()}, 1) as (cls, results):
        figures = cls.judge(results)
        cls.export(results)
    with np.load(folder / "m.npz") as arrays:
        return {name: arrays[name] for name in {*arrays.files} - {"about"}}, figures


@pytest.mark.parametrize(
    "split", [{}, {"held_out": 0.2}, {"held_out": 0.2, "held_out_by": "time"}, {"test": True}]
)
@pytest.mark.parametrize("loss", ["als", "squared"])
def test_model_of_a_table_is_that_of_its_lines(tmp_path, split, loss):
    rng = np.random.default_rng(1)
    rows = [(int(rng.integers(20)), int(rng.integers(15)), int(rng.integers(1, 6)), 1000 + n)
            for n in range(400)]  # fmt: skip
    names = "user_id", "item_id", "stars", "when"
    table = table_at(
        tmp_path / "t.parquet", **dict(zip(names, zip(*rows, strict=True), strict=True))
    )
    # Without their times, if these are not read: as long as the lines that a table is read as.
    timed = split.get("held_out_by") == "time"
    lines = (f"{u},{i},{v}.0" + f",{t}.0" * timed + "\n" for u, i, v, t in rows)
    (tmp_path / "t.csv").write_text("".join(lines))
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    )
    models = []
    for path in (table, tmp_path / "t.csv", tmp_path / "t.jsonl"):
        settings = {"loss": loss, "input": path, "block_bytes": 4000, **split}
        if split.get("test"):
            settings["test"] = path
        models.append(trained_arrays(tmp_path, "mf:MatrixFactorization", settings))
    (arrays, figures), *others = models
    for other, other_figures in others:
        assert other_figures == figures
        assert other.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(other[name], array)
    text = str(tmp_path / "t.csv")
    model = snailps.MatrixFactorization.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(model.predict(table), model.predict(text))
    factors = snailps.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(factors.pairs_in(table), factors.pairs_in(text))


def test_graph_of_a_table_is_that_of_its_lines(tmp_path):
    rng = np.random.default_rng(1)
    rows = [(f"e{rng.integers(20)}", "next", f"e{rng.integers(20)}") for _ in range(300)]
    cells = dict(zip(("head", "relation", "tail"), zip(*rows, strict=True), strict=True))
    table = table_at(tmp_path / "t.parquet", **cells)
    (tmp_path / "t.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    models = [
        trained_arrays(tmp_path, "kge:KnowledgeGraph", {"input": path, "test": path})
        for path in (table, tmp_path / "t.csv")
    ]
    (arrays, figures), (other, other_figures) = models
    assert figures == other_figures
    for name, array in arrays.items():
        np.testing.assert_array_equal(other[name], array)
