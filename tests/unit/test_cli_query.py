"""The query commands: what they print in a pipe and on a terminal, and how they fail."""

import io
import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import snailps
from snailps.cli.main import app_for
from snailps.cli.printing import print_rows
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.models.embeddings.files import packed_names, write
from snailps.models.embeddings.settings import MfSettings
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.files import load
from snailps.vectors.saving import write_npz
from snailps.vectors.text_files import write_vec

WORDS = ["king", "queen", "man", "woman", "été"]
ROWS = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [-1, 0, 0]], dtype=np.float32)


@pytest.fixture(scope="module")
def app():
    return app_for()


@pytest.fixture
def run(app):
    def call(*arguments, **options):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return call


@pytest.fixture(params=["bin", "vec", "npz"])
def model(request, tmp_path):
    path = tmp_path / f"model.{request.param}"
    words = [word.encode() for word in WORDS]
    if request.param == "bin":
        write_bin(path, BinHeader(dim=3), words, [1] * 5, [ROWS], [ROWS])
    else:
        {"vec": write_vec, "npz": write_npz}[request.param](path, words, [ROWS], 3)
    return path


@pytest.fixture
def subwords(tmp_path):
    """A model that has vectors for words never seen."""
    path = tmp_path / "m.bin"
    rows = np.random.default_rng(0).normal(size=(5 + 20, 3)).astype(np.float32)
    header = BinHeader(dim=3, bucket=20, minn=3, maxn=6)
    write_bin(path, header, [w.encode() for w in WORDS], [1] * 5, [rows], [rows[:5]])
    return path


def test_nn_with_words_prints_tab_separated_lines(run, model):
    result = run("nn", model, "king", "woman", "-k", 2)
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["king", "queen"], ["king", "man"], ["woman", "man"], ["woman", "queen"]
    ]  # fmt: skip
    wv = load(model)
    wanted = [score for word in ("king", "woman") for _, score in wv.neighbours(word, 2)]
    assert [float(row[2]) for row in rows] == wanted  # to the bit


def test_json_has_an_object_a_row_with_the_columns_as_names(run, model):
    found = [
        [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
        for words in (("nn", model, "king", "-k", 1), ("similarity", model, "king", "queen"))
    ]
    assert found[0] == [
        {"word": "king", "neighbour": "queen", "cosine": pytest.approx(0.707107, 1e-5)}
    ]
    assert found[1][0].keys() == {"word", "other", "cosine"}
    (row,) = run("vector", model, "king", "--json").stdout.splitlines()
    assert json.loads(row)["word"] == "king"


@pytest.mark.parametrize(
    ("command", "words", "error", "text"),
    [
        ("nn", ["kong"], DataError, "did you mean king"),
        (
            "nn",
            ["king", "--of", "items"],
            ConfigError,
            "holds word vectors, and words have no kinds",
        ),
        ("eval", [], ConfigError, "--similarity FILE"),
    ],
)
def test_command_that_cannot_be_answered_raises_what_main_prints(
    run, model, command, words, error, text
):
    result = run(command, model, *words)
    assert isinstance(result.exception, error)
    assert text in str(result.exception)


def test_nn_without_words_reads_standard_input_and_goes_on_after_an_unknown(run, model):
    result = run("nn", model, "-k", 1, input="king\n\nkong\n  été  \n")
    assert result.exit_code == 2
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["king", "queen"], ["été", "man"]]
    assert "kong" in result.stderr
    assert "word (end" not in result.output  # no prompt in a pipe
    assert run("nn", model, input="king\n").exit_code == 0


def test_nn_of_subword_model_answers_for_words_never_seen(run, subwords):
    assert len(run("nn", subwords, "kings", "-k", 4).stdout.splitlines()) == 4
    assert run("vector", subwords, "kings").stdout.startswith("kings\t")


