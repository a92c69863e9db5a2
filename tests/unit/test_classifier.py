"""models.classifier: settings, and blocks at one worker."""

import gzip
import threading
from dataclasses import replace

import numpy as np
import pytest
from blocks import HeldContent
from connected import block_of, connected, in_order, results_of, train
from found import found
from waiting import happens

from snailps import kernels
from snailps.api.passes import Passes
from snailps.config import RawConfig
from snailps.data._text import WordCounter
from snailps.data.huffman import Tree
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, DataError
from snailps.models import recalled_bases, seen_blocks
from snailps.models.classifier import model as classifier
from snailps.models.classifier.held_out import split_of
from snailps.models.classifier.model import Classifier, pack_summary, unpack_summary
from snailps.models.classifier.passes import enough_epochs
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.kept_rows import KeptRows
from snailps.models.ngram_rows import AUTO, surveyed
from snailps.models.text_model import BUCKET_KEY
from snailps.vectors.text_files import write_vec

TEXT = (
    b"__label__pet the cat sat\n__label__tool a saw\nno label here\n"
    b"__label__pet __label__tool the cat saw\n"
) * 5
SMALL = ClassifierSettings(dim=8, bucket=1000)


def counted(text):
    counter = WordCounter()
    counter.count(text)
    return counter


@pytest.fixture
def make():
    """Makes models of a text that are connected to a shard."""
    with connected(Classifier) as made:

        def make(settings=SMALL, threads=1, workers=1, text=TEXT):
            surveyor = Classifier.surveyor(settings)
            part = Classifier(settings).survey_part()
            part.add(block_of(text))
            surveyor.add(part.take())
            return made(settings, threads, workers, surveyor.result())

        yield make


@pytest.fixture
def asked(monkeypatch):
    """The tables of which rows are pulled."""
    asked, pull = [], Classifier.pull_async

    def noted(self, table, *given, **named):
        asked.append(table)
        return pull(self, table, *given, **named)

    monkeypatch.setattr(Classifier, "pull_async", noted)
    return asked


def test_survey_warns_once_of_all_words_behind_the_end_of_their_line(caplog):
    surveyor = Classifier.surveyor(SMALL)
    for text in (b"__label__x a </s> b c\n", b"__label__x a\n", b"__label__y a </s> d </s>\n"):
        part = Classifier(SMALL).survey_part()
        part.add(block_of(text))
        surveyor.add(part.take())
    surveyor.result()
    (record,) = caplog.records
    assert "the input: 3 words were not read" in record.getMessage()


def test_block_of_a_line_with_an_end_token_has_one_example(make):
    text = b"__label__pet the </s> cat\n" * 3
    lines = make(text=text).prepare(block_of(text)).batch.lines
    assert (len(lines.feature_ptr) - 1, len(lines.features), lines.unread) == (3, 6, 3)


# --- settings and vocabularies -----------------------------------------------------------------


def settings_of(**values):
    text = {key: str(value) for key, value in values.items()}
    return RawConfig.from_mapping(text, "--{key}").build(ClassifierSettings)


def test_settings_defaults_are_those_of_fasttext():
    s = settings_of().decided(small=False)
    assert (s.lr, s.epochs, s.dim, s.loss, s.word_ngrams) == (0.1, 0, 100, "softmax", 1)
    assert (s.min_count, s.min_count_label, s.negatives) == (1, 0, 5)
    assert (s.minn, s.maxn, s.label, s.buckets) == (0, 0, "__label__", 0)


