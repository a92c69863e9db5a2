"""Word vectors with a normal form: one form in training, queries, files and fastText's names."""

import copy
import logging
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import official_fasttext
import pytest
from cases import each
from connected import block_of, connected, results_of
from typer.testing import CliRunner

import snailps
from snailps.cli.main import app_for
from snailps.errors import DataError, ModelFileError
from snailps.fasttext import load_model, training
from snailps.models.ngram_rows import unpack_vocabulary
from snailps.models.word_vectors import WordVectors, WordVectorSettings
from snailps.models.word_vectors.export import file_sizes, neighbours, write_files
from snailps.models.word_vectors.shared_text import get_chunk
from snailps.vectors.evaluate import evaluate_analogies, evaluate_similarity
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.files import load
from snailps.vectors.query import Vectors
from snailps.vectors.saving import write_npz

NORMAL = "nfkc,lower,digits,urls"
WORDS = ["</s>", "up", "down", "00", "<url>", "größe", "left", "right", "__label__Up"]
FORM_OF = {
    "UP": "up", "Ｕｐ": "up", "42": "00", "HTTP://X.org/a": "<url>", "GRO\u0308SSE": "grösse",
    "Größe": "größe", "</s>": "</s>", "__label__Up": "__label__Up", "Unknown7": "unknown0",
}  # fmt: skip
"""What is asked for, and the word that answers."""


@pytest.fixture
def files(tmp_path):
    """Two .bin files of the same rows: with a normal form, and of texts as they are."""
    random = np.random.default_rng(3)
    inputs = random.normal(size=(len(WORDS) + 50, 4)).astype(np.float32)
    outputs = random.normal(size=(len(WORDS), 4)).astype(np.float32)
    for name, parts in (("plain", ""), ("normal", NORMAL)):
        header = BinHeader(dim=4, minn=2, maxn=3, bucket=50, sample=3e-5, normalize=parts)
        words = [word.encode() for word in WORDS]
        write_bin(tmp_path / f"{name}.bin", header, words, [1] * 9, [inputs], [outputs])
    return tmp_path / "normal.bin", tmp_path / "plain.bin"


@pytest.fixture
def both(files):
    return tuple(map(load, files))


# --- queries ------------------------------------------------------------------------------------


def test_each_query_is_given_its_normal_form(both):
    normal, plain = both
    assert normal.normalize == NORMAL
    for asked, form in FORM_OF.items():
        np.testing.assert_array_equal(normal[asked], plain[form])
        np.testing.assert_array_equal(normal.word_vector(asked), plain.word_vector(form))
        assert normal.row_numbers(asked).tolist() == plain.row_numbers(form).tolist()
        assert normal.subwords(asked)[0] == plain.subwords(form)[0]
        assert (asked in normal) == (form in plain)
        assert (asked in normal.key_to_index) == (form in plain.key_to_index)
        assert normal.key_to_index.get(asked) == plain.key_to_index.get(form)
        assert normal.number(asked) == plain.number(form)
        assert normal.neighbours(asked, 3) == plain.neighbours(form, 3)
        assert normal.most_similar(asked, topn=3) == plain.most_similar(form, topn=3)
        assert normal.similarity(asked, "LEFT") == plain.similarity(form, "left")
    assert normal.analogy("UP", "Down", "42") == plain.analogy("up", "down", "00")
    upper, lower = (["UP", "Left"], ["DOWN"]), (["up", "left"], ["down"])
    assert normal.most_similar(*upper, topn=3) == plain.most_similar(*lower, topn=3)
    assert normal.most_similar_cosmul(*upper) == plain.most_similar_cosmul(*lower)
    restricted = normal.most_similar("UP", restrict_vocab=["DOWN", "Left", "down"])
    assert restricted == plain.most_similar("up", restrict_vocab=["down", "left"])
    assert normal.closer_than("UP", "Down") == plain.closer_than("up", "down")
    assert normal.rank("UP", "Größe") == plain.rank("up", "größe")
    line = "UP, Down\u00a042 see www.x.org"
    form = "up, down 00 see <url>"
    np.testing.assert_array_equal(normal.sentence_vector(line), plain.sentence_vector(form))
    np.testing.assert_array_equal(normal.sentence_vectors([line])[0], plain.sentence_vector(form))


