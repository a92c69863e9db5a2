"""SHA-256 of files, computed in a thread while other work goes on.

    paths -> FileHashes -> of(path), waits for the hash

Must not know what a hash is for.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from snailps.files.unpacking import STEP_BYTES, read_errors


class FileHashes:
    """Hashes of files, computed one after another from construction on; call `close`."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._ended = threading.Event()
        pool = ThreadPoolExecutor(1, "snailps-hash")
        self._of = {path: pool.submit(self._make, path) for path in paths}
        pool.shutdown(wait=False)

    def of(self, path: str) -> str:
        """Wait for a file's hash, in hex; DataError: the file cannot be read."""
        return self._of[path].result()

    def close(self) -> None:
        """Stop the thread within a MiB.  Do not call `of` afterwards: hashes may be partial."""
        self._ended.set()

    def _make(self, path: str) -> str:
        digest = hashlib.sha256()
        with read_errors(path), Path(path).open("rb") as file:
            while not self._ended.is_set() and (step := file.read(STEP_BYTES)):
                digest.update(step)
        return digest.hexdigest()
