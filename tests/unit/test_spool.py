"""data.spool, data.elements: any Python data to one file, a unit a line, or an error in words."""

import importlib
import os
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snailps.data import spool as module
from snailps.data.elements import elements_of
from snailps.data.spool import spool_text
from snailps.errors import DataError
from snailps.files.scratch import Scratch

SENTENCES = ["the cat sat", "on the mat", "", "Åse ate 魚"]
LISTS = [sentence.split() for sentence in SENTENCES]
LINES = "the cat sat\non the mat\n\nÅse ate 魚\n".encode()


@pytest.fixture
def folder(tmp_path) -> str:
    return str(tmp_path / "scratch")


@pytest.fixture
def spooled(folder):
    """What a file has that data is written to."""

    def spooled(data, **options) -> bytes:
        with spool_text(data, folder, **options) as file:
            content = Path(file.path).read_bytes()
            assert (file.bytes, file.units) == (len(content), content.count(b"\n"))
        assert not Path(file.path).exists()
        return content

    return spooled


@pytest.mark.parametrize(
    "data",
    [
        SENTENCES,
        tuple(SENTENCES),
        (text for text in SENTENCES),
        iter(SENTENCES),
        deque(SENTENCES),
        [text.encode() for text in SENTENCES],
        LISTS,
        [tuple(words) for words in LISTS],
        (words for words in LISTS),
        [[word.encode() for word in words] for words in LISTS],
        [SENTENCES[0], LISTS[1], b"", np.array(LISTS[3])],
        np.array(SENTENCES),
        np.array(SENTENCES, object),
        np.array([text.encode() for text in SENTENCES]),
        {"text": SENTENCES},
    ],
)
def test_spool_text_any_container_is_a_unit_a_line(spooled, data):
    assert spooled(data) == LINES


def test_spool_text_array_of_two_axes_is_lists_of_words(spooled):
    assert spooled(np.array([["a", "b"], ["c", "d"]])) == b"a b\nc d\n"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_spool_text_columns_of_tables(spooled, library):
    there = importlib.import_module(library)
    if library == "pyarrow":
        columns = [there.array(SENTENCES), there.chunked_array([SENTENCES[:1], SENTENCES[1:]])]
        tables = [there.table({"text": SENTENCES, "n": [1, 2, 3, 4]})]
        tables += [tables[0].to_batches()[0], tables[0].to_reader()]
        columns += [there.array(LISTS), columns[0].dictionary_encode()]
    else:
        columns = [there.Series(SENTENCES), there.Series(LISTS)]
        tables = [there.DataFrame({"text": SENTENCES, "n": [1, 2, 3, 4]})]
    for data in columns:
        assert spooled(data) == LINES
    for table in tables:
        assert spooled(table, column="text") == LINES
    table = tables[0]
    assert spooled(table, column="text", labels="n").startswith(b"__label__1 the cat sat\n")
    with pytest.raises(DataError, match=r"say which column of .*; it has 'text', 'n'"):
        spool_text(table)
    with pytest.raises(DataError, match="no column 'txt'; it has 'text', 'n'"):
        spool_text(table, column="txt")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_spool_text_missing_value_is_refused_with_column_and_row(folder, library):
    there = importlib.import_module(library)
    make = there.table if library == "pyarrow" else there.DataFrame
    table = make({"text": ["a", None], "n": [1, 2]})
    with pytest.raises(DataError, match=r"row 1 of column 'text' of a \w+ is missing"):
        spool_text(table, folder, column="text")


class FakeDataset:
    """What Hugging Face's IterableDataset offers; it has no length."""

    __module__ = "datasets.iterable_dataset"
    column_names = ("text", "label")

    def select_columns(self, names):
        assert names == ["text"]
        return self

    def iter(self, batch_size):
        yield {"text": SENTENCES[:3]}
        yield {"text": SENTENCES[3:]}


def test_spool_text_hugging_face_stream(spooled):
    assert spooled(FakeDataset(), column="text") == LINES
    with pytest.raises(DataError, match="say which column of a FakeDataset"):
        spool_text(FakeDataset())


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "numpy"])
def test_spool_text_hugging_face_stream_in_a_format(spooled, monkeypatch, library):
    there = importlib.import_module(library)
    column = {"pyarrow": "chunked_array", "numpy": "array"}.get(library, "Series")

    def batches(self, batch_size):
        for rows in (SENTENCES[:3], SENTENCES[3:]):
            yield {"text": getattr(there, column)([rows] if library == "pyarrow" else rows)}

    monkeypatch.setattr(FakeDataset, "iter", batches)
    assert spooled(FakeDataset(), column="text") == LINES


def test_spool_text_labels_are_of_fasttext(spooled):
    texts = ["good film", "bad film"]
    assert (
        spooled(texts, labels=["pos", "neg"]) == b"__label__pos good film\n__label__neg bad film\n"
    )
    assert spooled(texts, labels=np.array([1, 0])) == b"__label__1 good film\n__label__0 bad film\n"
    assert spooled(["a", "b"], labels=[1, True]) == b"__label__1 a\n__label__True b\n"
    several = spooled(texts, labels=[["b", "a"], {"y", "x"}])
    assert several.replace(b"__label__", b"#") == b"#b #a good film\n#x #y bad film\n"


@pytest.mark.parametrize("labels", [["x"], ["x"] * 3, iter(["x"]), iter(["x"] * 3)])
def test_spool_text_other_number_of_labels_is_refused(folder, labels):
    with pytest.raises(DataError, match="expected a label for each element"):
        spool_text(["a", "b"], folder, labels=labels)


