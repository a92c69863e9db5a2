"""What an export holds in memory, what it tells while it goes on, and how it is ended."""

import types

import numpy as np
import pytest
from machine import peak_bytes

from snailps import JobSettings, Table
from snailps.api.export_progress import ExportCancelled, ExportProgress
from snailps.api.results import Results, write_tables
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.files import row_sorter
from snailps.files.model_file import write_model
from snailps.models import text_model
from snailps.models.sparse import export as sparse_export
from snailps.models.sparse.batch import BIAS_KEY
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.word_vectors.export import write_files
from snailps.models.word_vectors.settings import WordVectorSettings

PIECES, PIECE_ROWS, DIM = 32, 1_500, 16
BOUND = 2 << 20  # with 1 MB of the file


class Made:
    """The reading part of a client whose rows are made when they are asked for."""

    def __init__(self, rows=PIECE_ROWS):
        self.rows, self.asked, self.asked_max = rows, 0, 0

    def scan(self, number, dim, fragments, ended):
        for fragment in fragments:
            keys = np.arange(fragment, self.rows * PIECES, PIECES, dtype=np.uint64)[::-1].copy()
            keys += np.uint64(1)
            yield keys, np.repeat(keys[:, None].astype(np.float32), dim, axis=1)
            ended(1)

    def pull_async(self, number, keys, rows):
        self.asked += len(keys)
        self.asked_max = max(self.asked_max, self.asked)
        rows[:] = keys[:, None].astype(np.float32)

        def wait():
            self.asked -= len(keys)
            return rows

        return types.SimpleNamespace(wait=wait)


def results_of(settings, client, *tables, summary=b""):
    numbers = {table.name: number for number, table in enumerate(tables, 1)}
    by_name = {table.name: table for table in tables}
    return Results(settings, summary, {}, client, numbers, by_name, PIECES)


@pytest.fixture
def small(monkeypatch):
    """Bounds that a table of 3 MB is large beside."""
    monkeypatch.setattr(row_sorter, "RUN_BYTES", 256 << 10)
    monkeypatch.setattr(row_sorter, "MERGE_BYTES", 128 << 10)
    monkeypatch.setattr(row_sorter, "PIECE_BYTES", 64 << 10)
    monkeypatch.setattr(text_model, "EXPORT_BYTES", 128 << 10)


# --- memory --------------------------------------------------------------------------------------


def test_tables_are_written_without_being_held(tmp_path, small):
    results = results_of(JobSettings(), Made(), Table("w", DIM))
    path = tmp_path / "out.npz"
    assert peak_bytes(lambda: write_tables(path, results)) < BOUND
    with np.load(path) as saved:
        assert np.array_equal(saved["w.keys"], np.arange(1, PIECES * PIECE_ROWS + 1))
        assert np.array_equal(saved["w.rows"][:, 0], saved["w.keys"].astype(np.float32))
    assert [each.name for each in tmp_path.iterdir()] == ["out.npz"]
    assert (results.exporting.share, results.exporting.written) == (1.0, (str(path),))


def test_sparse_model_is_written_without_being_held(tmp_path, small):
    settings = LinearSettings(
        loss="multinomial", classes=DIM, output=str(tmp_path / "out"), formats=("npz",)
    )
    results = results_of(settings, Made(), Table("weights", DIM))
    assert peak_bytes(lambda: Linear.export(results)) < BOUND
    with np.load(tmp_path / "out.npz") as saved:
        assert np.array_equal(saved["keys"], np.arange(1, PIECES * PIECE_ROWS + 1))
        assert np.array_equal(saved["rows"][:, -1], saved["keys"].astype(np.float32))
    assert results.exporting.share == 1.0


@pytest.mark.parametrize("kind", ["npz", "bin"])
def test_vectors_are_written_without_being_held(tmp_path, small, kind):
    n, dim = 4_000, 400  # 6 MB, twice in a .bin
    words = PackedWords.of([b"w%d" % number for number in range(n)])
    summary = Vocabulary(words, np.ones(n, np.int64), n).to_bytes()
    settings = WordVectorSettings(dim=dim, maxn=0, formats=(kind,), output=str(tmp_path / "out"))
    client = Made()
    results = results_of(
        settings, client, Table("input", dim), Table("output", dim), summary=summary
    )
    assert peak_bytes(lambda: write_files(results)) < BOUND
    assert (
        128 << 10 < client.asked_max * 4 * dim <= 256 << 10
    )  # the next rows are on their way while some are written
    assert results.exporting.share == 1.0
    assert results.exporting.written == (f"{tmp_path / 'out'}.{kind}",)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spilled", [False, True])
