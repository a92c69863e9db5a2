"""Recognises files that are no input by their first bytes; reads the others by whole lines.

    first bytes -> content_name -> "a PNG image", or "" if it may be an input
    first bytes, path -> refuse_foreign -> DataError: what the file is, and what to do
    open file, path -> whole_lines -> whole lines, about a MiB at a time

Owns the table of foreign formats.  A pattern should hold bytes that no text begins with; a file of
an unknown format counts as binary if it has many control characters.  Must not open files, and
`is_pipe` says which ones nobody should open to have a look.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import IO

from snailps.errors import DataError
from snailps.pointers import POINTERS

BOM = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8, which some editors write."""
SEPARATORS = b" \n\r\t\v\f\0"
"""Bytes that separate words, as in fastText: a word that contains one could never be looked up."""
HEAD_BYTES = 512
"""First bytes of a file that suffice to recognise it: tar's magic is at byte 257."""

CSV_BYTES = 1 << 16
"""First bytes of a file searched for the first two lines of CSV."""
UNIT_BYTES_MAX = 1 << 30
"""A longer word or line is an error: the file is no text, and would fill the memory."""
READ_BYTES = 1 << 20
"""Bytes of a file that are read at a time: large enough for the disk, and enough pieces for
threads."""
CELLS = {"tsv": (b"\t", 0), "csv": (b",", 1), "blank": (b" ", 0)}
"""By format: the separator, and `RowReader`'s value for quotes; `blank` is for files of names."""
SHOWING_BYTES = 4096
"""Bytes after the first line of a file that show whether that line names columns."""
OVER_LINES = 2
"""`RowReader`'s value for quotes that may span lines: CSV read in whole rows."""
# The first line that is not blank, after a byte order mark.
_FIRST_LINE = re.compile(rb"(?:%b)?(?:[ \t\r]*\n)*([^\n]+)" % BOM)

BINARY_BYTES_MIN = 32
"""A shorter file is never called binary: too few bytes to judge by."""
BINARY_SHARE = 20
"""More than one control character in this many bytes: no text."""
# Without NUL, which separates words, white space, and escape, which begins a terminal's colours.
_CONTROLS = bytes({*range(1, 32), 127} - {*b"\t\n\v\f\r\x1b"})

_UNPACK = "unpack it, and name what is in it"
_NAME = "give its name the ending {}, so that it is unpacked"
_TABLE = "models of text and of sparse examples read it if column or label_column names a column"
_TEXT = "name a file of text"
_FIT = "load it in Python, and pass the data to fit"
_LOAD = "snailps.load and `snailps nn` read models; to continue training one, set continue_from"