@pytest.mark.parametrize(
    ("values", "lines", "expected"),
    [
        ({}, 1000, (4, 4, 0.5, 240)),
        ({}, 80_000, (0, 0, 0.1, 5)),
        ({"lr": 0.1}, 1000, (4, 4, 0.1, 300)),
        ({"maxn": 0}, 1000, (0, 0, 0.1, 300)),
        ({"maxn": 6}, 1000, (4, 6, 0.1, 300)),
        ({"maxn": "auto", "minn": 2}, 1000, (2, 0, 0.1, 300)),
    ],
)
def test_small_text_has_ngrams_of_characters_unless_settings_say_otherwise(
    tmp_path, values, lines, expected
):
    text = b"__label__a some words in a line\n__label__b some other\n" * (lines // 2)
    path = tmp_path / "x.txt"
    path.write_bytes(text)
    with found(tmp_path, path) as files:
        s = Classifier.measure(settings_of(**values), files)
        assert (s.minn, s.maxn, s.lr, Classifier.passes(s, files).most) == expected
    assert Classifier.adopt(settings_of(**values), {}.get) == settings_of(**values)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"loss": "tree"}, "softmax, ova, ns, hs"),
        ({"minn": 4, "maxn": 3}, "minn"),
        ({"maxn": 33}, "maxn"),
        ({"label": ""}, "label"),
        ({"label": '"a b"'}, "label"),
        ({"word_ngrams": 0}, "word.ngrams"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, what):
    with pytest.raises(ConfigError, match=what):
        settings_of(**values)


def test_labels_from_counter_sorts_and_leaves_out_rare_ones():
    labels = Vocabulary.labels_from_counter(counted(TEXT + b"__label__rare x\n"), 2)
    assert labels.words == [b"__label__pet", b"__label__tool"]
    assert labels.counts.tolist() == [10, 10]
    assert labels.tokens == 95 + 3


@pytest.mark.parametrize(("text", "why"), [(b"a b\n", "begins with"), (TEXT, "occurs 99 times")])
def test_labels_from_counter_without_any_says_what_a_line_looks_like(text, why):
    with pytest.raises(DataError, match=f"{why}.*__label__sport"):
        Vocabulary.labels_from_counter(counted(text), 99)


def test_summary_of_two_vocabularies_comes_back():
    words = Vocabulary.from_counter(counted(TEXT), 1)
    labels = Vocabulary.labels_from_counter(counted(TEXT), 0)
    for given, got in zip(
        (words, labels), unpack_summary(pack_summary(words, labels)), strict=True
    ):
        assert (got.words, got.counts.tolist(), got.tokens) == (
            given.words, given.counts.tolist(), given.tokens,
        )  # fmt: skip
    with pytest.raises(DataError):
        unpack_summary(b"\x05")


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "ova", "ns"])
@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_train_on_blocks_lowers_the_loss_and_counts_lines_and_tokens(make, loss, threads, workers):
    model = in_order(make(replace(SMALL, loss=loss, lr=0.5), threads, workers))
    losses = []
    for number in range(8):
        figures = train(model, TEXT, number)
        assert (figures["units"], figures["examples"]) == (95, 15)
        losses.append(figures["loss"])
    assert losses[-1] < losses[0]


