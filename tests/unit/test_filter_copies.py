"""`snailps filter` without copies and benchmarks: what stays, what is said, and ends in between."""

import gzip
import json
import re
import shutil
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from filter_command import command
from near_copies import anchors_by_keys, corpus, covers_of
from sessions_here import InProcess

import snailps
from snailps.data.formats.parquet import ParquetFile
from snailps.data.formats.table import TableFile
from snailps.duplicates import search
from snailps.duplicates._pages import PageKeys
from snailps.errors import ConfigError, DataError
from snailps.filtering import copies, job, report
from snailps.filtering.copies import CopySearch
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel

KEEP = "not (dup.contained >= .98 or dup.near >= .85)"
EXAMPLE = "what is the capital city of the country whose largest river is the longest one"


def is_covered(cover):
    shares = np.float32([cover.contained, cover.near])
    return bool((shares >= np.float32([0.98, 0.85])).any())


def keys_of(texts):
    return [[*map(int, row)] for b in search.batches_of(texts) for row in PageKeys().of(*b)[0]]


def wanted_of(texts):
    return covers_of(texts, anchors_by_keys(texts, keys_of(texts)), is_covered)


def put(folder, texts, kind, files=3):
    """Texts in files of a format, one after the other; by file, the numbers of its texts."""
    folder.mkdir()
    numbers = np.array_split(np.arange(len(texts)), files)
    for file, of_file in enumerate(numbers):
        rows = [{"n": at, "text": texts[at]} for at in of_file.tolist()]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{file}.parquet", row_group_size=9)
        elif kind == "jsonl":
            lines = [json.dumps(row) + "\n" for row in rows]
            (folder / f"{file}.jsonl").write_text("".join(lines))
        else:
            (folder / f"{file}.txt").write_text("".join(f"{row['text']}\n" for row in rows))
    return numbers


def read(folder, kind):
    """Rows of the outputs, in the order of files."""
    rows = []
    for path in sorted(folder.glob(f"*.{kind}")):
        if kind == "parquet":
            rows += pq.read_table(path).to_pylist()
        else:
            lines = path.read_text().splitlines()
            rows += [json.loads(line) if kind == "jsonl" else line for line in lines]
    return rows


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("[!_.]*"))}


