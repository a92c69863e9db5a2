"""The content of files that are packed, or on another machine.

    x.gz, x.bz2, x.xz, x.zst, x.lz4 -> open_content -> a binary file of the unpacked content
    s3://bucket/x.gz, https://... -> fsspec -> the same

Owns file endings, URLs, the libraries for them, and the errors of damaged files.  zstandard and
fsspec are imported when the first such file is opened.  Must not know copies (`scratch`) or tables;
sockets belong to fsspec.
"""

from __future__ import annotations

import bz2
import glob
import hashlib
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from snailps.errors import ConfigError, DataError, SnailError
from snailps.files.extras import optional_module
from snailps.pointers import POINTER_BYTES, pointer_of

STEP_BYTES = 1 << 20
"""Bytes of content read at a time."""
PACKED_STEP_BYTES = 1 << 11
"""Packed bytes that are unpacked at a time.

2 KiB hold at most 64 MiB, so that a small malicious file cannot fill the memory."""
PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
"""By file ending in lower case, the program that unpacks it."""
_MAGIC = {
    ".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\0", ".zst": b"\x28\xb5\x2f\xfd",
    ".lz4": b"\x04\x22\x4d\x18",
}  # fmt: skip
"""First bytes of a packed file, by its ending."""
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)
"""Errors, besides OSError, of reading a damaged file."""
_GZIP = zlib.MAX_WBITS | 16
_MARKS = (
    "etag", "lastmodified", "contentmd5", "digest", "md5hash", "md5", "crc32c", "checksum", "sha",
    "blobid", "versionid", "generation", "updated", "mtime", "modified", "modify",
    "modificationtime", "created",
)  # fmt: skip
"""Fields of fsspec's file systems that identify a version; times of access do not."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
MARK = re.compile(r"/\./(?=[^/]*=)")
"""The mark `/./` in a path: the next folder is the first one that names a column (`partitions`)."""
_LAKES = {
    re.compile(r"(^|/)_delta_log/"): "a Delta",
    re.compile(r"(^|/)metadata/[^/]*metadata\.json"): "an Iceberg",
    re.compile(r"(^|/)\.hoodie/"): "a Hudi",
    re.compile(r"(^|/)_versions/[^/]*\.manifest"): "a Lance",
    re.compile(r"(^|/)schema/schema-[0-9]"): "a Paimon",
    re.compile(r"(^|/)(delete_)?delta_[0-9]+_[0-9]+[^/]*/bucket_[0-9]"): "a Hive ACID",
}
_ALWAYS_FILES = ("http://", "https://")
"""A web page is one file: nothing lists the files below it, and `?` begins its query."""


def is_url(path: str) -> bool:
    """Whether a path is ``protocol://...``, which fsspec opens."""
    return _URL.match(path) is not None


def packing_of(path: str) -> str:
    """How a file is packed, by its name: ``.gz``, ...; empty: not packed."""
    ending = Path(_name_of(path)).suffix
    return ending if ending in PACKED else ""


def is_packed(path: str) -> bool:
    return bool(packing_of(path))


def is_sequential(path: str) -> bool:
    """Whether seeking means reading again from the beginning, or is impossible."""
    return is_packed(path) or path.lower().startswith(_ALWAYS_FILES)


def bare_name(path: str) -> str:
    """A file's name in lower case, without the ending of its packing."""
    return _name_of(path).removesuffix(packing_of(path))


def _name_of(path: str) -> str:
    """A file's name in lower case; a page's without its query."""
    is_page = path.lower().startswith(_ALWAYS_FILES)
    return Path(re.split("[?#]", path, maxsplit=1)[0] if is_page else path).name.lower()