_KINDS: tuple[tuple[str, bytes, str], ...] = (
    ("a PNG image", rb"\x89PNG\r\n\x1a\n", _TEXT),
    ("a JPEG image", rb"\xff\xd8\xff", _TEXT),
    ("a GIF image", rb"GIF8[79]a", _TEXT),
    ("a TIFF image", rb"II\*\0|MM\0\*", _TEXT),
    ("a WebP image", rb"RIFF....WEBP", _TEXT),
    ("a WAV sound", rb"RIFF....WAVE", _TEXT),
    ("an AVI video", rb"RIFF....AVI ", _TEXT),
    ("an MP4 video", rb"\0\0\0.ftyp", _TEXT),
    ("an MP3 sound", rb"ID3[\x02-\x04]\0", _TEXT),
    ("an Ogg sound", rb"OggS\0", _TEXT),
    ("a FLAC sound", rb"fLaC\0", _TEXT),
    ("a PDF document", rb"%PDF-[12]\.[0-9]", "convert it, for example by pdftotext"),
    ("a zip archive (or .docx, .xlsx, .npz)", rb"PK(\x03\x04|\x05\x06|\x07\x08)", _UNPACK),
    ("a 7z archive", rb"7z\xbc\xaf\x27\x1c", _UNPACK),
    ("a RAR archive", rb"Rar!\x1a\x07", _UNPACK),
    ("a tar archive", rb".{257}ustar(\0|  \0)", _UNPACK),
    ("an old Office document", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save it as text or CSV"),
    ("an RTF document", rb"\{\\rtf1", "save it as text"),
    ("gzip", rb"\x1f\x8b\x08", _NAME.format(".gz")),
    ("bzip2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", _NAME.format(".bz2")),
    ("xz", rb"\xfd7zXZ\0", _NAME.format(".xz")),
    ("Zstandard", rb"\x28\xb5\x2f\xfd", _NAME.format(".zst")),
    ("LZ4", rb"\x04\x22\x4d\x18", _NAME.format(".lz4")),
    ("a program or library (ELF)", rb"\x7fELF", _TEXT),
    ("compiled Python", rb"..\r\n[\x00-\x03]\0\0\0", _TEXT),
    ("a Python pickle", rb"\x80[\x02-\x05][\x95\x8a(})cXKq\]]", _FIT),
    ("an SQLite database", rb"SQLite format 3\0", "export a table as CSV"),
    ("an HDF5 file", rb"\x89HDF\r\n\x1a\n", _FIT),
    ("a Parquet file", rb"PAR1[\x00-\x1f]", _TABLE),
    ("an Arrow or Feather file", rb"ARROW1\0\0", _TABLE),
    ("a stream of Arrow", rb"\xff\xff\xff\xff.{4}\x10\0\0\0", f"name it .arrow: {_TABLE}"),
    ("a Feather file of version 1", rb"FEA1\0", "save it as Parquet, or Feather of version 2"),
    ("an ORC file", rb"ORC[\x00-\x1f\x80-\xff]", f"name it .orc: {_TABLE}"),
    ("an Avro file", rb"Obj\x01", "save it as Parquet"),
    ("a GGUF model", rb"GGUF[\x01-\x05]\0\0\0", _TEXT),
    ("a fastText model", rb"\xba\x16\x4f\x2f", _LOAD),
    ("UTF-32 text", rb"\xff\xfe\0\0|\0\0\xfe\xff", "convert it: iconv -f UTF-32 -t UTF-8"),
    ("UTF-16 text", rb"\xff\xfe|\xfe\xff", "convert it: iconv -f UTF-16 -t UTF-8"),
    *((pointer.name, pointer.begin, pointer.cure) for pointer in POINTERS),
)  # fmt: skip
# Formats that dense and sparse models read, and models of text do not.
_OURS: tuple[tuple[str, bytes, str], ...] = (
    ("a NumPy array", rb"\x93NUMPY", "a model of text needs text"),
    ("a matrix file of snailps.write_matrix", rb"\x93SNAILX\n", "a model of text needs text"),
    ("an idx file of numbers", rb"\0\0[\x08-\x0e][\x01-\x08]", "a model of text needs text"),
)  # fmt: skip
_COMPILED = tuple((name, re.compile(begin, re.DOTALL), cure) for name, begin, cure in _KINDS)
_COMPILED_OURS = tuple((name, re.compile(begin, re.DOTALL), cure) for name, begin, cure in _OURS)


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or character device: opening may block, and it is readable once."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - nothing is built for a name
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def content_name(head: bytes, *, text: bool = False) -> str:
    """What a file is that no model reads, by its first `HEAD_BYTES`; empty: it may be an input.

    With `text` arrays, matrix files and binary data count as foreign too.
    """
    recognised = _recognised(head, text)
    return recognised[0] if recognised else ""


def refuse_foreign(head: bytes, path: str, *, text: bool = False) -> None:
    """DataError if `content_name` recognises the file: its name, and what to do with it."""
    recognised = _recognised(head, text)
    if recognised is not None:
        name, cure = recognised
        if path.endswith(".npz"):
            name, cure = "a .npz, arrays or a model", _LOAD
        raise DataError(f"{path} is no text, but {name}: {cure}")


def first_line_of(data: bytes) -> bytes:
    """The first line that is not blank, without its end; empty: there is none in `data`."""
    match = _FIRST_LINE.match(data)
    return match[1].rstrip(b"\r") if match and match[1].strip() else b""


def line_of(file: IO[bytes], where: str) -> bytes:
    """The next line of an open file, with its newline; empty at the end.  `where` is for errors."""
    line = file.readline(UNIT_BYTES_MAX)
    if len(line) == UNIT_BYTES_MAX:
        raise DataError(f"{where} has a line of more than {len(line):,} bytes: is it text?")
    return line


def whole_lines(
    file: IO[bytes], path: str, size: int = READ_BYTES, *, text: bool = True
) -> Iterator[bytes]:
    """Whole lines of an open file, about `size` bytes at a time; DataError for a foreign file.

    `text` as in `refuse_foreign`.
    """
    offset = 0
    while data := file.read(size):
        if not data.endswith(b"\n"):
            data += line_of(file, f"{path}, from byte {offset:,} on,")
        if not offset:
            refuse_foreign(data[:HEAD_BYTES], path, text=text)
        yield data
        offset += len(data)


def _recognised(head: bytes, text: bool) -> tuple[str, str] | None:
    """Name of a foreign format, and what to do; None: the file may be an input."""
    for name, begin, cure in (*_COMPILED, *(_COMPILED_OURS if text else ())):
        if begin.match(head):
            return name, cure
    if text and _is_binary(head[:HEAD_BYTES]):
        return "binary data of a format that is not known here", _TEXT
    return None


def _is_binary(head: bytes) -> bool:
    """Whether there are too many control characters for text in any encoding.

    A tenth of random bytes are control characters.  Integers and floats show by their zeros, which
    text may hold too, as separators, but fewer.
    """
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return len(head) >= BINARY_BYTES_MIN and (
        controls * BINARY_SHARE > len(head) or head.count(0) * 3 > len(head)
    )
