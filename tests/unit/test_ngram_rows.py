"""How many rows n-grams have where `bucket` is `auto`, and where the number is from then on."""

import logging

import numpy as np
import pytest

from snailps.config import JobSettings, RawConfig, to_mapping
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, DataError, ParameterError
from snailps.estimators import FastText, TextClassifier
from snailps.master.job.settings import job_settings
from snailps.models import ngram_rows
from snailps.models.classifier import Classifier, ClassifierSettings
from snailps.models.ngram_rows import (
    ROWS_MAX,
    chosen,
    distinct_ngrams,
    pack_vocabulary,
    rows_for,
    surveyed,
    unpack_vocabulary,
    with_rows,
)
from snailps.models.word_vectors import WordVectors, WordVectorSettings
from snailps.models.word_vectors.warm_start import adopt
from snailps.vectors.fasttext_bin import BinHeader, write_bin

WORDS = [b"cat", b"cats", b"dog", b"</s>"]
AUTO = WordVectorSettings(minn=3, maxn=4)


def counted(text):
    counter = WordCounter()
    counter.count(text)
    return counter


def vocabulary_of(text):
    return Vocabulary.from_counter(counted(text), 1)


def ngrams_of(words, minn, maxn):
    """The n-grams as text."""
    whole = [f"<{word.decode()}>" for word in words if word != b"</s>"]
    found = {
        word[at : at + n]
        for word in whole
        for n in range(minn, maxn + 1)
        for at in range(len(word) - n + 1)
    }
    return found - {"<", ">"}


# --- the number -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("minn", "maxn"), [(3, 6), (1, 2), (2, 2), (9, 12)])
def test_distinct_ngrams_are_as_many_as_there_are_texts_of_them(minn, maxn):
    words = [*WORDS, *(f"wörd{n}".encode() for n in range(200))]
    expected = len(ngrams_of(words, minn, maxn))
    assert distinct_ngrams(words, minn, maxn, 10_000) == expected


def test_distinct_ngrams_of_words_in_several_pieces_are_the_same(monkeypatch):
    words = [f"word{n}".encode() for n in range(100)]
    at_once = distinct_ngrams(words, 3, 6, 10_000)
    monkeypatch.setattr(ngram_rows, "WORDS_AT_ONCE", 7)
    assert distinct_ngrams(words, 3, 6, 10_000) == at_once
    assert distinct_ngrams(words, 3, 6, at_once - 1) == at_once - 1
    assert distinct_ngrams([], 3, 6, 5) == 0


@pytest.mark.parametrize(
    ("ngrams", "places", "rows"),
    [
        (0, 0, 1), (1, 0, 4), (24, 0, 96), (25, 0, 100), (26, 0, 110), (60_315, 0, 250_000),
        (499_000, 0, 2_000_000), (500_001, 0, ROWS_MAX), (10**9, 0, ROWS_MAX),
        (0, 567_827, 570_000), (1000, 1000, 5000), (0, 10**12, ROWS_MAX),
    ],
)  # fmt: skip
def test_rows_are_four_for_an_ngram_rounded_up_to_two_digits(ngrams, places, rows):
    assert rows_for(ngrams, places) == rows


def test_number_that_is_chosen_is_logged_and_one_of_the_user_stays(caplog):
    caplog.set_level(logging.INFO)
    ngrams = len(ngrams_of(WORDS, 3, 4))
    assert chosen(AUTO, WORDS) == 4 * ngrams
    assert f"bucket: auto: {4 * ngrams} rows for {ngrams} n-grams" in caplog.text
    assert chosen(WordVectorSettings(bucket=77), WORDS) == 77


# --- in a summary ---------------------------------------------------------------------------------


def test_summary_tells_the_number_and_settings_of_the_user_go_before_it():
    summary = with_rows(b"rest", 1234)
    assert surveyed(AUTO, summary)[0].bucket == 1234
    assert surveyed(AUTO, summary)[1] == b"rest"
    assert surveyed(WordVectorSettings(bucket=9), summary)[0].bucket == 9


def test_summary_that_tells_none_is_of_two_million_as_before():
    assert with_rows(b"rest", ROWS_MAX) == b"rest"
    assert surveyed(AUTO, b"rest") == (WordVectorSettings(minn=3, maxn=4, bucket=ROWS_MAX), b"rest")


def test_vocabulary_comes_back_with_its_number():
    vocabulary = vocabulary_of(b"a cat and a dog\n")
    s, found = unpack_vocabulary(AUTO, pack_vocabulary(AUTO, vocabulary))
    assert found.words == vocabulary.words
    assert s.bucket == 4 * len(ngrams_of(vocabulary.words, 3, 4))
    plain = WordVectorSettings(minn=0, maxn=0)
    assert pack_vocabulary(plain, vocabulary) == vocabulary.to_bytes()


