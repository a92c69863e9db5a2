"""Whole trainings with `loss: hs`: classifiers and word vectors, one worker and several."""

import random
from dataclasses import replace

import numpy as np
import official_fasttext
import pytest
from emulated import trained

from snailps.data.huffman import Tree
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.models.classifier.retraining import Retraining, retrained
from snailps.models.classifier.warm_start import hung
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.labelled_lines import LabelledLines

TOPICS = {
    "sea": ["wave", "salt", "sail", "harbour", "tide"],
    "hill": ["rock", "path", "goat", "summit", "snow"],
    "town": ["street", "tram", "market", "square", "lamp"],
}
AND = ["the", "of", "and"]


def lines(count, seed=1, label=""):
    """Lines of one topic each, the first topic most often."""
    drawn, made = random.Random(seed), []
    for topic in drawn.choices(list(TOPICS), (5, 3, 2), k=count):
        words = drawn.choices(TOPICS[topic], k=6) + drawn.choices(AND, k=3)
        drawn.shuffle(words)
        made.append(f"{label}{topic} " * bool(label) + " ".join(words) + "\n")
    return "".join(made)


def train(path, worker_class, text, workers=1, **settings):
    source = path / "text"
    source.write_text(text)
    job = {
        "worker_class": f"snailps.models.{worker_class}", "input": str(source), "dim": "8",
        "output": str(path / "m"), "loss": "hs", "maxn": "0", "min_count": "1", **settings,
    }  # fmt: skip
    with trained(job, workers) as (cls, results):
        cls.export(results)
    return path / "m.bin"


def classifier(path, text, workers=1, **settings):
    given = {"lr": "0.5", "epochs": "10", **settings}
    return train(path, "classifier:Classifier", text, workers, **given)


def words(path, text, workers=1, **settings):
    given = {"epochs": "5", "formats": "bin", "sample": "0", "lr": "0.1", **settings}
    return train(path, "word_vectors:WordVectors", text, workers, **given)


def right(model, text):
    """Share of lines whose best label is their own."""
    split = text.splitlines()
    best = [predicted[0].label for predicted in model.predict(split)]
    return np.mean([label == line.split()[0] for label, line in zip(best, split, strict=True)])


@pytest.mark.parametrize(
    ("workers", "consistency"), [(1, "async"), (3, "async"), (3, "ssp"), (3, "bsp")]
)
def test_classifier_learns_and_the_official_package_has_the_same_probabilities(
    tmp_path, workers, consistency
):
    path = classifier(
        tmp_path, lines(400, label="__label__"), workers,
        consistency=consistency, block_bytes="4000",
    )  # fmt: skip
    held_out = lines(100, seed=2, label="__label__")
    assert right(LabelModel(path), held_out) > 0.98
    assert read_bin(path).header.loss == "hs"
    official = official_fasttext.module().load_model(str(path))
    some = held_out.splitlines()[:5]
    for line, ours in zip(some, LabelModel(path).predict(some, 3), strict=True):
        theirs = {name: p for p, name in official.f.predict(line + "\n", 3, 0.0, "strict")}
        assert {label: pytest.approx(p, abs=1e-4) for label, p in ours} == theirs


@pytest.mark.parametrize("workers", [1, 3])
def test_weights_of_labels_are_their_probabilities(tmp_path, workers):
    text = "__label__:2 __label__x:0.75 __label__y:0.25 a\n" * 300
    path = classifier(
        tmp_path, text, workers, soft_labels="true", epochs="30", block_bytes="2000", dim="4"
    )
    model = LabelModel(path)
    chances = dict(zip(model.labels, model.probabilities(["a"])[0].tolist(), strict=True))
    assert chances[b"__label__x"] == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("train_by", [classifier, words])
