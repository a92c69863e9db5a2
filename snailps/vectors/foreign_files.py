"""Vector files of other programs: word2vec's binary, GloVe's text, rows whose words are elsewhere.

    open file -> is_word2vec_binary -> read_word2vec -> words, rows
    open file -> glove_dim -> read_glove -> words, rows
    first bytes -> what_is -> what another file is, and what reads it

`files.load` decides which is tried.  Must not know Vectors.
"""

from __future__ import annotations

import mmap
import os
import re
from itertools import islice
from typing import IO

import numpy as np
import numpy.typing as npt

from snailps.data._float_text import read_word_lines
from snailps.errors import ModelFileError

Float32 = npt.NDArray[np.float32]

_LINES_TOGETHER = 4096
_WORD_BYTES_MAX = 1 << 16
"""A longer word means that the file is damaged: looking for its end takes no longer than this."""
_TEXT = re.compile(rb"[\t\r\x20-\x7e]*")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SIZE = re.compile(rb"\d{1,18}")
_DIM_MAX = 1 << 20

_BEGINNINGS = (
    (rb"\x80[\x02-\x05]", "a Python pickle, as gensim's save() writes it, and snailps unpickles "
     "nothing: load it with gensim and write it with wv.save_word2vec_format(path)"),
    (rb"\x93NUMPY", "a NumPy array, which has no words: snailps.Vectors(words, numpy.load(path))"),
    (rb"PAR1", "a Parquet table: pandas.read_parquet reads it"),
    (rb"\x89HDF", "an HDF5 file: h5py reads it"),
    (rb"BZh", "packed with bzip2: unpack it first (bunzip2)"),
    (rb"\xfd7zXZ", "packed with xz: unpack it first (unxz)"),
    (rb"\x28\xb5\x2f\xfd", "packed with zstd: unpack it first (unzstd)"),
    (rb"\0\0\x08[\x01\x03]", "images or labels in idx format: snailps train mlp reads it"),
    (rb"\{.*windows_per_learner", "a history of federated averaging: snailps fedavg plot draws it"),
    (rb"\{.*\"data_name\"", "a history of federated averaging: snailps fedavg plot draws it"),
    (rb"[{\[]", "JSON: pandas.read_json reads it"),
    (rb"solver_type ", "a linear model in LIBLINEAR's format: LIBLINEAR's predict reads it"),
    (rb"(?-s:.*)__label__", "labelled text: snailps train classifier --input trains with it"),
    (rb"[+-]?[\d.]+( \d+(:\d+)?:[-+\d.eE]+)+\s", "examples in LIBSVM's or LIBFFM's format: snailps "
     "train logistic --input trains with them, snailps predict MODEL.npz FILE predicts for them"),
)  # fmt: skip


def what_is(start: bytes) -> str:
    """What a file is that holds no vectors, by its first bytes, and what reads it; else empty."""
    for pattern, meaning in _BEGINNINGS:
        if re.match(pattern, start, re.DOTALL):
            return meaning
    if start[:1].isdigit():
        return ""
    text = start[: max(start.rfind(b" "), start.rfind(b"\n"), 0)]  # whole characters
    try:
        text.decode()
    except UnicodeDecodeError:
        return ""
    if len(text.split()) > 3 and not any(byte < 9 for byte in text):
        return "text: snailps train fasttext --input trains word vectors with it"
    return ""


def is_word2vec_binary(start: bytes) -> bool:
    """Whether a file with a first line ``n dim`` is word2vec's binary, not text."""
    header, newline, rest = start.partition(b"\n")
    parts = header.split()
    if not newline or len(parts) != 2 or not all(map(_SIZE.fullmatch, parts)):
        return False
    _, blank, row = rest.lstrip(b"\n").partition(b" ")
    if not blank or not row:
        return False
    line = row.partition(b"\n")[0][: 4 * int(parts[1])]
    return not (_TEXT.fullmatch(line) and any(48 <= byte <= 57 for byte in line))