def test_similarity_prints_the_cosine(run, model):
    row = run("similarity", model, "king", "queen").stdout.removesuffix("\n").split("\t")
    assert row == ["king", "queen", repr(load(model).similarity("king", "queen"))]


def test_analogy_prints_the_words_nearest_to_a_minus_b_plus_c(run, model):
    first = run("analogy", model, "king", "man", "woman", "-k", 1).stdout
    assert first.split("\t")[0] == "queen"
    assert float(first.split("\t")[1]) == load(model).analogy("king", "man", "woman", 1)[0].score


def test_vector_prints_a_line_a_word(run, model):
    assert run("vector", model, "queen", "été").stdout == (
        "queen\t1.0\t1.0\t0.0\nété\t-1.0\t0.0\t0.0\n"
    )


@pytest.fixture
def files(tmp_path):
    (tmp_path / "sim.txt").write_text("king\tqueen\t9\nking\tman\t3\nking\tété\t1\nking\tx\t1\n")
    (tmp_path / "ana.txt").write_text(": royal\nman woman king queen\n: none\nx y z w\n")
    return tmp_path / "sim.txt", tmp_path / "ana.txt"


def test_eval_prints_a_line_a_test_and_section(run, model, files):
    result = run("eval", model, "--similarity", files[0], "--analogies", files[1])
    assert result.stdout == (
        "sim.txt\t1.0\t3\t1\n"
        "ana.txt\t1.0\t1\t1\n"
        "ana.txt: royal\t1.0\t1\t0\n"
        "ana.txt: none\t-\t0\t1\n"
    )


def test_eval_verbose_names_what_it_skipped(run, model, files):
    result = run("eval", model, "--similarity", files[0], "--analogies", files[1], "--verbose")
    assert result.stdout.splitlines()[4:] == ["sim.txt\tking x", "ana.txt: none\tx y z w"]


def test_eval_json_ends_with_one_object_of_all_figures(run, model, files):
    arguments = ["--similarity", files[0], "--similarity", files[0], "--analogies", files[1]]
    result = run("eval", model, *arguments, "--json", "--restrict", 4)
    figures = json.loads(result.stdout.splitlines()[-1])
    one = {"file": str(files[0]), "spearman": pytest.approx(1.0), "pairs": 3, "oov": 1}
    one["skipped"] = [["king", "x"]]
    assert figures == {
        "model": str(model), "words": 5, "dim": 3, "oov": "skip", "similarity": [one, one],
        "analogies": {
            "file": str(files[1]), "restrict": 4, "accuracy": 1.0, "correct": 1, "asked": 1,
            "oov": 1, "sections": [
                {"name": "royal", "accuracy": 1.0, "correct": 1, "asked": 1, "oov": 0,
                 "skipped": []},
                {"name": "none", "accuracy": None, "correct": 0, "asked": 0, "oov": 1,
                 "skipped": [["x", "y", "z", "w"]]},
            ],
        },
    }  # fmt: skip


def test_eval_oov_subword_scores_words_never_seen(run, subwords, files):
    result = run("eval", subwords, "--similarity", files[0], "--oov", "subword", "--json")
    assert json.loads(result.stdout)["similarity"][0]["pairs"] == 4


