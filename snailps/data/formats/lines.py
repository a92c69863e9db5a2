"""Writes files of lines, packed like the file that the lines come from.

    bytes of lines -> LineTarget -> .gz, .bz2, .xz, .zst, .lz4 or plain, the same bytes each time

Must not know what a line is.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import IO, cast

from snailps.data.formats.table import Target
from snailps.files.extras import optional_module
from snailps.files.unpacking import packing_of


class LineTarget(Target):
    """A file of lines, packed as the name `like` says."""

    def __init__(self, file: IO[bytes], like: str) -> None:
        packing = packing_of(like)
        self._file = _packer(file, packing)
        self._is_packer = bool(packing)

    def write(self, kept: bytes) -> None:
        self._file.write(kept)

    def close(self) -> None:
        if self._is_packer:  # writes the end of the stream; `file` stays its owner's
            self._file.close()


def _packer(file: IO[bytes], packing: str) -> IO[bytes]:
    """A file that packs what is written to it; leaves `file` open when it is closed.

    Without time and name in the header the output has the same bytes each time.
    """
    if packing == ".gz":
        return cast("IO[bytes]", gzip.GzipFile("", "wb", 6, file, mtime=0))
    if packing == ".bz2":
        return bz2.BZ2File(file, "wb")
    if packing == ".xz":
        return lzma.LZMAFile(file, "wb")
    if packing == ".zst":
        zstandard = optional_module("zstandard", "writing .zst", "snailps[data]")
        return cast(
            "IO[bytes]",
            zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False),
        )
    if packing == ".lz4":
        import lz4.frame

        return cast("IO[bytes]", lz4.frame.LZ4FrameFile(file, "wb"))
    return file
