"""Files of vectors: text and NumPy archives, and what writers of all kinds do when they fail."""

import errno
import os
import zipfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from snailps.errors import ModelFileError
from snailps.files.atomic import atomic_file, human_bytes
from snailps.models.packed_tables import opened, read_packed
from snailps.models.word_vectors.settings import WordVectorSettings as Settings
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.saving import write_npz
from snailps.vectors.text_files import vec_shape, write_vec

WORDS = [b"</s>", "größe".encode(), b"a", "日本".encode(), b"walking", b"__x__"]
COUNTS = [9, 7, 5, 5, 2, 1]


def rows_of(count, dim=8, seed=1):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


# --- .vec ---------------------------------------------------------------------------------------


def test_write_vec_gives_the_lines_of_fasttext(tmp_path):
    rows = np.array([[1, -0.5], [1e-7, 123456], [1 / 3, 0]], dtype=np.float32)
    write_vec(tmp_path / "m.vec", ["é".encode(), b"b", b"c"], [rows[:1], rows[1:]], 2)
    text = (tmp_path / "m.vec").read_text(encoding="utf-8")
    assert text == "3 2\né 1 -0.5\nb 1e-07 1.2346e+05\nc 0.33333 0\n"


def test_load_vec_with_trailing_blanks_and_carriage_returns_gives_its_numbers(tmp_path):
    path = tmp_path / "m.vec"
    path.write_bytes(b"2 3\r\nun 1 2 3 \r\ndeux  4 5e1 -6 \r\n")
    vectors = load(path)
    assert vectors.words == ["un", "deux"]
    assert vectors.vector("deux").tolist() == [4, 50, -6]


@given(
    rows=arrays(np.float32, st.tuples(st.integers(1, 6), st.just(3)),
                elements=st.floats(-1e6, 1e6, width=32)),
)  # fmt: skip
@example(rows=np.array([[173906, -0.0, -0.0]], np.float32))  # shorter than the rest of a word
def test_write_vec_then_load_keeps_five_digits(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("vec") / "m.vec"
    words = [b"w%d" % number for number in range(len(rows))]
    write_vec(path, words, [rows], 3)
    vectors = load(path)
    assert vectors.raw_words == words
    np.testing.assert_allclose(next(vectors.chunks()), rows, rtol=5.1e-5, atol=1e-44)


def test_load_vec_of_many_blocks_of_lines_keeps_their_order(tmp_path):
    rows = rows_of(9000, 2)
    words = [b"w%d" % number for number in range(9000)]
    write_vec(tmp_path / "m.vec", words, np.array_split(rows, 7), 2)
    vectors = load(tmp_path / "m.vec")
    assert vectors.raw_words == words
    np.testing.assert_allclose(next(vectors.chunks()), rows, rtol=5.1e-5)


def test_load_vec_cut_anywhere_is_refused(tmp_path):
    write_vec(tmp_path / "m.vec", WORDS, [rows_of(len(WORDS))], 8)
    whole = (tmp_path / "m.vec").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.vec").write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(tmp_path / "cut.vec")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF", "not a vector file"),
        (b"2\na 1\nb 2\n", "its first line must be"),
        (b"1 2 3\n", "its first line must be"),
        (b"0 5\n", "expected at least one word"),
        (b"1 99999999999\na 1\n", "expected at least one word"),
        (b"999999999999 300\na 1\n", "need at least"),
        (b"2 2\na 1 2\nb 3\n   \n", r"line 3: expected a word, a space and 2 numbers.*1 values"),
        (b"2 2\na 1 x\nb 3 4\n", r"line 2: .*'a 1 x"),
        (b"2 2\n 1 22\nb 3 4\n", "line 2"),
        (b"2 2\na 1 2 3\nb 4\n", "line 2"),
        (b"1 2\na 1 2\nb 3 4\n", "more lines than the 1 words"),
    ],
)
def test_load_damaged_text_says_what_is_wrong(tmp_path, text, message):
    (tmp_path / "m.vec").write_bytes(text)
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "m.vec")


