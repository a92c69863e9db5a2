"""Content of files that are packed, or that are not on this machine.

    x.gz, x.bz2, x.xz, x.zst, x.lz4 -> content -> a binary file of what is in it, or pieces
    s3://bucket/x.gz, https://... -> fsspec -> the same

Owns the endings and URLs, the libraries for them, and the errors of damaged files.  zstandard and
fsspec are imported when the first such file is opened.  No copies, no tables; sockets are fsspec's.
"""

from __future__ import annotations

import bz2
import glob
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from snailps.data.extras import optional_module
from snailps.errors import ConfigError, DataError, SnailError

STEP_BYTES = 1 << 20
PACKED_STEP_BYTES = 1 << 11
"""Packed bytes that are unpacked together: 2 KiB have 64 MiB in them at most."""
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
"""Ending of a name, in small letters -> the program that unpacks it."""
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)
"""Errors of reading a damaged file, beside OSError."""
_GZIP = zlib.MAX_WBITS | 16
_MARKS = (
    "etag", "lastmodified", "contentmd5", "digest", "md5hash", "md5", "crc32c", "checksum", "sha",
    "blobid", "versionid", "generation", "updated", "mtime", "modified", "modify",
    "modificationtime", "created",
)  # fmt: skip
"""Fields of fsspec's file systems that identify a version; never times of reading."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
MARK = re.compile(r"/\./(?=[^/]*=)")
"""In a path: the next folder is the first one that names a column and its value (`partitions`)."""
_LAKES = {
    re.compile(r"(^|/)_delta_log/"): "a Delta",
    re.compile(r"(^|/)metadata/[^/]*metadata\.json"): "an Iceberg",
    re.compile(r"(^|/)\.hoodie/"): "a Hudi",
}
_ALWAYS_FILES = ("http://", "https://")
"""A URL of these is one file: a page may link others, and a question mark begins its query."""


def is_url(path: str) -> bool:
    """Whether a path is ``protocol://...``, which fsspec opens."""
    return _URL.match(path) is not None


def packing_of(path: str) -> str:
    """Packing of a file, by its name: ``.gz``, ...; empty: none."""
    ending = Path(_name_of(path)).suffix
    return ending if ending in PACKED else ""


def is_packed(path: str) -> bool:
    return bool(packing_of(path))


def is_sequential(path: str) -> bool:
    """Whether the content can be read from its beginning only, or sought in at that price."""
    return is_packed(path) or path.lower().startswith(_ALWAYS_FILES)


def bare_name(path: str) -> str:
    """The name of a file in small letters, without the ending of its packing."""
    return _name_of(path).removesuffix(packing_of(path))


def _name_of(path: str) -> str:
    """The name of a file in small letters, of a page without its query."""
    is_page = path.lower().startswith(_ALWAYS_FILES)
    return Path(re.split("[?#]", path, maxsplit=1)[0] if is_page else path).name.lower()


def open_content(path: str) -> BinaryIO:
    """Open the content of a file or URL, unpacked.

    Local files that are not packed can be sought in.  Reading a damaged one raises OSError or one
    of `DAMAGED`.
    """
    file: IO[bytes] = _open_url(path) if is_url(path) else Path(path).open("rb")  # noqa: SIM115
    try:
        return _unpacked(file, path)
    except BaseException:
        file.close()
        raise


