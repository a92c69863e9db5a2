"""Sizes of result files, known when the survey is: what is told, and what is refused."""

import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from snailps.config import RawConfig
from snailps.config.output import check_room, sizes_text
from snailps.data._text import WordCounter
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.master.job.beginning import check_files
from snailps.master.job.job import Job
from snailps.models.classifier import Classifier, ClassifierSettings
from snailps.models.ngram_rows import pack_vocabulary, surveyed
from snailps.models.word_vectors import WordVectors, WordVectorSettings
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.saving import write_npz
from snailps.vectors.text_files import write_vec

GB = 10**9


def vocabulary(n):
    words = PackedWords.of([b"word%d" % number for number in range(n)])
    return Vocabulary(words, np.arange(n, 0, -1), n * n)


def written(path):
    return path.stat().st_size


@pytest.mark.parametrize("dim", [1, 20])
def test_sizes_of_bin_and_npz_are_those_of_the_files(tmp_path, dim):
    known = vocabulary(300)
    s = WordVectorSettings(dim=dim, output=str(tmp_path / "out"), formats=("npz", "bin"))
    summary = pack_vocabulary(s, known)
    sizes = WordVectors.file_sizes(s, summary)
    assert list(sizes) == [f"{tmp_path}/out.npz", f"{tmp_path}/out.bin"]
    rows = np.zeros((300, dim), np.float32)
    write_npz(tmp_path / "out.npz", known.words, [rows], dim, counts=known.counts)
    header = BinHeader(dim=dim, bucket=surveyed(s, summary)[0].bucket, minn=3, maxn=6)
    inputs = np.zeros((300 + header.bucket, dim), np.float32)
    write_bin(tmp_path / "out.bin", header, known.words, known.counts, [inputs], [rows])
    assert sizes[f"{tmp_path}/out.bin"] == written(tmp_path / "out.bin")
    assert sizes[f"{tmp_path}/out.npz"] == written(tmp_path / "out.npz")


@pytest.mark.parametrize("dim", [10, 100, 300])
@pytest.mark.parametrize("length", [2.0, 2.4, 3.2])  # as trained ones have
def test_size_of_vec_is_within_five_percent(tmp_path, dim, length):
    known = vocabulary(200)
    rng = np.random.default_rng(1)
    rows = rng.normal(0, length / dim**0.5, (200, dim)).astype(np.float32)
    write_vec(tmp_path / "out.vec", known.words, [rows], dim)
    s = WordVectorSettings(dim=dim, output=str(tmp_path / "out"), formats=("vec",), minn=0, maxn=0)
    (size,) = WordVectors.file_sizes(s, pack_vocabulary(s, known)).values()
    assert size == pytest.approx(written(tmp_path / "out.vec"), rel=0.05)


@pytest.mark.parametrize("ngrams", [1, 2])
def test_size_of_a_classifier_is_that_of_its_file(tmp_path, ngrams):
    counter = WordCounter()
    counter.count(b"__label__a one two three\n__label__b four five\n")
    s = ClassifierSettings(dim=5, word_ngrams=ngrams, output=str(tmp_path / "out"))
    (size,) = Classifier.file_sizes(s, Classifier.summarize(s, counter)).values()
    words, labels = [b"w"] * 6, [b"__label__a", b"__label__b"]
    words = [b"one", b"two", b"three", b"four", b"five", b"</s>"]
    bucket = surveyed(s, Classifier.summarize(s, counter))[0].buckets
    header = BinHeader(dim=5, bucket=bucket, word_ngrams=ngrams, model="supervised", loss="softmax")
    rows = [np.zeros((n, 5), np.float32) for n in (6 + bucket, 2)]
    write_bin(
        tmp_path / "out.bin", header, words, [1] * 6, rows[:1], rows[1:], labels, [1, 1]
    )  # fmt: skip
    assert size == written(tmp_path / "out.bin")


