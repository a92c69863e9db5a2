"""The page's address, as it is printed: without its token in a log that others can read.

address with its token, where it is printed -> Shown.line -> itself, or the token's file
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from snailps.node.run_registry import RunRegistry

_PARAMETER = "?token="


class Shown:
    """The address, printed to `descriptor`; `close` removes the file of its token."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.line = url
        self._file: Path | None = None
        address, _, token = url.partition(_PARAMETER)
        if token and others_read(descriptor):
            name = f"page-{os.getpid()}.token"
            self._file = RunRegistry().write_private(name, token)
            where = self._file or "no file, as none can be written: set SNAILPS_UI_TOKEN"
            self.line = (
                f"{address} (others can read this log: add {_PARAMETER} and the token, which is in "
                f"{where})"
            )

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def others_read(descriptor: int) -> bool:
    """Whether a file is open there that other users can read: a log in a folder that they enter."""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return False  # a terminal, or a pipe, whose other end decides
        folders = Path(f"/proc/self/fd/{descriptor}").readlink().parents
        return bool(found.st_mode & 0o044) and all(one.stat().st_mode & 0o011 for one in folders)
    except OSError:
        return True
