"""files.unpacking: packed files and URLs -> their content; damage is one error."""

import bz2
import gzip
import io
import lzma
import sys
import types

import pytest

import snailps
from snailps.config.files import read_conf
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.files import unpacking
from snailps.files.blocks import expand, read_block
from snailps.files.extras import optional_module
from snailps.files.model_file import ModelFile
from snailps.files.scratch import Scratch
from snailps.files.unpacking import (
    bare_name,
    files_of_url,
    is_url,
    open_content,
    packing_of,
    pieces_of,
    version_of,
)
from snailps.vectors.fasttext_bin import read_header

TEXT = b"some words to pack\n" * 5000
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def pack(ending: str, data: bytes) -> bytes:
    if ending == ".zst":
        import zstandard

        return zstandard.ZstdCompressor().compress(data)
    return PACK[ending](data)


ENDINGS = [*PACK, ".zst"]


@pytest.fixture
def scratch(tmp_path):
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 24)
    yield scratch
    scratch.close()


@pytest.mark.parametrize(
    ("path", "packing", "bare"),
    [
        ("a/B.TXT.GZ", ".gz", "b.txt"),
        ("x.csv.bz2", ".bz2", "x.csv"),
        ("s3://bucket/x.parquet", "", "x.parquet"),
        ("x.zst", ".zst", "x"),
        ("gz", "", "gz"),
        ("https://h/a.d/Z.txt.gz?sig=1/2.zst#x.xz", ".gz", "z.txt"),
        ("HTTP://h/x.jsonl?X-Amz-Signature=1", "", "x.jsonl"),
        ("s3://bucket/what?.jsonl", "", "what?.jsonl"),
    ],
)
def test_names_tell_how_files_are_packed(path, packing, bare):
    assert (packing_of(path), bare_name(path)) == (packing, bare)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("s3://bucket/x", True), ("https://host/x.gz", True), ("memory://x", True),
        ("/data/x", False), ("a:b", False), ("driver:host:1/2/3", False), ("c:\\x", False),
    ],
)  # fmt: skip
def test_is_url(path, found):
    assert is_url(path) is found


@pytest.mark.parametrize("ending", ENDINGS)
def test_content_of_packed_file(tmp_path, ending):
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(ending, TEXT))
    assert b"".join(pieces_of(str(path))) == TEXT
    with open_content(str(path)) as content:
        assert content.readline() == b"some words to pack\n"
        assert content.read(4) == b"some"


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_packed_pieces_are_one_content(tmp_path, ending):
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(ending, b"one ") + pack(ending, b"two"))
    assert b"".join(pieces_of(str(path))) == b"one two"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", ["cut", "cut to nothing", "foreign"])
