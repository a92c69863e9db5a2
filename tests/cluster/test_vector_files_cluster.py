"""Vectors beside gensim, whose import is too much for tests/unit; writers on a full disk."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import official_fasttext
import pytest
from processes import run_snailps
from test_vector_files import KINDS
from test_vectors_object import VECTOR, assert_same

from snailps.vectors.evaluate import evaluate_analogies, evaluate_similarity
from snailps.vectors.files import load
from snailps.vectors.query import Vectors

# --- gensim -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gensim():
    """Its models."""
    return pytest.importorskip("gensim.models", reason="gensim has no wheels for this Python")


@pytest.fixture(scope="module")
def drawn():
    """300 words of dim 9, some of them longer than others."""
    draw = np.random.default_rng(7)
    rows = draw.normal(size=(300, 9)) * draw.uniform(0.1, 5, (300, 1))
    return Vectors([f"w{n}" for n in range(300)], rows.astype(np.float32))


def test_most_similar_beside_gensim_itself(gensim, drawn):
    theirs = drawn.to_gensim()
    for question in (("w3",), (["w4", "w5"], ["w6"]), ([VECTOR, "w8"],)):
        assert_same(drawn.most_similar(*question), theirs.most_similar(*question))
    words = ["w1", "w2", "w3", "w4", "w5"]
    assert drawn.doesnt_match(words) == theirs.doesnt_match(words)


def test_scores_of_pairs_and_analogies_are_gensims(gensim, drawn, tmp_path):
    theirs, draw = drawn.to_gensim(), np.random.default_rng(3)
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    with pairs.open("w") as file:
        for a, b in draw.integers(0, 155, (200, 2)) * 2 + (0, 1):  # some are not there
            file.write(f"w{a}\tW{b}\t{draw.integers(0, 9)}\n")
    with questions.open("w") as file:
        for section in ("one", "two"):
            file.write(f": {section}\n")
            for a, b, c, d in draw.integers(0, 303, (100, 4)):
                known = d % 2 and max(a, b, c) < 300
                found = drawn.most_similar([f"w{b}", f"w{c}"], [f"w{a}"], topn=1) if known else ()
                file.write(f"w{a} w{b} w{c} {found[0][0] if found else f'W{d}'}\n")
    _, (rho, _), absent = theirs.evaluate_word_pairs(str(pairs))
    ours = evaluate_similarity(drawn, pairs)
    assert ours.spearman == pytest.approx(rho, abs=1e-6)
    assert 100 * ours.oov / (ours.oov + ours.pairs) == pytest.approx(absent)
    score, sections = theirs.evaluate_word_analogies(str(questions))
    found = evaluate_analogies(drawn, questions)
    assert 0 < found.accuracy == pytest.approx(score)
    right = [len(each["correct"]) for each in sections if each["section"] in ("one", "two")]
    assert [each.correct for each in found.sections] == right


PLACES = ["paris", "france", "rome", "italy", "athens", "greece", "straße", "ship", "boat", "city"]


@pytest.mark.parametrize("seed", range(6))
def test_scores_of_words_in_any_case_are_gensims(gensim, tmp_path, seed):
    rng = random.Random(seed)
    words = [f for w in PLACES for f in rng.sample([w, w.title(), w.upper()], rng.choice([1, 2]))]
    words = list(dict.fromkeys(words))
    rng.shuffle(words)
    rows = np.random.default_rng(seed).normal(size=(len(words), 4)).astype(np.float32)
    vectors = Vectors(words, rows)
    theirs, every = vectors.to_gensim(), [*PLACES, "none"]
    asked = [[rng.choice([w, w.title()]) for w in rng.sample(every, 4)] for _ in range(40)]
    questions, pairs = tmp_path / "q", tmp_path / "s"
    questions.write_text(": s\n" + "".join(" ".join(q) + "\n" for q in asked))
    for restrict in (0, 9):
        found = evaluate_analogies(vectors, questions, restrict)
        total = theirs.evaluate_word_analogies(str(questions), restrict_vocab=restrict or None)
        right, wrong = (len(total[1][-1][name]) for name in ("correct", "incorrect"))
        assert (found.correct, found.asked) == (right, right + wrong)
    lines = [f"{a}\t{b}\t{rng.random():.3f}\n" for a, b, *_ in asked]
    pairs.write_text("Word 1\tWord 2\tHuman\n" + "".join(lines))
    found = evaluate_similarity(vectors, pairs)
    _, rank, oov = theirs.evaluate_word_pairs(str(pairs), restrict_vocab=None)
    assert found.spearman == pytest.approx(rank.statistic, abs=1e-6)
    assert 100 * found.oov / (found.pairs + found.oov) == pytest.approx(oov)


def test_files_are_read_by_gensim(gensim, tmp_path):
    path, _ = official_fasttext.train(tmp_path)
    ours = load(path)
    theirs = ours.to_gensim()
    assert theirs.index_to_key == ours.words
    np.testing.assert_array_equal(theirs.vectors, ours.vectors)
    assert theirs.get_vecattr(ours.words[0], "count") > 1
    twice = Vectors(["a", "b", "a"], np.eye(3, dtype=np.float32)).to_gensim()
    assert twice["a"].tolist() == [1, 0, 0]
    ours.save(str(tmp_path / "saved.vec"))
    read = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "saved.vec"))
    assert read.index_to_key == ours.words
    np.testing.assert_allclose(read.vectors, ours.vectors, rtol=1e-4, atol=1e-6)


def test_model_of_ours_with_subwords_is_read_by_gensim(gensim, tmp_path):
    """A `.bin` as a training writes it: gensim composes a word's vector as we do."""
    text = official_fasttext.write_text(tmp_path / "text.txt")
    words = "train fasttext --input text.txt --output out --dim 8 --epochs 1 --min-count 2"
    words += " --bucket 500 --formats bin --json"
    run_snailps(*words.split(), cwd=text.parent)
    ours = load(tmp_path / "out.bin")
    theirs = gensim.fasttext.load_facebook_vectors(str(tmp_path / "out.bin"))
    assert "snailshell" not in ours.words
    for word in {*ours.words[:20], "snailshell"} - {"</s>"}:  # in whose vector gensim differs
        np.testing.assert_allclose(theirs[word], ours.vector(word), atol=1e-5)


# --- full disks ---------------------------------------------------------------------------------


@pytest.mark.long
@KINDS
def test_writers_on_full_disk_leave_nothing_and_say_what_to_do(tmp_path, kind):
    """A file size limit makes write() itself fail half-way, as a full disk does."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np, test_vector_files as t
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
rows = np.ones((500_000, 4), np.float32)
words = [b"w%d" % i for i in range(500_000)]
t.write_any({kind!r}, {str(tmp_path / "m")!r}, words, [rows[:250_000], rows[250_000:]])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=150
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "ModelWriteError" in last
    assert "file size limit" in last
    assert "raise the limit (ulimit -f) or choose another disk" in last
    assert list(tmp_path.iterdir()) == []