def test_words_of_the_vocabulary_are_their_own_form():
    rows = np.eye(3, dtype=np.float32)
    vectors = Vectors(["Up", "up", "Down"], rows, normalize="lower")
    assert [vectors.number(word) for word in ("Up", "up", "UP", "Down")] == [0, 1, 1, 2]
    assert "DOWN" not in vectors
    with pytest.raises(DataError, match=r"normalize: expected parts of nfc.*got 'title'"):
        Vectors(["up"], rows, normalize="title")


def test_copies_and_pickles_keep_the_form(both):
    for again in (copy.deepcopy(both[0]), pickle.loads(pickle.dumps(both[0]))):
        np.testing.assert_array_equal(again["UP"], both[1]["up"])


def test_questions_of_a_file_are_given_their_form(both, tmp_path):
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    pairs.write_text("UP\tDown\t1\nLeft\t42\t2\nＵｐ\tRIGHT\t3\n", encoding="utf-8")
    questions.write_text(": all\nUP Down 12 Left\n", encoding="utf-8")
    assert evaluate_similarity(both[0], pairs).pairs == 3
    assert evaluate_analogies(both[0], questions).asked == 1
    assert evaluate_similarity(both[1], pairs).pairs == 1


def run(*arguments):
    command = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app_for(command[:1]), command, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done


def test_commands_give_words_their_form(files):
    normal, plain = files
    for command, upper, lower in (
        ("nn", ["UP", "-k", 3], ["up", "-k", 3]),
        ("analogy", ["UP", "DOWN", "42"], ["up", "down", "00"]),
        ("vector", ["--sentences", "UP Größe"], ["--sentences", "up größe"]),
        ("vector", ["--ngrams", "UP"], ["--ngrams", "up"]),
        ("similarity", ["UP", "12"], ["up", "00"]),
    ):
        answers = [
            [line.split("\t")[-1] for line in run(command, path, *words).stdout.splitlines()]
            for path, words in ((normal, upper), (plain, lower))
        ]
        assert answers[0] == answers[1] != []
    assert f"normalize\t{NORMAL}" in run("dump", normal, "args").stdout


def test_names_of_fasttext_give_words_their_form(files):
    normal, plain = map(load_model, files)
    for asked, form in FORM_OF.items():
        np.testing.assert_array_equal(normal.get_word_vector(asked), plain.get_word_vector(form))
        assert normal.get_word_id(asked) == plain.get_word_id(form)
        assert normal.get_subwords(asked)[0] == plain.get_subwords(form)[0]
        assert normal.get_nearest_neighbors(asked, 3) == plain.get_nearest_neighbors(form, 3)
    assert normal.get_analogies("UP", "Down", "42") == plain.get_analogies("up", "down", "00")
    assert normal.get_line("UP 42") == plain.get_line("up 00")
    np.testing.assert_array_equal(
        normal.get_sentence_vector("UP 42"), plain.get_sentence_vector("up 00")
    )


# --- files --------------------------------------------------------------------------------------