def test_bsp_has_the_same_bits_with_one_worker_and_three(tmp_path, train_by):
    files = []
    for workers in (1, 3):
        path = train_by(
            tmp_path, lines(300, label="__label__" * (train_by is classifier)), workers,
            consistency="bsp", block_bytes="3000", epochs="2",
        )  # fmt: skip
        files.append(path.read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (1, {}),
        (1, {"minn": "2", "maxn": "3"}),
        (1, {"optimizer": "adagrad"}),
        (3, {"block_bytes": "5000"}),
        (3, {"block_bytes": "5000", "consistency": "ssp"}),
    ],
    ids=["one", "subwords", "adagrad", "three", "ssp"],
)
def test_word_vectors_of_a_topic_are_near_each_other(tmp_path, model, workers, settings):
    path = words(tmp_path, lines(2000), workers, model=model, **settings)
    assert read_bin(path).header.loss == "hs"
    vectors = load(path)
    for topic in TOPICS.values():
        near = [word for word, _ in vectors.neighbours(topic[0], 4)]
        assert len(set(near) & set(topic)) >= 3, (topic, near)


def test_classifier_goes_on_with_more_lines_and_a_new_label(tmp_path):
    text = lines(400, label="__label__")
    path = classifier(tmp_path, text).rename(tmp_path / "first.bin")
    known = lines(100, seed=2, label="__label__")
    new = "__label__sky star moon cloud\n" * 300  # more often than any other
    after = classifier(tmp_path, new + text, continue_from=str(path), epochs="2", lr="0.3")
    assert LabelModel(after).labels[0] != b"__label__sky"  # counts of both texts add up
    assert right(LabelModel(after), new) == 1
    assert right(LabelModel(after), known) > 0.95


def test_classifier_without_new_labels_goes_on_as_if_it_had_not_stopped(tmp_path):
    """Whatever the text's counts: the rate is too small to learn anything."""
    path = classifier(tmp_path, lines(400, label="__label__")).rename(tmp_path / "first.bin")
    known = lines(100, seed=2, label="__label__").splitlines()
    turned = "".join(f"__label__{topic} and\n" * n for topic, n in [("town", 900), ("hill", 200)])
    after = classifier(tmp_path, turned, continue_from=str(path), epochs="1", lr="0.000001")
    before, now = (LabelModel(model) for model in (path, after))
    assert now.labels == before.labels
    np.testing.assert_allclose(now.probabilities(known), before.probabilities(known), atol=1e-4)


def test_word_vectors_go_on_with_more_text_and_new_words(tmp_path):
    path = words(tmp_path, lines(1000)).rename(tmp_path / "first.bin")
    before = load(path)
    again = words(tmp_path, "tide moon\n" * 300, continue_from=str(path), epochs="1", lr="0.000001")
    after = load(again)
    assert set(after.words) == {*before.words, "moon"}
    assert (np.diff(read_bin(again).counts) <= 0).all()
    for word in before.words:
        np.testing.assert_allclose(after[word], before[word], atol=1e-3)


def test_retraining_of_a_tree_learns_the_text_it_is_given(tmp_path):
    path = classifier(tmp_path, lines(400, label="__label__"), epochs="1", lr="0.05")
    text = lines(300, seed=5, label="__label__")
    model = read_bin(path)
    full = replace(model, input=np.array(model.input[:]), output=np.array(model.output[:]))
    given = LabelledLines(LabelModel.of_model(full), "text", lambda: [text.encode()])
    again = retrained(full, Retraining(given, epochs=10, lr=0.5, threads=2))
    assert right(LabelModel.of_model(again), text) > 0.98