def pieces_of(path: str) -> Iterator[bytes]:
    """The content of a file or URL in steps; all damage is a DataError."""
    with read_errors(path), open_content(path) as content:
        while piece := content.read(STEP_BYTES):
            yield piece


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn errors of damaged or unreadable files into DataError."""
    packing = PACKED.get(packing_of(path), "")
    try:
        yield
    except SnailError:
        raise
    except (*DAMAGED, OSError) as error:
        # bzip2 reports damage by an OSError without a number.
        if packing and (not isinstance(error, OSError) or error.errno is None):
            raise DataError(
                f"cannot unpack {path}: {error}. The file is damaged or no {packing} file; "
                f"`{packing} -t` tells, and a fresh copy helps"
            ) from error
        why = error.strerror if isinstance(error, OSError) else None
        if why is None and isinstance(error, FileNotFoundError):  # fsspec's, of any failure
            cause = error.__cause__
            absent = cause is None or isinstance(cause, FileNotFoundError)
            why = "it does not exist" if absent else f"{cause}"
        raise DataError(f"cannot read {path}: {why or error}") from error
    except Exception as error:
        if not is_url(path):
            raise
        raise _of_url(path, error) from error


def version_of(url: str) -> str:
    """Version of a URL's content, the same on every host; empty: unknown."""
    system, path = _system_of(url)
    with read_errors(url):
        found = {_bare(name): value for name, value in system.info(path).items()}
    marks = [f"{name}={found[name]}" for name in _MARKS if found.get(name)]
    text = "\0".join([f"{found.get('size')}", *marks])
    return hashlib.sha256(text.encode()).hexdigest()[:32] if marks else ""


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_hidden(name: str) -> bool:
    """Whether a named folder omits this file or folder: its name begins with a dot or underscore.

    Hadoop, Spark, Hive, Trino and pyarrow leave logs, markers, indexes and unfinished files beside
    a table so.  A column of Hive's may begin with an underscore: `_day=7` is no such name.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def in_hidden_folder(rest: str, pattern: str) -> bool:
    """Whether a match of a pattern is in a hidden folder that the pattern does not name: `*` stands
    for no such folder, as in a shell for none with a dot."""
    named = [part for part in pattern.split("/") if is_hidden(part)]
    return any(
        is_hidden(folder) and not any(fnmatchcase(folder, part) for part in named)
        for folder in rest.split("/")[:-1]
    )


def files_of_url(url: str) -> list[tuple[str, str]]:
    """The files that a URL names: itself, those below a folder, or those of a pattern; sorted.

    With each the part of it below the folder that was named, or in which the pattern begins.
    """
    if url.lower().startswith(_ALWAYS_FILES):
        return [(url, "")]
    system, path = _system_of(url)
    with read_errors(url):
        if system.isfile(path):
            return [(url, "")]
        if glob.has_magic(path):
            inside = root_of_pattern(path)
            names = [name for name in sorted(system.glob(path)) if not system.isdir(name)]
            rests = [name.removeprefix(inside) for name in names]
            rests = [rest for rest in rests if not in_hidden_folder(rest, path)]
            missing = f"the pattern {url} matches no file"
        else:
            inside = path.rstrip("/") + "/"
            rests = [name.removeprefix(inside) for name in sorted(system.find(path))]
            if lake := next((mark for mark in _LAKES if any(map(mark.search, rests))), None):
                raise DataError(
                    f"{url} is {_LAKES[lake]} table, whose log says which files are its rows "
                    "now: it is read from a folder of this host only. Write its rows as Parquet"
                )
            rests = [rest for rest in rests if not any(map(is_hidden, rest.split("/")))]
            missing = f"input not found: {url} does not exist, or has no files"
    if not rests:
        raise DataError(missing)
    return [(str(system.unstrip_protocol(inside + rest)), rest) for rest in rests]


def root_of_pattern(pattern: str) -> str:
    """The beginning of a pattern, up to the folder in whose names it has a choice; with its `/`."""
    parts = pattern.split("/")
    first = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    return "/".join([*parts[:first], ""])


def _system_of(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    core = optional_module("fsspec.core", f"reading {url}", "snailps[cloud]")
    url = MARK.sub("/", url)
    try:
        system, path = core.url_to_fs(url)
    except ImportError as error:  # s3fs, gcsfs, aiohttp, ...
        raise ConfigError(
            f"reading {url} needs another library: {error}. pip install 'snailps[cloud]' has those "
            "of s3://, gs:// and https://"
        ) from None
    except ValueError as error:  # an unknown protocol
        raise DataError(f"cannot read {url}: {error}") from None
    system.invalidate_cache()  # a long-lived process asks again
    return system, str(path)


def _open_url(url: str) -> IO[bytes]:
    system, path = _system_of(url)
    # Not every web server has ranges: read from the beginning.
    options = {"block_size": 0} if url.lower().startswith(_ALWAYS_FILES) else {}
    with read_errors(url):
        # fsspec's own files do not limit a line.
        return io.BufferedReader(system.open(path, "rb", **options), STEP_BYTES)


def _of_url(url: str, error: Exception) -> DataError:
    return DataError(
        f"cannot read {url}: {type(error).__name__}: {error}. Credentials are those of the "
        "protocol's own library, in the environment of every process that reads"
    )


def _unpacked(file: IO[bytes], path: str) -> BinaryIO:
    """The content of an open file, by the ending of its path; closing it closes the file."""
    packing = packing_of(path)
    if packing == ".gz":
        content = _content(file, lambda: zlib.decompressobj(_GZIP), padding=1)
    elif packing == ".bz2":
        content = _content(file, bz2.BZ2Decompressor)
    elif packing == ".xz":
        content = _content(file, lzma.LZMADecompressor, padding=4)
    elif packing == ".zst":
        content = _zstd_content(
            file, optional_module("zstandard", f"reading {path}", "snailps[data]")
        )
    elif packing == ".lz4":
        content = _lz4_content(file)
    else:
        return cast(BinaryIO, file)
    return io.BufferedReader(_Pieces(content, file), STEP_BYTES)


def _content(
    packed: IO[bytes], begin: Callable[[], Any], *, padding: int = 0
) -> Iterator[bytes | memoryview]:
    """The content of streams, one after another; refuses other bytes behind one.

    The libraries' own readers take a file that was cut off, or whose next stream is damaged, for
    one that ends there.  A multiple of `padding` zeros may follow a stream.
    """
    data = packed.read(PACKED_STEP_BYTES)
    while True:
        stream = begin()
        while not stream.eof:
            if not data:
                raise EOFError("the file ends within a stream")
            yield stream.decompress(data)
            data = b"" if stream.eof else packed.read(PACKED_STEP_BYTES)
        data = stream.unused_data or packed.read(PACKED_STEP_BYTES)
        zeros = 0
        while padding and data.startswith(b"\0"):
            zeros += len(data) - len(data := data.lstrip(b"\0"))
            data = data or packed.read(PACKED_STEP_BYTES)
        if padding and zeros % padding:
            raise EOFError(f"{zeros} zeros follow a stream, no multiple of {padding}")
        if not data:
            return


def _zstd_content(packed: IO[bytes], zstandard: Any) -> Iterator[bytes | memoryview]:
    decompressor = zstandard.ZstdDecompressor()
    try:
        yield from _content(packed, decompressor.decompressobj)
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from None


def _lz4_content(packed: IO[bytes]) -> Iterator[bytes | memoryview]:
    import lz4.frame

    try:
        yield from _content(packed, lz4.frame.LZ4FrameDecompressor)
    except RuntimeError as error:  # its error of damage
        raise OSError(str(error)) from None


class _Pieces(io.RawIOBase):
    """Content of a packed file, as a file; closing it closes both."""

    def __init__(self, pieces: Iterator[bytes | memoryview], packed: IO[bytes]) -> None:
        super().__init__()
        self._pieces, self._left, self._packed = pieces, memoryview(b""), packed

    def close(self) -> None:
        super().close()
        self._packed.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
