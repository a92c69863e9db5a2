"""Training on from a model and from vectors: which rows move, which stay, what is refused."""

import gzip
from dataclasses import replace
from itertools import pairwise

import floret_models
import numpy as np
import pytest
from shards import Shards

from snailps.api.export_progress import ExportProgress
from snailps.api.tables import Table
from snailps.api.worker import Results
from snailps.config import RawConfig
from snailps.data._text import WordCounter
from snailps.data.huffman import Tree
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, MisuseError, ModelFileError
from snailps.estimators import FastText
from snailps.master.job.settings import job_settings
from snailps.models.classifier import Classifier
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import WordVectors, WordVectorSettings
from snailps.models.word_vectors.warm_start import count_on, put_vectors, put_words
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.query import Vectors
from snailps.vectors.text_files import write_vec

# --- settings ---------------------------------------------------------------------------------


def settings_of(cls=WordVectors, /, **given):
    """Settings of a job whose text says `given`."""
    given = {key: str(value) for key, value in given.items()}
    return job_settings(cls, RawConfig.from_mapping(given, "job.conf: {key}"))


def write_model(path, n=2, **header):
    """A .bin of our writing, all zeros."""
    header = BinHeader(**{"dim": 3, **header})
    rows = np.zeros((n + header.bucket, header.dim), np.float32)
    words, counts = [b"w%d" % at for at in range(n)], [1] * n
    labels = (words, counts) if header.model == "supervised" else ()
    write_bin(path, header, words, counts, [rows], [rows[:n]], *labels)
    return path


def test_settings_that_nobody_made_are_those_of_the_file(tmp_path):
    path = write_model(tmp_path / "m", bucket=7, minn=2, maxn=4, model="cbow")
    found = settings_of(continue_from=path, bucket=7)
    assert (found.dim, found.model, found.bucket, found.minn, found.maxn) == (3, "cbow", 7, 2, 4)
    assert settings_of(continue_from=path, lr=1).lr == 1


def test_window_negatives_sample_and_least_count_are_the_files_unless_they_are_given(tmp_path):
    header = {"window": 2, "negatives": 9, "sample": 0.01, "min_count": 1}
    path = write_model(tmp_path / "m", **header)
    found = settings_of(continue_from=path)
    assert {name: getattr(found, name) for name in header} == header
    found = settings_of(continue_from=path, window=5, min_count=3)
    assert (found.window, found.negatives, found.min_count) == (5, 9, 3)
    path = write_model(tmp_path / "odd", window=0, min_count=0)  # what no setting may be
    assert settings_of(continue_from=path).window == WordVectorSettings().window


def test_model_of_floret_cannot_be_continued(tmp_path):
    floret_models.write("two", tmp_path / "m")
    with pytest.raises(ModelFileError, match="floret's own mode, whose words are sums of 2 hashed"):
        settings_of(continue_from=tmp_path / "m")
    with pytest.raises(ModelFileError, match="cannot train on with it"):
        FastText.load(tmp_path / "m")
    floret_models.write("fasttext", tmp_path / "m")
    assert settings_of(continue_from=tmp_path / "m").bucket == 9


@pytest.mark.parametrize(
    "header", [{}, {"bucket": 9}, {"maxn": 0, "minn": 3}, {"bucket": 9, "minn": 4, "maxn": 3}]
)
def test_settings_of_a_file_without_subwords_have_none(tmp_path, header):
    path = write_model(tmp_path / "m", **header)
    found = settings_of(continue_from=path)
    assert found.maxn == 0
    assert found.bucket == WordVectorSettings().bucket


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 4), ("model", "cbow"), ("minn", 2), ("maxn", 5), ("bucket", 9)]
)
def test_setting_against_the_file_names_both_and_their_places(tmp_path, name, value):
    path = write_model(tmp_path / "m", bucket=7, minn=3, maxn=6)
    with pytest.raises(ConfigError, match=rf"^job.conf: {name}: {name}: expected .*/m, .*{value}"):
        settings_of(continue_from=path, **{name: value})


def test_normal_form_is_the_files_and_no_other(tmp_path):
    plain = write_model(tmp_path / "plain")
    assert settings_of(continue_from=write_model(tmp_path / "m", normalize="lower")).normalize == (
        "lower"
    )
    for path, parts, expected in ((tmp_path / "m", "nfc", "lower"), (plain, "nfc", "nothing")):
        with pytest.raises(ConfigError, match=rf"normalize: expected {expected}, as in .*got nfc"):
            settings_of(continue_from=path, normalize=parts)


@pytest.mark.parametrize("model", [WordVectors, Classifier])
def test_setting_against_the_dimension_of_vectors_is_refused(tmp_path, model):
    write_vec(tmp_path / "v", [b"a"], [np.zeros((1, 8), np.float32)], 8)
    assert settings_of(model, pretrained=tmp_path / "v").dim == 8
    with pytest.raises(ConfigError, match=r"dim: expected 8.*got 9"):
        settings_of(model, pretrained=tmp_path / "v", dim=9)
    path = write_model(tmp_path / "m")
    with pytest.raises(ConfigError, match="pretrained: expected nothing with continue_from"):
        settings_of(model, pretrained=tmp_path / "v", continue_from=path)


