"""models.word_vectors at one worker: blocks of any size, bags of subwords."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from connected import block_of, connected, results_of, train
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from snailps.config import RawConfig
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, NotFinite
from snailps.master.job.settings import job_settings
from snailps.models import rows as rows_of
from snailps.models.classifier.model import Classifier
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import WordVectors, WordVectorSettings, examples, word_rows
from snailps.models.word_vectors.block_size import fit_block
from snailps.models.word_vectors.outputs import Noise
from snailps.models.word_vectors.settings import ADAGRAD_LR, ADAGRAD_LR_SUBWORDS, LR

TEXT = b"the cat sat on the mat and the dog sat by the cat\n" * 3
SMALL = WordVectorSettings(dim=8, min_count=1, sample=0.0, bucket=1000, window=2)


def vocabulary_of(text):
    counter = WordCounter()
    counter.count(text)
    return Vocabulary.from_counter(counter, 1)


@pytest.fixture
def make():
    """Makes models of a text that are connected to a shard."""
    with connected(WordVectors) as made:

        def make(settings=SMALL, threads=1, text=TEXT, workers=1):
            return made(settings, threads, workers, vocabulary_of(text).to_bytes())

        yield make


def ready(model, block):
    """A prepared block, and its rows of each table."""
    prepared = model.prepare(block)
    asked = zip(model.rows, prepared.asked, strict=True)
    return prepared, [rows.ready(one) for rows, one in asked]


def close(model, prepared, rows, rate):
    """Pushes what has become of a block's rows, scaled as for this rate."""
    scales = model.scales(prepared.batch, rows, rate)
    for table, asked, scale in zip(model.rows, prepared.asked, scales, strict=True):
        table.close(asked, scale)


# --- the survey -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [WordVectors, Classifier])
def test_summary_is_the_same_to_the_bit_however_blocks_are_grouped(cls):
    """So `bsp` needs no order of parts: equal counts are ordered by their bytes."""
    texts = [b"__label__%d cat %d dog %d\n" % (i % 3, i * 7 % 11, i % 5) for i in range(40)]

    def summary(*parts):
        settings = cls.Settings(min_count=1)
        surveyor, part = cls.surveyor(settings), cls(settings).survey_part()
        for numbers in parts:
            for number in numbers:
                part.add(block_of(texts[number], number))
            taken = part.take()
            surveyor.add(taken)
        assert len(part.take()) < len(taken)  # it has begun anew
        return surveyor.result()

    one = summary(range(40))
    assert summary(*([number] for number in range(40))) == one
    assert summary(range(30, 40), range(29, -1, -2), range(0, 30, 2)) == one


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
@pytest.mark.parametrize("data", [TEXT, b"the cat sat\n", b"the cat"])
def test_train_with_more_threads_than_the_block_has_work_for_still_learns(make, kind, data):
    model = make(replace(SMALL, model=kind), threads=16)
    words = np.arange(len(model.vocabulary), dtype=np.uint64)
    before = model.pull("input", words)
    for number in range(4):  # rows of "output" begin at zero: the first block moves only these
        figures = train(model, data, number)
        assert np.isfinite(figures["loss"])
        assert figures["loss"] > 0
        assert figures["examples"] > 0
        assert figures["units"] == len(data.split()) + data.count(b"\n")
    model.finish()
    model.setup()
    assert not np.array_equal(model.pull("input", words), before)


def test_train_with_sixteen_threads_on_a_tiny_block_loses_no_examples(make):
    one, many = make(threads=1), make(threads=16)
    assert train(one, TEXT)["examples"] == train(many, TEXT)["examples"]


@pytest.mark.parametrize("data", [b"", b" \n", b"zebra quagga okapi\n"])
def test_train_on_a_block_without_known_words_counts_them_and_moves_nothing(make, data):
    model = make(text=b"the cat sat the cat sat")
    figures = train(model, data)
    assert figures == {"units": len(data.split()) + data.count(b"\n"), "lr": SMALL.rate / 2}
    prepared = model.prepare(block_of(data))
    assert (prepared.metrics, prepared.asked) == ({"units": figures["units"]}, ())