@pytest.mark.parametrize("ngrams", [1, 2])
def test_large_classifier_says_before_training_what_makes_it_smaller(tmp_path, caplog, ngrams):
    counter = WordCounter()
    rng = np.random.default_rng(1)
    texts = rng.integers(97, 123, (30_000, 8), np.uint8)
    counter.count(b"__label__a\n" + b"\n".join(row.tobytes() for row in texts) + b"\n")
    s = ClassifierSettings(maxn=4, word_ngrams=ngrams, output=str(tmp_path / "out"))
    s = s.decided(small=True)
    summary = Classifier.summarize(s, counter)
    (line,) = [one.getMessage() for one in caplog.records if "MB" in one.getMessage()]
    ways = dict(re.findall(r"([\d,]+) MB with (\w+=\d+)", line))
    ways = {name: int(size.replace(",", "")) for size, name in ways.items()}
    assert list(ways) == [f"bucket={rows_of(summary) // 10}", "dim=25", *["maxn=0"] * (ngrams == 1)]
    for way, told in ways.items():
        name, value = way.split("=")
        smaller = replace(s, **{name: int(value)}, **({"minn": 0} if name == "maxn" else {}))
        (size,) = Classifier.file_sizes(smaller, Classifier.summarize(smaller, counter)).values()
        assert told == pytest.approx(size / 1e6, abs=1)
    caplog.clear()
    for quiet in (replace(s, bucket=1_000_000), replace(s, dim=5), replace(s, output="")):
        Classifier.summarize(quiet, counter)
    assert not [one for one in caplog.records if "MB" in one.getMessage()]


def rows_of(summary):
    return surveyed(ClassifierSettings(), summary)[0].bucket


# --- the disk -------------------------------------------------------------------------------------


@pytest.fixture
def free(monkeypatch):
    """Sets how much room the disk has."""

    def set_free(size):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))

    return set_free


def test_files_with_room_are_accepted_and_without_it_refused_with_both_numbers(tmp_path, free):
    sizes = {f"{tmp_path}/x.bin": 3 * GB, f"{tmp_path}/x.vec": GB}
    free(4 * GB)
    check_room(sizes)
    free(4 * GB - 1)
    expected = (
        rf"output: {tmp_path}/x.bin \(3,000.0 MB\) and {tmp_path}/x.vec \(1,000.0 MB\) need "
        rf"4,000.0 MB, and the disk of {tmp_path} has 4,000.0 MB free: make room"
    )
    with pytest.raises(ConfigError, match=expected):
        check_room(sizes)
    check_room({})


def test_file_that_is_replaced_makes_room_only_when_the_new_one_is_complete(tmp_path, free):
    (tmp_path / "x.bin").write_bytes(bytes(1000))
    sizes = {f"{tmp_path}/x.bin": 1000, f"{tmp_path}/x.vec": 600}
    free(1000)  # the new .bin, then in the place of the old one the .vec
    check_room(sizes)
    free(999)
    with pytest.raises(ConfigError, match=r"need 0\.0 MB"):
        check_room(sizes)


def test_job_tells_its_files_when_it_is_surveyed_or_is_refused(tmp_path, free):
    given = {"worker_class": "snailps.models.word_vectors:WordVectors", "formats": "vec, bin"}
    job = Job(RawConfig.from_mapping({**given, "output": str(tmp_path / "x")}, "here"))
    summary = pack_vocabulary(WordVectorSettings(), vocabulary(300))
    free(GB)
    assert check_files(job, summary).startswith(f"{tmp_path}/x.vec (0.3 MB) and {tmp_path}/x.bin (")
    free(1000)
    with pytest.raises(ConfigError, match="MB free: make room"):
        check_files(job, summary)
    assert check_files(Job(RawConfig.from_mapping(given, "here")), summary) == ""


def test_text_of_sizes_is_a_list():
    assert sizes_text({"a.bin": 107_100_000}) == "a.bin (107.1 MB)"
    three = {"a": 10**6, "b": 2 * 10**6, "c": 0}
    assert sizes_text(three) == "a (1.0 MB), b (2.0 MB) and c (0.0 MB)"
