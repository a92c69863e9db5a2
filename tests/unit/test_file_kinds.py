"""files.file_kinds: what is no input, by its first bytes."""

import io
import pickle
import sqlite3
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from snailps.errors import DataError
from snailps.files.blocks import expand, head_of
from snailps.files.file_kinds import HEAD_BYTES, content_name, refuse_foreign
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("x", "x")
    return made.getvalue()


def tarred(form) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return made.getvalue()


def saved(array) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


FOREIGN = [
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF", "JPEG"),
    (b"GIF89a\1\0", "GIF"),
    (b"RIFF\x24\0\0\0WAVEfmt ", "WAV"),
    (b"%PDF-1.7\n%\xe2\xe3", "PDF"),
    (b"\x7fELF\2\1\1\0", "ELF"),
    (b"\x1f\x8b\x08\0", "gzip"),
    (b"BZh91AY&SY", "bzip2"),
    (b"\xfd7zXZ\0\0\4", "xz"),
    (b"\x28\xb5\x2f\xfd\4", "Zstandard"),
    (b"SQLite format 3\0\x10", "SQLite"),
    (b"PAR1\x15\4\x15", "Parquet"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"\xff\xfeh\0i\0", "UTF-16"),
    (b"\xba\x16\x4f\x2f\x0c\0\0\0", "fastText model"),
    (zipped(), "zip archive"),
    (tarred(tarfile.GNU_FORMAT), "tar archive"),
    (tarred(tarfile.PAX_FORMAT), "tar archive"),
    *((pickle.dumps(value, protocol), "pickle")
      for value in ([1], {"a": 1}, "text", (1, 2), 7, None.__class__) for protocol in (2, 4, 5)
      if not (value is None.__class__ and protocol == 2)),
]  # fmt: skip


@pytest.mark.parametrize(("head", "name"), FOREIGN)
def test_foreign_file_is_named(head, name):
    assert name in content_name(head[:HEAD_BYTES])
    with pytest.raises(DataError, match=f"x.txt is no text, but .*{name}"):
        refuse_foreign(head[:HEAD_BYTES], "x.txt")


@pytest.mark.parametrize(
    "text",
    [
        "", "words", "\ufeffwords", "%PDF is a format", "PK is a name", "BZh 9", "GIF89 a",
        "PAR1 x", "RIFF raff WAVES", "ID3 tags", "SQLite format 3 is one", "fLaC x", "OggS x",
        "ORC x", "Rar! x", "__label__a b", "1 3:1", "naïve", "日本語", "\n\n", "\0word",
    ],
)  # fmt: skip
def test_text_is_no_foreign_file(text):
    assert content_name(text.encode(), text=True) == ""


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (saved(np.zeros(3)), "NumPy array"),
        (b"\x93SNAILX\n\1\0\0\0", "matrix file"),
        (b"\0\0\x08\x03\0\0\0\1", "idx"),
    ],
)
def test_arrays_are_refused_where_text_is_needed_only(data, name):
    assert content_name(data) == ""
    assert name in content_name(data, text=True)


@pytest.mark.parametrize(
    "data",
    [
        np.random.default_rng(0).bytes(400), np.random.default_rng(1).bytes(40) * 2,
        np.arange(50, dtype=np.int32).tobytes(), "without a mark of UTF-16".encode("utf-16-le"),
    ],
)  # fmt: skip
def test_binary_data_of_no_known_format_is_no_text(data):
    assert content_name(data) == ""
    assert "binary data" in content_name(data, text=True)


@pytest.mark.parametrize(
    "data",
    [
        "日本語のテキスト".encode("shift_jis") * 4, "Привет, как дела. ".encode("koi8-r") * 4,
        b"\x1b[31mred\x1b[0m and \x1b[1mbold\x1b[0m words", b"one\0four\0fourteen\0" * 3,
        b"a page\f\x0c and a bell\x07 in a long text" + b" of words" * 9, b"\1\2\3",
        np.random.default_rng(0).bytes(20),
    ],
)  # fmt: skip
def test_text_of_other_encodings_is_no_binary_data(data):
    assert content_name(data, text=True) == ""


def test_sqlite_as_it_writes(tmp_path):
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("create table t (a)")
    database.close()
    assert "SQLite" in content_name((tmp_path / "x.db").read_bytes()[:HEAD_BYTES])


def test_this_python_is_a_program():
    with open(sys.executable, "rb") as file:
        assert "ELF" in content_name(file.read(HEAD_BYTES))


def test_expand_refuses_foreign_files_packed_ones_too(tmp_path):
    import gzip

    scratch = Scratch(str(tmp_path / "scratch"), 1 << 20)
    for name, data in (("a.txt", b"%PDF-1.4\n"), ("b.txt.gz", gzip.compress(zipped()))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=rf"{name} is no text, but a (PDF|zip)"):
            expand([str(tmp_path / name)], scratch)
        with pytest.raises(DataError, match="is no text"):
            head_of(str(tmp_path / name))
    scratch.close()


def test_expand_refuses_arrays_for_models_of_text(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(saved(np.zeros(3)))
    assert expand([str(path)], Scratch(str(tmp_path / "scratch"), 0))
    text = Scratch(str(tmp_path / "scratch"), 0, tables=Reading("text"))
    with pytest.raises(DataError, match="a NumPy array: a model of text needs text"):
        expand([str(path)], text)