@pytest.mark.parametrize(
    ("counts", "more"),
    [
        ([9, 5, 2], [1]),
        ([9, 5, 5, 5, 5], [4]),
        ([3, 1, 1, 1], [7, 2, 2]),
        ([1], [1, 1]),
        ([50, 40, 30, 20, 20, 19], [100, 3, 1, 1, 1]),
    ],
)
def test_new_labels_are_hung_into_a_tree_that_stays(counts, more):
    """They are on the left of a node that takes the place of the rarest label, which is on its
    right; all other nodes are numbered on."""
    before = Vocabulary([b"l%d" % i for i in range(len(counts))], np.array(counts), sum(counts))
    names = [*before.words, *(b"n%d" % i for i in range(len(more)))]
    grown = Vocabulary(names, np.array([*counts, *more]), sum(counts) + sum(more))
    after = hung(before, grown, "m.bin")
    assert [bytes(word) for word in after.words] == [bytes(name) for name in names]
    assert (np.diff(after.counts) <= 0).all()
    assert after.counts.min() >= 1
    old, new = Tree.of(before.counts).children, Tree.of(after.counts).children
    n, m = len(counts), len(more)
    moved = np.where(old < n, old, old - n + n + m + m)
    moved[old == n - 1] = n + m + m - 1  # the rarest leaf is this node now
    np.testing.assert_array_equal(new[m:], moved)
    assert new[m - 1, 1] == n - 1
    again = hung(after, Vocabulary([*names, b"z"], np.append(after.counts, 5), 99), "m.bin")
    grown_again = Tree.of(again.counts).children
    assert grown_again[0].tolist() == [n + m, n + m - 1]  # z, and what was the rarest
    assert len(grown_again) == n + m


def test_a_tree_that_cannot_be_kept_is_refused():
    before = Vocabulary([b"a", b"b"], np.array([10**14, 1]), 10**14)
    grown = Vocabulary([b"a", b"b", b"c", b"d", b"e"], np.array([10**14, 1, 1, 1, 1]), 10**14)
    with pytest.raises(ConfigError, match=r"new labels, such as 'c'.*too often.*Train anew"):
        hung(before, grown, "m.bin")
    before = Vocabulary([b"a", b"b"], np.array([1, 2]), 3)
    grown = Vocabulary([b"a", b"b", b"c"], np.array([1, 2, 1]), 4)
    with pytest.raises(ConfigError, match=r"counts of the labels of m\.bin do not fall"):
        hung(before, grown, "m.bin")


@pytest.mark.parametrize("loss", ["softmax", "hs", "ns", "ova"])
def test_a_classifier_that_goes_on_with_a_new_label_still_knows_the_old_ones(tmp_path, loss):
    """A row of zeros had the probability 1/2 with `ns`, `ova`; with `hs` the tree was another."""
    text = lines(500, label="__label__")
    path = classifier(tmp_path, text, loss=loss, epochs="20").rename(tmp_path / "first.bin")
    old = lines(100, seed=2, label="__label__")
    before = right(LabelModel(path), old)
    assert before > 0.97
    new = "".join(f"__label__moon crater dust {word} the\n" for word in "abcdefgh")
    more = new + "".join(text.splitlines(keepends=True)[:60])
    given = {"continue_from": str(path), "loss": loss}
    still = classifier(tmp_path, more, **given, epochs="1", lr="0.000001")
    assert right(LabelModel(still), old) == before  # it begins where the lines lack it
    after = LabelModel(classifier(tmp_path, more, **given, epochs="1"))
    assert right(after, old) > before - 0.02
    learnt = LabelModel(classifier(tmp_path, more, **given, epochs="20"))
    assert right(learnt, new) == 1
    assert right(learnt, old) > before - 0.02


def test_a_text_of_mostly_new_labels_is_warned_of_where_a_tree_shares_their_rows(tmp_path, caplog):
    path = classifier(tmp_path, lines(60, label="__label__"), epochs="1").rename(tmp_path / "1.bin")
    few = "__label__moon dust\n" * 10 + lines(60, label="__label__")
    classifier(tmp_path, few, continue_from=str(path), epochs="1")
    assert "new labels" not in caplog.text
    classifier(tmp_path, "__label__moon dust\n" * 20 + few, continue_from=str(path), epochs="1")
    assert "new labels, such as '__label__moon', are 33% of the labels of the text" in caplog.text
    assert "at least 4 times as many" in caplog.text