def open_content(path: str) -> BinaryIO:
    """Open the unpacked content of a file or URL.

    Only local files that are not packed can seek.  Reading a damaged file raises OSError or one of
    `DAMAGED`: read within `read_errors`.  DataError: a pointer of Git LFS.
    """
    if not is_url(path):
        file: IO[bytes] = Path(path).open("rb")  # noqa: SIM115
        is_decoded, head = False, _beginning(file)
    else:
        file, is_decoded = _open_url(path)
        with read_errors(path):
            head = file.peek(POINTER_BYTES)
    try:
        if pointer := pointer_of(head):
            raise DataError(f"{path} is {pointer}")
        packing = packing_of(path)
        # A server may say that it sends x.gz encoded by gzip: then it is unpacked by now.
        if is_decoded and packing and not head.startswith(_MAGIC[packing]):
            packing = ""
        return _unpacked(file, path, packing)
    except BaseException:
        file.close()
        raise


def _beginning(file: IO[bytes]) -> bytes:
    """The first bytes of a local file, whose position stays; empty for a pipe."""
    try:
        return os.pread(file.fileno(), POINTER_BYTES, 0)
    except OSError:  # a pipe has no byte 0; what else cannot be read is said by who reads on
        return b""


def pieces_of(path: str) -> Iterator[bytes]:
    """The content of a file or URL, a MiB at a time; DataError: it is damaged or unreadable."""
    with read_errors(path), open_content(path) as content:
        while piece := content.read(STEP_BYTES):
            yield piece


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn errors of damaged or unreadable files into DataError, with the path and what to do."""
    packing = PACKED.get(packing_of(path), "")
    try:
        yield
    except SnailError:
        raise
    except (*DAMAGED, OSError) as error:
        # bzip2 reports damage by an OSError without a number.
        if packing and (not isinstance(error, OSError) or error.errno is None):
            raise DataError(
                f"cannot unpack {path}: {error}. The file is damaged, or is no {packing} file: "
                f"check it by `{packing} -t`, and copy it again"
            ) from error
        why = error.strerror if isinstance(error, OSError) else None
        # fsspec raises FileNotFoundError for any failure; the cause says which.
        if why is None and isinstance(error, FileNotFoundError):
            cause = error.__cause__
            absent = cause is None or isinstance(cause, FileNotFoundError)
            why = "it does not exist" if absent else f"{cause}"
        raise DataError(f"cannot read {path}: {why or error}") from error
    except Exception as error:
        if not is_url(path):
            raise
        raise _of_url(path, error) from error


def version_of(url: str) -> str:
    """A version of a URL's content that all hosts compute alike; empty: the server reports none."""
    system, path = _system_of(url)
    with read_errors(url):
        info = {_plain(name): value for name, value in system.info(path).items()}
    marks = [f"{name}={info[name]}" for name in _MARKS if info.get(name)]
    text = "\0".join([f"{info.get('size')}", *marks])
    return hashlib.sha256(text.encode()).hexdigest()[:32] if marks else ""


def _plain(name: str) -> str:
    """A field's name without case and punctuation: file systems spell ``Last-Modified`` freely."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_hidden(name: str) -> bool:
    """Whether a file or folder is skipped below a folder that is input.

    Names that begin with a dot or underscore: Hadoop, Spark, Hive, Trino and pyarrow give such
    names to logs, markers, indexes and unfinished files beside a table.  `_day=7` is not hidden: it
    is a column of Hive.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def in_hidden_folder(relative: str, pattern: str) -> bool:
    """Whether a match of a pattern lies in a hidden folder that the pattern does not name itself.

    `*` matches no hidden folder, as in a shell it matches no name with a dot.
    """
    named = [part for part in pattern.split("/") if is_hidden(part)]
    return any(
        is_hidden(folder) and not any(fnmatchcase(folder, part) for part in named)
        for folder in relative.split("/")[:-1]
    )