def test_train_of_several_workers_on_copies_exchanges_label_rows(make, asked):
    model = make(replace(SMALL, consistency="ssp"), workers=2)
    lines = 4 * (len(TEXT.splitlines()) * 10)
    train(model, TEXT * 40)
    assert asked == ["input"] + ["output"] * -(-lines // classifier.EXCHANGE_LINES)
    asked.clear()
    train(make(workers=1), TEXT * 40)
    assert asked == []  # no server has a row yet
    asked.clear()
    of_two = make(workers=2)
    train(of_two, TEXT * 40)
    asked.clear()
    train(of_two, TEXT * 40, 1)
    assert {"input", "output"} == set(asked)  # no new rows: what a round has pushed


@pytest.mark.parametrize(
    ("continue_from", "progress", "first"),
    [("", (0.25, 0.75), False), ("", (0.0, 0.5), False), ("model.bin", (0.0, 0.5), True)],
)
def test_train_at_an_only_worker_whose_servers_may_have_rows_pulls_them(
    make, asked, continue_from, progress, first
):
    model = make()
    model.settings = replace(model.settings, continue_from=continue_from)
    train(model, TEXT, progress=progress, first=first)
    model.finish()
    assert asked == ["input", "output"] * 2  # to be trained, and as they were when they are pushed


def test_train_at_the_only_worker_pulls_a_row_once_and_leaves_what_was_trained(make):
    model = make(replace(SMALL, word_ngrams=2, lr=0.5), threads=2)
    for number in range(4):
        train(model, TEXT, number)
    kept = model.prepare(block_of(TEXT)).asked
    keys = [one.places.exchange.keys(np.arange(one.row_num, dtype=np.int32)) for one in kept]
    trained = []
    for one, of_table in zip(kept, keys, strict=True):
        assert one.pull is None
        trained.append(one.places.rows[one.places.numbers.find(of_table)[0], :8].copy())
    model.finish()
    for rows, of_table, table in zip(trained, keys, ("input", "output"), strict=True):
        np.testing.assert_allclose(rows, model.pull(table, of_table), rtol=1e-5, atol=1e-6)
        assert rows.any()


def test_round_of_the_only_worker_is_pushed_while_the_next_blocks_train(make, monkeypatch):
    monkeypatch.setattr(recalled_bases, "PIECE_BYTES", 8 * 4 * 4)
    words = len(TEXT.split()) + TEXT.count(b"\n")
    monkeypatch.setattr("snailps.models.classifier.model.PERIOD_TOKENS_ALONE", 2 * words)
    model = make(replace(SMALL, word_ngrams=2, lr=0.5), threads=2)
    kernel, push, pushed = kernels.train_labels, Classifier.push_async, threading.Event()
    begun = 0

    def watched(*given, **named):
        nonlocal begun
        begun += 1
        if begun > 4:  # two blocks of two parts are the round
            happens(pushed, "the push of the first round")
        return kernel(*given, **named)

    def noted(self, table, *given, **named):
        assert number == 3
        pushed.set()
        return push(self, table, *given, **named)

    monkeypatch.setattr(kernels, "train_labels", watched)
    monkeypatch.setattr(Classifier, "push_async", noted)
    owed = []
    for number, progress in enumerate([(0.0, 0.3), (0.3, 0.6), (0.6, 0.8), (0.8, 0.9)]):
        train(model, TEXT if number != 2 else b"", number, progress)
        owed.append(model.unpushed)
    assert owed[:3] == [1, 2, 3]  # the third has nothing to learn and takes no time to send in
    assert owed[3] in {2, 4}  # itself and the third; all, where kernels end before all is sent
    assert pushed.is_set()
    model.finish()


@pytest.mark.parametrize(
    ("more", "blocks"),
    [
        ({}, 5),
        ({"word_ngrams": 2}, 5),
        ({"word_ngrams": 16}, 5),
        ({"dim": 200}, 3),
        ({"minn": 1, "maxn": 6}, 4),
        ({"loss": "softmax"}, 3),
        ({"loss": "ova"}, 3),
        ({"loss": "ns", "negatives": 3}, 2),
    ],
)
def test_only_worker_pushes_after_so_much_work(make, monkeypatch, more, blocks):
    """Words of more than six features, rows of more than 100 floats and many labels take longer."""
    model = make(replace(SMALL, **more))
    words = len(TEXT.split()) + TEXT.count(b"\n")  # with labels and ends of lines
    if "loss" in more:  # a step of each line on one label is as much work as all words
        share = TEXT.count(b"\n") / words
        monkeypatch.setattr("snailps.models.classifier.model.TOKEN_LABELS", share)
    monkeypatch.setattr("snailps.models.classifier.model.PERIOD_TOKENS_ALONE", 5 * words)
    number = 0
    while not number or model.unpushed:
        train(model, TEXT, number, (number / 500, (number + 1) / 500))
        number += 1
    assert number == blocks


@pytest.mark.parametrize(
    ("more", "waits"),
    [({}, True), ({"word_ngrams": 2}, False), ({"checkpoint_interval": 60.0}, False)],
)
def test_rare_words_wait_unless_lines_have_ngrams_or_checkpoints_are_made(make, more, waits):
    model, text = make(replace(SMALL, **more), workers=2), TEXT + b"__label__pet rarely seen\n"
    pushed, push = [], model.push_async

    def noted(table, keys, *given, **named):
        pushed.append((table, len(keys)))
        return push(table, keys, *given, **named)

    model.push_async = noted
    train(model, text)
    train(model, TEXT, 1)
    assert model.unpushed == 0  # the end of a period
    sent = sum(number for table, number in pushed if table == "input")
    model.finish()
    rest = sum(number for table, number in pushed if table == "input") - sent
    assert (rest > 0) == waits


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_several_workers_travel_narrow(make, workers):
    model = make(workers=workers)
    train(model, TEXT)
    assert model.narrow_rows == (workers > 1)


def test_periods_of_several_workers_grow_to_a_quarter_of_a_share_of_an_epoch(make):
    """Each of two workers has 100 blocks an epoch, of six."""
    model = make(replace(SMALL, epochs=6), workers=2)
    ends = []
    for number in range(600):
        train(model, TEXT, number, (2 * number / 1200, (2 * number + 1) / 1200))
        if not model.unpushed:
            ends.append(number + 1)
    lengths = np.diff(ends)
    assert ends[0] == 1
    assert (np.diff(lengths) >= 0).all()
    assert lengths[-1] == 25


@pytest.mark.parametrize("data", [b"", b"\n", b"the cat\n", b"__label__pet\n", b"__label__x cat\n"])
def test_train_on_a_block_without_anything_to_learn_counts_it_and_moves_nothing(make, data):
    model = make(text=TEXT.replace(b"\n", b" "))  # without a </s>
    before = model.pull("output", np.arange(2, dtype=np.uint64))
    figures = train(model, data)
    assert figures.get("loss", 0.0) == 0.0
    assert figures["units"] == len(data.split()) + data.count(b"\n")
    model.finish()
    model.setup()
    np.testing.assert_array_equal(model.pull("output", np.arange(2, dtype=np.uint64)), before)


def seen(model):
    """The blocks that a model keeps for later epochs."""
    return model._seen


def test_prepare_numbers_words_and_buckets_as_keys(make, monkeypatch):
    model, found, find = make(replace(SMALL, word_ngrams=2)), [], KeptRows.find
    monkeypatch.setattr(KeptRows, "find", lambda rows, keys: found.append(keys) or find(rows, keys))
    batches = [model.prepare(block_of(TEXT))]
    model._places = None  # as for very many buckets: by sorting
    seen(model).clear()
    batches.append(model.prepare(block_of(TEXT)))
    numbered = []
    known = batches[0].asked[0].new_keys  # of places from 0
    for prepared, keys in zip(batches, found[::2], strict=True):
        assert len(set(keys.tolist())) == len(keys)
        numbered.append(known[prepared.batch.lines.features].tolist())
        for kept in prepared.asked:
            if kept.pull is not None:
                kept.pull.wait()
    assert numbered[0] == numbered[1]
    words = [key for key in numbered[0] if key < BUCKET_KEY]
    assert max(words) == 9 - 1  # eight words and the end of a line
    assert all(0 <= key - BUCKET_KEY < 1000 for key in set(numbered[0]) - set(words))


@pytest.mark.parametrize(("bytes_max", "reads"), [(1 << 20, 1), (10, 3)])
def test_prepare_reads_a_block_once_while_there_is_room(make, monkeypatch, bytes_max, reads):
    monkeypatch.setattr(seen_blocks, "SEEN_BYTES_MAX", bytes_max)
    model = make(replace(SMALL, word_ngrams=2))
    found = []
    for epoch in range(3):
        block = block_of(TEXT)
        block.content = HeldContent(lambda epoch=epoch: found.append(epoch) or TEXT)
        block.prepared = model.prepare(block)
        assert model.train(block)["examples"] == 15
    assert len(found) == reads
    other = block_of(TEXT[: len(TEXT) // 5])
    other.piece = replace(other.piece, start=1)
    other = model.prepare(other)
    assert len(other.batch.lines.label_ptr) == 1 + 4


def test_block_for_which_there_is_no_room_takes_none_from_smaller_ones(make, monkeypatch):
    small = block_of(TEXT[: len(TEXT) // 5])
    small.piece = replace(small.piece, start=1)
    model = make(SMALL)
    model.prepare(small)
    monkeypatch.setattr(seen_blocks, "SEEN_BYTES_MAX", seen(model).nbytes)
    model = make(SMALL)
    for block in (block_of(TEXT), small):
        model.prepare(block)
    assert [start for _, start, _ in seen(model).blocks] == [1]


def test_prepare_with_sampling_pulls_only_labels_of_the_block_and_its_noise(make):
    text = b"".join(b"__label__%d word\n" % n for n in range(500))
    model = make(replace(SMALL, loss="ns", negatives=2), text=text)
    prepared = model.prepare(block_of(b"__label__3 word\n__label__7 word\n"))
    known = prepared.asked[1].new_keys  # of places from 0
    assert len(known) <= 2 + 2 * 2
    labels = model._reader.read(b"__label__3 word\n__label__7 word\n").labels
    assert sorted(known[prepared.batch.lines.labels]) == sorted(labels)
    assert len(prepared.batch.outputs.noise) == 4


def test_prepare_with_a_tree_pulls_the_nodes_on_paths_to_labels_of_the_block(make):
    text = b"".join(b"__label__%d word\n" % n for n in range(512))
    model = make(replace(SMALL, loss="hs"), text=text)
    prepared = model.prepare(block_of(b"__label__3 word\n__label__7 word\n__label__3 word\n"))
    keys = prepared.asked[1].new_keys
    assert len(keys) <= 2 * 9 - 1
    assert keys.max() == 510  # the root
    names = sorted(b"%d" % n for n in range(512))
    labels = np.array([names.index(name) for name in (b"3", b"7")])
    ways = Tree.of(np.ones(512, np.int64)).paths()
    assert set(keys.tolist()) == set(ways.rows_of(labels).tolist())


def test_train_with_a_tree_of_one_label_ends(make):
    model = make(replace(SMALL, loss="hs"), text=b"__label__a word\n")
    assert train(model, b"__label__a word\n")["loss"] == 0


def test_train_with_one_label_only_and_sampling_ends(make):
    model = make(replace(SMALL, loss="ns"), text=b"__label__a word\n")
    assert np.isfinite(train(model, b"__label__a word\n")["loss"])


# --- how often -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "lr", "epochs"),
    [(1, 0.1, 300), (1000, 0.1, 300), (1000, 0.5, 80), (12_600, 0.1, 32), (10**9, 0.1, 5)],
)
def test_small_texts_are_gone_over_until_rates_sum_up_and_large_ones_as_ever(lines, lr, epochs):
    assert enough_epochs(lines, lr) == epochs


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_of_the_input_are_counted_to_the_last_one_or_as_far_as_they_matter(
    tmp_path, ending, end
):
    """Long lines come first: an estimate by the beginning would have 1,000 lines of 30,000."""
    text = b"word " * 40_000 + b"\n" + b"x\n" * 29_998 + b"x" + end
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with found(tmp_path, *paths) as files:
        assert [files.lines(most) for most in (1, 30_001, 10**9)] == [1, 30_001, 60_000]


def test_lines_of_a_block_are_trained_in_an_order_drawn_from_its_seed(make):
    text = b"".join(b"__label__%d word w%d\n" % (n // 50, n) for n in range(100))

    def ordered(seed, **settings):
        model = make(replace(SMALL, **settings), text=text)
        lines = model.prepare(replace(block_of(text), seed=seed)).batch.lines
        bags = np.split(lines.features, lines.feature_ptr[1:-1])
        assert {len(bag) for bag in bags} == {3}
        return lines.labels.tolist(), [tuple(bag.tolist()) for bag in bags]

    as_they_come = ordered(1, shuffle=False)
    drawn, again, other = ordered(1), ordered(1), ordered(2)
    assert drawn == again != other
    assert drawn != as_they_come
    assert sorted(zip(*drawn, strict=True)) == sorted(zip(*as_they_come, strict=True))
    assert sum(drawn[0][:50]) > 10  # not all of one label


# --- starting from vectors --------------------------------------------------------------------


@pytest.fixture
def vectors(tmp_path):
    """A file with a word of `TEXT`, twice, a word that it lacks, and a label."""
    words, rows = [b"cat", b"north", b"__label__x", b"cat"], np.full((4, 8), 9, np.float32)
    rows[1], rows[3] = 5, 3
    write_vec(tmp_path / "v.vec", words, [rows], 8)
    return str(tmp_path / "v.vec")


def test_words_of_a_file_of_vectors_join_the_vocabulary(make, vectors):
    summaries = [make(replace(SMALL, pretrained=path)).summary for path in ("", vectors)]
    (before, _), (words, labels) = map(unpack_summary, summaries)
    assert words.words == [*before.words, b"north"]
    counts = dict(zip(words.words, words.counts.tolist(), strict=True))
    assert (counts[b"cat"], counts[b"north"], counts[b"saw"]) == (12, 1, 10)
    assert words.tokens == before.tokens + 4  # as fastText counts them
    assert labels.words == [b"__label__pet", b"__label__tool"]
    rare = replace(SMALL, pretrained=vectors, min_count=15)
    assert unpack_summary(make(rare).summary)[0].words == [b"</s>", b"cat", b"north"]


def test_rows_for_ngrams_are_as_many_as_the_text_needs(make, vectors):
    grams = replace(SMALL, bucket=AUTO, minn=2, maxn=4)
    summaries = [make(replace(grams, pretrained=path)).summary for path in ("", vectors)]
    assert surveyed(grams, summaries[0])[0].bucket == surveyed(grams, summaries[1])[0].bucket


@pytest.mark.parametrize("maxn", [0, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_training_starts_from_the_vectors_of_the_file(make, vectors, maxn, workers):
    settings = replace(SMALL, pretrained=vectors, lr=1e-6, minn=maxn, maxn=maxn)
    model = make(settings, workers=workers)
    words, _ = unpack_summary(surveyed(settings, model.summary)[1])
    keys = np.array([words.index(word) for word in (b"cat", b"north", b"saw")], np.uint64)
    first = model.pull("input", keys)
    Classifier.loader(settings)(results_of(model, model.summary))
    train(model, TEXT)
    model.finish()
    trained = model.pull("input", keys)
    assert trained[:2] == pytest.approx(np.repeat([[9], [5]], 8, 1), abs=1e-3)
    assert trained[2] == pytest.approx(first[2], abs=1e-3)


@pytest.mark.parametrize("workers", [1, 2])
def test_words_of_a_file_of_vectors_get_the_normal_form_of_the_texts(make, tmp_path, workers):
    words = [b"CAT", b"North\xc2\xa0West", b"NORTH", b"north", b"__label__X"]
    write_vec(tmp_path / "v.vec", words, [np.repeat([[9], [8], [5], [3], [1]], 8, 1)
                                          .astype(np.float32)], 8)  # fmt: skip
    settings = replace(SMALL, pretrained=str(tmp_path / "v.vec"), normalize="nfkc,lower")
    model = make(settings, workers=workers)
    vocabulary, labels = unpack_summary(model.summary)
    assert vocabulary.words[-1] == b"north"
    assert not {b"CAT", b"NORTH", b"north west"} & {*vocabulary.words}
    assert labels.words == [b"__label__pet", b"__label__tool"]
    Classifier.loader(settings)(results_of(model, model.summary))
    keys = np.array([vocabulary.index(word) for word in (b"cat", b"north")], np.uint64)
    assert (model.pull("input", keys) == [[9], [5]]).all()


def test_epochs_are_those_of_the_rule_but_for_a_model_that_goes_on(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"__label__x word\n__label__y word\n" * 2000)
    with found(tmp_path, path) as files:
        assert Classifier.passes(SMALL, files) == Passes(100, 100)
        assert Classifier.passes(replace(SMALL, continue_from="m.bin"), files) == Passes(5, 5)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_epochs_and_features_are_those_of_a_text_without_the_held_out_lines(tmp_path, end):
    text = b"\n".join(b"__label__%d word%d" % (i % 2, i) for i in range(4000)) + end
    settings = ClassifierSettings(held_out=0.4, seed=3)
    trained = split_of(settings).trained(text)
    assert 2200 < trained.count(b"\n") < 2600
    chosen = []
    for written, s in ((text, settings), (trained, replace(settings, held_out=0.0))):
        path = tmp_path / "t.txt"
        path.write_bytes(written)
        with found(tmp_path, path) as files:
            chosen.append(
                (Classifier.passes(replace(s, lr=0.1), files), Classifier.measure(s, files))
            )
    assert chosen[0][0] == chosen[1][0] != Passes(100, 100)
    assert chosen[0][1] == replace(chosen[1][1], held_out=0.4)


def test_one_label_of_the_trained_lines_is_all_that_counts(tmp_path):
    path, line = tmp_path / "t.txt", b"__label__only one word %d\n"
    split = split_of(replace(SMALL, held_out=0.4))
    other = next(text for i in range(99) if split.held(text := b"__label__other word %d\n" % i))
    path.write_bytes(b"".join(line % i for i in range(999)) + other)
    with found(tmp_path, path) as files:
        assert Classifier.passes(SMALL, files) == Passes(300, 300)
        assert Classifier.passes(replace(SMALL, held_out=0.4), files) == Passes(5, 5)


def test_text_of_one_label_is_not_gone_over_hundreds_of_times_and_says_so(tmp_path, caplog):
    """The second label may come late."""
    path, line = tmp_path / "t.txt", b"__label__only one word\n"
    for text, epochs in ((line * 1000, 5), (line * 999 + b"__label__other word\n", 300)):
        path.write_bytes(text)
        with found(tmp_path, path) as files:
            assert Classifier.passes(SMALL, files) == Passes(epochs, epochs)
        surveyor, part = Classifier.surveyor(SMALL), Classifier(SMALL).survey_part()
        part.add(block_of(text))
        surveyor.add(part.take())
        surveyor.result()
    (record,) = caplog.records
    assert (
        "have '__label__only': there is no other label to distinguish it from"
        in record.getMessage()
    )


@pytest.mark.parametrize(
    ("labels", "settings", "warned"),
    [
        (["a", "b", ":2", "a:.75", "b:1"], {}, "3 of 5 labels look like weights, such as"),
        (["a", "b", "c:80", "a:b"], {}, ""),  # ports, and no number
        (["a", "b", "a:1"], {"column": "t", "label_column": "l"}, ""),
        (["a", "b", "a:1"], {"soft_labels": True}, ""),
    ],
)
def test_labels_that_look_like_weights_are_warned_of(caplog, labels, settings, warned):
    s = replace(SMALL, **settings)
    surveyor, part = Classifier.surveyor(s), Classifier(s).survey_part()
    part.add(block_of("".join(f"__label__{label} word\n" for label in labels).encode()))
    surveyor.add(part.take())
    surveyor.result()
    assert (warned in caplog.text) if warned else (not caplog.records)


# --- normal form -------------------------------------------------------------------------------


def test_words_are_counted_and_trained_in_their_normal_form(make):
    text = "__label__Pet The CAT saw 12 ｃａｔｓ\n__label__tool a SAW at http://x.y\n".encode() * 5
    form = b"__label__Pet the cat saw 00 cats\n__label__tool a saw at <url>\n" * 5
    parts = ClassifierSettings(
        dim=8, maxn=3, minn=2, bucket=1000, normalize="nfkc,lower,digits,urls"
    )
    model, plain = make(parts, text=text), make(replace(parts, normalize=""), text=form)
    assert model.summary == plain.summary
    lines, others = (x.prepare(block_of(t)).batch.lines for x, t in ((model, text), (plain, form)))
    assert lines.features.tolist() == others.features.tolist()
    assert lines.labels.tolist() == others.labels.tolist()


def test_unknown_parts_of_a_normal_form_are_refused():
    assert settings_of(normalize="Lower, nfkc").normalize == "nfkc,lower"
    with pytest.raises(ConfigError, match=r"--normalize: expected parts of .*; got 'upper'"):
        settings_of(normalize="upper")
    with pytest.raises(ConfigError, match="either nfc or nfkc"):
        settings_of(normalize="nfc,nfkc")