def test_bin_keeps_the_form_and_fasttext_writes_it_again(files, tmp_path):
    path, _ = files
    load(path).save(tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()
    theirs = official_fasttext.module().load_model(str(path))
    assert theirs.f.getArgs().t == pytest.approx(3e-5, rel=1e-6)
    np.testing.assert_array_equal(theirs.get_word_vector("up"), load(path)["UP"])
    theirs.save_model(str(tmp_path / "theirs.bin"))
    assert read_bin(tmp_path / "theirs.bin").header == read_bin(path).header


@each(
    "sample, read", [(0.0, 1.0), (1e-4, 1e-4), (1.2345e-5, 1.2345e-5), (1.0, 1.0), (9.9999e-7,) * 2]
)
def test_threshold_of_sampling_is_read_beside_the_form(tmp_path, sample, read):
    rows = np.zeros((1, 2), np.float32)
    header = BinHeader(dim=2, sample=sample, normalize="casefold,urls")
    write_bin(tmp_path / "m.bin", header, [b"a"], [1], [rows], [rows])
    found = read_bin(tmp_path / "m.bin").header
    assert (found.sample, found.normalize, found.hashes) == (read, "casefold,urls", 0)


def test_npz_keeps_the_form_and_formats_that_cannot_say_so(both, tmp_path, caplog):
    normal, plain = both
    with caplog.at_level(logging.WARNING):
        normal.save(tmp_path / "m.npz")
    assert not caplog.records
    np.testing.assert_array_equal(load(tmp_path / "m.npz")["UP"], plain["up"])
    for path, write in (
        ("m.vec", normal.save),
        ("m.w2v", lambda path: normal.save_word2vec_format(path, binary=True)),
    ):
        write(tmp_path / path)
        assert f"{path}: this format cannot keep the normal form ({NORMAL})" in caplog.text
        assert "UP" not in load(tmp_path / path)
        caplog.clear()
    plain.save(tmp_path / "m.vec")
    assert not caplog.records


def test_npz_with_a_form_of_a_newer_version_is_refused(tmp_path):
    write_npz(tmp_path / "m.npz", [b"a"], [np.zeros((1, 2), np.float32)], 2, normalize="title")
    with pytest.raises(ModelFileError, match=r"m\.npz: .*this version does not know"):
        load(tmp_path / "m.npz")


def test_quantised_vectors_keep_the_form(tmp_path):
    words = [b"word%d" % number for number in range(300)]
    rows = np.random.default_rng(1).normal(size=(700, 8)).astype(np.float32)
    header = BinHeader(dim=8, bucket=400, minn=3, maxn=4, normalize="lower")
    write_bin(tmp_path / "m.bin", header, words, [1] * 300, [rows], [rows[:300]])
    snailps.quantize(tmp_path / "m.bin", tmp_path / "m.ftz")
    small = load(tmp_path / "m.ftz")
    np.testing.assert_array_equal(small["WORD7"], small["word7"])
    np.testing.assert_array_equal(small["Wordy"], small["wordy"])


# --- training -----------------------------------------------------------------------------------

TEXT = "The CAT saw 12 ｃａｔｓ\nA dog SAW http://x.y Größe\n".encode() * 5
FORM = "the cat saw 00 cats\na dog saw <url> größe\n".encode() * 5
SMALL = WordVectorSettings(dim=8, min_count=1, sample=0.0, minn=2, maxn=3, bucket=400, window=2)


@pytest.fixture
def make():
    """Makes models of a text, and the summary of their survey."""
    with connected(WordVectors) as made:

        def make(settings, text):
            part, surveyor = WordVectors(settings).survey_part(), WordVectors.surveyor(settings)
            part.add(block_of(text))
            surveyor.add(part.take())
            return made(settings, summary=surveyor.result())

        yield make


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_words_are_counted_and_trained_in_their_form(make, kind):
    plain = replace(SMALL, model=kind)
    models = make(replace(plain, normalize=NORMAL), TEXT), make(plain, FORM)
    assert models[0].summary == models[1].summary
    tokens, encoded = [], []
    for model, text in zip(models, (TEXT, FORM), strict=True):
        tokens.append(model.prepare(block_of(text)).batch.tokens.tolist())
        model.encode(SimpleNamespace(data=text, chunk=0, chunk_index=0, seed=3))  # in a rotation
        ids, words = get_chunk(model, 0, 1)
        encoded.append((ids.tolist(), words))
    assert tokens[0] == tokens[1] != []
    assert encoded[0] == encoded[1]
    assert encoded[0][1] == 60


def test_exported_files_and_neighbours_have_the_form(make, tmp_path, caplog):
    settings = replace(
        SMALL, normalize=NORMAL, output=str(tmp_path / "m"), formats=("bin", "npz", "vec"),
        validation_words=("CAT", "missing"),
    )  # fmt: skip
    model = make(settings, TEXT)
    results = results_of(model, model.summary)
    near = neighbours(results)
    assert len(near["CAT"]) == 5
    assert near["missing"] == []
    with caplog.at_level(logging.WARNING):
        done = write_files(results)
    assert "m.vec: this format cannot keep the normal form" in caplog.text
    sizes = file_sizes(*unpack_vocabulary(settings, model.summary))
    for path in done["files"][:2]:
        assert "CAT" in load(path)
        assert load(path).normalize == NORMAL
        assert sizes[path] == (tmp_path / path).stat().st_size


def test_argument_of_train_unsupervised_is_the_setting():
    for train in (training.unsupervised, training.supervised):
        assert train("text", normalize="lower").parameters["normalize"] == "lower"
        assert train("text").parameters["normalize"] == ""
