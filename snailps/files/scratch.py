"""Input files on this host: themselves, or a copy of those that cannot be cut into blocks.

    path -> Scratch.local -> the path itself, or the one copy on this host of its content:
                             unpacked (.gz, .bz2, .xz, .zst, .lz4), fetched (URLs), read (tables)
    driver:... -> this process's own copy, of the pieces that are read

Owns the identity of a copy: the origin's real path, size and time, or a URL's version, and what is
made of a table.  `host_cache` stores copies, `unpacking` unpacks, `Reading` says how tables are
read.  Must not know blocks.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import BinaryIO, cast

from snailps.errors import DataError
from snailps.files.driver_files import DriverCopy, DriverReader, is_driver_file
from snailps.files.host_cache import HostCache, Make, ScratchFile
from snailps.files.partitions import columns_of_folders
from snailps.files.reading import Reading
from snailps.files.unpacking import is_packed, is_url, open_content, pieces_of, version_of
from snailps.outward import without_secrets


def open_input(path: str) -> BinaryIO:
    """Open the content of an input file to look at a few bytes, without making a copy."""
    if is_driver_file(path):
        return cast(BinaryIO, DriverReader(path))
    return open_content(path)


class Scratch(HostCache):
    """Copies of packed files, URLs, tables and drivers' files, in use until `close`.

    Without `tables` a table is a file like any other.  Threads may share one object.
    """

    def __init__(
        self,
        folder: str,
        bytes_max: int,
        *,
        wait_s: float = 1800.0,
        tables: Reading | None = None,
    ) -> None:
        super().__init__(folder, bytes_max, wait_s=wait_s)
        self.tables = tables
        self._held: dict[str, tuple[Path, str]] = {}
        """By origin, its copy and version."""
        self._expected: dict[str, str] = {}
        """By origin, the version that other hosts have."""
        self._plain: set[str] = set()
        """Paths that need no copy, so that blocks over many files do not ask again."""
        self._copies: dict[str, DriverCopy] = {}

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def local(self, path: str, start: int = 0, stop: int | None = None) -> Path:
        """The file to read instead of `path`: itself, or a copy on this host of its content.

        A copy is unchanged while this object is open, even if the origin changes.  `start` and
        `stop` matter for a Python process's file only: fetch these bytes, at least.

        DataError: unreadable, too large for the scratch folder, or not the expected version.
        WaitTimeout: another process has been making the copy for `wait_s`.
        """
        if path in self._plain:
            return Path(path)
        if is_driver_file(path):
            pieces = self._copy_of(path)
            pieces.fetch(start, pieces.size if stop is None else stop)
            return pieces.path
        tables = self.tables if self.tables and self.tables.takes(path) else None
        if not (tables is not None or is_packed(path) or is_url(path)):
            self._plain.add(path)
            return Path(path)
        with self._mutex:
            if path not in self._held:
                self._held[path] = self._found(path, tables)
                self._in_use.callback(self._held.pop, path)
            copy, version = self._held[path]
            self._compare(path, version)
            return copy

    def version(self, path: str) -> str:
        """Version of an origin that has a copy here; empty: it has none."""
        with self._mutex:
            return self._held[path][1] if path in self._held else ""

    def expect(self, path: str, version: str) -> None:
        """Have `local` refuse any version of an origin but this one, which another host reads.

        Else two hosts could cut different contents into the same blocks.
        """
        if version:
            self._expected[path] = version

    def _compare(self, path: str, version: str) -> None:
        if self._expected.get(path, version) != version:
            raise DataError(
                f"{path} is not the version that the job began with: it has changed since, or "
                "hosts see different files. Do not change the input during a job"
            )

    def open(self, path: str) -> BinaryIO:
        """Open the content of an input file; from a driver's file only what is read is fetched."""
        if is_driver_file(path):
            return cast(BinaryIO, DriverReader(self._copy_of(path)))
        return self.local(path).open("rb")

    def _copy_of(self, path: str) -> DriverCopy:
        with self._mutex:
            if path not in self._copies:
                file = self._in_use.enter_context(self.new_file("a copy of the data"))
                self._copies[path] = copy = DriverCopy(path, file)
                self._in_use.callback(self._copies.pop, path)
                self._in_use.callback(copy.close)
            return self._copies[path]

    def _found(self, path: str, tables: Reading | None) -> tuple[Path, str]:
        """The copy of an origin, made here unless another process made it, and its version."""
        before = key, version = _version_of(path)
        if version:
            self._compare(path, version)
        elif is_url(path):  # of unknown version: no copy may serve another job
            key += f"\0{secrets.token_hex(16)}"
        if tables is not None:
            key += f"\0{tables.identity}\0{columns_of_folders(path)}"

        def fill(make: Make) -> ScratchFile:
            if tables is None:
                file = self._unpacked(path, make)
            else:
                file = tables.write(path, make, self.check_open)
            # Else the copy would be a mixture under the name of the old version.
            if _version_of(path) != before:
                raise DataError(f"{path} was changed while it was read here. Run the job again")
            return file

        doing = "unpacking" if tables is None else "reading"
        copy = self.find(key, f"{doing} {without_secrets(path)}", fill)
        return copy, version or str(copy.stat().st_size)

    def _unpacked(self, path: str, make: Make) -> ScratchFile:
        file = make("its content")
        for piece in pieces_of(path):
            self.check_open()
            try:
                file.write(piece)
            except DataError as error:
                raise DataError(
                    f"cannot unpack {path}: {error}, or unpack the file yourself and name the "
                    "result"
                ) from error
        return file


_whole: dict[str, Scratch] = {}


def whole_file(path: str, folder: str = "", bytes_max: int = 0) -> str:
    """The file to read instead of `path`: itself, or a complete copy of a driver's file.

    The copy stays until `release_whole`, or until another file is asked for: a model to start from
    is opened several times before its rows are in the tables.
    """
    if not is_driver_file(path):
        return path
    for other in set(_whole) - {path}:
        release_whole(other)
    return str(_whole.setdefault(path, Scratch(folder, bytes_max)).local(path))


def release_whole(path: str) -> None:
    if (scratch := _whole.pop(path, None)) is not None:
        scratch.close()


def _version_of(path: str) -> tuple[str, str]:
    """A key for this host, and a version that all hosts see alike, of a file or URL.

    The version is empty for a file, whose time differs between hosts, and for a URL whose server
    reports none.
    """
    if is_url(path):
        version = version_of(path)
        return f"{path}\0{version}", version
    try:
        real = Path(path).resolve(strict=True)
        status = real.stat()
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror or error}") from error
    return f"{real}\0{status.st_size}\0{status.st_mtime_ns}", ""