def test_settings_of_a_job_stay_auto_so_that_the_same_job_is_known_again():
    raw = RawConfig.from_mapping(to_mapping(AUTO), "here")
    assert to_mapping(AUTO)["bucket"] == "auto"
    assert raw.build(WordVectorSettings) == AUTO


# --- models ---------------------------------------------------------------------------------------


def test_all_who_have_the_summary_have_the_same_number():
    counter = counted(b"the cat sat on the mat\n" * 500)
    settings = WordVectorSettings(min_count=1)
    summary = WordVectors.summarize(settings, counter)
    rows = surveyed(settings, summary)[0].bucket
    assert rows < 1000
    model = WordVectors(settings)
    model.summary = summary
    model.setup()
    assert model.settings.bucket == rows
    fixed = WordVectorSettings(min_count=1, bucket=rows)
    for workers in (1, 4):
        assert WordVectors.rotation(settings, 11_500, workers, summary) == WordVectors.rotation(
            fixed, 11_500, workers, summary
        )
    small = {"min_count": 1, "worker_memory": 1 << 20}
    assert WordVectors.fit_block(
        WordVectorSettings(**small), 9000, 11_500, summary
    ) == WordVectors.fit_block(WordVectorSettings(**small, bucket=rows), 9000, 11_500, summary)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"word_ngrams": 2}, 60),  # 3 + 4 words, 4 with their labels, </s>
        ({"word_ngrams": 3}, 120),
        ({"word_ngrams": 2, "bucket": 50}, 50),
        ({}, 0),
    ],
)
def test_classifier_has_a_row_for_each_place_of_an_ngram_of_words(given, rows):
    text = b"__label__a one two three\n__label__b four five six\n" * 6
    settings = ClassifierSettings(**given)
    summary = Classifier.summarize(settings, counted(text))
    model = Classifier(settings)
    model.summary = summary
    model.setup()
    assert model.settings.buckets == rows
    assert model._words == 7


@pytest.fixture
def seven(tmp_path):
    """A file of a model with seven rows of n-grams."""
    zeros = np.zeros((8, 3), np.float32)
    header = BinHeader(dim=3, bucket=7, minn=2, maxn=4)
    write_bin(tmp_path / "m.bin", header, [b"a"], [1], [zeros], [zeros[:1]])
    return tmp_path / "m.bin"


@pytest.mark.parametrize("explicit", [{}, {"bucket": "auto"}])
def test_model_that_training_goes_on_from_decides(seven, explicit):
    given = {"continue_from": str(seven), **explicit}
    found = job_settings(WordVectors, RawConfig.from_mapping(given, "here"))
    assert found.bucket == 7
    assert adopt(found, lambda name: None).bucket == 7


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "-1", "1073741825", "all", "automatic", "1.5"])
def test_bucket_that_is_neither_auto_nor_a_number_of_rows_is_refused(text):
    raw = RawConfig.from_mapping({"bucket": text}, "job.conf")
    expected = r"bucket: expected auto, or a whole number \(rows\) from 1 to 1073741824; got"
    with pytest.raises(ConfigError, match=expected):
        raw.build(WordVectorSettings)


@pytest.mark.parametrize("text", ["auto", "AUTO", '"auto"'])
def test_auto_is_a_value_of_settings_that_have_it_and_of_no_other(text):
    raw = RawConfig.from_mapping({"bucket": text}, "job.conf")
    assert raw.build(WordVectorSettings).bucket == ngram_rows.AUTO
    with pytest.raises(ConfigError, match="epochs: expected a whole number"):
        RawConfig.from_mapping({"epochs": text}, "job.conf").build(JobSettings)


def settings_of(model):
    """What a job of an estimator is given."""
    return model.parameters.settings(model.get_params(), type(model).__name__)


@pytest.mark.parametrize("cls", [FastText, TextClassifier])
def test_estimator_shows_auto_and_takes_it_or_a_number(cls):
    assert cls().get_params()["bucket"] == "auto"
    assert repr(cls(bucket="auto")) == f"{cls.__name__}()"
    assert "bucket" not in settings_of(cls(bucket="auto"))
    assert settings_of(cls(bucket=500))["bucket"] == 500
    assert settings_of(cls(bucket=np.int64(500)))["bucket"] == 500
    assert cls(bucket=500).__sklearn_clone__().bucket == 500
    assert "bucket" not in settings_of(cls(bucket=None))
    for wrong in (0, "many", 1.5, True):
        with pytest.raises(ParameterError, match="bucket: expected auto, or a whole number"):
            settings_of(cls(bucket=wrong))


def test_estimator_of_a_file_has_its_number(seven):
    assert FastText.load(seven).bucket == 7
    model = FastText.load(seven).set_params(bucket="auto")
    with pytest.raises(DataError, match="empty"):  # it gets as far as the data
        model.partial_fit([])
    with pytest.raises(ParameterError, match="bucket: the fitted model has 7, got 8"):
        model.set_params(bucket=8).partial_fit([])
