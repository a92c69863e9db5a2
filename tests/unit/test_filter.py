"""filtering: what is kept of files, in files of the same format, and what is told of it."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import snailps
from snailps.cli.filter import command
from snailps.errors import ConfigError, DataError
from snailps.filtering import formats, job
from snailps.filtering.formats import tasks_of
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel

TEXTS = ["up up", "down", None, "up down", "other", "down down up", "up\nup", "größe up", ""]
LABEL = '"__label__plus"'
KEEP = f"hq[{LABEL}] >= .6"


def write_model(path, words=(b"</s>", b"up", b"down"), loss="softmax"):
    """``up`` says plus, ``down`` minus; other words, and the end of a line, say little."""
    inputs = np.array([[0.0, 0], [3.0, 0], [0, 3.0]][: len(words)], np.float32)
    outputs = np.array([[1.0, 0.2], [0.1, 1.0]], np.float32)
    header = BinHeader(dim=2, model="supervised", loss=loss, min_count=1)
    labels = [b"__label__plus", b"__label__minus"]
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
    monkeypatch.setattr(formats, "BATCH_ROWS_MAX", batch)
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
    assert done["refused"] == {KEEP: 8 - len(wanted)}
    assert sum(done["scores"][f"hq[{LABEL}]"]["bins"]) == 8


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


def test_names_of_outputs_are_those_of_inputs_below_their_folder(model, tmp_path):
    for name in ("x/a.txt", "x/y/a.txt", "b.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("up\ndown\n")
    keep(model, tmp_path / "in", tmp_path / "out", column="")
    for name in ("x/a.txt", "x/y/a.txt", "b.txt"):
        assert (tmp_path / "out" / name).read_text() == "up\n"


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
    assert list(done["refused"].values()) == [5, 1, 1, 0]
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
    with pytest.raises(ConfigError, match="of which keep differ: choose another --output"):
        keep(model, str(tmp_path / "*.parquet"), tmp_path / "out", "hq.p > .9")
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
        ({"path": "t.csv"}, "is csv: filter has Parquet, JSON lines and text"),
        ({"condition": "hq.p > .5 and m > 1"}, "no column 'm'"),
        ({"condition": "tags == 1"}, "column 'tags' is of list"),
        ({"condition": "hq.q > .5"}, "--keep: hq has no q"),
        ({"add": ["hq.q"]}, "--add: hq has no q"),
        ({"add": ["n=hq.p"]}, "--add n: .* has a column of that name"),
        ({"threads": -1}, "threads: expected 0"),
        ({"output": "."}, "has the input in it"),
        ({"output": "full"}, "is not empty"),
        ({"path": "bad.jsonl"}, "line 2: no JSON"),
        ({"path": "list.jsonl"}, "line 1: expected an object"),
        ({"path": "number.jsonl"}, "line 1: 'text' is no text, but 5"),
        ({"path": "mixed.jsonl", "condition": "m > 1"}, "lines 1 to 2: 'm' has int, str"),
        ({"path": "packed.parquet.gz"}, "a file that is not packed"),
    ],
)
def test_mistake_is_told_and_leaves_nothing(model, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    write_parquet("a.parquet")
    for name, text in {
        "t.txt": "up\n", "t.csv": "text\nup\n", "bad.jsonl": '{"text": "up"}\n{"text"\n',
        "list.jsonl": "[1]\n", "number.jsonl": '{"text": 5}\n', "full/x": "",
        "mixed.jsonl": '{"text": "up", "m": 1}\n{"text": "up", "m": "a"}\n',
        "packed.parquet.gz": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    asked = {"path": "a.parquet", "output": "out", **change}
    with pytest.raises((ConfigError, DataError), match=words):
        keep(model, **asked)
    assert not list(tmp_path.glob("out/[!.]*"))
    assert keep(model, "a.parquet", "out")["rows"] == 9  # what failed at its beginning is no result


def test_missing_names_of_json_refuse_and_are_warned_of(model, tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "up"}\n{"text": "up", "late": 3}\n{"x": 1}\n')
    done = keep(model, tmp_path / "a.jsonl", tmp_path / "out", "late > 1 and hq.p > .5")
    assert (done["kept"], done["without_text"]) == (1, 1)
    keep(model, tmp_path / "a.jsonl", tmp_path / "none", "never > 1")
    assert "none of its first 3 lines has 'never'" in caplog.text


def test_report_shows_counts_scores_and_texts_near_the_bound(model, tmp_path):
    texts = ["up <b>bold</b>", "up up up", "down", "up down", "other & more"]
    write_parquet(tmp_path / "a.parquet", pa.table({"text": texts}))
    keep(model, tmp_path / "a.parquet", tmp_path / "out", f'{KEEP} and hq.top == "__label__plus"')
    page = (tmp_path / "out" / "_report.html").read_text()
    chances = dict(zip(texts, plus(model, texts), strict=True))
    assert f"{sum(p >= 0.6 for p in chances.values())} of 5 texts kept" in page
    assert "up &lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>" not in page.replace("<body>", "")
    kept, refused = page.index(">kept by"), page.index(">refused by <code>hq")
    for text, p in chances.items():
        at = page.index(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"), kept)
        assert (at < refused) == (p >= 0.6)


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
    for wrong in (["hq"], ["=x"], ["hq="], [f"hq={model}", f"hq={model}"], [f"a b={model}"]):
        with pytest.raises(ConfigError, match="--model"):
            command([str(tmp_path / "a.parquet")], wrong, KEEP, tmp_path / "o", column="text")
