"""Decides how the page's address is printed: without its token in a log that others can read.

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
    """The address as a line for `descriptor`; `close` removes the file with its token."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.line = url
        self._file: Path | None = None
        address, _, token = url.partition(_PARAMETER)
        if token and others_read(descriptor):
            name = f"page-{os.getpid()}.token"
            self._file = RunRegistry().write_private(name, token)
            where = self._file or "no file, because none can be written: set SNAILPS_UI_TOKEN"
            self.line = (
                f"{address} (other users can read this log: append {_PARAMETER} and the token, "
                f"which is in {where})"
            )

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def others_read(descriptor: int) -> bool:
    """Whether other users can read the file at `descriptor`, in a folder that they may enter.

    True if that cannot be found out: a token that is hidden needlessly does no harm.
    """
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return False  # a terminal, or a pipe: its reader decides what becomes of the text
        folders = Path(f"/proc/self/fd/{descriptor}").readlink().parents
        return bool(mode & 0o044) and all(folder.stat().st_mode & 0o011 for folder in folders)
    except OSError:
        return True
