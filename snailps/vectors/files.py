"""Vector files: the text format .vec, NumPy's .npz, and `load` for files of any program.

    words + chunks of float32 rows -> write_vec, write_npz -> model.vec, model.npz
    words, chunks, a fastText model -> save_vectors -> .vec, .npz, .bin, by the ending of the name
    .bin, .ftz, .vec, .npz, word2vec's binary, GloVe's text, each as .gz -> load -> query.Vectors

Owns .vec and .npz; fastText's .bin is in fasttext_bin.py, what other programs write in
foreign_files.py.  `load` checks a file's first bytes, not its name.  Must not know how vectors were
trained.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
import struct
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from snailps.data._float_text import read_word_lines, word_lines
from snailps.data.array_archives import DAMAGED, member_of, values_of
from snailps.data.atomic import atomic_file, free_bytes, human_bytes
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError, ModelFileError
from snailps.kernels import cores
from snailps.vectors.fasttext_bin import (
    MAGIC,
    BinModel,
    check_chunk,
    check_words,
    read_bin,
    write_bin,
    write_rows,
)
from snailps.vectors.foreign_files import (
    glove_dim,
    is_rows_alone,
    is_word2vec_binary,
    read_glove,
    read_word2vec,
    what_is,
)
from snailps.vectors.identity import identify, identify_folder, of_members
from snailps.vectors.npz import npz_file, write_npy_head
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.query import Vectors

Float32 = npt.NDArray[np.float32]

_START_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_ENDINGS = (".bin", ".ftz", ".vec", ".npz", ".txt", ".bin.gz", ".vec.gz", ".txt.gz", ".weights.npz")
_BIN_MAGIC = MAGIC.to_bytes(4, "little")
_ZIP_MAGIC = b"PK\x03\x04"
_DIM_MAX = 1 << 20
_FORMATTING_THREADS = 4
_VALUES_TOGETHER = 1 << 17  # formatted by a thread at a time: some 1.5 MB of text
# Lines parsed together: enough to amortise the cost of the calls, a few MB of text at dim 100.
_LINES_TOGETHER = 4096
_BYTES_TOGETHER = 1 << 24  # of a matrix that is copied into a .bin
_UNPACKED_TOGETHER = 1 << 24
_ROOM_LEFT = 1 << 26
"""Bytes that unpacking leaves free, of the disk and of memory: TMPDIR is often in memory."""


def load(
    path: str | os.PathLike[str],
    *,
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None = None,
    file: IO[bytes] | None = None,
) -> Vectors:
    """Open a file of vectors for queries; of a classifier, the vectors of its words.

    Parameters
    ----------
    path : path
        fastText's .bin or .ftz, a .vec, word2vec's binary, GloVe's text, our .npz or that of
        federated averaging; any of them packed by gzip.
    words : path or sequence of words, optional
        For a file without words, such as federated averaging's OUTPUT.embedding.txt: the words of
        its rows, or a text file of them, such as its vocab.txt.
    file : open file, optional
        What is read in the path's place, such as an unpacked copy.

    Raises
    ------
    ModelFileError
        Missing, unreadable, of another kind, damaged or cut short.
    DataError
        `words` were given for a file that has words.

    Notes
    -----
    A .bin and a .npz are mapped, not read; a .bin answers for unknown words through its subwords.
    Other files are read into memory (4 x n x dim bytes), and a .gz is unpacked into a temporary
    file first (in TMPDIR) that is gone with the vectors.
    """
    if file is None:
        with opened(path) as source:
            return load(path, words=words, file=source)
    start = file.read(_START_BYTES)
    file.seek(0)
    if not start.startswith(_ZIP_MAGIC) and not is_rows_alone(start):
        check_no_words(path, words)
    if start.startswith(_BIN_MAGIC):
        return Vectors.of_model(read_bin(path, quantised=True, file=file))
    if start.startswith(_ZIP_MAGIC):
        return _read_npz(path, file, words)
    if is_rows_alone(start):
        return _read_rows_alone(path, file, words)
    if dim := glove_dim(start):
        return Vectors(*read_glove(path, file, dim))
    if is_word2vec_binary(start):
        count, dim = vec_shape(path, file)
        return Vectors(*read_word2vec(path, file, count, dim))
    if not start:
        raise ModelFileError(f"{path}: empty; was the export interrupted?")
    if start[:1].isdigit() and not what_is(start):
        return _read_vec(path, file)
    if found := identify(path, file):
        raise ModelFileError(f"{path}: not a vector file, but {found}")
    raise ModelFileError(
        f"{path}: not a vector file: expected fastText's .bin, a .vec (text, first line 'words "
        "dim'), word2vec's binary, GloVe's text or a .npz, got a file that begins with "
        f"{start[:8]!r}"
    )


def check_no_words(path: str | os.PathLike[str], words: object) -> None:
    """Refuses words that were given for a file that has its own."""
    if words is not None:
        raise DataError(
            f"words: given for the rows of {path}, which has words of its own; leave them out"
        )


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file, or a nameless unpacked copy if its first bytes are gzip's."""
    if not _first_bytes(path).startswith(_GZIP_MAGIC):
        with open(path, "rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="snailps-") as copy:
        try:
            with gzip.open(path, "rb") as packed:
                while piece := packed.read(_UNPACKED_TOGETHER):
                    _check_room(path, copy, len(piece))
                    copy.write(piece)
            copy.flush()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ModelFileError(f"{path}: cannot be unpacked: {error}; fetch it again") from error
        except OSError as error:
            raise ModelFileError(
                f"{path}: cannot be unpacked into {tempfile.gettempdir()}: "
                f"{error.strerror or error}; make room, or name another folder by TMPDIR"
            ) from error
        copy.seek(0)
        yield copy


def _check_room(path: str | os.PathLike[str], copy: IO[bytes], more: int) -> None:
    """Refuse to unpack more where little room is left: a .gz may hold a thousand times its size."""
    folder = tempfile.gettempdir()
    for where, free in ((folder, free_bytes(Path(folder))), ("memory", _free_memory())):
        if free is not None and free < more + _ROOM_LEFT:
            raise ModelFileError(
                f"{path}: cannot be unpacked into {folder}: behind the first "
                f"{human_bytes(copy.tell())}, {where} has {human_bytes(free)} left; make room, or "
                "name another folder by TMPDIR"
            )


def _free_memory() -> int | None:
    """Bytes that processes may still allocate; files on disks do not count, they can be dropped."""
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def write_vec(
    path: str | os.PathLike[str],
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
) -> None:
    """Write the text format of word2vec and fastText: ``n dim``, then one line per word and row.

    Parameters
    ----------
    path : path
    words : sequence of bytes, n of them
    chunks : iterable of float32[k, dim]
        The vectors of the words, in their order, n rows in all, in pieces of any size.
    dim : int

    Raises
    ------
    ModelFileError
        The file cannot be written, or the chunks do not make up n rows of dim.

    Notes
    -----
    Five significant digits, as the official package prints them: 0.02 microseconds per value, in
    up to four threads.  Streams: memory is a few MB besides one chunk.  The file appears at the end
    or not at all.
    """
    check_words(path, words)
    threads = min(_FORMATTING_THREADS, cores())
    done = 0
    with atomic_file(path) as file, ThreadPoolExecutor(threads, "snailps-text") as pool:
        file.write(b"%d %d\n" % (len(words), dim))
        for chunk in chunks:
            check_chunk(path, "text", chunk, len(words) - done, dim)
            for text in _in_order(pool, threads, _lines(words[done : done + len(chunk)], chunk)):
                file.write(text)
            done += len(chunk)
        if done != len(words):
            raise ModelFileError(f"{path}: the text needs {len(words)} rows, but only {done} came")


def _lines(words: Sequence[bytes], chunk: Float32) -> Iterator[Callable[[], memoryview]]:
    """What makes the lines of some words, a piece of a chunk at a time."""
    together = max(1, _VALUES_TOGETHER // chunk.shape[1])
    rows = np.ascontiguousarray(chunk)
    for at in range(0, len(rows), together):
        some = slice(at, at + together)
        yield partial(word_lines, words[some], rows[some])


def _in_order(
    pool: ThreadPoolExecutor, ahead: int, tasks: Iterable[Callable[[], memoryview]]
) -> Iterator[memoryview]:
    """Results of tasks, in their order; at most `ahead` of them are under way or wait."""
    under_way: deque[Future[memoryview]] = deque()
    for task in tasks:
        under_way.append(pool.submit(task))
        if len(under_way) > ahead:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def write_npz(
    path: str | os.PathLike[str],
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
    counts: Sequence[int] | npt.NDArray[np.int64] | None = None,
) -> None:
    """Write vectors at full precision in a form that ``numpy.load`` reads without pickle.

    The archive (not compressed: float32 noise does not shrink) holds ``vectors`` float32[n, dim],
    ``words`` uint8[...], the words' bytes joined by newlines, and ``counts`` int64[n] if given.

    Parameters and errors are those of `write_vec`.

    Examples
    --------
    >>> write_npz("model.npz", [b"king", b"queen"], [np.float32([[1, 2], [3, 4]])], 2)
    >>> file = np.load("model.npz")
    >>> words = file["words"].tobytes().decode("utf-8", "surrogateescape").split("\\n")
    >>> file["vectors"][words.index("queen")]
    array([3., 4.], dtype=float32)
    """
    check_words(path, words, newlines_only=True)
    newlines = np.full((len(words), 1), ord("\n"), np.uint8)
    text = PackedWords.of(words).with_tails(newlines)[:-1]
    size = 4 * len(words) * dim + text.nbytes + (0 if counts is None else 8 * len(words))
    with npz_file(path, size) as file:
        file.add("words", text)
        if counts is not None:
            numbers = np.asarray(counts, dtype=np.int64)
            if numbers.shape != (len(words),):
                raise ModelFileError(
                    f"{path}: expected {len(words)} counts, got shape {numbers.shape}"
                )
            file.add("counts", numbers)
        with file.open("vectors") as member:
            write_npy_head(member, "<f4", (len(words), dim))
            write_rows(member, path, "vectors", len(words), dim, chunks)


def save_vectors(
    path: str | os.PathLike[str],
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
    model: BinModel | None,
) -> None:
    """Write a file by its ending; `model`: the fastText model that the vectors were read from."""
    ending = os.path.splitext(path)[1]  # noqa: PTH122
    if ending == ".vec":
        write_vec(path, words, chunks, dim)
    elif ending == ".npz":
        write_npz(path, words, chunks, dim, None if model is None else model.counts)
    elif ending == ".bin":
        _save_bin(path, model)
    else:
        raise ModelFileError(
            f"{path}: expected a name that ends in .npz (full precision), .vec (text) or .bin "
            f"(fastText's), got {ending or 'no ending'}"
        )


def _save_bin(path: str | os.PathLike[str], model: BinModel | None) -> None:
    if model is None:
        raise ModelFileError(
            f"{path}: a .bin holds a whole fastText model, with counts and output rows, which "
            "these vectors do not have; save them as .npz or .vec"
        )
    if isinstance(model.input, QuantisedRows) or isinstance(model.output, QuantisedRows):
        raise ModelFileError(
            f"{path}: these vectors are of a quantised model, whose .ftz is smaller; copy that, or "
            "save the vectors of its words as .npz or .vec"
        )
    write_bin(
        path,
        model.header,
        model.words,
        model.counts,
        _pieces(model.input),
        _pieces(model.output),
        model.labels,
        model.label_counts,
    )


def _pieces(rows: Float32) -> Iterator[Float32]:
    step = max(1, _BYTES_TOGETHER // (4 * rows.shape[1]))
    for at in range(0, len(rows), step):
        yield np.array(rows[at : at + step])


def _first_bytes(path: str | os.PathLike[str]) -> bytes:
    """The first bytes of a file; if it is missing, the error suggests a similar name."""
    try:
        with open(path, "rb") as file:
            return file.read(2)
    except FileNotFoundError as error:
        longer = [Path(f"{path}{end}") for end in _ENDINGS]
        beside = [one for one in longer if one.is_file()]
        hint = f"; did you mean {beside[0]}?" if beside else "; check the path"
        raise ModelFileError(f"{path}: no such file{hint}") from error
    except IsADirectoryError as error:
        raise ModelFileError(f"{path}: {identify_folder(path)}") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def vec_shape(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> tuple[int, int]:
    """Number of words and dimension in the first line of a .vec file; `file` is as in `load`.

    Raises
    ------
    ModelFileError
        Missing, unreadable, or not such a file.
    """
    if file is None:
        _first_bytes(path)
    with open(path, "rb") if file is None else nullcontext(file) as source:
        source.seek(0)
        # A header is two short numbers; the bound limits the read of a binary file.
        return _parse_vec_header(path, source.readline(64), os.fstat(source.fileno()).st_size)


def read_vec(
    path: str | os.PathLike[str], file: IO[bytes] | None = None
) -> Iterator[tuple[list[bytes], Float32]]:
    """Words and vectors of a .vec file, float32[k, dim], in pieces of a few thousand.

    Raises
    ------
    ModelFileError
        The file is unreadable, damaged or cut short.
    """
    count, dim = vec_shape(path, file)
    done = 0
    try:
        with open(path, "rb") if file is None else nullcontext(file) as source:
            source.seek(0)
            source.readline()
            while done < count:
                wanted = min(_LINES_TOGETHER, count - done)
                lines = [line for _ in range(wanted) if (line := source.readline())]
                if len(lines) < wanted:
                    raise ModelFileError(
                        f"{path}: cut short: its first line announces {count} words, "
                        f"it has {done + len(lines)}; fetch or export it again"
                    )
                if not lines[-1].endswith(b"\n"):
                    # Its last number may have lost digits, which no other check detects.
                    raise ModelFileError(
                        f"{path}: cut short: line {done + len(lines) + 1} has no end; "
                        "fetch or export it again, or add a newline if it is complete"
                    )
                words: list[bytes] = []
                rows = _parse_lines(path, lines, done, dim, words)
                yield words, rows
                done += wanted
            if source.read(65536).strip():
                raise ModelFileError(
                    f"{path}: more lines than the {count} words that its first line announces; "
                    "correct that number or fetch the file again"
                )
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_vec(path: str | os.PathLike[str], file: IO[bytes]) -> Vectors:
    matrix = np.empty(vec_shape(path, file), dtype=np.float32)
    words: list[bytes] = []
    for part, rows in read_vec(path, file):
        matrix[len(words) : len(words) + len(part)] = rows
        words += part
    return Vectors(words, matrix)


def _parse_vec_header(path: str | os.PathLike[str], line: bytes, length: int) -> tuple[int, int]:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not line.endswith(b"\n"):
        raise ModelFileError(
            f"{path}: not a .vec file: its first line must be the number of words and the "
            f"dimension, such as '68000 100', got {line!r}"
        )
    count, dim = int(parts[0]), int(parts[1])
    if not (count >= 1 and 1 <= dim <= _DIM_MAX):
        raise ModelFileError(
            f"{path}: its first line announces {count} words of dimension {dim}; "
            f"expected at least one word and a dimension of 1 to {_DIM_MAX}"
        )
    # The shortest line: one letter, then a space and a digit a value, then a newline.
    needed = len(line) + count * (2 * dim + 2) - 1
    if needed > length:
        raise ModelFileError(
            f"{path}: cut short: {count} words of dimension {dim} need at least {needed} bytes, "
            f"the file has {length}; fetch or export it again"
        )
    return count, dim


def _parse_lines(
    path: str | os.PathLike[str], lines: list[bytes], first: int, dim: int, words: list[bytes]
) -> Float32:
    """Numbers of some lines as float32[len(lines), dim]; appends their words to `words`."""
    rows = np.empty((len(lines), dim), np.float32)
    found = read_word_lines(lines, rows)
    if found is not None:
        words += found
        return rows
    # A line has what is no plain decimal number, such as nan, or is wrong.
    numbers = []
    for line in lines:
        word, _, rest = line.partition(b" ")
        words.append(word)
        numbers.append(rest)
    # One call for thousands of lines is fast but cannot detect a value that moved from one line to
    # the next, so the values of each line are counted, which is cheap.
    if all(words) and all(len(rest.split()) == dim for rest in numbers):
        try:
            values = np.array(b" ".join(numbers).split(), dtype=np.float32)
            return values.reshape(len(lines), dim)
        except ValueError:
            pass
    for row, (word, rest) in enumerate(zip(words, numbers, strict=True)):
        found = rest.split()
        if word and len(found) == dim and all(_is_number(value) for value in found):
            continue
        raise ModelFileError(
            f"{path}, line {first + row + 2}: expected a word, a space and {dim} numbers, got "
            f"{lines[row][:60]!r} with {len(found)} values; fetch or export it again"
        )
    raise ModelFileError(f"{path}: lines {first + 2} to {first + 1 + len(lines)} cannot be parsed")


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_npz(
    path: str | os.PathLike[str],
    file: IO[bytes],
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None,
) -> Vectors:
    """Words and rows of our .npz, or of federated averaging's, whose rows are the `embedding`."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
            if "vectors.npy" not in names:
                _refuse_others(path, archive, names)
            rows = "vectors" if "vectors.npy" in names else "embedding"
            text = None
            if "words.npy" in names or rows == "vectors":
                text = _read_member(path, file, archive, "words", np.dtype(np.uint8), 1)
            matrix = _read_member(path, file, archive, rows, np.dtype("<f4"), 2)
    except ModelFileError:
        raise
    except (OSError, *DAMAGED) as error:
        raise ModelFileError(
            f"{path}: damaged or cut short ({error}); fetch or export it again"
        ) from error
    vectors = matrix.astype(np.float32, copy=False)
    if text is None:
        return _with_words(path, vectors, words)
    check_no_words(path, words)
    listed = text.tobytes().split(b"\n")
    if len(listed) != len(vectors):
        raise ModelFileError(
            f"{path}: has {len(listed)} words but {len(vectors)} vectors; export it again"
        )
    return Vectors(listed, vectors)


def _refuse_others(path: str | os.PathLike[str], archive: zipfile.ZipFile, names: set[str]) -> None:
    """Refuses an archive that is neither ours with vectors nor federated averaging's."""
    if "about.npy" in names or any(name.endswith("data.pkl") for name in names):
        raise ModelFileError(f"{path}: not a vector file, but {of_members(archive, names)}")
    if not {"embedding.npy", "output.npy", "round.npy"} <= names:
        raise ModelFileError(
            f"{path}: expected arrays 'words' (uint8) and 'vectors' (float32), "
            f"got {sorted(archive.namelist())[:8]}; it is not a vector file of ours"
        )


def _read_rows_alone(
    path: str | os.PathLike[str],
    file: IO[bytes],
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None,
) -> Vectors:
    """Rows of a text without words, as federated averaging writes them."""
    try:
        matrix = np.loadtxt(file, np.float32, ndmin=2, comments=None)
    except ValueError as error:
        raise ModelFileError(
            f"{path}: expected lines of equally many numbers: {error}; export it again"
        ) from error
    return _with_words(path, matrix, words)


def _with_words(
    path: str | os.PathLike[str],
    matrix: Float32,
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None,
) -> Vectors:
    """Rows of a file without words, and the words that were given for them."""
    if words is None:
        raise ModelFileError(
            f"{path}: {len(matrix):,} vectors without their words, as federated averaging "
            "writes them: give its data_dir's too, snailps.load(path, words='FOLDER/vocab.txt')"
        )
    listed: Sequence[str] | Sequence[bytes]
    if isinstance(words, (str, os.PathLike)):
        try:
            listed = Path(words).read_bytes().split()
        except OSError as error:
            raise ModelFileError(
                f"{words}: cannot be read as a list of words: {error.strerror or error}"
            ) from error
    else:
        listed = words
    if len(listed) != len(matrix):
        raise ModelFileError(
            f"{path}: has {len(matrix):,} vectors, but there are {len(listed):,} words: are they "
            "of another job?"
        )
    return Vectors(listed, matrix)


def _read_member(
    path: str | os.PathLike[str],
    file: IO[bytes],
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype[np.generic],
    ndim: int,
) -> npt.NDArray[np.generic]:
    """One array of the archive; one that is not compressed is mapped, after its checksum."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError as error:
        raise ModelFileError(
            f"{path}: expected arrays 'words' (uint8) and 'vectors' (float32), "
            f"got {sorted(archive.namelist())[:8]}; it is not a vector file of ours"
        ) from error
    member = member_of(archive, info, os.fstat(file.fileno()).st_size)
    if (
        member.dtype != dtype
        or len(member.shape) != ndim
        or member.fortran
        or min(member.shape) < 1
    ):
        raise ModelFileError(
            f"{path}: '{name}' must be {dtype} with {ndim} dimensions, got "
            f"{member.dtype}{list(member.shape)}; it is not a vector file of ours"
        )
    if not member.is_stored:
        return values_of(archive, member)
    with archive.open(info) as content:
        while content.read(1 << 20):  # to the end, where the checksum is compared
            pass
    at, size = _data_offset(file, info) + member.at, math.prod(member.shape)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if at + size * dtype.itemsize > len(mapped):
        raise EOFError(f"'{name}' ends behind the file")
    return np.frombuffer(mapped, dtype, size, at).reshape(member.shape)


def _data_offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind its own header, a name and what else it has."""
    file.seek(info.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    return int(info.header_offset + 30 + name_bytes + extra_bytes)