def files_of_url(url: str) -> list[tuple[str, str]]:
    """The files that a URL names: itself, the files below a folder, or the matches of a pattern.

    Sorted; with each, its path relative to that folder, or to the folder where the pattern begins.
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
            relatives = [name.removeprefix(inside) for name in names]
            relatives = [relative for relative in relatives if not in_hidden_folder(relative, path)]
            missing = f"the pattern {url} matches no file"
        else:
            inside = path.rstrip("/") + "/"
            relatives = [name.removeprefix(inside) for name in sorted(system.find(path))]
            if lake := next((mark for mark in _LAKES if any(map(mark.search, relatives))), None):
                raise DataError(
                    f"{url} is {_LAKES[lake]} table, whose log says which files are current. Its "
                    "log is read from a folder of this host only: write its rows as Parquet"
                )
            relatives = [
                relative for relative in relatives if not any(map(is_hidden, relative.split("/")))
            ]
            missing = f"input not found: {url} does not exist, or has no files"
    if not relatives:
        raise DataError(missing)
    return [(str(system.unstrip_protocol(inside + relative)), relative) for relative in relatives]


def root_of_pattern(pattern: str) -> str:
    """The beginning of a pattern before its first part with a wildcard, with its `/`."""
    parts = pattern.split("/")
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    return "/".join([*parts[:first], ""])


def _system_of(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    core = optional_module("fsspec.core", f"reading {url}", "snailps[cloud]")
    url = MARK.sub("/", url)
    try:
        system, path = core.url_to_fs(url)
    except ImportError as error:  # s3fs, gcsfs, aiohttp, ...
        raise ConfigError(
            f"reading {url} needs another library: {error}. pip install 'snailps[cloud]' brings "
            "those for s3://, gs:// and https://"
        ) from None
    except ValueError as error:  # an unknown protocol
        raise DataError(f"cannot read {url}: {error}") from None
    system.invalidate_cache()  # else a long-lived process would not see new files
    return system, str(path)


def _open_url(url: str) -> tuple[io.BufferedReader, bool]:
    """The content of a URL, and whether its server encoded it for the transfer."""
    system, path = _system_of(url)
    # Not every web server supports ranges: read from the beginning.
    options = {"block_size": 0} if url.lower().startswith(_ALWAYS_FILES) else {}
    with read_errors(url):
        # fsspec's own readline has no limit: a file without newlines would fill the memory.
        raw = system.open(path, "rb", **options)
        headers = getattr(getattr(raw, "r", None), "headers", {})  # of a page's answer
        is_encoded = headers.get("Content-Encoding", "identity") != "identity"
        return io.BufferedReader(raw, STEP_BYTES), is_encoded


def _of_url(url: str, error: Exception) -> DataError:
    return DataError(
        f"cannot read {url}: {type(error).__name__}: {error}. The protocol's own library takes "
        "credentials from the environment of every process that reads"
    )


def _unpacked(file: IO[bytes], path: str, packing: str) -> BinaryIO:
    """The unpacked content of an open file; closing it closes the file."""
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
    return io.BufferedReader(_UnpackedFile(content, file), STEP_BYTES)


def _content(
    packed: IO[bytes], begin: Callable[[], Any], *, padding: int = 0
) -> Iterator[bytes | memoryview]:
    """The content of concatenated streams; EOFError or the library's error for anything else.

    Not by the libraries' own readers: they take a file that was cut off, or whose second stream is
    damaged, for one that ends there, and the rest would be missing silently.  A multiple of
    `padding` zeros may follow a stream.
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
            raise EOFError(f"{zeros} zeros follow a stream: expected a multiple of {padding}")
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
    except RuntimeError as error:  # what lz4 raises for damage
        raise OSError(str(error)) from None


class _UnpackedFile(io.RawIOBase):
    """The unpacked content as a file; closing it closes the packed file too."""

    def __init__(self, pieces: Iterator[bytes | memoryview], packed: IO[bytes]) -> None:
        super().__init__()
        self._pieces, self._unread, self._packed = pieces, memoryview(b""), packed

    def close(self) -> None:
        super().close()
        self._packed.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._unread:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._unread = memoryview(piece)
        size = min(len(buffer), len(self._unread))
        buffer[:size] = self._unread[:size]
        self._unread = self._unread[size:]
        return size
