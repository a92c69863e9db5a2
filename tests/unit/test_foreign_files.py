"""Vector files of other programs, and what is no vector file: by first bytes, packed, damaged."""

import errno
import gzip
import os
import struct

import numpy as np
import official_fasttext
import pytest
from machine import fails

import snailps
from snailps.errors import DataError, ModelFileError
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.query import Vectors

WORDS = ["the", "größe", "日本", "1", "-", "a"]
ROWS = np.random.default_rng(5).normal(size=(6, 5)).astype(np.float32)


def word2vec(newline=b"\n", rows=ROWS, words=WORDS):
    """The bytes of word2vec's binary: of the original program, or without newlines of gensim."""
    parts = [b"%d %d\n" % rows.shape]
    for word, row in zip(words, rows, strict=True):
        parts += [word.encode(), b" ", row.tobytes(), newline]
    return b"".join(parts)


def glove(words=WORDS):
    lines = (" ".join([w, *map(repr, r.tolist())]) for w, r in zip(words, ROWS, strict=True))
    return "".join(f"{line}\n" for line in lines).encode()


KINDS = {
    "word2vec": word2vec(),
    "word2vec of gensim": word2vec(b""),
    "glove": glove(),
    "text": b"6 5\n" + glove(),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_load_gives_the_words_and_rows_of_other_programs(tmp_path, kind, packed):
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(KINDS[kind]) if packed else KINDS[kind])
    wv = snailps.load(path)
    assert isinstance(wv, Vectors)
    assert wv.words == WORDS
    np.testing.assert_array_equal(wv.vectors, ROWS)


@pytest.mark.parametrize("first", [0.0, 1e-38, -1.0, struct.unpack("<f", b"\n \n\0")[0]])
def test_load_word2vec_with_odd_first_value_is_binary(tmp_path, first):
    rows = ROWS.copy()
    rows[0] = first
    (tmp_path / "m").write_bytes(word2vec(rows=rows))
    np.testing.assert_array_equal(load(tmp_path / "m").vectors, rows)


def test_load_word2vec_cut_anywhere_is_refused(tmp_path):
    whole = word2vec(b"")
    for length in range(len(whole)):
        (tmp_path / "m").write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(tmp_path / "m")
    (tmp_path / "m").write_bytes(whole + b"more")
    with pytest.raises(ModelFileError, match="has more data after the 6 words"):
        load(tmp_path / "m")


def test_load_word2vec_with_a_damaged_word_says_where(tmp_path):
    (tmp_path / "m").write_bytes(word2vec(words=["the", "", *WORDS[2:]]))
    with pytest.raises(ModelFileError, match=r"at byte 28, where word 2 of 6 begins"):
        load(tmp_path / "m")


LONG_WORDS = ["new york", "the", "a", "New York City", "größe 2", "vitamin c", "a b c d"]


@pytest.mark.parametrize("every", [1, 3, 500])
@pytest.mark.parametrize("newline", [b"", b"\n"])
@pytest.mark.parametrize("dim", [3, 5, 50])
def test_load_word2vec_keeps_blanks_in_words(tmp_path, dim, newline, every):
    words = [*LONG_WORDS, *(f"{'x ' * (n % every == 0)}word{n}" for n in range(3000)), "the end"]
    rows = np.random.default_rng(dim).normal(size=(len(words), dim)).astype(np.float32)
    (tmp_path / "m").write_bytes(word2vec(newline, rows, words))
    wv = load(tmp_path / "m")
    assert wv.words == words
    np.testing.assert_array_equal(wv.vectors, rows)


def test_load_word2vec_of_odd_words_and_numbers_cuts_none_of_them(tmp_path):
    words = [b"\xff\xfe", b"tab\there", b"\x01", *(b"w%d" % n for n in range(99)), b"\xe6\x97"]
    rows = np.random.default_rng(1).normal(size=(len(words), 40)).astype(np.float32)
    rows[::5] *= np.float32(1e-30)
    rows[7], rows[50] = 3e38, np.nan
    head = b"%d %d\n" % rows.shape
    pairs = zip(words, rows, strict=True)
    (tmp_path / "m").write_bytes(head + b"".join(w + b" " + r.tobytes() for w, r in pairs))
    wv = load(tmp_path / "m")
    assert wv.raw_words == words
    np.testing.assert_array_equal(wv.vectors, rows)


