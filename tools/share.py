"""Cuts a text into shares of about the same size, at ends of lines.

python tools/share.py FILE PREFIX NUMBER -> PREFIX.1, ..., PREFIX.NUMBER

FILE may be a .gz. A text that is one long line is cut at blanks. What is no text is refused: a
share of a table lacks its first line, or the name by which it is read as one.
"""

import gzip
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

STEP = 1 << 20
"""Bytes in memory, and the longest distance of a cut from its target."""


_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".orc")
_PACKED = {
    b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4", b"PK\x03\x04": "zip", b"PAR1": "Parquet", b"ARROW1": "Arrow",
}  # fmt: skip


def refuse_others(path: Path, first: bytes) -> None:
    """Ends the program if a file is no text: `first` are its first bytes."""
    packed = next((name for magic, name in _PACKED.items() if first.startswith(magic)), "")
    inner = Path(path.stem) if path.suffix == ".gz" else path
    if packed or inner.suffix.lower() in _TABLES:
        kind = f"a file of {packed}" if packed else "a table"
        sys.exit(f"{path}: expected a text or a .gz of one, got {kind}: use --copy")


def cut_at(text: BinaryIO, aim: int) -> int:
    """The first end of a line from `aim` on; of a word, if no line ends within `STEP`."""
    text.seek(aim)
    ahead = text.read(STEP)
    for end in (b"\n", b" "):
        if end in ahead:
            return aim + ahead.index(end) + 1
    return aim + len(ahead)


def share(path: Path, prefix: str, number: int) -> None:
    """Writes the shares; none is empty."""
    if not path.is_file():
        sys.exit(f"{path}: expected a file, got something else: use --copy")
    with path.open("rb") as file, tempfile.TemporaryFile(dir=Path(prefix).parent) as unpacked:
        text: BinaryIO = file
        first = file.read(6)
        file.seek(0)
        refuse_others(path, first)
        if first.startswith(b"\x1f\x8b"):
            try:
                with gzip.open(file) as packed:
                    shutil.copyfileobj(packed, unpacked, STEP)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                sys.exit(f"{path}: cannot be unpacked: {error}. Copy it again")
            text = unpacked
        size = text.seek(0, 2)
        begin = 0
        for i in range(1, number + 1):
            end = size if i == number else cut_at(text, max(begin, size * i // number))
            if begin == end:
                sys.exit(f"{path}: expected a line for each of {number} workers: use --copy")
            text.seek(begin)
            with open(f"{prefix}.{i}", "wb") as out:
                for left in range(end - begin, 0, -STEP):
                    out.write(text.read(min(left, STEP)))
            begin = end


if __name__ == "__main__":
    share(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
