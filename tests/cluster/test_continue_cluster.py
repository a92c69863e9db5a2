"""Training on from a model and from vectors, on clusters."""

import gzip
import json

import numpy as np
import official_fasttext
import pytest
from processes import run_snailps, run_well
from test_cluster import figures_of
from texts import ANIMALS, TOOLS, topic_contrast, write_topics

from snailps.vectors.evaluate import evaluate_analogies, evaluate_similarity
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.files import load
from snailps.vectors.text_files import write_vec

CLASS = "snailps.models.word_vectors:WordVectors"
SMALL = {"dim": 16, "sample": 0.01, "bucket": 2000, "epochs": 3, "min_count": 1}


def run(folder, servers=1, workers=1, **settings):
    """Trains in a folder of its own; figures of the run."""
    folder.mkdir(exist_ok=True)
    job = {"worker_class": CLASS, "output": "out", **settings}
    return figures_of(run_well(folder, job=job, servers=servers, workers=workers))


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Half A has the animals and five words of its own, half B animals, tools and others."""
    folder = tmp_path_factory.mktemp("halves")
    a, b = folder / "a", folder / "b"
    a.write_text("".join(f"only{n} {ANIMALS[n]} {ANIMALS[n + 1]}\n" * 60 for n in range(5)))
    write_topics(b, 600)
    return a, b


@pytest.fixture(scope="module")
def first(halves, tmp_path_factory):
    """The .bin of half A."""
    folder = tmp_path_factory.mktemp("first")
    run(folder, input=halves[0], formats="bin", **SMALL)
    return folder / "out.bin"


# --- going on from a .bin ---------------------------------------------------------------------


@pytest.mark.long(but=["2-2"])
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 2)])
def test_continue_from_keeps_old_words_and_appends_new_ones(
    tmp_path, halves, first, servers, workers
):
    settings = {"sample": 0.01, "epochs": 3, "min_count": 2, "formats": "bin, vec"}
    run(tmp_path, servers, workers, input=halves[1], continue_from=first, **settings)
    old, new = read_bin(first), read_bin(tmp_path / "out.bin")
    n = len(old.words)
    assert new.words[:n] == old.words
    assert set(new.words[n:]) == {*map(str.encode, [*ANIMALS, *TOOLS])} - set(old.words)
    text = halves[1].read_bytes()
    for word, count in zip(old.words, old.counts.tolist(), strict=True):
        added = text.count(b"\n") if word == b"</s>" else text.split().count(word)
        assert new.counts[new.words.index(word)] == count + added
    assert new.header.tokens == old.header.tokens + len(text.split()) + text.count(b"\n")
    assert (new.header.dim, new.header.bucket, new.header.minn) == (16, 2000, 3)
    absent = [i for i, word in enumerate(old.words) if word.startswith(b"only")]
    assert len(absent) == 5
    present = [i for i in range(n) if i not in absent]
    np.testing.assert_array_equal(new.input[absent], old.input[absent])
    assert (new.input[present] != old.input[present]).any(axis=1).all()
    vectors = load(tmp_path / "out.bin")
    assert topic_contrast({word: vectors.vector(word) for word in [*ANIMALS, *TOOLS]}) > 0.2
    official = official_fasttext.module().load_model(str(tmp_path / "out.bin"))
    for word in ("only3", "zebra", "chisel", "chiseled"):
        np.testing.assert_array_equal(official.get_word_vector(word), vectors.vector(word))


def test_continue_from_without_training_leaves_the_model_as_it_is(tmp_path, halves, first):
    """The learning rate is next to nothing, and the text has no word that is known."""
    (tmp_path / "text").write_text("strange stranger strangest\n" * 20)
    settings = {"min_count": 21, "continue_from": first, "formats": "bin", "epochs": 1}
    run(tmp_path, input="text", lr=1e-6, **settings)
    old, new = read_bin(first), read_bin(tmp_path / "out.bin")
    assert new.words == old.words
    # </s> is known and occurs, alone in its sentence: it meets no other word.
    np.testing.assert_array_equal(new.input, old.input)
    np.testing.assert_array_equal(new.output, old.output)


@pytest.mark.parametrize("settings", [{}, {"model": "cbow", "maxn": 0, "minn": 0}])
def test_continue_from_a_model_of_the_official_package(tmp_path, halves, settings):
    path, model = official_fasttext.train(tmp_path, **settings)
    run(tmp_path, input=halves[1], continue_from=path, epochs=2, formats="bin", sample=0.01)
    old, new = read_bin(path), read_bin(tmp_path / "out.bin")
    n = len(old.words)
    assert new.words[:n] == old.words
    assert (new.header.model, new.header.maxn) == (old.header.model, old.header.maxn)
    absent = [i for i in range(n) if old.words[i] != b"</s>"]
    np.testing.assert_array_equal(new.input[absent], old.input[absent])
    again = official_fasttext.module().load_model(str(tmp_path / "out.bin"))
    assert set(again.get_words()) >= {*model.get_words(), *ANIMALS, *TOOLS}


def test_continue_from_its_own_output_replaces_it(tmp_path, halves, first):
    (tmp_path / "out.bin").write_bytes(first.read_bytes())
    run(
        tmp_path,
        input=halves[1],
        continue_from="out.bin",
        formats="bin",
        epochs=1,
        overwrite="true",
    )
    assert set(read_bin(tmp_path / "out.bin").words) > set(read_bin(first).words)


@pytest.mark.long
@pytest.mark.limit(600)
def test_continue_from_half_of_real_text_with_the_other_half_is_better(tmp_path, data_dir):
    with gzip.open(data_dir / "words" / "text8like.txt.gz") as file:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(file.read(8_000_000))
            file.seek(50_000_000)
    settings = {"dim": 50, "minn": 0, "maxn": 0, "formats": "bin"}
    run(tmp_path / "first", input=tmp_path / "a", **settings)
    path = tmp_path / "first" / "out.bin"
    run(tmp_path / "second", input=tmp_path / "b", continue_from=path, formats="bin")
    similarity = data_dir / "words" / "EN-WS-353-ALL.txt"
    analogies = data_dir / "words" / "questions-words.txt"
    one, both = load(path), load(tmp_path / "second" / "out.bin")
    assert evaluate_similarity(both, similarity).pairs > evaluate_similarity(one, similarity).pairs
    for score in (
        lambda vectors: evaluate_similarity(vectors, similarity).spearman,
        lambda vectors: evaluate_analogies(vectors, analogies).accuracy,
    ):
        assert score(both) > score(one)


# --- beginning with a .vec --------------------------------------------------------------------


@pytest.mark.parametrize("maxn", [0, 5])
def test_pretrained_words_begin_with_their_vectors_and_others_small(tmp_path, halves, maxn):
    rows = np.random.default_rng(3).normal(size=(5, 24)).astype(np.float32)
    words = [b"zebra", b"nowhere", b"hound", b"chisel", b"zebra"]
    write_vec(tmp_path / "some.vec", words, [rows], 24)
    settings = {"minn": 3, "maxn": maxn, "bucket": 500, "lr": 1e-6, "epochs": 1, "formats": "bin"}
    run(tmp_path, 2, input=halves[1], pretrained="some.vec", sample=0.01, **settings)
    vectors = load(tmp_path / "out.bin")
    assert vectors.dim == 24
    for place, word in ((0, "zebra"), (2, "hound"), (3, "chisel")):
        np.testing.assert_allclose(vectors.vector(word), rows[place], rtol=1e-3, atol=1e-3)
    assert "nowhere" not in vectors
    assert max(abs(vectors.vector(word)).max() for word in ("kitten", "drill", "anvil")) < 0.05


def test_train_word2vec_from_a_model_with_subwords_names_the_command(tmp_path, halves, first):
    told = [f"--input={halves[1]}", f"--output={tmp_path / 'o'}", f"--continue-from={first}"]
    done = run_snailps("train", "word2vec", *told, code=2, cwd=tmp_path)
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("snailps: error: ")]
    assert "snailps train word2vec: m" in error


# --- watching ---------------------------------------------------------------------------------


def test_validation_words_are_shown_and_logged(tmp_path, halves):
    settings = {**SMALL, "validation_words": "hound, drill, qwerty", "formats": "vec"}
    figures = run(tmp_path, input=halves[1], json_log="log", **settings)
    found = figures["validation"]
    assert list(found) == ["hound", "drill", "qwerty"]
    assert found["qwerty"] == []
    vectors = load(tmp_path / "out.vec")
    for word in ("hound", "drill"):
        near = vectors.neighbours(word, 5)
        assert [name for name, _ in found[word]] == [name for name, _ in near]
        assert [cosine for _, cosine in found[word]] == pytest.approx(
            [cosine for _, cosine in near], abs=1e-3
        )
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(record["validation"] == found for record in records)