def test_model_of_sparse_examples_is_the_same_file_as_from_whole_arrays(
    tmp_path, monkeypatch, spilled
):
    if spilled:
        monkeypatch.setattr(row_sorter, "RUN_BYTES", 4096)
        monkeypatch.setattr(row_sorter, "MERGE_BYTES", 2048)

    class Some(Made):
        def scan(self, number, dim, fragments, ended):
            for keys, rows in super().scan(number, dim, fragments, ended):
                rows[keys % 3 == 0] = 0  # which are left out
                yield keys, rows
            yield np.array([BIAS_KEY], np.uint64), np.full((1, dim), 7, np.float32)

    settings = LinearSettings(output=str(tmp_path / "out"), formats=("npz",), keep_state="never")
    figures = Linear.export(results_of(settings, Some(rows=20), Table("weights", 1)))
    keys = np.arange(1, PIECES * 20 + 1, dtype=np.uint64)
    keys = np.append(keys[keys % 3 != 0], np.uint64(BIAS_KEY))
    rows = keys[:, None].astype(np.float32)
    rows[-1] = 7
    assert figures["features"] == len(keys) - 1
    with np.load(tmp_path / "out.npz") as saved:
        about = saved["about"]
    write_model(f"{tmp_path / 'whole'}", {"about": about, "keys": keys, "rows": rows})
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "whole").read_bytes()


def test_liblinear_text_has_zeros_between_features_far_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_export, "_VALUES", 4)
    pieces = [([2, 3], [1, 2]), ([4, 21], [3, 4])]
    found = list(
        sparse_export.with_zeros(
            [(np.array(k, np.uint64), np.array(r, np.float32)[:, None]) for k, r in pieces], 21, 1
        )
    )
    assert [len(some) for some in found] == [4, 4, 4, 4, 4, 1]
    assert np.concatenate(found).ravel().tolist() == [0, 1, 2, 3, *[0] * 16, 4]


# --- telling -------------------------------------------------------------------------------------


def test_share_text_and_time_left_follow_the_stages_of_the_plan():
    now = [100.0]
    told = ExportProgress(lambda: now[0])
    assert (told.share, told.text, told.eta_s) == (0.0, "", None)
    told.plan([1.0, 3.0])
    reading = told.count("reading table w", 4, "fragments", range(4), lambda _: 1)
    for _ in range(3):  # two of them are done
        next(reading)
    now[0] += 5
    assert told.share == 0.125
    assert told.eta_s == 35.0
    assert told.line() == "12%: reading table w, 2 of 4 fragments, 35 s left"
    assert list(reading) == [3]
    list(told.count("writing out.npz", 2_000_000, "bytes", [b"x" * 1_000_000] * 2))
    assert (told.share, told.eta_s) == (1.0, 0.0)
    assert told.text == "writing out.npz, 2 of 2 MB"


def test_stage_that_nobody_planned_counts_by_itself():
    told = ExportProgress()
    list(told.count("reading table a", 2, "fragments", range(2), lambda _: 1))
    assert told.share == 1.0
    writing = told.count("reading table b", 2, "fragments", range(2), lambda _: 1)
    next(writing)
    assert told.share == 0.0


def test_cancelled_export_ends_at_its_next_piece_and_leaves_no_file(tmp_path):
    client = Made()
    settings = LinearSettings(
        output=str(tmp_path / "out"), formats=("npz", "liblinear"), keep_state="never"
    )
    results = results_of(settings, client, Table("weights", 1))
    told = results.exporting

    class Stops(ExportProgress):
        def wrote(self, path):
            super().wrote(path)
            self.cancel()

    results.exporting = Stops()
    with pytest.raises(ExportCancelled):
        Linear.export(results)
    assert [each.name for each in tmp_path.iterdir()] == ["out.npz"]
    assert told.verdict() == "nothing was saved"
    assert results.exporting.verdict() == f"saved {tmp_path / 'out.npz'}, and nothing else"


# --- few words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "settings", "epochs"),
    [
        (200_000, {"epochs": 5}, 50),
        (200_000, {"epochs": 24}, 50),
        (200_000, {"epochs": 25}, None),
        (2_000_000, {"epochs": 1}, 5),
        (200_000, {"epochs": 5, "continue_from": "earlier.bin"}, None),
    ],
)
def test_epochs_that_train_enough_words_are_named_where_few_were_trained(
    tmp_path, count, settings, epochs
):
    counts = np.array([count - 50_000, 50_000])
    summary = Vocabulary(PackedWords.of([b"a", b"b"]), counts, count).to_bytes()
    named = WordVectorSettings(
        dim=2, maxn=0, formats=("npz",), output=str(tmp_path / "out"), **settings
    )
    tables = Table("input", 2), Table("output", 2)
    figures = write_files(results_of(named, Made(), *tables, summary=summary))
    assert figures.get("wants_epochs") == epochs