# --- .npz ---------------------------------------------------------------------------------------


def test_write_npz_is_read_by_numpy_without_pickle(tmp_path):
    rows = rows_of(len(WORDS))
    write_npz(tmp_path / "m.npz", WORDS, [rows[:2], rows[2:]], 8, counts=COUNTS)
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert sorted(file.files) == ["counts", "vectors", "words"]
        assert file["words"].tobytes().split(b"\n") == WORDS
        assert file["counts"].tolist() == COUNTS
        np.testing.assert_array_equal(file["vectors"], rows)


def test_load_npz_gives_the_rows_bit_by_bit(tmp_path):
    rows = rows_of(len(WORDS))
    write_npz(tmp_path / "m.npz", WORDS, [rows], 8)
    vectors = load(tmp_path / "m.npz")
    assert vectors.raw_words == WORDS
    np.testing.assert_array_equal(next(vectors.chunks()), rows)


def test_load_npz_compressed_by_numpy_is_accepted(tmp_path):
    text = np.frombuffer(b"a\nb", dtype=np.uint8)
    np.savez_compressed(tmp_path / "m.npz", words=text, vectors=np.zeros((2, 5000), np.float32))
    assert load(tmp_path / "m.npz").vector("b").shape == (5000,)


def test_load_npz_cut_or_altered_is_refused(tmp_path):
    write_npz(tmp_path / "m.npz", WORDS, [rows_of(len(WORDS))], 8)
    whole = (tmp_path / "m.npz").read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(path)
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 1
    path.write_bytes(altered)
    with pytest.raises(ModelFileError, match="damaged"):
        load(path)


@pytest.mark.parametrize(
    ("arrays_in_file", "message"),
    [
        ({"x": np.zeros(3)}, "expected arrays 'words'"),
        ({"words": np.zeros(3), "vectors": np.zeros((2, 2), np.float32)}, "'words' must be uint8"),
        ({"words": np.frombuffer(b"a\nb", np.uint8), "vectors": np.zeros((2, 2))}, "float64"),
        ({"words": np.frombuffer(b"a", np.uint8), "vectors": np.zeros((2, 2), np.float32)},
         "1 words but 2 vectors"),
    ],
)  # fmt: skip
def test_load_npz_of_somebody_else_is_refused(tmp_path, arrays_in_file, message):
    np.savez(tmp_path / "m.npz", **arrays_in_file)
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1 << 40, 1 << 20), "announces"),  # and takes no memory
        ((-2, -2), r"'vectors.npy' has float32 of shape \(-2, -2\)"),
    ],
)
def test_load_npz_with_a_shape_that_cannot_be_is_refused(tmp_path, shape, message):
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("words.npy", "w") as member:
            np.lib.format.write_array(member, np.frombuffer(b"a", np.uint8))
        with archive.open("vectors.npy", "w") as member:
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, head)
            member.write(bytes(16))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_load_npz_that_is_encrypted_is_refused(tmp_path):
    path = tmp_path / "m.npz"
    write_npz(path, WORDS, [rows_of(len(WORDS))], 8)
    whole = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        found = -1
        while (found := whole.find(mark, found + 1)) >= 0:
            whole[found + at] |= 1
    path.write_bytes(whole)
    with pytest.raises(ModelFileError, match=r"damaged or cut short \(.*encrypted"):
        load(path)


# --- any file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.bin", "m.vec", "m.npz"])
@pytest.mark.parametrize(
    "read",
    [load, LabelModel, vec_shape, read_packed, lambda path: opened(Settings(continue_from=path))],
)
def test_pipe_is_refused_before_it_is_opened(tmp_path, read, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelFileError, match=f"{name}: a pipe or a device, .* into a file"):
        read(str(tmp_path / name))


def test_load_missing_file_names_the_one_that_was_meant(tmp_path):
    write_any("bin", tmp_path / "model.bin")
    with pytest.raises(ModelFileError, match=r"no such file; did you mean .*model\.bin\?"):
        load(tmp_path / "model")
    with pytest.raises(ModelFileError, match="no such file; check the path"):
        load(tmp_path / "other")
    with pytest.raises(ModelFileError, match="a folder"):
        load(tmp_path)