def test_load_word2vec_with_a_zero_byte_in_a_word_says_where(tmp_path):
    (tmp_path / "m").write_bytes(word2vec(words=["the", "si\0e", *WORDS[2:]]))
    with pytest.raises(ModelFileError, match=r"at byte 29, where word 2 of 6 begins"):
        load(tmp_path / "m")


def test_load_text_takes_the_row_that_gloves_header_does_not_count(tmp_path, caplog):
    (tmp_path / "m").write_bytes(b"2 3\nship .1 .2 .3\nboat 0 1 0\n<unk> 0.5 .25 .125\n")
    wv = load(tmp_path / "m")
    assert wv.words == ["ship", "boat", "<unk>"]
    assert wv["<unk>"].tolist() == [0.5, 0.25, 0.125]
    assert [line.getMessage().partition(": ")[2] for line in caplog.records] == [
        "its first line announces 2 words, and a row of <unk> follows them, as GloVe's program "
        "writes it (-write-header 1): it is read, too"
    ]
    for more in (b"<unk> 1 2 3\nsea 1 2 3\n", b"sea 1 2 3\n", b"<unk> 1 2 3"):
        (tmp_path / "m").write_bytes(b"1 3\nship .1 .2 .3\n" + more)
        with pytest.raises(ModelFileError, match=r"more lines than the 1|has no end"):
            load(tmp_path / "m")


def test_floret_table_without_words_is_named(tmp_path):
    (tmp_path / "m").write_bytes(b"300 2 3 5 2 2166136261 < >\n0 .1 .2\n")
    with pytest.raises(ModelFileError, match=r"floret's table of hashed rows.*load the \.bin"):
        load(tmp_path / "m")


@pytest.mark.parametrize("kind", ["vec", "glove", "word2vec", "npz", "bin", "rows"])
def test_word_that_occurs_again_has_one_row_the_first(tmp_path, kind, caplog):
    words, rows = ["a", "b", "a", "c", "b", "a"], ROWS
    path, given = tmp_path / (f"m.{kind}" if kind != "rows" else "m.npz"), None
    if kind == "bin":
        outputs, buckets = np.zeros_like(rows), np.ones((4, 5), np.float32)
        raw = [word.encode() for word in words]
        header = BinHeader(dim=5, bucket=4, minn=2, maxn=3)
        write_bin(path, header, raw, [1] * 6, [rows, buckets], [outputs])
    elif kind == "npz":
        joined = np.frombuffer("\n".join(words).encode(), np.uint8)
        np.savez(path, words=joined, vectors=rows)
    elif kind == "rows":
        np.savez(path, embedding=rows, output=rows, round=1)
        given = words
    else:
        text = b"6 5\n" * (kind == "vec") + glove(words)
        path.write_bytes(word2vec(words=words) if kind == "word2vec" else text)
    wv = load(path, words=given)
    assert wv.words == ["a", "b", "c"]
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage() == (
        "3 of 6 rows repeat a word: each word keeps its first row, and the others are left out; "
        "the first repeated word is 'a', in rows 1 and 3"
    )
    assert sorted(word for word, _ in wv.most_similar("a", topn=9)) == ["b", "c"]
    if kind != "bin":
        np.testing.assert_array_equal(wv.vectors, rows[[0, 1, 3]])
    else:
        grams = load_first(tmp_path, rows, buckets)
        for word in ("a", "b", "c", "unseen"):
            np.testing.assert_array_equal(wv[word], grams[word])
    wv.save(tmp_path / "again.npz")
    assert load(tmp_path / "again.npz").words == wv.words


def load_first(folder, rows, buckets):
    """A .bin of each first row."""
    words, first = [b"a", b"b", b"c"], rows[[0, 1, 3]]
    header = BinHeader(dim=5, bucket=4, minn=2, maxn=3)
    write_bin(folder / "first.bin", header, words, [1] * 3, [first, buckets], [first])
    return load(folder / "first.bin")


