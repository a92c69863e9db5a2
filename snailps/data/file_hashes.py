"""SHA-256 of files, made in a thread beside other work.

    paths -> FileHashes -> of(path), when it is asked for

What a hash is for is not known here.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from snailps.data.unpacking import STEP_BYTES, read_errors


class FileHashes:
    """Hashes of some files, made one after another from now on."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._ended = threading.Event()
        pool = ThreadPoolExecutor(1, "snailps-hash")
        self._of = {path: pool.submit(self._make, path) for path in paths}
        pool.shutdown(wait=False)

    def of(self, path: str) -> str:
        """Wait for a file's hash, in hex; DataError: it cannot be read."""
        return self._of[path].result()

    def close(self) -> None:
        """Stop the thread; `of` must not be called after it."""
        self._ended.set()

    def _make(self, path: str) -> str:
        digest = hashlib.sha256()
        with read_errors(path), Path(path).open("rb") as file:
            while not self._ended.is_set() and (step := file.read(STEP_BYTES)):
                digest.update(step)
        return digest.hexdigest()