@pytest.mark.parametrize(
    ("data", "options", "why"),
    [
        ("some text", {}, "would be the path of a file"),
        (Path("x"), {}, "would be the path of a file"),
        (b"some text", {}, "put it into a list"),
        (3, {}, "got an int"),
        ({"a", "b"}, {}, "expected elements in order"),
        ([], {}, "the data is empty"),
        (iter(()), {}, "the data is empty"),
        (["a", 1.5], {}, "element 1 of a list of 2 is a float: expected str or a list of str"),
        (["a", None], {}, r"element 1 of a list of 2 is missing \(None\)"),
        (["a", float("nan")], {}, "is missing"),
        ([["a"], ["b", 3]], {}, "element 1 of .* is a list whose item 1 is an int"),
        ([["a"], ["New York"]], {}, "a blank or another separator within word 0, 'New York'"),
        ([["a"], ["x\ty"]], {}, "within word 0"),
        ([["a b", ""]], {}, "within word 0"),
        ([["a"], [["b"]]], {}, "element 1 of .* is a list whose item 0 is a list"),
        ([{"a"}], {}, "is a set"),
        (["a", "x\ud800y"], {}, "element 1 .* is half of a pair"),
        (np.array([1.0, 2.0]), {}, "element 0 of an array of float64 .* is a float"),
        (np.array("a"), {}, r"shape \(\)"),
        (["a"], {"column": "text"}, "a list has none"),
        (["a"], {"labels": [None]}, "element 0 of a list of 1 is missing"),
        (["a"], {"labels": ["not so"]}, "without blanks"),
        (["a"], {"labels": [1.5]}, "is a float: expected a str, an int or a list of them"),
        (["a __label__b"], {"labels": ["c"]}, "would be read as a label"),
    ],
)
def test_spool_text_what_is_no_text_is_refused(folder, data, options, why):
    with pytest.raises(DataError, match=why):
        spool_text(data, folder, **options)
    found = Path(folder).iterdir() if Path(folder).exists() else []
    assert [path.name for path in found] == []


def test_spool_text_blank_words_are_left_out(spooled):
    assert spooled([["a", "", "\n", " b "], [], ["c"]]) == b"a b\n\nc\n"


def test_spool_text_newline_within_a_unit_becomes_a_blank(spooled):
    assert spooled(["a\nb", "c\r\nd", "e\n"]) == b"a b\nc\r d\ne \n"


def test_spool_text_bytes_that_are_no_utf8_are_kept(spooled):
    raw = b"caf\xe9 \xff"
    assert spooled([raw, os.fsdecode(raw)]) == raw + b"\n" + raw + b"\n"


def test_spool_text_generator_of_a_reused_list(spooled):
    def units():
        words = []
        for i in range(3):
            words[:] = [f"word{i}"]
            yield words

    assert spooled(units()) == b"word0\nword1\nword2\n"


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda word: not set(word) & set(" \n\r\t\v\f\0")
)


@settings(max_examples=40, deadline=None)
@given(
    units=st.lists(
        st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.lists(WORDS)), min_size=1
    ),
    write_bytes=st.sampled_from([1, 7, 1 << 20]),
)
def test_lines_round_trip(units, write_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WRITE_BYTES", write_bytes)
        pieces = [piece for piece, _ in module.SpooledText(elements_of(units)).pieces()]
    lines = b"".join(pieces).decode().split("\n")
    assert lines.pop() == ""
    assert lines == [
        unit.replace("\n", " ") if isinstance(unit, str) else " ".join(unit) for unit in units
    ]


def test_spool_text_progress_has_the_total_if_it_is_known(folder, monkeypatch):
    monkeypatch.setattr(module, "WRITE_BYTES", 10)
    told = []
    spool_text(["12345"] * 5, folder, on_progress=lambda *of: told.append(of)).close()
    assert told == [(2, 5), (4, 5), (5, 5)]
    told.clear()
    spool_text(iter(["12345"] * 2), folder, on_progress=lambda *of: told.append(of)).close()
    assert told == [(2, None)]


def test_spool_text_error_of_the_generator_reaches_the_caller_and_leaves_no_file(folder):
    def broken():
        yield "a"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        spool_text(broken(), folder)
    assert [path.name for path in Path(folder).iterdir()] == []


def test_spool_text_more_than_the_limit_is_refused(folder):
    with pytest.raises(DataError, match=r"writing a generator needs more than [\d,]+ bytes"):
        spool_text(("x" * 99 for _ in range(30_000)), folder, bytes_max=1 << 21)
    assert [path.name for path in Path(folder).iterdir()] == []


def test_spooled_is_kept_while_it_is_used_and_counts_for_others(folder):
    scratch = Scratch(folder, 1 << 20)
    with spool_text(["some text"], folder) as file:
        assert scratch.clean() == 0
        assert Path(file.path).stat().st_mode & 0o077 == 0
        with pytest.raises(DataError, match="beside what is in use"):
            spool_text(["x" * 100], folder, bytes_max=105)
    file.close()


def test_spooled_goes_with_its_object(folder):
    path = Path(spool_text(["a"], folder).path)
    assert not path.exists()


def test_spooled_of_a_killed_process_is_removed_by_the_next_user(folder):
    with spool_text(["a"], folder) as file:
        left = Path(file.path).with_name(f"{0:032x}.spool")
        left.write_bytes(b"without a lock")
        with spool_text(["b"], folder):
            assert Path(file.path).exists()
            assert not left.exists()