def test_load_glove_keeps_blanks_in_words(tmp_path):
    words = ["the", ". . .", "at name@domain.com", *WORDS[3:]]
    (tmp_path / "m.txt").write_bytes(glove(words))
    wv = load(tmp_path / "m.txt")
    assert wv.words == words
    np.testing.assert_array_equal(wv.vectors, ROWS)


def test_load_glove_of_many_lines_keeps_their_order(tmp_path):
    (tmp_path / "m").write_bytes(b"".join(b"w%d %d.5 0\n" % (n, n) for n in range(9000)))
    wv = load(tmp_path / "m")
    assert wv.words[::1000] == [f"w{n}" for n in range(0, 9000, 1000)]
    assert wv.vectors[:, 0].tolist() == [n + 0.5 for n in range(9000)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a 1.5 2\nb 3\n", "line 2: expected a word and 2 numbers, .* got 'b 3"),
        (b"a 1.5 2\nb 3 x\n", "line 2: expected a word and 2 numbers"),
        (b"a 1.5 2\n\nb 3 4\n", "line 2: expected a word and 2 numbers"),
        (b"a 1.5 2\nb 3 4.", "line 2 has no end"),
    ],
)
def test_load_damaged_glove_says_where(tmp_path, text, message):
    (tmp_path / "m").write_bytes(text)
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "m")


# --- packed files -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bin", "vec", "npz"])
def test_load_packed_files_of_ours(tmp_path, kind):
    path, _ = official_fasttext.train(tmp_path)
    whole = load(path)
    if kind != "bin":
        path = tmp_path / f"m.{kind}"
        whole.save(path)
    packed = tmp_path / f"m.{kind}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    wv = snailps.load(packed)
    assert repr(wv) == repr(load(path))
    np.testing.assert_array_equal(wv.vectors, load(path).vectors)


def test_load_packed_file_cut_short_or_without_room_says_so(tmp_path, monkeypatch):
    path = tmp_path / "m.vec.gz"
    path.write_bytes(gzip.compress(KINDS["text"])[:-20])
    with pytest.raises(ModelFileError, match=r"cannot be unpacked: .*; fetch it again"):
        load(path)

    path.write_bytes(gzip.compress(KINDS["text"]))

    monkeypatch.setattr("snailps.vectors.opening.check_room", fails(errno.ENOSPC))
    with pytest.raises(ModelFileError, match="No space left on device; make room, or name another"):
        load(path)


@pytest.mark.parametrize("lacking", ["free_bytes", "memory"])
def test_load_packed_file_leaves_room_for_others(tmp_path, monkeypatch, lacking):
    path = tmp_path / "m.vec.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000), 1))
    left = [3e8, 2e8, 7e7]
    answers = {
        "free_bytes": lambda folder: left.pop(0),
        "memory": lambda: (left.pop(0), "MemAvailable"),
    }
    monkeypatch.setattr(f"snailps.vectors.opening.{lacking}", answers[lacking])
    with pytest.raises(ModelFileError, match=r"first 33\.6 MB, .* has 70\.0 MB left; make room"):
        load(path)
    assert left == []


def test_label_model_of_a_packed_file(tmp_path):
    model = official_fasttext.module()
    text = tmp_path / "text"
    text.write_text("__label__a up up\n__label__b down down\n" * 20)
    trained = model.train_supervised(str(text), dim=3, thread=1, verbose=0, epoch=9, lr=1.0)
    trained.save_model(str(tmp_path / "m.bin"))
    (tmp_path / "m.bin.gz").write_bytes(gzip.compress((tmp_path / "m.bin").read_bytes()))
    ((found,),) = LabelModel(tmp_path / "m.bin.gz").predict("up")
    assert found.label == "__label__a"
    (tmp_path / "m.vec.gz").write_bytes(gzip.compress(KINDS["text"]))
    with pytest.raises(
        ModelFileError, match=r"expected a classifier .*, got word vectors: snailps nn"
    ):
        LabelModel(tmp_path / "m.vec.gz")


# --- federated averaging ------------------------------------------------------------------------


def federated(path, words=None):
    said = {} if words is None else {"words": np.frombuffer("\n".join(words).encode(), np.uint8)}
    np.savez(
        path, embedding=ROWS, output=ROWS, bias=ROWS[:, 0], round=np.int64(3), **said
    )  # fmt: skip