def keep(folder, output, condition=KEEP, kind="jsonl", **options):
    column = "" if kind == "txt" else "text"
    return snailps.filter(folder, output=output, keep=condition, column=column, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """``up`` says plus, ``down`` minus."""
    path = tmp_path_factory.mktemp("model") / "hq.bin"
    rows = [np.array([[0.0, 0], [3, 0], [0, 3]], np.float32)]
    outputs = [np.array([[1.0, 0.2], [0.1, 1]], np.float32)]
    header = BinHeader(dim=2, model="supervised", loss="softmax", min_count=1)
    labels = [b"__label__plus", b"__label__minus"]
    write_bin(path, header, [b"</s>", b"up", b"down"], [3, 2, 1], rows, outputs, labels, [2, 1])
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_that_stay_are_those_of_the_definition(tmp_path, monkeypatch, kind, seed):
    monkeypatch.setattr(TableFile, "batch_rows", 7)
    texts, _ = corpus(seed, pages=20)
    numbers = put(tmp_path / "in", texts, kind)
    covers, kept = wanted_of(texts)
    places = {int(at): f"{file}.{kind}:{row}" for file, of_file in enumerate(numbers)
              for row, at in enumerate(of_file, 1)}  # fmt: skip
    add = [] if kind == "txt" else ["dup.of", "dup.contained", "near=dup.near", "dup.exact"]
    done = keep(tmp_path / "in", tmp_path / "out", kind=kind, add=add, threads=2)
    rows = read(tmp_path / "out", kind)
    stay = [at for at, stays in enumerate(kept) if stays]
    if kind == "txt":
        assert rows == [texts[at] for at in stay]
    else:
        assert [row["n"] for row in rows] == stay
        for row in rows:
            cover = covers[row["n"]]
            assert row["dup.of"] == places.get(cover.of)
            assert np.float32(row["dup.contained"]) == np.float32(cover.contained)
            assert np.float32(row["near"]) == np.float32(cover.near)
            assert row["dup.exact"] is cover.exact
    gone = [at for at, stays in enumerate(kept) if not stays]
    assert (done["rows"], done["kept"]) == (len(texts), len(stay))
    assert done["refused"] == [{"clause": KEEP, "texts": len(gone)}]
    found = done["copies"]
    assert (found["compared"], found["removed"]) == (len(texts), len(gone))
    by_cover = [covers[at].of for at in gone]
    counts = [(-by_cover.count(at), at) for at in {*by_cover}]
    largest = [(places[at], -count) for count, at in sorted(counts)[: copies.COVERS_SHOWN]]
    assert [(f"{c['file']}:{c['row']}", c["texts"]) for c in found["covers"]] == largest
    assert len(found["pairs"]) == min(len(gone), copies.PAIRS_SHOWN)
    for pair in found["pairs"]:
        name = "{file}:{row}".format(**pair["removed"])
        at = next(at for at in gone if places[at] == name)
        assert places[covers[at].of] == "{file}:{row}".format(**pair["kept"])
    assert not (tmp_path / "out" / ".snailps").exists()


def test_only_rows_that_pass_the_other_clauses_cover_others(tmp_path, model):
    """The longest of three is refused by a column, the next one by a model, so the last stays."""
    words = " ".join(f"w{number}" for number in range(60))
    texts = [f"{words} first", f"{words} down down down", words, words, "up"]
    put(tmp_path / "in", texts, "jsonl", files=2)
    condition = f'{KEEP} and n != 0 and hq["__label__plus"] >= .4'
    scored = []
    real = LabelModel.best_and_probabilities

    def spy(self, texts, **options):
        scored.extend(texts)
        return real(self, texts, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabelModel, "best_and_probabilities", spy)
        done = keep(
            tmp_path / "in", tmp_path / "out", condition, models={"hq": model}, add=["hq.p"]
        )
    assert [row["n"] for row in read(tmp_path / "out", "jsonl")] == [2, 4]
    assert [entry["texts"] for entry in done["refused"]] == [1, 1, 1]
    assert len(scored) == 4  # each text once, though texts are read twice
    assert done["scored"] == {"hq": 4}
    assert done["copies"]["compared"] == 3
    again = keep(
        tmp_path / "in", tmp_path / "kept", condition, models={"hq": model}, add=["hq.p"],
        keep_scores=tmp_path / "scores",
    )  # fmt: skip
    assert again["scored"] == {"hq": 4}
    assert bytes_of(tmp_path / "kept") == bytes_of(tmp_path / "out")
    last = keep(
        tmp_path / "in", tmp_path / "more", condition, models={"hq": model}, add=["hq.p"],
        keep_scores=tmp_path / "scores",
    )  # fmt: skip
    assert last["scored"] == {"hq": 0}
    assert bytes_of(tmp_path / "more") == bytes_of(tmp_path / "out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Files, and what one uninterrupted run makes of them."""
    folder = tmp_path_factory.mktemp("whole")
    texts, _ = corpus(5, pages=20)
    put(folder / "in", texts, "jsonl")
    keep(folder / "in", folder / "out", add=["dup.of"], threads=1)
    (folder / "short.txt").write_text("too few words\nalso here\n")
    return folder


class Ended(BaseException):
    """As a signal would end the run."""


def ends(monkeypatch, target, name, calls):
    """Have the given call of a function end the run, before it does anything."""
    real, left = getattr(target, name), [calls]

    def call(*given, **options):
        left[0] -= 1
        if not left[0]:
            raise Ended
        return real(*given, **options)

    monkeypatch.setattr(target, name, call)


STEPS = {
    "keys of the first file": (CopySearch, "save", 1),
    "keys of the second file": (CopySearch, "save", 2),
    "the table": (copies, "pairs_of", 1), "the second reading": (search, "sets_of", 2),
    "sets": (search, "verified", 1), "waves": (search, "judged", 1),
    "what was found": (CopySearch, "_summary", 1),
    "the first output": (job.FilterResults, "save", 1),
    "the second output": (job.FilterResults, "save", 2), "the report": (job, "report_page", 1),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("threads", [1, 3])
def test_run_that_ends_at_any_step_goes_on_to_the_same_bytes(
    whole, tmp_path, monkeypatch, step, threads
):
    with monkeypatch.context() as patch:
        ends(patch, *STEPS[step])
        with pytest.raises(Ended):
            keep(whole / "in", tmp_path / "out", add=["dup.of"], threads=threads)
    read_again = []
    real = CopySearch.keys_of

    def spy(self, batch, rows):
        read_again.append(len(rows))
        return real(self, batch, rows)

    monkeypatch.setattr(CopySearch, "keys_of", spy)
    done = keep(whole / "in", tmp_path / "out", add=["dup.of"], threads=threads)
    assert bytes_of(tmp_path / "out") == bytes_of(whole / "out")
    assert len(read_again) == {"keys of the first file": 3, "keys of the second file": 2}.get(
        step, 0
    )
    assert done["copies"] == json.loads((whole / "out" / "_manifest.json").read_text())["copies"]
    assert not (tmp_path / "out" / ".snailps").exists()


@pytest.mark.parametrize("phase", ["comparing", "writing"])
def test_file_that_changes_between_the_readings_is_refused(whole, tmp_path, monkeypatch, phase):
    shutil.copytree(whole / "in", tmp_path / "in")
    path = tmp_path / "in" / "1.jsonl"

    def change(*given, **options):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[::-1]))
        return real(*given, **options)

    target, name = {"comparing": (copies, "similar_pages"), "writing": (CopySearch, "found")}[phase]
    real = getattr(target, name)
    monkeypatch.setattr(target, name, change)
    with pytest.raises(DataError, match=r"1.jsonl was changed while it was read: run it again"):
        keep(tmp_path / "in", tmp_path / "out")
    monkeypatch.undo()
    if phase == "writing":  # an output is there
        with pytest.raises(ConfigError, match=r"results of another command[^$]*1.jsonl"):
            keep(tmp_path / "in", tmp_path / "out")
    keep(tmp_path / "in", tmp_path / "out", overwrite=phase == "writing")
    keep(tmp_path / "in", tmp_path / "anew")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "anew")