def read_word2vec(
    path: str | os.PathLike[str], file: IO[bytes], count: int, dim: int
) -> tuple[list[bytes], Float32]:
    """Words and rows of word2vec's binary format, whose first line announces `count` and `dim`.

    Behind it: each word, a blank, dim float32; the original program adds a newline.
    """
    length = os.fstat(file.fileno()).st_size
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = 4 * dim
    offset = mapped.find(b"\n") + 1
    if offset + count * (size + 2) > length:
        raise ModelFileError(
            f"{path}: cut short: {count} words of dimension {dim} in word2vec's binary format "
            f"need at least {offset + count * (size + 2)} bytes, the file has {length}; fetch it "
            "again"
        )
    rows = np.empty((count, dim), "<f4")
    out = rows.reshape(-1).view(np.uint8).data
    words: list[bytes] = []
    for number in range(count):
        blank = mapped.find(b" ", offset, offset + _WORD_BYTES_MAX)
        word = mapped[offset:blank].lstrip(b"\n") if blank >= 0 else b""
        end = blank + 1 + size
        if not word or end > length:
            raise ModelFileError(
                f"{path}: damaged or cut short: no word with {dim} values (float32) at byte "
                f"{offset}, where word {number + 1} of {count} begins; fetch it again"
            )
        words.append(word)
        out[number * size : (number + 1) * size] = mapped[blank + 1 : end]
        offset = end
    if mapped[offset : offset + 65536].strip():
        raise ModelFileError(
            f"{path}: goes on behind the {count} words that its first line announces; correct "
            "that number or fetch the file again"
        )
    return words, rows.astype(np.float32, copy=False)


def glove_dim(start: bytes) -> int:
    """Length of the vectors if a file begins with a line of a word and numbers; else 0.

    At least two numbers, one with a point or an exponent.
    """
    line, newline, _ = start.partition(b"\n")
    parts = line.split()
    if not newline or len(parts) < 3 or len(parts) > _DIM_MAX:
        return 0
    if not all(map(_NUMBER.fullmatch, parts[1:])) or all(part.isdigit() for part in parts[1:]):
        return 0
    return len(parts) - 1


def is_rows_alone(start: bytes) -> bool:
    """Whether the whole first lines are numbers with a point: rows whose words are elsewhere."""
    fields = b" ".join(start.split(b"\n")[:-1][:3]).split()
    return bool(fields) and all(b"." in f and _NUMBER.fullmatch(f) for f in fields)


def read_glove(
    path: str | os.PathLike[str], file: IO[bytes], dim: int
) -> tuple[list[bytes], Float32]:
    """Words and rows of GloVe's text: a line per word, without a first line of sizes.

    A word may have blanks, as in the 840B vectors: the last `dim` fields are the numbers.
    """
    words: list[bytes] = []
    most = os.fstat(file.fileno()).st_size // (2 * dim + 2) + 1  # a blank and a digit a value
    rows = np.empty((min(_LINES_TOGETHER, most), dim), np.float32)
    while lines := list(islice(file, _LINES_TOGETHER)):
        if not lines[-1].endswith(b"\n"):
            # Its last number may have lost digits, which no other check detects.
            raise ModelFileError(
                f"{path}: cut short: line {len(words) + len(lines)} has no end; fetch it again, "
                "or add a newline if it is complete"
            )
        done = len(words)
        if done + len(lines) > most:
            short = next((at for at, line in enumerate(lines) if len(line) < 2 * dim + 2), 0)
            raise _no_row(path, done + short, dim, lines[short])
        if done + len(lines) > len(rows):
            rows.resize((max(done + len(lines), len(rows) * 3 // 2), dim), refcheck=False)
        part = rows[done : done + len(lines)]
        found = read_word_lines(lines, part)
        words += _wide_words(path, lines, done, part) if found is None else found
        del part  # a view of what may move
    rows.resize((len(words), dim), refcheck=False)
    return words, rows


def _wide_words(
    path: str | os.PathLike[str], lines: list[bytes], first: int, rows: Float32
) -> list[bytes]:
    """The words of lines in which they may have blanks; fills `rows`."""
    dim = rows.shape[1]
    words = []
    for number, line in enumerate(lines):
        word, *values = line.strip(b"\r\n ").rsplit(None, dim) or [b""]
        try:
            rows[number] = np.array(values, np.float32)
        except ValueError:
            values = []
        if not word or len(values) != dim:
            raise _no_row(path, first + number, dim, line)
        words.append(word)
    return words


def _no_row(path: str | os.PathLike[str], number: int, dim: int, line: bytes) -> ModelFileError:
    return ModelFileError(
        f"{path}, line {number + 1}: expected a word and {dim} numbers, as in its first line, got "
        f"{line[:60]!r}; fetch it again"
    )