def test_load_federated_vectors_takes_their_words(tmp_path):
    federated(tmp_path / "with.npz", WORDS)
    assert load(tmp_path / "with.npz").words == WORDS
    federated(tmp_path / "m.npz")
    (tmp_path / "vocab.txt").write_text(" ".join(WORDS[:3]) + "\n" + "\n".join(WORDS[3:]))
    for words in (WORDS, tmp_path / "vocab.txt", str(tmp_path / "vocab.txt")):
        wv = snailps.load(tmp_path / "m.npz", words=words)
        assert wv.words == WORDS
        np.testing.assert_array_equal(wv.vectors, ROWS)


def test_load_federated_text_takes_their_words(tmp_path):
    path = tmp_path / "m.embedding.txt"
    path.write_text("".join(" ".join(f"{v:.6f}" for v in row) + "\n" for row in ROWS))
    wv = snailps.load(path, words=WORDS)
    np.testing.assert_allclose(wv.vectors, ROWS, atol=1e-6)
    with pytest.raises(ModelFileError, match=r"without their words.*words='FOLDER/vocab\.txt'"):
        snailps.load(path)
    path.write_text("0.1 0.2\n0.3\n")
    with pytest.raises(ModelFileError, match="equally many numbers"):
        snailps.load(path, words=WORDS)


def test_load_federated_vectors_with_wrong_words_says_so(tmp_path):
    federated(tmp_path / "m.npz")
    with pytest.raises(ModelFileError, match=r"6 vectors without their words.*vocab\.txt"):
        snailps.load(tmp_path / "m.npz")
    with pytest.raises(ModelFileError, match="6 vectors, but there are 2 words"):
        snailps.load(tmp_path / "m.npz", words=["a", "b"])
    with pytest.raises(ModelFileError, match=r"vocab\.txt: cannot be read as a list of words"):
        snailps.load(tmp_path / "m.npz", words=tmp_path / "vocab.txt")
    with pytest.raises(DataError, match="expected the words of a file's rows, got none"):
        snailps.load(tmp_path / "m.npz", words=[])


@pytest.mark.parametrize("kind", ["text", "npz", "federated", "bin"])
def test_load_refuses_words_for_a_file_that_has_its_own(tmp_path, kind):
    path = tmp_path / "m"
    if kind == "text":
        path.write_bytes(KINDS["text"])
    elif kind == "npz":
        snailps.Vectors(WORDS, ROWS).save(tmp_path / "m.npz")
        path = tmp_path / "m.npz"
    elif kind == "federated":
        federated(tmp_path / "m.npz", WORDS)
        path = tmp_path / "m.npz"
    else:
        path, _ = official_fasttext.train(tmp_path)
    with pytest.raises(DataError, match=r"words: given for the rows of .* words of its own"):
        snailps.load(path, words=WORDS)


# --- what is no vector file ---------------------------------------------------------------------


def test_load_a_folder_or_a_missing_file_says_so(tmp_path):
    with pytest.raises(ModelFileError, match="a folder"):
        snailps.load(tmp_path)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ModelFileError, match="a checkpoint: snailps checkpoint export"):
        snailps.load(tmp_path)
    (tmp_path / "m.ftz").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"did you mean .*m\.ftz\?"):
        snailps.load(tmp_path / "m")


# --- quantised models ---------------------------------------------------------------------------

QUANTISED = {
    "plain": ({}, {}),
    "norms": ({"loss": "ova"}, {"qnorm": True, "dsub": 5}),
    "pruned": ({"minn": 2, "maxn": 4, "bucket": 3000, "wordNgrams": 2},
               {"cutoff": 300, "qnorm": True}),
    "output": ({"labels": 260}, {"qout": True}),
}  # fmt: skip