@pytest.mark.parametrize(
    "arguments",
    [("nn", "MODEL", "a"), ("similarity", "MODEL", "a", "b"), ("vector", "MODEL", "a"),
     ("analogy", "MODEL", "a", "b", "c"), ("eval", "MODEL", "--analogies", "x")],
)  # fmt: skip
def test_commands_with_wrong_path_or_file_raise_a_model_file_error(run, tmp_path, arguments):
    (tmp_path / "text").write_text("just some text\n")
    for name in ["missing", "text", "."]:
        path = tmp_path / name
        result = run(*(path if argument == "MODEL" else argument for argument in arguments))
        assert isinstance(result.exception, ModelFileError)
        assert str(path) in str(result.exception)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_print_rows_on_a_terminal_draws_a_table(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_rows(("word", "cosine"), [("[bold]", 0.123456), ("\udcff", None)], title="a - b + c")
    text = sys.stdout.getvalue()
    assert all(part in text for part in ["a - b + c", "word", "[bold]", "0.1235", "│", "�"])
    assert "\t" not in text


def test_print_rows_in_a_pipe_keeps_bytes_that_are_no_utf8(capfdbinary):
    print_rows(("word",), [("caf\udce9", 1, 0.5, None)])
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b"caf\xe9\t1\t0.5\t-\n"


# --- files of knowledge graphs and matrix factorisations -----------------------------------------


@pytest.fixture
def ratings(tmp_path):
    """Users 1 and 2, items 1 and 7; the first number of a row is a bias."""
    arrays = {
        "users": packed_names([b"1", b"2"]),
        "users.rows": np.float32([[9, 1, 0], [0, 1, 1]]),
        "items": packed_names([b"1", b"7"]),
        "items.rows": np.float32([[0, 0, 2], [0, 0, 3]]),
        "mean": np.float32([3]),
    }
    worker_class = "snailps.models.embeddings.mf:MatrixFactorization"
    path = tmp_path / "ratings.npz"
    write(str(path), MfSettings(worker_class=worker_class, dim=2, output="x"), arrays)
    return path


def test_commands_answer_for_names_of_a_factorisation(run, ratings):
    assert run("nn", ratings, "7").stdout == "7\t1\t1.0\n"
    assert run("nn", ratings, "1", "--of", "users").stdout.startswith("1\t2\t0.70710")
    assert run("nn", ratings, input="7\n").stdout == "7\t1\t1.0\n"
    assert run("similarity", ratings, "1", "2").stdout.startswith("1\t2\t0.70710")
    assert run("similarity", ratings, "1", "7", "--of", "items").stdout == "1\t7\t1.0\n"
    assert run("vector", ratings, "2").stdout == "2\t0.0\t1.0\t1.0\n"


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (
            ["nn", "1"],
            DataError,
            "'1' is one of its users and one of its items: say of which (--of",
        ),
        (["nn", "9"], DataError, "'9' is none of its 2 users and 2 items"),
        (["nn", "9", "--of", "items"], DataError, "'9' is none of its 2 items"),
        (["vector", "2", "--of", "films"], DataError, "has users and items, no 'films'"),
        (["similarity", "2", "7"], DataError, "'2' is one of its users and '7' of its items: only"),
        (["analogy", "1", "2", "7"], ModelFileError, "but a matrix factorisation: snailps nn"),
    ],
)
def test_what_a_factorisation_cannot_answer_is_told(run, ratings, words, error, text):
    result = run(words[0], ratings, *words[1:])
    assert isinstance(result.exception, error)
    assert text in str(result.exception)


def test_vectors_of_sentences_and_ngrams_and_words_of_standard_input(run, model, subwords):
    wv = load(model)
    result = run("vector", model, input="queen\nnobody\nking\n")
    assert result.exit_code == 2
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["queen", "king"]
    assert "'nobody' is not in the model" in result.stderr
    (line,) = run("vector", model, "--sentences", input="king queen\n").stdout.splitlines()
    numbers = np.float32(line.split("\t"))
    np.testing.assert_array_equal(numbers, wv.sentence_vector("king queen"))
    (row,) = run("vector", model, "king queen", "--sentences", "--json").stdout.splitlines()
    assert json.loads(row)["sentence"] == "king queen"
    rows = [
        line.split("\t") for line in run("vector", subwords, "été", "--ngrams").stdout.splitlines()
    ]
    names = [name.decode() for name in load(subwords).subwords("été")[0]]
    assert [row[0] for row in rows] == names
    assert names[:2] == ["été", "<ét"]
    mean = np.mean(np.float32([row[1:] for row in rows]), axis=0)
    np.testing.assert_allclose(mean, load(subwords)["été"], atol=1e-6)
    result = run("vector", model, "king", "--sentences", "--ngrams")
    assert isinstance(result.exception, ConfigError)


