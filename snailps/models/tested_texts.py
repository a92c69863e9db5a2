"""Reads files at the master, on which a model is tested: a block of text at a time.

paths, folders, globs -> Scratch: unpacked, tables as text -> text, path, first byte
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from snailps.files.blocks import cut, expand, files_of, read_block
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch
from snailps.pieces import Piece

if TYPE_CHECKING:
    from snailps.api.export_progress import ExportProgress

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20


def texts_of(
    paths: Sequence[str],
    scratch_dir: str = "",
    scratch_bytes: int = 0,
    *,
    reading: Reading,
    block_bytes: int = BLOCK_BYTES,
    progress: ExportProgress | None = None,
) -> Iterator[tuple[bytes, str, int]]:
    """Pieces of files, folders and globs: text or a matrix file, path, first byte in the file.

    Reports the bytes used to `progress`; `reading` says how tables are read.
    """
    with Scratch(scratch_dir, scratch_bytes, tables=reading) as scratch:
        blocks: Iterable[Piece] = list(cut(expand(paths, scratch), block_bytes))
        if progress is not None:
            total = sum(block.stop - block.start for block in blocks)
            blocks = progress.count(
                "testing on the test files", total, "bytes", blocks, lambda b: b.stop - b.start
            )
        for block in blocks:
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            yield data, block.path, block.start


def warn_of_trained(validation: Sequence[str], input_: Sequence[str]) -> None:
    """Log a warning if a file of `validation` is also in the input."""
    trained = {*map(_identity, files_of(input_))} if validation else set()
    both = [path for path in files_of(validation) if _identity(path) in trained]
    if both:
        log.warning(
            "validation: %s is also in the input: figures on what is trained do not show how well "
            "the model does on anything else. Give other files",
            both[0],
        )


def _identity(path: str) -> object:
    """What two paths of one file have in common, as a link and its target do."""
    with suppress(OSError, ValueError):  # not on this machine, such as a URL
        status = os.stat(path)  # noqa: PTH116
        return status.st_dev, status.st_ino
    return path