def test_readings_before_the_last_one_read_what_they_need(tmp_path, monkeypatch):
    """Not the other columns, which may be large; a field of a struct is read with the struct."""
    rows = [
        {"doc": {"text": f"{PAGE} {at}"}, "n": at, "x": {"y": 1}, "large": b"x"} for at in range(8)
    ]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "a.parquet")
    asked, real = [], ParquetFile.rows

    def spy(self, names=None, part=None):
        asked.append(names)
        return real(self, names, part)

    monkeypatch.setattr(ParquetFile, "rows", spy)
    done = snailps.filter(
        tmp_path / "in", output=tmp_path / "out", column="doc.text",
        keep="not dup.near >= .9 and n > 0 and x.y == 1",
    )  # fmt: skip
    assert asked == [["doc", "n", "x"], ["doc"], None]
    assert (done["rows"], done["kept"]) == (8, 1)  # 38 of 40 3-grams in common
    assert [row["n"] for row in read(tmp_path / "out", "parquet")] == [1]


def test_parts_of_a_large_file_are_counted_as_one(tmp_path, monkeypatch):
    texts, _ = corpus(6, pages=20)
    put(tmp_path / "in", texts, "parquet", files=1)
    monkeypatch.setattr(job, "TASK_BYTES", 1)
    done = keep(tmp_path / "in", tmp_path / "out", kind="parquet", add=["dup.of"])
    covers, kept = wanted_of(texts)
    rows = read(tmp_path / "out", "parquet")
    assert len(done["files"]) > 3
    assert [row["n"] for row in rows] == [at for at, stays in enumerate(kept) if stays]
    for row in rows:
        of = covers[row["n"]].of
        assert row["dup.of"] == (None if of < 0 else f"0.parquet:{of + 1}")


