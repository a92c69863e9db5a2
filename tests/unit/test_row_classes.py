"""Rows that the same words have are one: which they are, and that the model is the same."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from connected import connected, results_of, train
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from snailps import kernels
from snailps.data._subwords import assign_bags, number_bags, sign_bags, subwords_csr, sum_bags
from snailps.data.vocabulary import Vocabulary
from snailps.models import text_model
from snailps.models.ngram_rows import pack_vocabulary, unpack_vocabulary
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import (
    WordVectors,
    WordVectorSettings,
    row_classes,
    word_rows,
)
from snailps.models.word_vectors.block_size import rows_of_block
from snailps.models.word_vectors.examples import bags_of
from snailps.models.word_vectors.export import write_files
from snailps.models.word_vectors.plan import chunks_that_fit, keeps_all_rows
from snailps.models.word_vectors.row_classes import (
    BUCKETS_MAX,
    classes_in,
    classes_of,
    gram_rows,
)
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.text_files import read_vec

pytestmark = pytest.mark.usefixtures("float32_products")

SETTINGS = WordVectorSettings(dim=8, minn=2, maxn=4, bucket=500)
WORDS = [b"</s>", b"the", b"banana", b"cat", b"catalogue", b"\xc3\xbcber", b"dogcat", b"dogs"]


def vocabulary_of(words):
    return Vocabulary(words, np.ones(len(words), np.int64), len(words))


def keys_of_rows(words, settings):
    """For each key, how often each word has it."""
    ptr, ids = subwords_csr(words, settings.minn, settings.maxn, settings.bucket)
    found = {}
    for word in range(len(words)):
        for row, times in Counter(ids[ptr[word] : ptr[word + 1]].tolist()).items():
            key = row if row < len(words) else BUCKET_KEY + row - len(words)
            found.setdefault(key, {})[word] = times
    return found


@limits(deadline=None, max_examples=50)
@given(
    words=st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=12, unique=True),
    bucket=st.sampled_from([1, 7, 50, 2000]),
    apart=st.sampled_from([1, 3, 100]),
)
def test_a_row_stands_for_those_that_the_same_words_have_as_often(words, bucket, apart):
    words = [word.encode() for word in words]
    settings = replace(SETTINGS, bucket=bucket)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_classes, "WORDS_AT_ONCE", apart)
        classes = classes_of(settings, vocabulary_of(words))
    of_rows = keys_of_rows(words, settings)
    leaders = dict(zip(range(len(words)), range(len(words)), strict=True))
    leaders |= {BUCKET_KEY + at: int(key) for at, key in enumerate(classes.keys(0, bucket))}
    for key, leader in leaders.items():
        assert leader <= key
        if key not in of_rows:
            assert leader == key  # of no word: its first value stays
    for one, of_one in of_rows.items():
        for other, of_other in of_rows.items():
            assert (leaders[one] == leaders[other]) == (of_one == of_other)
    ptr, rows, weights, keys = bags_of(
        settings, classes, words, np.arange(len(words), dtype=np.uint64)
    )
    sizes = Counter(leaders[key] for key in of_rows)
    assert sorted(keys.tolist()) == sorted({leaders[key] for key in of_rows})
    for word in range(len(words)):
        own = rows[ptr[word] : ptr[word + 1]]
        times = Counter(keys[own].tolist())
        assert times == {key: of_rows[key][word] for key in times}
        assert weights[ptr[word] : ptr[word + 1]].tolist() == [sizes[int(key)] for key in keys[own]]


def test_bags_of_some_words_have_the_classes_of_all():
    classes = classes_of(SETTINGS, vocabulary_of(WORDS))
    some = np.array([3, 6], np.uint64)
    _, _, weights, keys = bags_of(SETTINGS, classes, [WORDS[3], WORDS[6]], some)
    assert keys[:2].tolist() == [3, 6]
    assert weights.max() > 1
    alone = classes_of(SETTINGS, vocabulary_of([WORDS[3], WORDS[6]]))
    assert len(keys) > np.count_nonzero(
        alone.roles > 0
    )  # "catalogue" has some of the rows of "cat"


@pytest.mark.parametrize(
    "changed", [{"maxn": 0}, {"continue_from": "a.bin"}, {"bucket": BUCKETS_MAX + 1}]
)
def test_rows_that_do_not_start_alike_stand_for_themselves(changed):
    assert classes_of(replace(SETTINGS, **changed), vocabulary_of(WORDS)) is None


def test_classes_in_a_summary_are_those_of_its_vocabulary_and_found_once():
    settings, words = replace(SETTINGS, bucket=0), vocabulary_of(WORDS)  # auto: the summary has it
    summary = pack_vocabulary(settings, words)
    found = classes_in(settings, summary)
    chosen, _ = unpack_vocabulary(settings, summary)
    assert found.roles.tolist() == classes_of(chosen, words).roles.tolist()
    assert classes_in(settings, bytes(summary)) is found
    assert classes_in(replace(settings, maxn=3), summary) is not found


def test_a_vocabulary_without_words_has_no_classes():
    classes = classes_of(SETTINGS, vocabulary_of([]))
    assert not classes.roles.any()
    assert classes.keys(0, 500).tolist() == list(range(BUCKET_KEY, BUCKET_KEY + 500))


def test_signs_of_words_that_do_not_fit_are_refused():
    ptr, ids = subwords_csr(WORDS, 2, 4, 500)
    for first, words, signs in [(1, 8, 508), (-1, 9, 509), (0, 8, 7)]:
        with pytest.raises(ValueError, match="expected words"):
            sign_bags(ptr, ids, first, words, np.zeros(signs, np.uint64))


@pytest.mark.parametrize(
    ("ptr", "ids"),
    [
        ([0, 1, 3], [0, 2, 6]),
        ([0, 1, 3], [0, 2, -1]),
        ([0, 3, 1], [0, 1, 2]),
        ([0, 1, 9], [0, 1, 2]),
    ],
)
def test_bags_of_rows_that_are_not_there_are_refused(ptr, ids):
    bags = np.array(ptr), np.array(ids, np.int32)
    with pytest.raises(ValueError, match="expected bags of rows from 0 to 4"):
        sign_bags(*bags, 0, 2, np.zeros(5, np.uint64))
    with pytest.raises(ValueError, match="expected bags of rows from 2 to 4"):
        number_bags(*bags, np.zeros(3, np.int32), 0)
    with pytest.raises(ValueError, match="expected bags of rows from 0 to 1"):
        sum_bags(*bags, np.ones(2), np.zeros((2, 2)))
    has, load = np.zeros((2, 1), np.uint64), np.zeros(2)
    with pytest.raises(ValueError, match="expected bags of rows from 0 to 1"):
        assign_bags(
            *bags, np.ones(2), np.ones(2, np.float32), has, load, np.ones(2), np.zeros(2, np.int32)
        )


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_a_file_has_every_row_though_servers_have_one_of_a_class(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(text_model, "EXPORT_ROWS", 37)
    settings = replace(SETTINGS, model=kind, sample=1.0, output=str(tmp_path / "out"), epochs=1)
    words = vocabulary_of([*WORDS, *(b"word%d" % at for at in range(30))])
    summary = words.to_bytes()
    with connected(WordVectors) as make:
        model = make(settings, summary=summary)
        for number in range(4):
            train(model, b" ".join(words.words[1:]) * 20, number)
        model.finish()
        results = results_of(model, summary)
        write_files(results)
        stored = len(np.concatenate([keys for keys, _ in results.scan("input")]))
    saved = read_bin(tmp_path / "out.bin")
    ptr, ids = subwords_csr(words.words, 2, 4, 500)
    # All but that of `</s>`, which is not in the text.
    assert stored == np.count_nonzero(classes_of(settings, words).roles > 0) - 1
    assert stored < 0.7 * len(np.unique(ids))
    rows = np.array(saved.input[:])
    sums = np.add.reduceat(rows[ids], ptr[:-1])
    _, vectors = next(iter(read_vec(tmp_path / "out.vec")))
    np.testing.assert_allclose(sums / np.diff(ptr)[:, None], vectors, atol=1e-4)
    assert np.abs(vectors).max() > 0.1


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
@pytest.mark.parametrize("optimizer", ["add", "adagrad"])
def test_a_model_with_classes_learns_what_one_without_learns(monkeypatch, kind, optimizer):
    settings = replace(SETTINGS, model=kind, optimizer=optimizer, lr=0.1, sample=1.0)
    words = vocabulary_of([*WORDS, *(b"word%d" % at for at in range(30))])
    classes, summary = classes_of(settings, words), words.to_bytes()
    keys = np.concatenate((np.arange(len(words)), BUCKET_KEY + np.arange(500))).astype(np.uint64)
    leaders = np.concatenate((keys[: len(words)], classes.keys(0, 500)))
    texts = np.random.default_rng(3).integers(1, len(words), (4, 600))
    learnt = []
    for has_classes in (True, False):
        if not has_classes:
            monkeypatch.setattr(word_rows, "classes_of", lambda *_: None)
        with connected(WordVectors) as make:
            model = make(settings, summary=summary)
            results = results_of(model, summary)
            first = results.pull("input", leaders)
            if not has_classes:
                results.put("input", keys, first)
            for number, text in enumerate(texts):
                train(model, b" ".join(words.words.take(text)), number)
            model.finish()
            of_classes = results.pull("input", leaders)
            rows = results.pull("input", keys) if not has_classes else of_classes
            np.testing.assert_allclose(rows, of_classes, atol=1e-4)
            learnt.append((rows, results.pull("output", keys[: len(words)])))
            assert np.abs(rows - first).max() > 0.1
    for with_classes, without in zip(*learnt, strict=True):
        np.testing.assert_allclose(with_classes, without, atol=1e-4)


@pytest.mark.parametrize("squares", [False, True])
def test_training_on_classes_is_training_on_rows_that_start_alike(squares):
    """Which makes the model the same: every row of a class has what its first row has learnt."""
    words, own = vocabulary_of(WORDS), np.arange(len(WORDS), dtype=np.uint64)
    classes = classes_of(SETTINGS, words)
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, len(WORDS), 400).astype(np.int32)

    def places(keys):
        at = keys.astype(np.int64)
        return np.where(at < BUCKET_KEY, at, at - BUCKET_KEY + len(WORDS))

    leaders = places(np.concatenate((own, classes.keys(0, SETTINGS.bucket))))
    first = rng.uniform(-0.1, 0.1, (len(leaders), 8)).astype(np.float32)[leaders]
    trained, means = [], []
    for of in (classes, None):
        ptr, rows, weights, keys = bags_of(SETTINGS, of, WORDS, own)
        inputs, outputs = kernels.padded(len(keys), 8), kernels.padded(len(WORDS), 8)
        inputs[:, :8] = first[places(keys)]
        sums = tuple(kernels.padded(n, 8) for n in (len(keys), len(WORDS))) if squares else None
        kernels.train_words(
            inputs, outputs, 8, tokens, ptr, rows, tokens, np.zeros(0, np.float32), window=3,
            negatives=3, lr_start=0.05, lr_stop=0.05, seed=4, squares=sums, weights=weights,
        )  # fmt: skip
        all_rows = first.copy()
        all_rows[places(keys)] = inputs[:, :8]
        trained.append(all_rows if of is None else all_rows[leaders])
        mean = np.empty((len(WORDS), 8), np.float32)
        kernels.bag_means(inputs, ptr, rows, mean, weights)
        means.append(mean)
    np.testing.assert_allclose(*trained, atol=2e-5)
    np.testing.assert_allclose(*means, atol=2e-5)
    assert np.abs(trained[0] - first).max() > 0.05


@pytest.mark.parametrize("goes_on", ["", "model.bin"])
def test_rows_of_n_grams_are_counted_with_the_words_that_have_them(goes_on):
    """Alike where rows come from a model, so that each stands for itself."""
    settings = replace(SETTINGS, bucket=2000, sample=0.0, continue_from=goes_on)
    words = vocabulary_of(WORDS)
    rows, classes = gram_rows(settings, words), classes_of(settings, words)
    assert (classes is None) == bool(goes_on)
    stored = {
        key - BUCKET_KEY: times
        for key, times in keys_of_rows(WORDS, settings).items()
        if key >= BUCKET_KEY
        and (classes is None or classes.roles[len(words) + key - BUCKET_KEY] > 0)
    }
    expected = [sum(stored[bucket].values()) for bucket in sorted(stored)]
    assert rows.words.tolist() == expected
    np.testing.assert_allclose(rows.shares, np.array(expected) / len(WORDS))
    assert rows.in_shares(1) == len(expected)
    assert rows.of_text(1e6) == pytest.approx(len(expected))
    assert rows.of_text(1e-6) == pytest.approx(1e-6 * sum(expected) / len(WORDS))
    assert len(gram_rows(replace(settings, minn=0, maxn=0), words).words) == 0


def test_a_plan_counts_rows_of_n_grams_once():
    """Blocks and rotation, each with the vocabulary in the summary."""
    settings, words = replace(SETTINGS, worker_memory=4000, bucket=2000), vocabulary_of(WORDS)
    summary, before = pack_vocabulary(settings, words), gram_rows.cache_info().misses
    for _ in range(2):
        chosen, known = unpack_vocabulary(settings, bytes(summary))
        rows_of_block(known, chosen, 100)
        chunks_that_fit(known, chosen, 100.0, 1)
        keeps_all_rows(known, chosen)
    assert gram_rows.cache_info().misses == before + 1
