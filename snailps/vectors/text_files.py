"""Word vectors as text (.vec, GloVe's) and in word2vec's binary format.

    words + chunks of float32 rows -> write_vec -> model.vec
    .vec, GloVe's text: lines of a word and its numbers -> read_vec, read_glove -> words, rows
    word2vec's binary -> read_word2vec -> words, rows

Must not know how vectors were trained, or what they are used for.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from typing import IO

import numpy as np
import numpy.typing as npt

from snailps.abi.quota import cores
from snailps.data._float_text import read_word_lines, word_lines
from snailps.data.in_order import in_order
from snailps.errors import ModelFileError, shown_bytes
from snailps.files.atomic import atomic_file
from snailps.vectors.fasttext_bin import check_words, checked_chunks
from snailps.vectors.opening import first_bytes

log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]

_DIM_MAX = 1 << 20
_FORMATTING_THREADS = 4
_VALUES_TOGETHER = 1 << 17
"""Values formatted by a thread at a time: some 1.5 MB of text."""
_LINES_TOGETHER = 4096
"""Lines parsed together: a few MB of text at dim 100."""
_CAREFULLY = 256
"""After a word with a blank, words are checked one by one until this many in a row have none."""
_FIRST_NUMBERS = 16
"""Numbers of a row by which a row at a wrong offset is recognised."""
_NEWLINE = ord("\n")
_USUAL = np.array([1e-10, 1e10], "<f4").view("<u4")
"""Bits of the smallest and the largest absolute value that training makes, apart from 0."""
_WORD_BYTES_MAX = 1 << 16
"""Longest word: bounds the search for a word's end in a damaged file."""
_REST_BYTES = 64
"""Bytes allowed for the rest of a first word with blanks, before its numbers are looked at."""
_TEXT = re.compile(rb"[\t\r\x20-\x7e]*")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SIZE = re.compile(rb"\d{1,18}")


def write_vec(
    path: str | os.PathLike[str],
    words: Sequence[bytes],
    chunks: Iterable[Float32],
    dim: int,
) -> None:
    """Write ``n dim``, then a line of a word and its numbers for each of n rows.

    Numbers have five significant digits, as in fastText.  It takes 0.02 microseconds per value, in
    up to four threads, and a few MB of memory besides one chunk.
    """
    check_words(path, words)
    threads = min(_FORMATTING_THREADS, cores())
    done = 0
    with atomic_file(path) as file:
        file.write(b"%d %d\n" % (len(words), dim))
        for chunk in checked_chunks(path, "text", chunks, len(words), dim):
            lines = _lines(words[done : done + len(chunk)], chunk)
            for text in in_order(lambda task: task(), lines, threads):
                file.write(text)
            done += len(chunk)