@pytest.fixture(scope="module", params=QUANTISED)
def quantised(request, tmp_path_factory):
    """(path of the .ftz, the package's own model, lines) of one kind."""
    settings, how = QUANTISED[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    settings = dict(settings)
    labels = settings.pop("labels", 5)
    random = np.random.default_rng(1)
    names = official_fasttext.SYLLABLES
    lines = []
    for number in range(520):
        label = number % labels
        words = ["".join(random.choice(names, random.integers(1, 4))) for _ in range(5)]
        lines.append(" ".join([f"__label__l{label}", names[label % 10] * 2, *words]))
    text = folder / "text"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wanted = {"dim": 12, "epoch": 3, "lr": 0.5, "thread": 1, "verbose": 0}
    model = official_fasttext.module().train_supervised(str(text), **{**wanted, **settings})
    model.quantize(str(text), thread=1, verbose=0, **how)
    path = folder / "m.ftz"
    return path, official_fasttext.saved(model, path), lines


def test_quantised_classifier_predicts_what_the_official_one_does(quantised):
    path, theirs, lines = quantised
    ours = snailps.load(path)
    assert isinstance(ours, LabelModel)
    assert repr(ours).endswith(", quantised)")
    lines = [*lines[:40], "", "unseen words", "日本 größer"]
    found = ours.predict("".join(f"{line}\n" for line in lines).encode(), k=len(ours.labels))
    for line, mine in zip(lines, found, strict=True):
        expected = {name: p for p, name in theirs.f.predict(line + "\n", -1, 0.0, "strict")}
        for label, p in mine:
            # fastText adds 1e-5, and reads the logistic function of `ova` from a table.
            assert p == pytest.approx(expected[label.decode()], abs=2e-5 + 0.008 * (ours.loss == "ova"))  # fmt: skip  # noqa: E501


def test_quantised_vectors_are_the_official_ones(quantised):
    path, theirs, _ = quantised
    ours = load(path)
    assert ours.words == theirs.get_words()
    expected = np.array([theirs.get_word_vector(word) for word in ours.words])
    np.testing.assert_allclose(ours.vectors, expected, atol=1e-6)
    if ours.has_subwords:
        np.testing.assert_allclose(ours["kalomi"], theirs.get_word_vector("kalomi"), atol=1e-6)
    else:
        with pytest.raises(KeyError, match="no subwords"):
            ours["unseen"]
    assert ours.most_similar(ours.words[1], topn=3)[0].score <= 1.0001
    with pytest.raises(ModelFileError, match=r"ends in \.ftz, because the model is quantised"):
        ours.save(path.parent / "m.bin")


def test_quantised_model_cut_anywhere_is_refused(quantised, tmp_path):
    path, _, _ = quantised
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(tmp_path / "cut")


def test_quantised_model_with_changed_bytes_is_refused_or_read(quantised, tmp_path):
    path, _, _ = quantised
    whole = path.read_bytes()
    random = np.random.default_rng(2)
    for at in random.integers(0, len(whole), 60).tolist():
        changed = bytearray(whole)
        changed[at] ^= int(random.integers(1, 256))
        (tmp_path / "m").write_bytes(changed)
        try:
            load(tmp_path / "m")
        except ModelFileError:
            continue


def test_quantised_model_with_impossible_parts_is_refused_before_memory_is_taken(
    quantised, tmp_path
):
    whole = quantised[0].read_bytes()
    heads = [(12, -(-12 // width), width, 12 % width or width) for width in range(1, 13)]
    head = next(head for head in heads if struct.pack("<iiii", *head) in whole)
    at = whole.index(struct.pack("<iiii", *head))
    wrong = [(12, 2**31 - 1, 0, 12), (12, 0, 2, 12), (12, -5, -2, 0), (12, 7, 2, 0), (12, 13, 1, 0)]
    for place in range(4):
        for value in (-1, 0, 2**31 - 1):
            wrong.append((*head[:place], value, *head[place + 1 :]))
    for values in wrong:
        changed = whole[:at] + struct.pack("<iiii", *values) + whole[at + 16 :]
        (tmp_path / "m").write_bytes(changed)
        with pytest.raises(ModelFileError, match="damaged"):
            load(tmp_path / "m")


def test_read_bin_refuses_quantised_models_where_all_rows_are_needed(quantised):
    with pytest.raises(ModelFileError, match=r"here only full models.*snailps\.load"):
        read_bin(quantised[0])
    assert os.fspath(quantised[0]).endswith(".ftz")