def test_files_are_closed_before_the_next_ones_are_opened(tmp_path, monkeypatch):
    """There may be more files than a process may have open."""
    texts, _ = corpus(8, pages=20)
    put(tmp_path / "in", texts, "jsonl", files=40)
    opened = []

    def spy(real, *given, **options):
        opened.append(len([*Path("/proc/self/fd").iterdir()]))
        return real(*given, **options)

    monkeypatch.setattr(search, "judged", partial(spy, search.judged))
    monkeypatch.setattr(copies, "FoundCopies", partial(spy, copies.FoundCopies))
    before = len([*Path("/proc/self/fd").iterdir()])
    keep(tmp_path / "in", tmp_path / "out", add=["dup.of"], threads=1)
    assert len(opened) == 2
    assert max(opened) < before + 20


@pytest.mark.parametrize("condition", [KEEP, "n < 9"])
def test_worker_that_reads_other_benchmarks_refuses(tmp_path, monkeypatch, condition):
    put(tmp_path / "in", ["a b", "c d"], "jsonl", files=1)
    evals = tmp_path / "evals.txt"
    evals.write_text(EXAMPLE)

    class Changed(InProcess):
        def run(self, model, settings, *, input):
            evals.write_text(EXAMPLE + " now")
            super().run(model, settings, input=input)

    with pytest.raises(DataError, match=r"evals.txt: not the lines that the command has read"):
        keep(
            tmp_path / "in", tmp_path / "out", f"{condition} and bench.overlap < .4",
            benchmarks=evals, cluster=Changed(),
        )  # fmt: skip


def test_columns_of_copies_without_a_clause_on_them(tmp_path):
    """All rows stay, so each is compared with all longer ones, and those before it."""
    put(tmp_path / "in", ["a b c", "d", "A b c.", "a, b, c"], "jsonl", files=2)
    done = keep(tmp_path / "in", tmp_path / "out", "n != 1", add=["dup.of", "x=dup.exact"])
    rows = [(row["n"], row["dup.of"], row["x"]) for row in read(tmp_path / "out", "jsonl")]
    assert rows == [(0, None, False), (2, "0.jsonl:1", True), (3, "0.jsonl:1", True)]
    assert done["copies"]["removed"] == 0


def test_room_is_foreseen_and_said(whole, tmp_path, monkeypatch):
    said = []
    keep(whole / "in", tmp_path / "out", begun=lambda job: setattr(job, "says", said.append))
    assert len(said) == 1
    wanted = r"47 texts: \d+ pairs .* of memory; .* \d+ texts are .* up to [\d.]+ kB of disk"
    assert re.match(wanted, said[0]), said
    monkeypatch.setattr(search, "free_bytes", lambda folder: 1000)
    with pytest.raises(ConfigError, match=r"up to .* of disk, and .*\.snailps has .*--scratch"):
        keep(whole / "in", tmp_path / "full")
    with pytest.raises(ConfigError, match=rf"and {tmp_path} has 1.0 kB free"):
        keep(whole / "in", tmp_path / "full", scratch=tmp_path)
    monkeypatch.setattr(search, "free_bytes", lambda folder: None)
    monkeypatch.setattr(search, "memory", lambda: (1_000, "MemAvailable"))
    with pytest.raises(ConfigError, match=r"47 texts need about 2.3 kB of memory, and 1.0 kB is"):
        keep(whole / "in", tmp_path / "none")
    monkeypatch.setattr(search, "PAIR_BYTES", 10**4)
    monkeypatch.setattr(copies, "pairs_of", lambda *given: np.zeros((2, 95), np.int64))
    monkeypatch.setattr(search, "memory", lambda: (500_000, "MemAvailable"))
    with pytest.raises(ConfigError, match=r"47 texts need about 950.1 kB .* compare 24 at once"):
        keep(whole / "in", tmp_path / "pairs")