@pytest.mark.parametrize(
    "header", [{"model": "supervised", "loss": "softmax"}, {"loss": "softmax"}]
)
def test_model_whose_output_rows_are_no_words_is_refused(tmp_path, header):
    path = write_model(tmp_path / "m", **header)
    with pytest.raises(ConfigError, match="expected word vectors trained with negative sampling"):
        settings_of(continue_from=path)


def test_a_tree_is_continued_by_a_tree_and_negatives_by_negatives(tmp_path):
    tree, negatives = write_model(tmp_path / "t", loss="hs"), write_model(tmp_path / "n")
    assert settings_of(continue_from=tree).loss == "hs"
    assert settings_of(continue_from=negatives, loss="nce").loss == "nce"
    for path, loss, expected in ((tree, "ns", "hs"), (negatives, "hs", "ns")):
        with pytest.raises(ConfigError, match=f"loss: expected {expected}"):
            settings_of(continue_from=path, loss=loss)


@pytest.mark.parametrize("name", ["continue_from", "pretrained"])
@pytest.mark.parametrize("content", [None, b"", b"no such format at all", b"x" * 100])
def test_file_that_is_none_is_refused_before_anything_starts(tmp_path, name, content):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match="file: "):
        settings_of(**{name: path})


# --- putting rows -----------------------------------------------------------------------------


@pytest.fixture
def results():
    """Two tables on a shard, as the master sees them."""
    with Shards() as shards:
        tables = [Table("input", 4, init="uniform", scale=0.25, seed=9), Table("output", 4)]
        for number, table in enumerate(tables, 1):
            _, dim, access, *init = (number, *table.store_arguments())
            shards.add_table(number, dim, access, *init[:3])
        numbers = {table.name: number for number, table in enumerate(tables, 1)}
        by_name = {table.name: table for table in tables}
        client = shards.client()
        yield Results(WordVectorSettings(dim=4), b"", {}, client, numbers, by_name, shards.frag_num)


@pytest.mark.parametrize("table", ["input", "output"])
def test_put_makes_rows_exactly_what_they_should_be(results, table):
    random = np.random.default_rng(4)
    rows = random.normal(size=(500, 4)).astype(np.float32) * np.float32(10.0) ** random.integers(
        -30, 30, (500, 1)
    ).astype(np.float32)
    rows[::50] = 0
    keys = np.arange(500, dtype=np.uint64) + np.uint64(BUCKET_KEY)
    before = results.pull(table, keys + np.uint64(500))
    for wanted in (rows, rows[::-1].copy(), rows):
        results.put(table, keys, wanted)
        np.testing.assert_array_equal(results.pull(table, keys), wanted)
    np.testing.assert_array_equal(results.pull(table, keys + np.uint64(500)), before)


def test_puts_of_many_pieces_make_each_row_what_it_should_be(results):
    rows = np.random.default_rng(4).normal(size=(700, 4)).astype(np.float32)
    cuts = [0, 1, 100, 101, 400, 699, 700]
    pieces = [(np.arange(a, b), rows[a:b]) for a, b in pairwise(cuts)]
    results.puts("input", iter(pieces[::-1]))
    np.testing.assert_array_equal(results.pull("input", range(700)), rows)
    results.puts("input", [])


def test_rows_and_vectors_that_are_read_tell_how_far_they_are(results, tmp_path, monkeypatch):
    """The shares that a status would show while pieces are read, and at the end."""
    vocabulary = Vocabulary([b"w0", b"w1"], np.array([2, 1]), 3)
    results.summary, seen = vocabulary.to_bytes(), []
    counts = ExportProgress.add
    monkeypatch.setattr(
        ExportProgress, "add", lambda self, n: (counts(self, n), seen.append(self.share))
    )
    path = write_model(tmp_path / "m", dim=4, bucket=4, minn=3, maxn=4)
    results.settings = WordVectorSettings(dim=4, continue_from=str(path), bucket=4, minn=3, maxn=4)
    put_words(results)
    assert seen == [0.25, 0.5, 1.0]  # 2 + 2 + 4 rows
    assert results.exporting.text == f"reading {path}, 4 of 4 rows"
    write_vec(tmp_path / "v", [b"w1", b"other"], [np.ones((2, 4), np.float32)], 4)
    results.settings = WordVectorSettings(dim=4, pretrained=str(tmp_path / "v"), minn=0, maxn=0)
    put_vectors(results)
    assert seen[3:] == [1.0]
    assert results.exporting.text == f"reading {tmp_path / 'v'}, 2 of 2 words"