def _lines(words: Sequence[bytes], chunk: Float32) -> Iterator[Callable[[], memoryview]]:
    """Yield functions, each of which formats the lines of a piece of a chunk."""
    together = max(1, _VALUES_TOGETHER // chunk.shape[1])
    rows = np.ascontiguousarray(chunk)
    for start in range(0, len(rows), together):
        piece = slice(start, start + together)
        yield partial(word_lines, words[piece], rows[piece])


def vec_shape(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> tuple[int, int]:
    """Read the number of words and the dimension from a .vec file, or from `file` instead."""
    if file is None:
        first_bytes(path)  # its error suggests names, if the file is missing
    with open(path, "rb") if file is None else nullcontext(file) as source:
        source.seek(0)
        # A header is two short numbers; a binary file may have no newline in its first GB.
        return _parse_vec_header(path, source.readline(64), os.fstat(source.fileno()).st_size)


def read_vec(
    path: str | os.PathLike[str], file: IO[bytes] | None = None
) -> Iterator[tuple[list[bytes], Float32]]:
    """Yield words and vectors of a .vec file, float32[k, dim], in pieces of a few thousand.

    The header that GloVe writes does not count the last row, `<unk>`: one such word more is read.
    """
    count, dim = vec_shape(path, file)
    done = 0

    def wrong(number: int, line: bytes) -> ModelFileError:
        values = len(line.partition(b" ")[2].split())
        return ModelFileError(
            f"{path}, line {done + number + 2}: expected a word, a space and {dim} numbers, got "
            f"{shown_bytes(line, 60)} with {values} values; fetch or export it again"
        )

    try:
        with open(path, "rb") if file is None else nullcontext(file) as source:
            source.seek(0)
            source.readline()
            while done < count:
                wanted = min(_LINES_TOGETHER, count - done)
                lines = list(islice(source, wanted))
                if len(lines) < wanted:
                    raise ModelFileError(
                        f"{path}: cut short: its first line announces {count} words, "
                        f"it has {done + len(lines)}; fetch or export it again"
                    )
                check_end(path, lines, done + 1, "fetch or export it again")
                rows = np.empty((wanted, dim), np.float32)
                yield parse_lines(lines, rows, wrong, blanks=False), rows
                done += wanted
            if not (rest := [line for line in islice(source, 2) if line.strip()]):
                return
            if len(rest) > 1 or not rest[0].startswith(b"<unk> "):
                raise ModelFileError(
                    f"{path}: more lines than the {count} words that its first line announces; "
                    "correct that number or fetch the file again"
                )
            check_end(path, rest, done + 1, "fetch or export it again")
            log.warning(
                "%s: its first line announces %s words, and a row of <unk> follows them, as "
                "GloVe's program writes it (-write-header 1): it is read, too", path, f"{count:,}",
            )  # fmt: skip
            rows = np.empty((1, dim), np.float32)
            yield parse_lines(rest, rows, wrong, blanks=False), rows
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_glove(
    path: str | os.PathLike[str], file: IO[bytes], dim: int
) -> tuple[list[bytes], Float32]:
    """Read words and rows of GloVe's text, which has no first line of sizes.

    A word may have blanks, as in the 840B vectors: the last `dim` fields are the numbers.
    """
    words: list[bytes] = []
    most = os.fstat(file.fileno()).st_size // (2 * dim + 2) + 1  # a blank and a digit a value
    rows = np.empty((min(_LINES_TOGETHER, most), dim), np.float32)

    def wrong(number: int, line: bytes) -> ModelFileError:
        return ModelFileError(
            f"{path}, line {len(words) + number + 1}: expected a word and {dim} numbers, as in its "
            f"first line, got {shown_bytes(line, 60)}; fetch it again"
        )

    while lines := list(islice(file, _LINES_TOGETHER)):
        check_end(path, lines, len(words), "fetch it again")
        done = len(words) + len(lines)
        if done > most:
            short = next((i for i, line in enumerate(lines) if len(line) < 2 * dim + 2), 0)
            raise wrong(short, lines[short])
        if done > len(rows):
            rows.resize((max(done, len(rows) * 3 // 2), dim), refcheck=False)
        words += parse_lines(lines, rows[len(words) : done], wrong, blanks=True)
    rows.resize((len(words), dim), refcheck=False)
    return words, rows


def check_end(path: str | os.PathLike[str], lines: list[bytes], first: int, again: str) -> None:
    """Refuse a last line without newline: its last number may lack digits, which no other check
    detects.
    """
    if not lines[-1].endswith(b"\n"):
        raise ModelFileError(
            f"{path}: cut short: line {first + len(lines)} has no end; {again}, or add a newline "
            "if it is complete"
        )


def parse_lines(
    lines: list[bytes],
    rows: Float32,
    wrong: Callable[[int, bytes], ModelFileError],
    *,
    blanks: bool,
) -> list[bytes]:
    """Parse lines of a word and its numbers; return the words and fill `rows`.

    `blanks` allows words with blanks.  `wrong` makes the error for a line that does not fit.
    """
    words = read_word_lines(lines, rows)
    if words is not None:
        return words
    # The fast parser gave up: a word has blanks, a number is no plain decimal (such as nan), or a
    # line is wrong.  Parse one by one to find out which.
    words, dim = [], rows.shape[1]
    for number, line in enumerate(lines):
        word, *values = line.rstrip(b"\r\n ").rsplit(None, dim) or [b""]
        word = word.lstrip(b" ") if blanks else word * (word == line.partition(b" ")[0])
        try:
            rows[number] = np.array(values, np.float32)
        except ValueError:
            values = []
        if not word or len(values) != dim:
            raise wrong(number, line)
        words.append(word)
    return words


def _parse_vec_header(path: str | os.PathLike[str], line: bytes, length: int) -> tuple[int, int]:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not line.endswith(b"\n"):
        raise ModelFileError(
            f"{path}: not a .vec file: its first line must be the number of words and the "
            f"dimension, such as '68000 100', got {shown_bytes(line.rstrip(), 60)}"
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


def is_word2vec_binary(start: bytes) -> bool:
    """Whether a file whose first line is ``n dim`` is word2vec's binary instead of text."""
    header, newline, rest = start.partition(b"\n")
    parts = header.split()
    if not newline or len(parts) != 2 or not all(map(_SIZE.fullmatch, parts)):
        return False
    _, blank, row = rest.lstrip(b"\n").partition(b" ")
    if not blank or not row:
        return False
    line = row.partition(b"\n")[0]
    if len(line) > (most := 4 * int(parts[1]) + _REST_BYTES):
        line = line[:most].rpartition(b" ")[0]  # drops a number that is cut
    if not _TEXT.fullmatch(line):
        return True
    # float32 bytes may happen to be printable, but rarely look like decimal numbers.
    fields = line.split()
    return 2 * sum(_NUMBER.fullmatch(field) is not None for field in fields) < max(1, len(fields))


def read_word2vec(
    path: str | os.PathLike[str], file: IO[bytes], count: int, dim: int
) -> tuple[list[bytes], Float32]:
    """Read words and rows of word2vec's binary format, whose first line has `count` and `dim`.

    Then come, for each word, the word, a blank and `dim` float32; the original program adds a
    newline.  gensim also writes words with blanks, and nothing in the format says where such a word
    ends: it is found by which bytes make plausible numbers.
    """
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length, size, offset = len(mapped), 4 * dim, mapped.find(b"\n") + 1
    if offset + count * (size + 2) > length:
        raise ModelFileError(
            f"{path}: cut short: {count} words of dimension {dim} in word2vec's binary format "
            f"need at least {offset + count * (size + 2)} bytes, the file has {length}; fetch it "
            "again"
        )
    # A view with a row at every byte offset, so that rows at any offsets are copied in one step.
    row_at = np.ndarray((length - size + 1,), f"V{size}", mapped, strides=(1,))
    rows = np.empty((count, dim), "<f4")
    out = rows.view(f"V{size}")[:, 0]
    words: list[bytes] = []
    together, careful = _LINES_TOGETHER, False
    while (done := len(words)) < count:
        last, longer = min(done + together, count), False
        places: list[int] = []  # offsets of rows
        for _ in range(done, last):
            blank = mapped.find(b" ", offset, offset + _WORD_BYTES_MAX)
            if careful and (end := _end_of_word(mapped, offset, blank, size)) > blank:
                blank, longer = end, True
            word = mapped[offset:blank].lstrip(b"\n") if blank >= 0 else b""
            if not word or blank + 1 + size > length:
                break
            places.append(blank + 1)
            words.append(word)
            offset = blank + 1 + size
        out[done : len(words)] = row_at[places]
        if not careful:
            cut = _first_longer(mapped, places, words[done:], rows[done : len(words)])
            if longer := cut >= 0:  # go back to that word, and read on carefully
                offset = places[cut] - 1 - len(words[done + cut])
                del words[done + cut :]
        if (not longer or careful) and (len(words) < last or b"\0" in b" ".join(words[done:])):
            odd = next((n for n in range(done, len(words)) if b"\0" in words[n]), len(words))
            if odd < len(words):
                offset = places[odd - done] - 1 - len(words[odd])
            raise ModelFileError(
                f"{path}: damaged or cut short: no word with {dim} values (float32) at byte "
                f"{offset}, where word {odd + 1} of {count} begins; fetch it again"
            )
        # After a word with a blank others are likely: the next ones are checked as they are read.
        careful, together = longer, _CAREFULLY if longer else min(2 * together, _LINES_TOGETHER)
    if mapped[offset : offset + 65536].strip():
        raise ModelFileError(
            f"{path}: has more data after the {count} words that its first line announces; correct "
            "that number or fetch the file again"
        )
    return words, rows.astype(np.float32, copy=False)


def _first_longer(mapped: mmap.mmap, places: list[int], words: list[bytes], rows: Float32) -> int:
    """Return the first of the words that was cut at a blank inside it; -1: none.

    If a word of two parts is cut at its blank, its row begins too early, with text, and the next
    word begins in the middle of numbers.  The first numbers of a row show that.
    """
    if not words:
        return -1
    usual = _are_usual(rows[:, :_FIRST_NUMBERS])
    odd: npt.NDArray[np.bool_] = np.zeros(len(words), np.bool_)
    if not usual.all():
        odd |= ~usual.all(axis=1)
    odd[-1] |= not _word_begins(mapped, places[-1] + 4 * rows.shape[1])
    if not _is_text(b" ".join(words)):
        odd[:-1] |= [not _is_text(word) for word in words[1:]]
    for number in np.flatnonzero(odd).tolist():
        blank = places[number] - 1
        if _end_of_word(mapped, blank - len(words[number]), blank, 4 * rows.shape[1]) > blank:
            return int(number)
    return -1


def _end_of_word(mapped: mmap.mmap, begin: int, first: int, size: int) -> int:
    """Return the offset of the blank that ends the word at `begin`; its first blank is at `first`.

    For each candidate, count the numbers of the row that no training makes, plus one if no word
    follows the row.  The first candidate with the lowest count wins.
    """
    while first >= 0 and mapped[begin] == _NEWLINE:
        begin += 1
    best, fewest = first, size
    blank = first
    while 0 <= blank <= len(mapped) - size - 1:
        following = mapped.find(b" ", blank + 1, begin + _WORD_BYTES_MAX)
        if following < 0 or not _is_text(mapped[begin:following]):
            following = -1
            if blank == first:
                break  # there is no other candidate
        row = np.frombuffer(mapped, "<f4", size // 4, blank + 1)
        odds = size // 4 - np.count_nonzero(_are_usual(row))
        odds += not _word_begins(mapped, blank + 1 + size)
        if odds < fewest:
            best, fewest = blank, odds
        if not odds:
            break
        blank = following
    return best


def _are_usual(rows: Float32) -> npt.NDArray[np.bool_]:
    """Whether each number is one that training makes; text and misaligned bytes rarely are."""
    bits = rows.view("<u4") & np.uint32(0x7FFFFFFF)
    usual: npt.NDArray[np.bool_] = bits - _USUAL[0] <= _USUAL[1] - _USUAL[0]
    return usual if usual.all() else usual | (bits == 0)


def _word_begins(mapped: mmap.mmap, offset: int) -> bool:
    """Whether a word begins at `offset`, or the file ends there."""
    blank = mapped.find(b" ", offset, offset + _WORD_BYTES_MAX)
    if blank < 0:
        return not mapped[offset : offset + 2].strip(b"\n")
    return _is_text(mapped[offset:blank].lstrip(b"\n"))


def _is_text(word: bytes) -> bool:
    """Whether bytes are UTF-8 text without line breaks."""
    with suppress(UnicodeDecodeError):
        return bool(word) and (word.decode().isprintable() or not _CONTROL.search(word))
    return False


def glove_dim(start: bytes) -> int:
    """Return the dimension if a file begins with a line of a word and numbers; else 0.

    There must be at least two numbers, one of them with a point or an exponent.
    """
    line, newline, _ = start.partition(b"\n")
    parts = line.split()
    if not newline or len(parts) < 3 or len(parts) > _DIM_MAX:
        return 0
    if not all(map(_NUMBER.fullmatch, parts[1:])) or all(part.isdigit() for part in parts[1:]):
        return 0
    return len(parts) - 1


def is_bare_rows(start: bytes) -> bool:
    """Whether the first lines have only numbers with a point: rows whose words are elsewhere."""
    fields = b" ".join(start.split(b"\n")[:-1][:3]).split()
    return bool(fields) and all(b"." in f and _NUMBER.fullmatch(f) for f in fields)
