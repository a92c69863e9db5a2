"""filtering.kept_scores: a changed condition asks no model again, and keeps the same bytes."""

import gc
import json
import os
import re
import shutil
import sys

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_command import command

import snailps
from snailps.data.formats.table import TableFile
from snailps.errors import ConfigError, DataError, ModelWriteError
from snailps.files.atomic import Unfinished
from snailps.filtering import job as filter_job
from snailps.filtering import kept_scores, tasks
from snailps.filtering.kept_scores import ScoreWriter
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel

TEXTS = ["up up", "down", None, "up down", "other", "down down up", "up\nup", "big up", "", "up b"]
PLUS, MINUS = 'hq["__label__plus"]', 'hq["__label__minus"]'


def write_model(path, loss="softmax", scale=1.0):
    """Three labels: ``up`` says plus, ``down`` minus, ``big`` big."""
    header = BinHeader(dim=3, model="supervised", loss=loss, min_count=1)
    rows = np.array([[0.0, 0, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3]], np.float32) * scale
    labels = np.array([[1.0, 0.2, 0], [0.1, 1, 0], [0, 0.1, 1]], np.float32)
    words = [b"</s>", b"up", b"down", b"big"]
    write_bin(path, header, words, [4, 3, 2, 1], [rows], [labels],
              [b"__label__plus", b"__label__minus", b"__label__big"], [3, 2, 1])  # fmt: skip
    return path


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Parquet of three groups of rows, and JSON lines, in a folder each; batches of three rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TableFile, "batch_rows", 3)
    for name in ("parquet", "jsonl"):
        (tmp_path / name).mkdir()
    table = pa.table({"n": range(len(TEXTS)), "text": TEXTS})
    pq.write_table(table, "parquet/a.parquet", row_group_size=4)
    with open("jsonl/a.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    write_model("hq.bin")
    return tmp_path


def keep(condition, output, scores="scores", kind="parquet", **more):
    options = {"column": "text", "models": {"hq": "hq.bin"}, "add": ["hq"], **more}
    return snailps.filter(kind, output=output, keep=condition, keep_scores=scores, **options)


def written(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!_]*"))}


def assert_as_anew(files, condition, done, output, **more):
    """The same files, and the same manifest but for times and how many texts were scored."""
    anew = keep(condition, f"{output}-anew", "", **more)
    assert written(files / output) == written(files / f"{output}-anew")
    assert re.sub(r"\d\.\d+", "", (files / output / "_report.html").read_text()) == re.sub(
        r"\d\.\d+", "", (files / f"{output}-anew" / "_report.html").read_text()
    )
    for name in ("rows", "kept", "without_text", "refused", "unread", "scores"):
        assert done[name] == anew[name], name


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("threads", [1, 3])
def test_other_bound_asks_no_model_again_and_keeps_what_scoring_anew_does(
    files, monkeypatch, kind, threads
):
    options = {"kind": kind, "threads": threads}
    first = keep(f"{PLUS} >= .6", "first", **options)
    assert first["scored"] == {"hq": 9}
    assert_as_anew(files, f"{PLUS} >= .6", first, "first", **options)
    monkeypatch.setattr(LabelModel, "best_and_probabilities", None)
    monkeypatch.setattr(LabelModel, "predict_arrays", None)
    changed = [f"{PLUS} >= .3", f"{PLUS} < .5 or n > 8", "hq.top == '__label__plus' and hq.p > .9"]
    done = [keep(one, f"more{at}", **options) for at, one in enumerate(changed)]
    monkeypatch.undo()
    monkeypatch.chdir(files)
    monkeypatch.setattr(TableFile, "batch_rows", 3)
    for at, one in enumerate(changed):
        assert done[at]["scored"] == {"hq": 0}
        assert_as_anew(files, one, done[at], f"more{at}", **options)


def test_rows_that_were_not_asked_about_are_asked_and_added(files):
    narrow, wide = f"n < 4 and {PLUS} >= .1", f"{PLUS} >= .1"
    assert keep(narrow, "a", add=[])["scored"] == {"hq": 3}
    done = keep(wide, "b", add=[])
    assert done["scored"] == {"hq": 6}
    assert_as_anew(files, wide, done, "b", add=[])
    assert keep(wide, "c", add=[])["scored"] == {"hq": 0}
    assert keep(narrow, "d", add=[])["scored"] == {"hq": 0}
    assert keep(wide, "e", add=[])["scored"] == {"hq": 0}  # the narrow one has removed nothing


def test_label_that_was_not_kept_is_said_and_both_are_kept_then(files, caplog):
    keep(f"{PLUS} >= .6", "a")
    done = keep(f"{MINUS} >= .6", "b")
    assert done["scored"] == {"hq": 9}
    (record,) = caplog.records
    assert "--keep-scores" in record.getMessage()
    assert "a label that the condition needs was not stored: model hq scores" in record.getMessage()
    assert_as_anew(files, f"{MINUS} >= .6", done, "b")
    for at, condition in enumerate((f"{PLUS} >= .5", f"{MINUS} > .2", f"{PLUS} > {MINUS}")):
        assert keep(condition, f"c{at}")["scored"] == {"hq": 0}


@pytest.mark.parametrize("what", ["input", "model", "damage", "cut", "rows", "empty", "list"])
def test_scores_of_anything_else_are_not_used(files, monkeypatch, caplog, what):
    keep(f"{PLUS} >= .6", "a")
    (path,) = (files / "scores").glob("*.scores")
    if what == "input":
        pq.write_table(pa.table({"n": range(2), "text": ["down", "up"]}), "parquet/a.parquet")
    elif what == "model":
        write_model("hq.bin", scale=0.5)
    elif what == "rows":  # of a program that makes other batches
        monkeypatch.setattr(TableFile, "batch_rows", 2)
    else:
        raw = bytearray(path.read_bytes())
        raw[-20] ^= 1
        other = lz4.frame.compress(b"[]\n")
        path.write_bytes({"damage": raw, "cut": raw[:-30], "empty": b"", "list": other}[what])
    done = keep(f"{PLUS} >= .4", "b")
    assert done["scored"]["hq"] == sum(text is not None for text in TEXTS[: done["rows"]])
    (record,) = caplog.records
    words = what if what in ("input", "model") else "damaged"
    assert words in record.getMessage()
    caplog.clear()
    assert_as_anew(files, f"{PLUS} >= .4", done, "b")
    assert keep(f"{PLUS} >= .5", "c")["scored"] == {"hq": 0}  # it was replaced
    assert not caplog.records


def test_model_that_is_overwritten_meanwhile_has_no_scores_kept(files):
    def note(job, task, counts):
        if counts is None:
            write_model("hq.bin")

    with pytest.raises(DataError, match=r"hq\.bin was changed while it was read"):
        keep(f"{PLUS} >= .6", "a", note=note)
    assert not list((files / "scores").glob("*.scores"))


def test_ended_run_leaves_no_unfinished_scores(files, monkeypatch):
    monkeypatch.setattr(ScoreWriter, "finish", lambda writer: os.kill(os.getpid(), 2))
    with pytest.raises(KeyboardInterrupt):
        keep(f"{PLUS} >= .6", "a")
    assert [path.name for path in (files / "scores").iterdir()] == [".lock"]
    monkeypatch.undo()
    monkeypatch.chdir(files)
    keep(f"{PLUS} >= .6", "a")
    (path,) = (files / "scores").glob("*.scores")
    part = path.with_name(f".{path.name[:40]}.{'0a' * 8}.part")
    part.write_text("of a killed run")
    begun = []

    def note(job, task, counts):  # while another one is at work nothing of it is removed
        if counts is None and not begun:
            begun.append(task)
            part.write_text("of this one")
            keep(f"{PLUS} >= .7", "b")
            assert part.exists()

    keep(f"{PLUS} >= .8", "c", note=note)
    assert begun
    part.write_text("of a killed run")
    keep(f"{PLUS} >= .9", "d")
    assert not part.exists()


def test_folder_of_scores_that_vanishes_ends_a_run_in_one_sentence(files, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda error: pytest.fail(str(error.exc_value)))
    write_model("other.bin")
    more = {"models": {"hq": "hq.bin", "other": "other.bin"}, "add": ["hq.p", "other.p"]}
    files_of_scores = []

    def full(path):  # no room for the second file
        if files_of_scores:
            raise OSError(28, "No space left on device")
        files_of_scores.append(Unfinished(path))
        return files_of_scores[-1]

    monkeypatch.setattr(kept_scores, "Unfinished", full)
    with pytest.raises(ModelWriteError, match="is full"):
        keep(f"{PLUS} >= .6", "a", **more)
    gc.collect()
    assert files_of_scores
    for folder in ("a", "scores"):
        assert not [*(files / folder).glob(".*.part")]
    monkeypatch.setattr(kept_scores, "Unfinished", Unfinished)
    with pytest.raises(ModelWriteError, match=r"scores: cannot be written, because No such file"):
        keep(f"{PLUS} >= .6", "a", **more, begun=lambda job: shutil.rmtree(files / "scores"))
    gc.collect()


def test_url_without_a_version_keeps_no_scores(files, monkeypatch, caplog):
    known = tasks.version_now
    unknown = lambda path: "" if path.endswith("a.jsonl") else known(path)  # noqa: E731
    monkeypatch.setattr(tasks, "version_now", unknown)
    monkeypatch.setattr(filter_job, "version_now", unknown)
    for output in ("a", "b"):
        assert keep(f"{PLUS} >= .6", output, kind="jsonl")["scored"] == {"hq": 9}
        assert "its scores are not kept" in caplog.text
    assert not list((files / "scores").glob("*.scores"))


def test_scores_are_of_each_model_and_of_few_bytes(files, capsys):
    write_model("other.bin", scale=2.0)
    models = {"hq": "hq.bin", "other": "other.bin"}
    done = keep("hq.p > .5 and other.p > .7", "a", models=models)
    assert done["scored"]["hq"] == 9
    assert 0 < done["scored"]["other"] < 9
    assert len(list((files / "scores").glob("*.scores"))) == 2
    words = ["hq=hq.bin", "other=other.bin"]
    command(["parquet"], words, "hq.p > .6", files / "b", column="text", keep_scores="scores")
    assert "\n  0 scored by hq; the other scores were read from scores\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ("out/scores", "is inside --output, which holds results only"),
        ("parquet/scores", "is in the input's folder, parquet"),
        ("hq.bin", "--keep-scores .*hq.bin: "),
    ],
)
def test_folder_of_scores_is_apart(files, scores, words):
    with pytest.raises(ConfigError, match=words):
        keep(f"{PLUS} >= .6", "out", scores)


@pytest.mark.parametrize("loss", ["softmax", "hs", "ns", "ova"])
def test_best_label_has_the_same_bits_alone_and_among_all(files, loss):
    """So scores are kept alike, whether a condition has asked for labels or not."""
    write_model("hq.bin", loss)
    keep(f"{PLUS} >= .6", "a")
    for at, condition in enumerate(("hq.p > .6", "hq.top != '__label__minus' and hq.p < .99")):
        done = keep(condition, f"b{at}")
        assert done["scored"] == {"hq": 0}
        assert_as_anew(files, condition, done, f"b{at}")


def test_file_is_one_of_lz4_with_what_it_is_of(files):
    keep("hq.p > .6", "a", models={"hq": "hq.bin"})
    (path,) = (files / "scores").glob("*.scores")
    with lz4.frame.open(path) as file:
        header = json.loads(file.readline())
    assert header["labels"] == []
    assert header["model"]["path"] == str(files / "hq.bin")
    assert header["input"]["path"].endswith("parquet/a.parquet")