def test_train_on_a_block_of_a_single_known_word_pushes_no_numbers_that_are_none(make):
    model = make(text=b"the cat sat the cat sat")
    assert train(model, b"cat") == {"units": 1, "lr": SMALL.rate / 2}
    model.finish()
    model.setup()
    assert np.isfinite(model.pull("input", np.arange(3, dtype=np.uint64))).all()


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_rows_that_diverge_are_refused_with_their_table(make, kind):
    model = make(replace(SMALL, model=kind, lr=1e30))
    with pytest.raises(NotFinite, match=r"^table '(input|output)': .* has diverged: lower its lr"):
        [train(model, TEXT, number) for number in range(8)]


def test_train_of_blocks_with_and_without_known_words_in_turns_keeps_its_arrays(make):
    model = make(text=b"the cat sat the cat sat")
    for number, data in enumerate([b"the cat sat", b"zebra", b"", b"the cat sat the", b"cat sat"]):
        train(model, data, number)
    model.finish()
    model.setup()


# --- one of several workers ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
@pytest.mark.parametrize("loss", ["ns", "nce"])
@pytest.mark.parametrize("maxn", [0, 3])
@pytest.mark.parametrize(("rate", "optimizer"), [(0.1, "auto"), (10.0, "auto"), (0.7, "adagrad")])
def test_train_as_one_of_eight_on_blocks_of_any_size_ends(make, kind, loss, maxn, rate, optimizer):
    settings = replace(SMALL, model=kind, loss=loss, minn=min(maxn, 2), maxn=maxn, lr=rate)
    settings = replace(settings, optimizer=optimizer)
    model = make(settings, threads=2, workers=8)
    blocks = [TEXT, TEXT * 10, b"cat", b"", b"zebra\n", b"the cat\n", TEXT * 10, b"the " * 300]
    with contextlib.suppress(NotFinite) if rate > 1 else contextlib.nullcontext():
        for number, data in enumerate(blocks * 3):
            train(model, data, number)
        model.finish()
        model.setup()
    if rate < 1:
        words = np.arange(len(model.vocabulary), dtype=np.uint64)
        for table in ("input", "output"):
            assert np.isfinite(model.pull(table, words)).all()


def test_rows_of_a_small_vocabulary_are_pushed_as_a_mean_of_all_workers(make):
    model = make(replace(SMALL, minn=0, maxn=0), workers=8)
    prepared, rows = ready(model, block_of(TEXT * 100))
    rng = np.random.default_rng(4)
    for (trained,) in rows:
        trained[:, :8] = rng.normal(size=(len(trained), 8)) * 0.3  # no slope is flat
    asked, trained = prepared.asked[1], rows[1][0]
    change = trained[:, :8] - asked.base
    close(model, prepared, rows, 0.5)
    model.finish()
    model.setup()
    # Rows of "output" begin at zero.
    np.testing.assert_allclose(model.pull("output", asked.keys), change / 8, atol=0.02)


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_steps_of_a_block_are_those_of_its_words_and_negatives(make, kind):
    model = make(replace(SMALL, model=kind, window=3, negatives=4))
    tokens = np.array([0, 1, 0, -1], np.int32)
    bag_ptr, bag_rows = np.array([0, 2, 4], np.int64), np.array([0, 2, 1, 2], np.int32)
    noise = Noise(np.array([1, 2], np.int32), np.zeros(0, np.float32))
    inputs, outputs = model._steps(tokens, bag_ptr, bag_rows, noise, 3, 3)
    of_output = 4 if kind == "skipgram" else 1
    drawn = 4 * of_output * 4 / 2  # tokens x steps x negatives, over two draws
    assert inputs.tolist() == [8, 4, 12]
    assert outputs.tolist() == [2 * of_output, of_output + drawn, drawn]


def test_windows_that_do_not_shrink_have_every_context(make):
    """As gensim's `shrink_windows=False`."""
    model = make(replace(SMALL, window=4, shrink_windows=False))
    tokens = ready(model, block_of(TEXT))[0].batch.tokens
    ends = np.flatnonzero(np.append(tokens, -1) < 0)
    lengths = np.diff(ends, prepend=-1) - 1
    contexts = sum(min(at, 4) + min(n - 1 - at, 4) for n in lengths for at in range(n))
    model = make(replace(SMALL, window=4, shrink_windows=False))
    assert train(model, TEXT)["examples"] == contexts
    assert train(make(replace(SMALL, window=4)), TEXT)["examples"] < contexts


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.5, 0.75])
def test_negatives_are_drawn_by_the_power_of_their_counts(make, exponent):
    """The ones of the counts of a text, as gensim's `ns_exponent` has them."""
    model = make(replace(SMALL, minn=0, maxn=0, ns_exponent=exponent))
    prepared, _ = ready(model, block_of(TEXT * 100))
    words = prepared.asked[1].keys.astype(np.int64)[prepared.batch.targets.words]
    drawn = np.bincount(words, minlength=len(model.vocabulary))
    weights = model.vocabulary.counts.astype(float) ** exponent
    np.testing.assert_allclose(drawn / drawn.sum(), weights / weights.sum(), atol=2e-4)


