"""models.classifier on a cluster: as good as the official package."""

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import official_fasttext
import pytest
from processes import run_well
from test_cli import call
from test_cluster import figures_of
from texts import SUBJECTS, sentences

import snailps
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

# --- quality: what is this sentence about? ------------------------------------------------------


def write_sentences(folder):
    """Makes train.txt and test.txt: sentences labelled by their subject."""
    lines = [f"__label__{subject} {line}\n" for subject, line in sentences(9000, seed=1)]
    (folder / "test.txt").write_text("".join(lines[:1500]))
    (folder / "train.txt").write_text("".join(lines[1500:]))


def test_sentences_are_the_same_in_every_python():
    digest = hashlib.sha256(repr(list(sentences(500, seed=1))).encode()).hexdigest()
    assert digest.startswith("7d6aa0d9954d5d57")


def accuracy(path, folder):
    return evaluate_labels(LabelModel(path), folder / "test.txt").precision


SIZES = {"dim": 30, "lr": 0.5}


def run_sentences(folder, servers=1, workers=1):
    """Trains on sentences; figures of the run."""
    job = {"worker_class": "snailps.models.classifier:Classifier", "output": "ours", **SIZES}
    job |= {"input": "train.txt", "epochs": 10, "word_ngrams": 2, "bucket": 20_000, "maxn": 0}
    return figures_of(run_well(folder, job=job, servers=servers, workers=workers))


def test_classifier_is_as_good_as_the_official_package(tmp_path):
    """Both by one thread, whose steps are the same each time; of two workers see tests/quality."""
    write_sentences(tmp_path)
    theirs = official_fasttext.module().train_supervised(
        str(tmp_path / "train.txt"), **SIZES, epoch=10, wordNgrams=2, bucket=20_000, thread=1,
        verbose=0,
    )  # fmt: skip
    theirs.save_model(str(tmp_path / "theirs.bin"))
    run_sentences(tmp_path)
    expected = accuracy(tmp_path / "theirs.bin", tmp_path)
    assert 0.6 < expected < 0.9  # by chance .14
    assert accuracy(tmp_path / "ours.bin", tmp_path) == pytest.approx(expected, abs=0.02)
    # The official package reads ours, and finds the very same.
    loaded = official_fasttext.module().load_model(str(tmp_path / "ours.bin"))
    assert loaded.test(str(tmp_path / "test.txt"))[1] == accuracy(tmp_path / "ours.bin", tmp_path)
    ours, other = read_bin(tmp_path / "ours.bin"), read_bin(tmp_path / "theirs.bin")
    assert ours.header == replace(other.header, lr_update_rate=ours.header.lr_update_rate)
    assert (sorted(ours.words), ours.labels) == (sorted(other.words), other.labels)
    text = "an event loop runs callbacks and futures\n"
    pairs = loaded.f.predict(text, -1, 0.0, "strict")
    (found,) = LabelModel(tmp_path / "ours.bin").predict(text.encode(), k=len(SUBJECTS))
    theirs = {label: probability - 1e-5 for probability, label in pairs}
    # By label: those that are as probable may come in another order.
    assert {p.label.decode(): p.probability for p in found} == pytest.approx(theirs, abs=2e-6)
    assert found == sorted(found, key=lambda p: -p.probability)


# --- order ---------------------------------------------------------------------------------------


def topics(texts):
    """Texts of eight topics, each with one word in four of its topic, and these, topic by topic."""
    rng = random.Random(5)
    found = []
    for topic in range(8):
        for _ in range(texts):
            words = [f"t{topic}w{rng.randrange(40)}" for _ in range(2)]
            words += [f"w{rng.randrange(300)}" for _ in range(6)]
            found.append((" ".join(words), topic))
    return found


@pytest.mark.parametrize("door", ["texts", "file", "command", "files"])
def test_classifier_learns_from_what_is_sorted_by_label(tmp_path, monkeypatch, capsys, door):
    train, test = topics(200), topics(20)
    lines = [f"__label__{topic} {text}\n" for text, topic in train]
    file = tmp_path / "sorted.txt"
    file.write_text("".join(lines))
    if door in ("command", "files"):
        given = str(file)
        if door == "files":
            given = str(tmp_path / "classes")
            Path(given).mkdir()
            for label in sorted({line.split()[0] for line in lines}):
                own = [line for line in lines if line.split()[0] == label]
                (tmp_path / "classes" / f"{label.strip(chr(95))}.txt").write_text("".join(own))
        code, _, told = call(
            monkeypatch, capsys, "train", "classifier", "--input", given, "--output",
            str(tmp_path / "m"), "--epochs", "5", "--lr", "0.5", "--threads", "1",
        )  # fmt: skip
        assert code == 0, told
        model = snailps.TextClassifier.load(tmp_path / "m.bin")
    else:
        with snailps.cluster(threads=1) as cluster:
            model = snailps.TextClassifier(epochs=5, lr=0.5, verbose=False, cluster=cluster)
            if door == "file":
                model.fit(str(file))
            else:
                model.fit([text for text, _ in train], [topic for _, topic in train])
    said = model.predict([text for text, _ in test])
    right = sum(str(one) == str(topic) for one, (_, topic) in zip(said, test, strict=True))
    assert right / len(test) > 0.95


def test_classifier_trains_in_an_order_drawn_from_seed(monkeypatch):
    texts, labels = zip(*topics(20), strict=True)
    with snailps.cluster(threads=1) as cluster:
        found = [
            snailps.TextClassifier(epochs=2, dim=8, seed=seed, verbose=False, cluster=cluster)
            .fit(list(texts), list(labels))
            .predict_proba(texts[:3])
            .tolist()
            for seed in (1, 1, 2)
        ]
    assert found[0] == found[1] != found[2]
