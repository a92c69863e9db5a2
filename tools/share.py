"""Cuts a text into shares of about the same size, at ends of lines.

python tools/share.py FILE PREFIX NUMBER -> PREFIX.1, ..., PREFIX.NUMBER

FILE may be a .gz. A text that is one long line is cut at blanks.
"""

import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

STEP = 1 << 20
"""Bytes in memory, and the longest distance of a cut from its target."""


def cut_at(text: BinaryIO, aim: int) -> int:
    """The first end of a line from `aim` on; of a word, if no line ends within `STEP`."""
    text.seek(aim)
    ahead = text.read(STEP)
    for end in (b"\n", b" "):
        if end in ahead:
            return aim + ahead.index(end) + 1
    return aim + len(ahead)


def share(path: Path, prefix: str, number: int) -> None:
    """Writes the shares."""
    with path.open("rb") as file, tempfile.TemporaryFile(dir=Path(prefix).parent) as unpacked:
        text: BinaryIO = file
        if path.suffix == ".gz":
            with gzip.open(file) as packed:
                shutil.copyfileobj(packed, unpacked, STEP)
            text = unpacked
        size = text.seek(0, 2)
        begin = 0
        for i in range(1, number + 1):
            end = size if i == number else cut_at(text, max(begin, size * i // number))
            text.seek(begin)
            with open(f"{prefix}.{i}", "wb") as out:
                for left in range(end - begin, 0, -STEP):
                    out.write(text.read(min(left, STEP)))
            begin = end


if __name__ == "__main__":
    share(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