@pytest.mark.parametrize("cluster", [False, True])
def test_bytes_do_not_depend_on_how_many_texts_are_taken_at_a_time(
    whole, tmp_path, monkeypatch, cluster
):
    for pages in (1, 3, 7):
        monkeypatch.setattr(copies, "CHUNK_PAGES", pages)
        options = {"cluster": InProcess()} if cluster else {}
        keep(whole / "in", tmp_path / f"{pages}", add=["dup.of"], **options)
        assert bytes_of(tmp_path / f"{pages}") == bytes_of(whole / "out")


def test_text_without_a_pair_is_judged_by_the_condition_too(tmp_path):
    """Its shares are 0: a condition that wants copies of what stays keeps nothing."""
    put(
        tmp_path / "in",
        [f"{PAGE} 1", f"{PAGE} 1", "seven other words that are in no pair"],
        "jsonl",
        2,
    )
    asked = {"column": "text", "output": tmp_path / "out"}
    done = snailps.filter(tmp_path / "in", keep="dup.contained >= .5", **asked)
    assert (done["kept"], done["copies"]["compared"], done["copies"]["removed"]) == (0, 3, 0)


def test_memory_of_the_command_is_of_pairs_and_not_of_texts():
    page, anchor = np.arange(10**8, 10**9, 10**8), np.arange(9)

    def facts(pages):
        return np.full(len(pages), 7, np.uint32), np.zeros((len(pages), 2), np.uint64)

    def compare(pairs, pages, foreseen):
        assert (len(pages), foreseen) == (0, 0)  # all are equal
        return search.Overlaps(*pairs, *np.ones((2, 9), np.float32))

    tracemalloc.start()
    pages, done = search.similar_pages(
        10**9, lambda: (page, anchor), facts, compare, lambda now, rows: ~now.exact[rows]
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pages.tolist() == [*range(9), *page.tolist()]
    assert done.kept.tolist() == [True] * 9 + [False] * 9
    assert pages[done.of[9:]].tolist() == [*range(9)]
    assert peak < 10**6


def test_workers_of_a_cluster_compare_in_the_folder_that_all_hosts_share(
    whole, tmp_path, monkeypatch
):
    with pytest.raises(ConfigError, match=r"^scratch: the workers of a cluster .* share"):
        keep(whole / "in", tmp_path / "out", scratch=tmp_path, cluster=InProcess())
    sets = []

    class Session(InProcess):
        def run(self, model, settings, *, input):
            super().run(model, settings, input=input)
            sets.append(len([*Path(input).parent.glob("*.sets")]))

    done = keep(whole / "in", tmp_path / "out", add=["dup.of"], cluster=Session())
    assert bytes_of(tmp_path / "out") == bytes_of(whole / "out")
    assert done["copies"] == json.loads((whole / "out" / "_manifest.json").read_text())["copies"]
    assert sets == [0, 3, 0]  # found pairs, compared them, and wrote without the sets
    monkeypatch.setattr(search, "free_bytes", lambda folder: 1000)
    with pytest.raises(ConfigError, match=r"of disk, and .*copies has 1.0 kB free: make room"):
        keep(whole / "in", tmp_path / "full", cluster=InProcess())


def test_report_shows_what_goes_beside_what_stays(tmp_path):
    words = " ".join(f"w{number}" for number in range(80))
    put(tmp_path / "in", [f"{words} <b> tail {words}", f"{words} other tail {words}"], "txt", 1)
    keep(tmp_path / "in", tmp_path / "out", kind="txt")
    page = (tmp_path / "out" / "_report.html").read_text()
    assert "goes: 0.txt, row 2" in page
    assert "stays: 0.txt, row 1" in page
    assert "<mark>&lt;b&gt;</mark> tail" in page
    assert "<mark>other</mark> tail" in page
    assert "w79 <mark>" in page
    assert "w11 &hellip; w68" in page
    assert "w40" not in page.partition("<table class=pairs>")[2].partition("</table>")[0]


FORMS = {
    "txt": lambda lines: "".join(f"{line}\n" for line in lines),
    "jsonl": lambda lines: json.dumps({"id": 1, "q": lines[0], "choices": [{"a": lines[1:]}]}),
    "csv": lambda lines: "q,a\n" + ",".join(lines[:2]) + f"\n{lines[2]},\n",
    "parquet": lambda lines: pa.table({"n": [1], "q": [lines[0]], "choices": [lines[1:]]}),
}


@pytest.mark.parametrize("form", FORMS)
def test_benchmarks_are_any_text_of_a_row(tmp_path, form):
    """Windows of 13 words, whole lines of 8 to 12; a share of a text's words."""
    short = "seven words are too few for it"
    lines = [EXAMPLE, "eight words in a row are a line", short]
    evals = tmp_path / f"evals.{form}"
    content = FORMS[form](lines)
    if form == "parquet":
        pq.write_table(content, evals)
    else:
        evals.write_text(content)
    texts = [
        "no part of it",
        f"up {EXAMPLE.upper()}! up down up down",
        short,
        "a b EIGHT words, in a row - are a line c d",
        "eight words in a row were a line",
        "",
    ]
    put(tmp_path / "in", texts, "jsonl", files=2)
    done = keep(
        tmp_path / "in", tmp_path / "out", "bench.overlap <= .5", benchmarks=evals,
        add=["bench.overlap"],
    )  # fmt: skip
    rows = read(tmp_path / "out", "jsonl")
    assert [row["n"] for row in rows] == [0, 2, 4, 5]
    assert {row["bench.overlap"] for row in rows} == {0}
    keep(
        tmp_path / "in", tmp_path / "all", "bench.overlap <= 1", benchmarks=[evals],
        add=["bench.overlap"],
    )  # fmt: skip
    shares = [row["bench.overlap"] for row in read(tmp_path / "all", "jsonl")]
    assert shares == pytest.approx([0, 15 / 20, 0, 8 / 12, 0, 0])
    found = done["benchmarks"]
    assert (found["lines"], found["short"], found["met"]) == (3, 1, 2)
    assert [(hit["text"], hit["texts"]) for hit in found["hits"]] == [(x, 1) for x in lines[:2]]
    assert "<td class=t>what is the capital" in (tmp_path / "out" / "_report.html").read_text()
    if form != "parquet":
        evals.write_text(content.replace("eight", "nine"))
        with pytest.raises(ConfigError, match="benchmarks: "):
            keep(
                tmp_path / "in", tmp_path / "out", "bench.overlap <= .5", benchmarks=evals,
                add=["bench.overlap"],
            )  # fmt: skip


PAGE = " ".join(f"w{number}" for number in range(40))
ROWS = [PAGE, "up one two", f"{PAGE} more", None, f"so {EXAMPLE} and more", "UP, one two", "down"]
STAY = {KEEP + " and not dup.exact": [1, 2, 4, 6], "bench.overlap < .5": [0, 1, 2, 5, 6]}
"""By condition, which of these rows stay."""


def field_of(rows):
    return [{"n": row["n"], "doc": {"text": row["text"]}} for row in rows]


OPTIONS = {
    "no other": {}, "model": {"with_model": True}, "add": {"add": ["dup.of", "bench.overlap"]},
    "keep-scores": {"keep_scores": "scores", "with_model": True},
    "on-bad-line": {"on_bad_line": "skip", "kind": "jsonl", "bad": True},
    "overwrite": {"overwrite": True}, "threads": {"threads": 5}, "cluster": {"cluster": True},
    "scratch": {"scratch": "."}, "against": {"against": "index"},
    "field": {"column": "doc.text", "change": field_of},
    "folder": {"folder": "day=7"}, "packed": {"kind": "jsonl", "ending": ".gz"},
    "Parquet in parts": {"parts": True}, "arrow": {"kind": "arrow"}, "orc": {"kind": "orc"},
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("condition", STAY)
def test_clauses_with_each_option_are_right_or_refused(
    tmp_path, monkeypatch, model, condition, option
):
    """The table in docs/filter.md."""
    monkeypatch.chdir(tmp_path)
    given = dict(OPTIONS[option])
    kind, folder = given.pop("kind", "parquet"), Path("in", given.pop("folder", "."))
    rows = [{"n": at, "text": text} for at, text in enumerate(ROWS)]
    rows = given.pop("change", lambda rows: rows)(rows)
    folder.mkdir(parents=True)
    path = folder / f"a.{kind}{given.pop('ending', '')}"
    if kind == "jsonl":
        lines = [json.dumps(row) + "\n" for row in rows]
        lines.insert(3, "no object\n" * given.pop("bad", False))
        (gzip.open if path.suffix == ".gz" else open)(path, "wt").writelines(lines)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    else:
        feather = {"arrow": pa.feather, "orc": pa.orc}[kind]
        write = feather.write_feather if kind == "arrow" else feather.write_table
        write(pa.Table.from_pylist(rows), path)
    if given.pop("parts", False):
        monkeypatch.setattr(job, "TASK_BYTES", 1)
    stay = STAY[condition]
    if given.pop("with_model", False):
        condition += ' and hq["__label__minus"] < .6'
        given["models"] = {"hq": model}
        stay = [at for at in stay if ROWS[at] != "down"]
    if "bench" in condition or "add" in given:
        Path("evals.txt").write_text(EXAMPLE)
        given["benchmarks"] = "evals.txt"
    if "add" in given and "bench" in condition:
        given["add"] = ["bench.overlap"]
    if given.pop("overwrite", False):
        keep("in", "out", "not dup.exact")
        given["overwrite"] = True
    asked = {"output": "out", "keep": condition, "column": "text", **given}
    is_copies = "dup" in condition
    if "cluster" in asked:
        asked["cluster"] = InProcess()
    if option in ("scratch", "against") and not is_copies:
        with pytest.raises(ConfigError, match=f"^{option}: "):
            snailps.filter("in", **asked)
        return
    done = snailps.filter("in", **asked)
    found = []
    for file in sorted(Path("out").rglob("a*")):
        if kind == "jsonl":
            opener = gzip.open if file.suffix == ".gz" else open
            found += [json.loads(line) for line in opener(file, "rt")]
        elif kind == "parquet":
            found += pq.ParquetFile(file).read().to_pylist()
        elif kind == "arrow":
            found += pa.feather.read_table(file).to_pylist()
        else:
            found += pa.orc.read_table(file).to_pylist()
    assert [row["n"] for row in found] == stay
    assert (done["rows"], done["kept"], done["without_text"]) == (len(ROWS), len(stay), 1)
    assert done["bad_lines"] == ("on_bad_line" in given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "n > 3"}, "no model: name at least one"),
        ({"keep": "bench.overlap < .1"}, "bench.overlap needs lines .*--benchmarks FILE"),
        ({"benchmarks": "{whole}/in/0.jsonl"}, "benchmarks: neither --keep nor --add asks"),
        ({"keep": "dup.contained < .9 or n > 3"}, "dup.contained is known once all other clauses"),
        ({"keep": "dup.contained < n"}, "write it as a clause of its own, joined by and"),
        ({"keep": "dup.near < .9 or bench.overlap < .1"}, "write it as a clause of its own"),
        ({"keep": "dup.contained < 1.5"}, "dup.contained is a share"),
        ({"keep": "dup.contaned < .5"}, r"expected dup.contained, dup.near.*dup\['contaned'\]"),
        ({"keep": "dup.of == 'a'"}, "dup.of names another text: add it as a column"),
        ({"keep": "hq.p > .5 and dup.near < .5"}, "no model hq: name it, as in --model hq="),
        ({"add": ["n=dup.of"]}, "--add n: .* has that name"),
        ({"benchmarks": "{whole}/none.txt", "keep": "bench.overlap < 1"}, "none.txt"),
        ({"benchmarks": ""}, "benchmarks: expected a path"),
        (
            {"benchmarks": "{whole}/short.txt", "keep": "bench.overlap < 1"},
            "of 2 lines .* has 8",
        ),
        ({"scratch": 3}, "scratch: expected a path"),
    ],
)
def test_mistakes_are_refused_by_name(whole, tmp_path, options, words):
    options = {name: str(value).format(whole=whole) if name == "benchmarks" else value
               for name, value in options.items()}  # fmt: skip
    with pytest.raises((ConfigError, DataError), match=words):
        snailps.filter(**{
            "input": whole / "in", "output": tmp_path / "out", "keep": KEEP, "column": "text",
            **options,
        })  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_column_of_the_name_is_written_in_brackets(tmp_path, kind):
    """What an earlier run added is a column; what is computed now cannot be meant as well."""
    put(tmp_path / "in", ["a b c", "a b c", "d"], kind, files=1)
    keep(tmp_path / "in", tmp_path / "first", kind=kind, add=["dup.contained"])
    with pytest.raises(
        ConfigError, match=r"has 'dup.contained' itself: write dup\[\"contained\"\]"
    ):
        keep(tmp_path / "first", tmp_path / "out", kind=kind)
    done = keep(tmp_path / "first", tmp_path / "out", 'dup["contained"] < 1 and not dup.exact',
                kind=kind)  # fmt: skip
    assert (done["rows"], done["kept"]) == (2, 2)
    rows = [{"text": "a b", "dup": {"contained": 3}}, {"text": "a b", "dup": {"contained": 1}}]
    (tmp_path / "o").mkdir()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "o" / "o.parquet")
    else:
        (tmp_path / "o" / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = keep(tmp_path / "o", tmp_path / "p", 'dup["contained"] > 2 and not dup.exact', kind=kind)
    assert done["kept"] == 1
    with pytest.raises(ConfigError, match="itself"):
        keep(tmp_path / "o", tmp_path / "q", kind=kind)


def test_model_may_have_the_name(tmp_path, model):
    put(tmp_path / "in", ["up", "down", "up"], "jsonl", files=1)
    done = keep(
        tmp_path / "in", tmp_path / "out", 'dup["__label__plus"] > .5', models={"dup": model}
    )
    assert done["kept"] == 2
    with pytest.raises(ConfigError, match="dup has no contained"):
        keep(tmp_path / "in", tmp_path / "o", models={"dup": model})


def test_no_row_takes_part(tmp_path):
    put(tmp_path / "in", ["a b", "a b"], "jsonl", files=1)
    done = keep(tmp_path / "in", tmp_path / "out", f"n > 5 and {KEEP}", add=["dup.of"])
    assert (done["kept"], done["copies"]["compared"]) == (0, 0)


def test_command_says_what_came_of_it(whole, tmp_path, capsys):
    command(
        [str(whole / "in")], [], f"{KEEP} and bench.overlap < .5", tmp_path / "out",
        column="text", benchmarks=[str(whole / "in" / "0.jsonl")],
    )  # fmt: skip
    said = capsys.readouterr()
    done = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert f"{done['benchmarks']['met']} of 16 lines of benchmarks were met" in said.out
    assert "which need about" in said.err


def test_report_of_repeated_words_is_made_at_once():
    """Comparing 1,500 words of two with all of 1,500 others would take hours."""
    sides = report.side_by_side("a b " * 2000, "a a b " * 2000)
    assert "a" in sides[0]