def test_analogies_of_standard_input(run, model):
    result = run("analogy", model, "-k", 1, input="king man woman\ntwo words\n")
    assert result.exit_code == 2
    assert result.stdout == run("analogy", model, "king", "man", "woman", "-k", 1).stdout
    assert "expected three words, A - B + C, got 2: 'two words'" in result.stderr
    assert isinstance(run("analogy", model, "king", "man").exception, DataError)


@pytest.mark.parametrize("text", ["king\n\nman\n", "\n", "\n \n\t\nking", "king\r\n\r\n"])
def test_sentences_have_a_vector_a_line(run, model, subwords, text):
    classifier = subwords.with_name("c.bin")
    header, rows = BinHeader(dim=3, model="supervised", loss="softmax"), ROWS[:1]
    write_bin(classifier, header, [b"king"], [1], [rows], [rows], [b"__label__x"], [1])
    for path in (model, subwords, classifier):
        found = run("vector", path, "--sentences", input=text)
        assert found.exit_code == 0
        vectors = [list(map(float, line.split("\t"))) for line in found.stdout.splitlines()]
        wanted = [snailps.load(path).sentence_vector(line) for line in text.splitlines()]
        assert np.float32(vectors).tolist() == np.float32(wanted).tolist()
    words = run("vector", subwords, input=text).stdout.splitlines()  # a word a line
    assert len(words) == len(text.split())


@pytest.mark.parametrize("kind", ["supervised", "skipgram"])
def test_dump_numbers_the_nodes_of_a_tree(run, tmp_path, kind):
    header, rows = BinHeader(dim=2, model=kind, loss="hs"), np.float32([[1, 2], [3, 4], [0, 0]])
    labels = [b"__label__x", b"__label__y", b"__label__z"] if kind == "supervised" else []
    words = [b"a", b"b", b"c"]
    counts = [3, 2, 1]
    more = (labels, counts[: len(labels)])
    write_bin(tmp_path / "m.bin", header, words, counts, [rows], [rows], *more)
    lines = run("dump", tmp_path / "m.bin", "output").stdout.splitlines()
    assert lines == ["0\t1.0\t2.0", "1\t3.0\t4.0", "2\t0.0\t0.0"]
    assert run("dump", tmp_path / "m.bin", "input").stdout.startswith("a\t1.0")


def test_dump_prints_each_part_of_a_file(run, tmp_path):
    header = BinHeader(dim=2, bucket=3, minn=2, maxn=3, model="supervised", loss="ova", epochs=7)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    words, labels = [b"a", b"\xff"], [b"__label__x"]
    write_bin(tmp_path / "m.bin", header, words, [5, 4], [rows], [rows[:1]], labels, [3])

    def dump(part):
        return [
            line.split("\t") for line in run("dump", tmp_path / "m.bin", part).stdout.splitlines()
        ]

    arguments = dict(dump("args"))
    assert (arguments["loss"], arguments["epoch"], arguments["maxn"]) == ("ova", "7", "3")
    assert run("dump", tmp_path / "m.bin", "dict").stdout_bytes == (
        b"a\t5\tword\n\xff\t4\tword\n__label__x\t3\tlabel\n"
    )
    assert [row[0] for row in dump("input")][2:] == ["2", "3", "4"]
    assert np.float32([row[1:] for row in dump("input")]).tolist() == rows.tolist()
    assert dump("output") == [["__label__x", "0.0", "1.0"]]
    (first, *_) = run("dump", tmp_path / "m.bin", "input", "--json").stdout.splitlines()
    assert json.loads(first) == {"word": "a", "vector": [0.0, 1.0]}
    write_vec(tmp_path / "v.vec", words[:1], [rows[:1]], 2)
    assert "expected a .bin or .ftz, got word vectors" in str(
        run("dump", tmp_path / "v.vec", "args").exception
    )