# --- bags -------------------------------------------------------------------------------------


def bags(settings, words, present):
    model = WordVectors(settings, 1)
    model.vocabulary = Vocabulary(words, np.ones(len(words), np.int64), len(words))
    found, keys = model.bags(np.array(present, np.int64))
    return found.ptr, found.rows, keys


WORDS = [b"</s>", b"the", b"cat", b"catalogue", b"\xc3\xbcber", b"x"]


@limits(deadline=None, max_examples=30)
@given(st.sets(st.integers(0, len(WORDS) - 1), min_size=1), st.integers(1, 5000))
def test_bags_by_sorting_are_those_by_marking(present, bucket):
    settings = replace(SMALL, bucket=bucket)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_of, "MARKED_A_KEY", 5000)
        marked = bags(settings, WORDS, sorted(present))
        patch.setattr(rows_of, "MARKED_A_KEY", 0)
        found = bags(settings, WORDS, sorted(present))
    for one, other in zip(marked, found, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


def test_bags_with_more_buckets_than_are_marked_are_the_same_for_equal_ids(monkeypatch):
    bag_ptr = np.array([0, 3, 5], np.int64)
    ids = np.array([0, 2 + 7, 2 + 3, 1, 2 + 7], np.int32)  # below 2: the words' own rows
    monkeypatch.setattr(examples, "subwords_csr", lambda *given: (bag_ptr, ids))
    monkeypatch.setattr(word_rows, "classes_of", lambda *given: None)
    for bucket in (1 << 24, (1 << 24) + 1, (1 << 31) - 2):
        ptr, rows, keys = bags(replace(SMALL, bucket=bucket), WORDS, [1, 4])
        assert ptr.tolist() == [0, 3, 5]
        assert keys.tolist() == [1, 4, BUCKET_KEY + 3, BUCKET_KEY + 7]
        assert rows.tolist() == [0, 3, 2, 1, 3]
        assert (rows.dtype, keys.dtype) == (np.int32, np.uint64)


@pytest.mark.parametrize("bucket", [1, 1 << 24, (1 << 24) + 1, (1 << 31) - 3])
def test_bags_of_any_number_of_buckets_have_keys_in_range(bucket):
    ptr, rows, keys = bags(replace(SMALL, bucket=bucket), WORDS, [1, 2, 3])
    assert len(rows) == ptr[-1]
    assert rows.min() >= 0
    assert rows.max() == len(keys) - 1
    assert len(set(keys.tolist())) == len(keys)
    assert keys[:3].tolist() == [1, 2, 3]
    buckets = keys[3:].astype(object) - BUCKET_KEY
    assert all(0 <= each < bucket for each in buckets)
    assert rows[ptr[:-1]].tolist() == [0, 1, 2]  # a word's own row comes first


def test_bags_without_subwords_are_the_words_themselves():
    ptr, rows, keys = bags(replace(SMALL, minn=0, maxn=0), WORDS, [2, 5])
    assert (ptr.tolist(), rows.tolist(), keys.tolist()) == ([0, 1, 2], [0, 1], [2, 5])


# --- AdaGrad ----------------------------------------------------------------------------------

ADAGRAD = replace(SMALL, optimizer="adagrad", lr=0.3)
DEMO = """
len_vec: 100
learning_rate: 0.7
window: 4
negative: 23
sample: 0.001
adagrad: 1
minibatch: 1000
min_reduce: 3
min_len: 3
cbow: 1
num_sents_to_cache: 1000
"""
"""Settings that SwiftSnails' word2vec came with."""


def demo(tmp_path, *overrides):
    (tmp_path / "word2vec.conf").write_text(DEMO)
    raw = RawConfig.load(tmp_path / "word2vec.conf", environ={}, overrides=overrides)
    return job_settings(WordVectors, raw)


def test_settings_of_the_old_demo_ask_for_adagrad(tmp_path):
    s = demo(tmp_path)
    assert (s.optimizer, s.rate, s.model, s.dim) == ("adagrad", 0.7, "cbow", 100)
    assert (s.window, s.negatives, s.sample, s.min_count) == (4, 23, 0.001, 3)
    for table in WordVectors(s).tables()[:2]:
        assert (table.access, table.state_floats) == ("adagrad", 100)
    assert demo(tmp_path, "adagrad=0").optimizer == "auto"
    assert demo(tmp_path, "optimizer=adagrad", "adagrad=0").optimizer == "adagrad"


def test_rate_that_nobody_set_is_that_of_the_optimizer():
    def rate(**given):
        return job_settings(WordVectors, RawConfig.from_mapping(given, "test")).rate

    assert rate() == LR
    assert rate(optimizer="adagrad", maxn="0") == ADAGRAD_LR
    assert rate(adagrad="1", maxn="0") == ADAGRAD_LR
    assert rate(optimizer="adagrad") == rate(optimizer="adagrad", lr="auto") == ADAGRAD_LR_SUBWORDS
    assert rate(optimizer="adagrad", lr=0.05) == 0.05
    with pytest.raises(ConfigError, match="expected one of auto, add, adagrad"):
        rate(optimizer="adam")


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
@pytest.mark.parametrize("maxn", [0, 3])
def test_adagrad_sums_squares_at_the_servers_as_one_worker_takes_its_steps(make, kind, maxn):
    settings = replace(ADAGRAD, model=kind, minn=min(maxn, 2), maxn=maxn)
    model = make(settings)
    losses = []
    for number in range(12):
        block = block_of(TEXT * 4, number)
        block.prepared = model.prepare(block)
        figures = model.train(block)
        losses.append(figures["loss"] / figures["examples"])
    prepared, local = ready(model, block_of(TEXT * 4, 12))
    copied = [[array.copy() for array in arrays] for arrays in local]
    model.finish()
    model.setup()
    for table, asked, (rows, sums) in zip(("input", "output"), prepared.asked, copied, strict=True):
        # What the worker had, its own pushes corrected, is what the servers have.
        stored = model.pull(table, asked.keys, state=True)
        np.testing.assert_allclose(stored[:, :8], rows[:, :8], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(stored[:, 8:], sums[:, :8], rtol=1e-4, atol=1e-6)
        assert (stored[:, 8:] >= 0).all()
        assert stored[:, 8:].any()
    assert losses[-1] < 0.9 * losses[0]


def test_adagrad_state_of_two_workers_is_the_sum_of_theirs(make):
    """Whatever share of its differences each pushes: others have to see how far a row has come."""
    settings = replace(ADAGRAD, minn=0, maxn=0)
    one = make(settings, workers=2)
    words = np.arange(len(one.vocabulary), dtype=np.uint64)
    before = one.pull("output", words, state=True)
    prepared, rows = ready(one, block_of(TEXT * 20))
    for _, squares in rows:
        squares[:, :8] += 2.0
    close(one, prepared, rows, 0.3)
    one.finish()
    one.setup()
    keys = prepared.asked[1].keys
    after = one.pull("output", keys, state=True)
    np.testing.assert_allclose(after[:, 8:], before[keys.astype(int), 8:] + 2.0)


def test_rows_that_an_adagrad_job_begins_with_are_put_with_a_state_of_0(make):
    model = make(ADAGRAD)
    results = results_of(model)
    rows = np.random.default_rng(2).normal(size=(5, 8)).astype(np.float32)
    results.put("input", range(5), rows)
    stored = model.pull("input", range(5), state=True)
    np.testing.assert_array_equal(stored[:, :8], rows)
    assert not stored[:, 8:].any()


def test_block_with_adagrad_is_cut_for_rows_and_their_state():
    text = b" ".join(b"word%d" % (i % 5000) for i in range(60_000))
    vocabulary = vocabulary_of(text)
    plain = replace(SMALL, worker_memory=1 << 20, maxn=0, minn=0)
    sizes = [
        fit_block(vocabulary, s, 1 << 20, len(text))
        for s in (plain, replace(plain, optimizer="adagrad"))
    ]
    assert sizes[1] < sizes[0]
