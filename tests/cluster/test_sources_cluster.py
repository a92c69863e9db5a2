"""Jobs on packed files and tables: the same models as from plain text, by the command line too."""

import json
import lzma

import numpy as np
import pytest
from processes import run_snailps, run_well
from test_cluster import figures_of

from snailps.estimators.loading import load

ROWS = 3000


def clicks(seed, count=ROWS):
    """Rows whose label follows age and city."""
    rng = np.random.default_rng(seed)
    cities = ["Berlin", "Paris", "Oslo"]
    rows = []
    for _ in range(count):
        age, city = float(rng.integers(-4, 5)) / 2, int(rng.integers(3))
        label = int(rng.random() < 1 / (1 + np.exp(-2 * age - (3, 0, -3)[city])))
        row = {"clicked": label, "age": age, "city": cities[city], "id": f"r{rng.integers(9)}"}
        rows.append(row)
    return rows


def write_csv(path, rows, header=True):
    lines = [",".join(rows[0])] * header + [",".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def run(folder, job):
    return figures_of(run_well(folder, job=job | {"output": "out"}))


def test_examples_of_tables_are_learnt_as_those_of_declared_csv(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    rows, others = clicks(0), clicks(1, 500)
    write_csv(tmp_path / "a.csv", rows)
    parquet.write_table(arrow.Table.from_pylist(others), tmp_path / "test.parquet")
    (tmp_path / "predict.jsonl").write_text(
        "".join(json.dumps({k: row[k] for k in ("age", "city")}) + "\n" for row in others)
    )
    job = {
        "worker_class": "snailps.models.sparse.linear:Linear", "epochs": 3, "input": "a.csv",
        "test": "test.parquet", "label_column": "clicked", "columns": "id:ignore",
        "scratch_dir": tmp_path / "scratch",
    }  # fmt: skip
    figures = run(tmp_path, job)
    assert figures["examples"] == 3 * ROWS
    assert figures["test"]["auc"] > 0.8
    model = load(tmp_path / "out.npz")
    judged = model.evaluate(tmp_path / "test.parquet")
    assert judged["log_loss"] == pytest.approx(figures["test"]["log_loss"], rel=1e-5)
    assert len(model.predict(tmp_path / "predict.jsonl")) == 500
    # The same of text, without a header.
    plain = tmp_path / "plain"
    plain.mkdir()
    write_csv(plain / "a.csv", rows, header=False)
    declared = "clicked:label, age:numeric, city:categorical, id:ignore"
    del job["label_column"], job["test"]
    run(plain, job | {"columns": declared, "format": "csv"})
    keys = [set(np.load(folder / "out.npz")["keys"].tolist()) for folder in (tmp_path, plain)]
    assert keys[0] == keys[1]


def test_command_line_trains_on_a_column_of_packed_tables(tmp_path):
    lines = ["north by east", "south by west"] * 500
    packed = lzma.compress("".join(json.dumps({"t": line}) + "\n" for line in lines).encode())
    (tmp_path / "x.jsonl.xz").write_bytes(packed)
    command = "train word2vec --input x.jsonl.xz --column t --output out --dim 4 --epochs 1"
    run_snailps(*command.split(), "--min-count", 1, "--formats", "vec", cwd=tmp_path)
    words = [line.split()[0] for line in (tmp_path / "out.vec").read_text().splitlines()[1:]]
    assert {"north", "by", "east", "south", "west"} <= set(words)


def test_command_line_refuses_a_table_without_the_name_of_its_column(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + bytes(100))
    command = "train word2vec --input x.parquet --output out"
    done = run_snailps(*command.split(), code=2, cwd=tmp_path)
    assert "set column to the name of the column" in " ".join(done.stderr.split())