def test_words_of_a_tree_that_has_grown_keep_their_rows_and_nodes_choose_as_before(
    results, tmp_path
):
    """The text makes w1 more frequent than w0, and has a new word."""
    words, counts = [b"w0", b"w1", b"w2"], np.array([4, 2, 1])
    inputs, nodes = (
        np.random.default_rng(at).normal(size=(3, 4)).astype(np.float32) for at in range(2)
    )
    header = BinHeader(dim=4, loss="hs", min_count=1)
    write_bin(tmp_path / "m.bin", header, words, counts, [inputs], [nodes])
    s = WordVectorSettings(
        dim=4, loss="hs", continue_from=str(tmp_path / "m.bin"), minn=0, maxn=0, min_count=1
    )
    counter = WordCounter()
    counter.count(b"w1 w1 w1 new new w1\n")
    vocabulary = count_on(s, counter)
    assert list(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)) == [
        (b"w1", 6), (b"w0", 4), (b"new", 2), (b"</s>", 1), (b"w2", 1),
    ]  # fmt: skip
    results.summary, results.settings = vocabulary.to_bytes(), s
    put_words(results)
    np.testing.assert_array_equal(results.pull("input", [1, 0, 4]), inputs)
    # Right: w1; left: w0 on the right of the others.  Before: w0 on the right of w1 and w2.
    before = Tree.of(counts).regrown(nodes[:2], Tree.of(vocabulary.counts), np.array([1, 0, 4]))
    np.testing.assert_array_equal(results.pull("output", range(4)), before)
    assert before.any(1).tolist() == [False, False, True, True]


@pytest.mark.parametrize("name", ["v.vec", "v.vec.gz", "v.npz", "v.bin"])
def test_vectors_of_any_format_become_the_rows_of_words_of_the_text(results, tmp_path, name):
    words, rows = [b"other", b"w1", b"w0"], np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / name
    if name.endswith("bin"):
        write_bin(path, BinHeader(dim=4), words, [1] * 3, [rows], [rows])
    elif name.endswith("gz"):
        Vectors(words, rows).save(tmp_path / "v.vec")
        path.write_bytes(gzip.compress((tmp_path / "v.vec").read_bytes()))
    else:
        Vectors(words, rows).save(path)
    assert settings_of(pretrained=path).dim == 4
    vocabulary = Vocabulary([b"w0", b"rare", b"w1"], np.array([3, 2, 1]), 6)
    results.summary = vocabulary.to_bytes()
    results.settings = WordVectorSettings(dim=4, pretrained=str(path), minn=0, maxn=0)
    before = results.pull("input", [1, 3])
    put_vectors(results)
    np.testing.assert_array_equal(results.pull("input", [0, 2]), rows[[2, 1]])
    np.testing.assert_array_equal(results.pull("input", [1, 3]), before)


def test_vectors_of_words_in_another_form_start_the_words_of_the_text(results, tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_vec(tmp_path / "v", [b"W1", b"other", b"w1"], [rows], 4)
    results.summary = Vocabulary([b"w0", b"w1"], np.array([3, 2]), 5).to_bytes()
    results.settings = WordVectorSettings(
        dim=4, pretrained=str(tmp_path / "v"), minn=0, maxn=0, normalize="lower"
    )
    put_vectors(results)
    np.testing.assert_array_equal(results.pull("input", [1])[0], rows[0])


def test_vectors_that_are_no_numbers_are_refused(results, tmp_path):
    (tmp_path / "v").write_text("2 4\nother nan 1 1 1\nw0 1 inf 1 1\n")
    results.summary = Vocabulary([b"w0"], np.array([3]), 3).to_bytes()
    results.settings = WordVectorSettings(dim=4, pretrained=str(tmp_path / "v"), minn=0, maxn=0)
    with pytest.raises(ModelFileError, match="v: holds values that are no numbers"):
        put_vectors(results)


def test_put_into_a_table_that_does_not_add_or_of_another_width_is_misuse(results):
    keys, rows = np.arange(2, dtype=np.uint64), np.zeros((2, 4), np.float32)
    with pytest.raises(MisuseError, match="4 values"):
        results.put("input", keys, rows[:, :3])
    results.tables["input"] = replace(results.tables["input"], access="sgd", lr=0.1)
    with pytest.raises(MisuseError, match="needs access 'add'"):
        results.put("input", keys, rows)


@pytest.mark.parametrize("prefix", [0, 2])
def test_continued_classifier_has_the_prefix_of_labels_that_its_file_says(tmp_path, prefix):
    from snailps.models.classifier.model import Classifier
    from snailps.models.classifier.settings import ClassifierSettings

    path, row = tmp_path / "m.bin", np.ones((1, 2), np.float32)
    header = BinHeader(dim=2, model="supervised", loss="softmax", prefix=prefix)
    write_bin(path, header, [b"up"], [1], [row], [row], [b"T_a"], [1])
    settings = ClassifierSettings(continue_from=str(path))
    adopted = Classifier.adopt(settings, lambda name: None)
    assert adopted.label == ("T_" if prefix else "__label__")
    explicit = {"label": "--label"}.get
    assert Classifier.adopt(replace(settings, label="x"), explicit).label == "x"