def test_damaged_packed_file_is_data_error_that_names_the_program(tmp_path, ending, damage):
    path = tmp_path / f"text{ending}"
    data = pack(ending, bytes(range(256)) * 1000)
    kept = {"cut": data[: len(data) // 2], "cut to nothing": b"", "foreign": b"plain, not packed"}
    path.write_bytes(kept[damage])
    with pytest.raises(DataError, match=rf"cannot unpack .*text\{ending}: .*`(gzip|bzip2|xz|zstd)"):
        list(pieces_of(str(path)))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", ["header", "garbage", "short garbage", "cut"])
@pytest.mark.parametrize("behind", [1, 3])
def test_pieces_of_streams_one_of_which_is_damaged_is_data_error(tmp_path, ending, damage, behind):
    streams = [pack(ending, b"line %d\n" % number * 400) for number in range(3)]
    before, rest = b"".join(streams[:behind]), b"".join(streams[behind:]) or streams[0]
    path = tmp_path / f"text{ending}"
    tail = {
        "header": bytes([rest[0] ^ 1]) + rest[1:],
        "garbage": b"not a stream" * 400,
        "short garbage": rest[:1],
        "cut": rest[:-1],
    }
    path.write_bytes(before + tail[damage])
    with pytest.raises(DataError, match=rf"cannot unpack .*text\{ending}: "):
        list(pieces_of(str(path)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_pieces_of_a_stream_without_content_are_none(tmp_path, ending):
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(ending, b""))
    assert list(pieces_of(str(path))) == []


@pytest.mark.parametrize(
    ("ending", "zeros", "is_allowed"),
    [
        (".gz", 1, True), (".gz", 5000, True), (".xz", 4, True), (".xz", 1 << 13, True),
        (".xz", 3, False), (".bz2", 4, False), (".zst", 4, False),
    ],
)  # fmt: skip
def test_pieces_of_streams_with_zeros_between_them_follows_the_format(
    tmp_path, ending, zeros, is_allowed
):
    path = tmp_path / f"text{ending}"
    for tail, content in ((b"", b"one"), (pack(ending, b"two"), b"onetwo")):
        path.write_bytes(pack(ending, b"one") + bytes(zeros) + tail)
        if is_allowed:
            assert b"".join(pieces_of(str(path))) == content
            continue
        with pytest.raises(DataError, match="cannot unpack"):
            list(pieces_of(str(path)))


def test_pieces_of_zstandard_passes_over_frames_without_content(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"meta"
    path = tmp_path / "text.zst"
    path.write_bytes(skipped + pack(".zst", b"one") + skipped + pack(".zst", b"two") + skipped)
    assert b"".join(pieces_of(str(path))) == b"onetwo"


def test_missing_file_is_data_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.xz: No such file"):
        list(pieces_of(str(tmp_path / "none.xz")))


def test_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "x.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(ConfigError, match=r"zst needs zstandard, .*install 'snailps\[data\]'"):
        open_content(str(path))
    with pytest.raises(ConfigError, match=r"needs nowhere, which is not .*'snailps\[cloud\]'"):
        optional_module("nowhere.core", "reading x", "snailps[cloud]")


@pytest.mark.parametrize("ending", ENDINGS)
def test_blocks_of_packed_file_are_its_content(tmp_path, scratch, ending):
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(ending, TEXT))
    (source,) = expand([str(path)], scratch)
    assert source.bytes == len(TEXT)
    half = source.bytes // 2
    parts = [
        read_block(source.path, *span, unit="line", scratch=scratch)
        for span in ((0, half), (half, source.bytes))
    ]
    assert b"".join(parts) == TEXT


class Buckets:
    """A file system of fsspec's, of a few files in memory."""

    def __init__(self, files):
        self.files, self.opened, self.options, self.has_marks = files, 0, {}, True

    def isfile(self, path):
        return path in self.files

    def isdir(self, path):
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)

    def glob(self, pattern):
        import fnmatch

        return [name for name in self.files if fnmatch.fnmatch(name, pattern)]

    def find(self, path):
        return [name for name in self.files if name.startswith(path.rstrip("/") + "/")]

    def unstrip_protocol(self, name):
        return f"toy://{name}"

    def invalidate_cache(self):
        self.listed = {}

    def info(self, path):
        marks = {"ETag": str(hash(self.files[path]))} if self.has_marks else {}
        return {"name": path, "size": len(self.files[path]), "type": "file", **marks}

    def open(self, path, mode, **options):
        assert mode == "rb"
        self.options = options
        if path not in self.files:
            raise RuntimeError("AccessDenied")
        self.opened += 1
        return io.BytesIO(self.files[path])


@pytest.fixture
def buckets(monkeypatch):
    """What toy:// URLs name."""
    system = Buckets(
        {"b/a.txt": TEXT, "b/c.txt.gz": gzip.compress(TEXT), "b/.hidden": b"x", "d/e.txt": b"e\n"}
    )
    core = types.ModuleType("fsspec.core")
    core.url_to_fs = lambda url: (system, url.removeprefix("toy://"))
    monkeypatch.setitem(sys.modules, "fsspec", types.ModuleType("fsspec"))
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    return system


@pytest.mark.parametrize(
    ("url", "files"),
    [
        ("toy://b/a.txt", ["toy://b/a.txt"]),
        ("toy://b", ["toy://b/a.txt", "toy://b/c.txt.gz"]),
        ("toy://*/*.txt", ["toy://b/a.txt", "toy://d/e.txt"]),
        ("https://host/x?y=*", ["https://host/x?y=*"]),
    ],
)
def test_files_of_url(buckets, url, files):
    assert [file for file, _ in files_of_url(url)] == files


@pytest.mark.parametrize("url", ["toy://z", "toy://b/*.csv"])
def test_url_of_nothing_is_data_error(buckets, url):
    with pytest.raises(DataError, match=r"toy://"):
        files_of_url(url)


def test_blocks_of_urls_are_their_content_fetched_once(buckets, scratch):
    sources = expand(["toy://b"], scratch)
    assert [source.bytes for source in sources] == [len(TEXT)] * 2
    for source in sources:
        assert read_block(source.path, 0, source.bytes, unit="word", scratch=scratch) == TEXT
    assert buckets.opened == 2


def test_pages_are_read_from_their_beginning_as_not_every_server_has_ranges(buckets):
    buckets.files["http://h/a.txt"] = TEXT
    with open_content("http://h/a.txt") as file:
        assert file.read() == TEXT
    assert buckets.options == {"block_size": 0}
    with open_content("toy://b/a.txt"):
        assert buckets.options == {}


@pytest.mark.parametrize("ending", ["", *ENDINGS])
@pytest.mark.parametrize("encoding", [None, "gzip", "identity"])
def test_page_that_is_unpacked_on_its_way_is_not_unpacked_again(buckets, ending, encoding):
    """A server may send x.gz as content encoded by gzip, which the client has decoded by now."""
    sent = TEXT if encoding == "gzip" or not ending else pack(ending, TEXT)
    plain = buckets.open

    def answer(path, mode, **options):
        raw = plain(path, mode, **options)
        page = type("Page", (io.BytesIO,), {})(raw.getvalue())
        page.r = types.SimpleNamespace(headers={"Content-Encoding": encoding} if encoding else {})
        return page

    buckets.open = answer
    for name, data in (("a.txt", sent), ("twice.txt", pack(ending, TEXT) if ending else TEXT)):
        buckets.files[f"http://h/{name}{ending}"] = data
        with open_content(f"http://h/{name}{ending}") as file:
            assert file.read() == TEXT
    if ending:
        buckets.files[f"http://h/damaged{ending}"] = TEXT
        if encoding != "gzip":
            with pytest.raises(DataError, match="is damaged"):
                b"".join(pieces_of(f"http://h/damaged{ending}"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n", "Git LFS"),
        (b"version https://hawser.github.com/spec/v1\noid sha256:4d7a\nsize 13\n", "Git LFS"),
        (b"/annex/objects/SHA256E-s13--4d7a.parquet\n", "git-annex"),
    ],
)
def test_pointer_in_the_place_of_a_file_is_refused_by_name(buckets, tmp_path, text, name):
    wanted = f"a pointer of {name} in the place of the file: fetch the file"
    buckets.files["toy://b/x.parquet"] = text
    buckets.files["b/x.parquet"] = text
    for path in ("x.txt", "x.txt.gz", "x.parquet", "x.arrow", "x.orc", "x.csv", "x.jsonl", "x.npy"):
        (tmp_path / path).write_bytes(text)
        with pytest.raises(DataError, match=wanted):
            open_content(str(tmp_path / path))
        with pytest.raises(DataError, match=wanted):
            expand([str(tmp_path / path)], Scratch(str(tmp_path / "s"), 0))
    with pytest.raises(DataError, match=wanted):
        open_content("toy://b/x.parquet")
    for path in ("m.bin", "m.ftz", "m.npz", "m.vec", "m.vec.gz"):
        (tmp_path / path).write_bytes(text)
        with pytest.raises(ModelFileError, match=wanted):
            snailps.load(tmp_path / path)
    # --continue-from opens these by itself.
    with pytest.raises(ModelFileError, match=wanted):
        read_header(tmp_path / "m.bin")
    with (tmp_path / "m.npz").open("rb") as file, pytest.raises(ModelFileError, match=wanted):
        ModelFile("m.npz", file)
    (tmp_path / "job.conf").write_bytes(text)
    with pytest.raises(ConfigError, match=wanted):
        read_conf(str(tmp_path / "job.conf"))


def test_text_about_pointers_is_text(tmp_path):
    (tmp_path / "x.txt").write_text(
        "see version https://git-lfs.github.com/spec/v1\n/annex/objects/\n"
    )
    with open_content(str(tmp_path / "x.txt")) as file:
        assert file.read(3) == b"see"


def test_missing_url_is_said_to_be_missing(buckets, monkeypatch):
    def fail(path, mode):
        raise FileNotFoundError(path)  # without a number, as fsspec has it

    monkeypatch.setattr(buckets, "open", fail)
    with pytest.raises(DataError, match=r"cannot read toy://b/a\.txt: it does not exist"):
        open_content("toy://b/a.txt")


def test_changed_url_is_another_version(buckets):
    before = version_of("toy://b/a.txt")
    buckets.files["b/a.txt"] = b"changed"
    assert version_of("toy://b/a.txt") not in (before, "")


def test_version_of_url_is_the_same_when_only_its_time_of_reading_changes(buckets, monkeypatch):
    times = iter(range(9))
    info = buckets.info
    monkeypatch.setattr(buckets, "info", lambda path: info(path) | {"time": next(times)})
    assert version_of("toy://b/a.txt") == version_of("toy://b/a.txt")


def test_version_of_url_whose_server_tells_nothing_is_empty(buckets):
    buckets.has_marks = False
    assert version_of("toy://b/a.txt") == ""


def test_copy_of_changed_url_is_made_anew(buckets, tmp_path):
    for has_marks in (True, False):
        buckets.has_marks = has_marks
        for content in (b"of day one", b"of day two"):
            buckets.files["b/a.txt"] = content
            scratch = Scratch(str(tmp_path / "scratch"), 0)
            assert scratch.local("toy://b/a.txt").read_bytes() == content
            scratch.close()


def test_copy_of_url_that_changes_while_it_is_read_is_refused(buckets, scratch, monkeypatch):
    opened = buckets.open

    def changing(path, *arguments, **options):
        file = opened(path, *arguments, **options)
        buckets.files[path] = b"changed"
        return file

    monkeypatch.setattr(buckets, "open", changing)
    with pytest.raises(DataError, match=r"toy://b/a\.txt was changed while it was read"):
        scratch.local("toy://b/a.txt")


@pytest.mark.parametrize("has_marks", [True, False])
def test_copy_of_url_of_another_version_than_the_masters_is_refused(
    buckets, scratch, tmp_path, has_marks
):
    buckets.has_marks = has_marks
    there = Scratch(str(tmp_path / "there"), 0)
    there.local("toy://b/a.txt")
    buckets.files["b/a.txt"] += b"more"
    scratch.expect("toy://b/a.txt", there.version("toy://b/a.txt"))
    with pytest.raises(DataError, match="not the version that the job began with"):
        scratch.local("toy://b/a.txt")
    there.close()


def test_copy_of_packed_file_of_another_length_than_the_masters_is_refused(scratch, tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(TEXT))
    there = Scratch(str(tmp_path / "there"), 0)
    there.local(str(path))
    scratch.expect(str(path), there.version(str(path)))
    path.write_bytes(gzip.compress(TEXT[1:]))
    with pytest.raises(DataError, match="not the version that the job began with"):
        scratch.local(str(path))
    there.close()


def test_error_of_a_protocols_library_is_data_error(buckets):
    with pytest.raises(DataError, match="cannot read toy://no: RuntimeError: AccessDenied"):
        open_content("toy://no")


def test_protocol_whose_library_is_missing_names_the_extra(buckets, monkeypatch):
    def fail(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(sys.modules["fsspec.core"], "url_to_fs", fail)
    with pytest.raises(ConfigError, match=r"Install s3fs.*'snailps\[cloud\]'"):
        unpacking.open_content("s3://bucket/x")


def test_real_fsspec_reads_memory(scratch):
    import fsspec

    with fsspec.open("memory://snailps/x.txt.xz", "wb") as file:
        file.write(lzma.compress(TEXT))
    (source,) = expand(["memory://snailps"], scratch)
    assert read_block(source.path, 0, source.bytes, unit="line", scratch=scratch) == TEXT