def write_any(kind, path, words=(b"a", b"b"), chunks=None):
    chunks = [rows_of(2, 4)] if chunks is None else chunks
    if kind == "bin":
        counts = [1] * len(words)
        write_bin(path, BinHeader(dim=4), list(words), counts, chunks, [rows_of(len(words), 4)])
    else:
        {"vec": write_vec, "npz": write_npz}[kind](path, list(words), chunks, 4)


KINDS = pytest.mark.parametrize("kind", ["bin", "vec", "npz"])


@KINDS
@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([rows_of(1, 4)], "needs 2 rows, but only 1 came"),
        ([rows_of(1, 4), rows_of(2, 4)], "needs 1 more rows, a chunk has 2"),
        ([rows_of(2, 5)], r"must be float32\[k, 4\], got float32\[2, 5\]"),
        ([rows_of(2, 4).astype(np.float64)], "got float64"),
    ],
)
def test_writers_with_wrong_chunks_leave_nothing(tmp_path, kind, chunks, message):
    with pytest.raises(ModelFileError, match=message):
        write_any(kind, tmp_path / "m", chunks=chunks)
    assert list(tmp_path.iterdir()) == []


@KINDS
@pytest.mark.parametrize("word", [b"", b"a b", b" a", b"new\nline", b"tab\t", b"zero\0"])
def test_writers_with_impossible_word_name_it(tmp_path, kind, word):
    if kind == "npz" and word and b"\n" not in word:
        write_any(kind, tmp_path / "m", words=[b"a", word])
        assert load(tmp_path / "m").raw_words == [b"a", word]
        return
    with pytest.raises(ModelFileError, match="word 1 is "):
        write_any(kind, tmp_path / "m", words=[b"a", word])


@KINDS
def test_writers_interrupted_keep_the_old_file_and_the_cause(tmp_path, kind):
    path = tmp_path / "m"
    path.write_text("old")

    def chunks():
        yield rows_of(1, 4)
        raise ConnectionResetError("the server went away")

    with pytest.raises(ConnectionResetError):
        write_any(kind, path, chunks=chunks())
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert path.read_text() == "old"


@KINDS
def test_writers_into_missing_folder_name_it(tmp_path, kind):
    with pytest.raises(ModelFileError, match="nowhere does not exist; create it"):
        write_any(kind, tmp_path / "nowhere" / "m")
    with pytest.raises(ModelFileError, match="it is a folder"):
        write_any(kind, tmp_path)
    with pytest.raises(ModelFileError, match="a device or a pipe"):
        write_any(kind, os.devnull)


@pytest.mark.parametrize("kind", ["bin", "npz"])
def test_writers_without_room_say_so_before_they_begin(tmp_path, kind, monkeypatch):
    class Full:
        f_bavail, f_frsize = 0, 4096

    monkeypatch.setattr(os, "statvfs", lambda folder: Full)
    with pytest.raises(ModelFileError, match=r"needs \d+ B and .* has 0 B free; make room"):
        write_any(kind, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            r"the disk or quota of .* is full, .* left \(the file needs 5 B\); make room",
        ),
        (errno.EACCES, "is not writable by this user"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_atomic_file_that_cannot_be_made_says_why(tmp_path, monkeypatch, number, message):
    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ModelFileError, match=message), atomic_file(tmp_path / "m", 5):
        pass


def test_atomic_file_follows_links_and_honours_the_umask(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "link") as file:
            file.write(b"new")
            assert (tmp_path / "real").read_text() == "old"
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_human_bytes_known_sizes():
    sizes = [0, 999, 1000, 3_200_000, 999_960_000, 5_000_000_000_000_000]
    texts = ["0 B", "999 B", "1.0 kB", "3.2 MB", "1.0 GB", "5000.0 TB"]
    assert [human_bytes(size) for size in sizes] == texts
