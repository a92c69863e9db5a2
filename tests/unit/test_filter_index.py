"""`snailps filter --against`: dumps, each judged by all that was kept before."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from near_copies import Cover, corpus, grams_of, place_of, words_of
from sessions_here import InProcess

import snailps
from snailps.duplicates import page_index, search
from snailps.duplicates._pages import NO_KEY, PageKeys
from snailps.errors import ConfigError, DataError

KEEP = "not (dup.contained >= .98 or dup.near >= .85)"
ADD = ["dup.of", "dup.contained", "dup.near", "dup.exact"]


def keys_of(texts):
    """By text, its keys, and the hash of all its words as one more."""
    rows = []
    for batch in search.batches_of(texts):
        rows += [set(row) - {NO_KEY} for row in search.facts_of(batch, PageKeys()).keys.tolist()]
    return rows


def firsts(texts, keys):
    """By key, the first text in the order that has it."""
    first = {}
    for number in sorted(range(len(texts)), key=lambda at: place_of(texts, at)):
        for key in keys[number]:
            first.setdefault(key, number)
    return first


def judged(texts, old):
    """By the definition: `Cover` of each text, of ("old" or "new", number), and which stay."""
    keys, old_keys = keys_of(texts), keys_of(old)
    first, first_old = firsts(texts, keys), firsts(old, old_keys)
    covers, kept = {}, {}
    for number in sorted(range(len(texts)), key=lambda at: place_of(texts, at)):
        olds = {first_old[key] for key in keys[number] if key in first_old}
        news = {first[key] for key in keys[number]} - {number}
        candidates = [("old", at, old) for at in sorted(olds, key=lambda at: place_of(old, at))]
        news = sorted(filter(kept.get, news), key=lambda at: place_of(texts, at))
        candidates += [("new", at, texts) for at in news]
        best, near, exact = Cover(), 0.0, False
        own = grams_of(texts[number])
        for side, at, of in candidates:
            both = len(own & grams_of(of[at]))
            shares = both / len(own), both / len(own | grams_of(of[at]))
            near, exact = max(near, shares[1]), exact or words_of(texts[number]) == words_of(of[at])
            if best.of == -1 or shares > (best.contained, best.near):
                best = Cover(*shares, False, (side, at))
        covers[number] = best._replace(near=near, exact=exact)
        kept[number] = not (
            np.float32(best.contained) >= np.float32(0.98) or np.float32(near) >= np.float32(0.85)
        )
    return covers, kept


def write(folder, texts, files=2):
    """Lines of JSON; by text, its file and row."""
    folder.mkdir(parents=True)
    places = []
    for file, numbers in enumerate(np.array_split(np.arange(len(texts)), files)):
        rows = [json.dumps({"n": int(at), "text": texts[at]}) + "\n" for at in numbers]
        (folder / f"{file}.jsonl").write_text("".join(rows))
        places += [(f"{file}.jsonl", row) for row in range(1, len(numbers) + 1)]
    return places


def keep(folder, index, **options):
    out = folder.parent / f"{folder.name}-out"
    options = {"output": out, "keep": KEEP, "column": "text", "against": index, **options}
    return snailps.filter(folder, **options)


def rows_of(folder):
    files = sorted(folder.glob("[0-9]*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def three_dumps(seed):
    """Of the planted copies most have their originals in another dump."""
    texts, _ = corpus(seed, pages=45)
    return [texts[dump::3] for dump in range(3)]


def assert_as_defined(tmp_path, seed, cluster=None):
    """Three dumps against one index; returns what it has at the end."""
    index, old, old_places = tmp_path / "index", [], []
    by_index = 0
    for dump, texts in enumerate(three_dumps(seed)):
        folder = tmp_path / f"d{dump}"
        places = write(folder, texts)
        covers, kept = judged(texts, old)
        done = keep(folder, index, add=ADD, threads=2, cluster=cluster)
        rows = rows_of(tmp_path / f"d{dump}-out")
        assert [row["n"] for row in rows] == [at for at in range(len(texts)) if kept[at]]
        for row in rows:
            cover = covers[row["n"]]
            assert np.float32(row["dup.contained"]) == np.float32(cover.contained)
            assert np.float32(row["dup.near"]) == np.float32(cover.near)
            assert row["dup.exact"] is cover.exact
            wanted = None
            if cover.of != -1:
                side, at = cover.of
                wanted = "{}:{}".format(*(old_places if side == "old" else places)[at])
            assert row["dup.of"] == wanted
        gone = [at for at in range(len(texts)) if not kept[at]]
        removed_by_index = sum(covers[at].of[0] == "old" for at in gone)
        assert done["copies"]["removed"] == len(gone)
        assert done["copies"]["removed_by_index"] == removed_by_index
        by_index += removed_by_index
        stay = [at for at in range(len(texts)) if kept[at]]
        old += [texts[at] for at in stay]
        old_places += [(str(folder / places[at][0]), places[at][1]) for at in stay]
    assert by_index > 10
    return [path.read_bytes() for path in sorted(index.glob("*.pages"))]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_dumps_are_judged_as_defined(tmp_path, seed):
    assert len(assert_as_defined(tmp_path, seed)) == 3


def test_a_cluster_finds_and_appends_the_same(tmp_path):
    alone = assert_as_defined(tmp_path / "alone", 4)
    many = assert_as_defined(tmp_path / "many!", 4, InProcess())
    assert alike(alone, many)


def alike(segments, others):
    """But for the header, and the paths and times of inputs, with their sums."""
    assert [*map(len, segments)] == [*map(len, others)]
    return [data[4096:-900] for data in segments] == [data[4096:-900] for data in others]


def test_chunks_of_few_pages_change_nothing(tmp_path, monkeypatch):
    whole = assert_as_defined(tmp_path / "a", 5)
    for module in (search, page_index):
        monkeypatch.setattr(module, "CHUNK_PAGES", 3)
    monkeypatch.setattr("snailps.filtering.copies.CHUNK_PAGES", 3)
    monkeypatch.setattr(page_index, "CHUNK_GRAMS", 50)
    few = assert_as_defined(tmp_path / "b", 5)
    assert alike(whole, few)


def test_the_same_command_again_changes_nothing(tmp_path):
    first, second, _ = three_dumps(6)
    write(tmp_path / "a", first)
    write(tmp_path / "b", second)
    index = tmp_path / "index"
    keep(tmp_path / "a", index)
    done = keep(tmp_path / "b", index)
    before = {path: path.read_bytes() for path in index.iterdir()}
    assert keep(tmp_path / "b", index) == done
    # What is before its own counts, also when it has to be made again.
    next((tmp_path / "a-out").glob("0.jsonl")).write_text("")
    with pytest.raises(ConfigError, match="is missing, or was changed"):
        keep(tmp_path / "a", index)
    keep(tmp_path / "a", index, overwrite=True)
    assert {path: path.read_bytes() for path in index.iterdir()} == before


def test_a_lost_segment_is_said_and_made_again(tmp_path):
    write(tmp_path / "a", three_dumps(6)[0])
    index = tmp_path / "index"
    keep(tmp_path / "a", index)
    segment = next(index.glob("*.pages"))
    before = segment.read_bytes()
    segment.unlink()
    with pytest.raises(ConfigError, match=rf"{segment.name} is not what this command has made"):
        keep(tmp_path / "a", index)
    keep(tmp_path / "a", index, overwrite=True)
    assert segment.read_bytes() == before


def test_another_condition_on_the_same_texts_is_not_compared_with_them(tmp_path):
    write(tmp_path / "a", three_dumps(7)[0])
    index, other = tmp_path / "index", "not dup.contained >= .5"
    first = keep(tmp_path / "a", index)
    with pytest.raises(ConfigError, match=r"0\.jsonl is in it already, by 000001-.*another index"):
        keep(tmp_path / "a", index, keep=other, output=tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"0\.jsonl is in it already"):
        keep(tmp_path / "a", index, keep=other)
    done = keep(tmp_path / "a", index, keep=other, overwrite=True)
    assert 0 < done["kept"] <= first["kept"]
    assert len([*index.glob("*.pages")]) == 1


def test_results_that_later_runs_were_compared_with_are_not_overwritten(tmp_path):
    first, second, _ = three_dumps(8)
    write(tmp_path / "a", first)
    write(tmp_path / "b", second)
    index = tmp_path / "index"
    keep(tmp_path / "a", index)
    keep(tmp_path / "b", index)
    with pytest.raises(ConfigError, match=r"are in the index as 000001-.*later runs.*000002-"):
        keep(tmp_path / "a", index, keep="not dup.exact", overwrite=True)
    assert (tmp_path / "a-out" / "_manifest.json").exists()


def test_a_run_that_keeps_nothing_appends_an_empty_segment(tmp_path):
    text = "one two three four five six"
    write(tmp_path / "a", [text])
    write(tmp_path / "b", [text.upper()], files=1)
    index = tmp_path / "index"
    keep(tmp_path / "a", index)
    assert keep(tmp_path / "b", index)["kept"] == 0
    pages = [page_index.Segment(path).pages for path in sorted(index.glob("*.pages"))]
    assert pages == [1, 0]
    write(tmp_path / "c", [text, "other words of another text"])
    assert keep(tmp_path / "c", index)["kept"] == 1


def test_more_segments_than_a_process_may_open_files(tmp_path, monkeypatch):
    import resource

    index = tmp_path / "index"
    for dump in range(40):
        write(tmp_path / f"{dump}", [f"text number {dump} has words of its own w{dump}"], files=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, hard))
    try:
        for dump in range(40):
            assert keep(tmp_path / f"{dump}", index, threads=1)["kept"] == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def filled(tmp_path):
    write(tmp_path / "a", three_dumps(9)[0])
    write(tmp_path / "b", three_dumps(9)[1])
    keep(tmp_path / "a", tmp_path / "index")
    return tmp_path


def test_each_damaged_byte_is_noticed(filled):
    segment = next((filled / "index").glob("*.pages"))
    whole = bytearray(segment.read_bytes())
    rng = np.random.default_rng(1)
    # The header's padding is in its sum, too.
    for at in [0, 20, 4000, 4095, len(whole) - 1, len(whole) - 5, *rng.integers(0, len(whole), 30)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        segment.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged|format"):
            everything(filled / "index", segment)
    for size in (0, 100, 4096, len(whole) - 1):
        segment.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"{segment.name} is damaged"):
            everything(filled / "index", segment)


def everything(index, segment):
    pages = page_index.IndexedPages.of(index, [segment.name])
    for part in range(len(pages.parts)):
        pages.chunk(part).load()
    numbers = np.arange(len(pages))
    pages.names(numbers)
    return pages.digest, [*pages.sets(numbers)]


def test_a_damaged_index_ends_a_filter_by_name(filled):
    segment = next((filled / "index").glob("*.pages"))
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    with pytest.raises(DataError, match=rf"{segment.name} is damaged \(block 0\).*or delete it"):
        keep(filled / "b", filled / "index")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda text: text.replace(b"pages 1", b"pages 2"),
            "has the format 2, and this version reads 1",
        ),
        (lambda text: text.replace(b'"seed": 0', b'"seed": 5'), r"keys of .*'seed': 5.*'seed': 0"),
    ],
)
def test_an_index_of_another_version_is_refused_with_both_named(filled, change, words):
    import zlib

    segment = next((filled / "index").glob("*.pages"))
    data = segment.read_bytes()
    head = change(data[:4092])
    segment.write_bytes(head + zlib.crc32(head).to_bytes(4, "little") + data[4096:])
    with pytest.raises(DataError, match=words):
        keep(filled / "b", filled / "index")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "n > 3", "models": {}}, "no model: name at least one"),
        (
            {"keep": "bench.overlap < .1", "benchmarks": "{folder}/evals.txt"},
            "against: neither --keep nor --add asks for dup",
        ),
        ({"against": "{folder}/a"}, "is in the input's folder|holds 0.jsonl"),
        ({"against": "{folder}/b-out/index"}, "lie in each other"),
        ({"output": "{folder}/index/out"}, "lie in each other"),
        ({"against": "{folder}/a-out"}, "holds 0.jsonl, which is no part of an index"),
        ({"against": "{folder}/evals.txt"}, "--against .*evals.txt: "),
        ({"against": 3}, "against: expected a path"),
    ],
)
def test_mistakes_are_refused_by_name(filled, options, words):
    (filled / "evals.txt").write_text("nine words of a line that benchmarks could have had\n")
    options = {
        name: value.format(folder=filled) if isinstance(value, str) else value
        for name, value in options.items()
    }
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("*.*")}
    with pytest.raises((ConfigError, DataError), match=words):
        keep(filled / "b", **{"index": options.pop("against", filled / "index"), **options})
    after = {path: path.stat().st_mtime_ns for path in filled.rglob("*.*")}
    assert {path: at for path, at in after.items() if path in before} == before


def test_two_runs_at_once_on_one_index_are_refused(filled):
    folder = page_index.IndexFolder(filled / "index", "--against")
    folder.begin()
    with pytest.raises(ConfigError, match="another run appends to this index: wait for it"):
        keep(filled / "b", filled / "index")
    folder.close()
    keep(filled / "b", filled / "index")


def test_a_segment_as_the_page_on_the_format_says(tmp_path):
    """Read by hand, by docs/duplicates.md."""
    import struct
    import zlib

    texts = ["one two three four", "?!", "five six"]
    write(tmp_path / "a", texts, files=1)
    keep(tmp_path / "a", tmp_path / "index")
    path = next((tmp_path / "index").glob("*.pages"))
    assert re.fullmatch(r"000001-[0-9a-f]{32}\.pages", path.name)
    data = path.read_bytes()
    assert zlib.crc32(data[:4092]) == struct.unpack("<I", data[4092:4096])[0]
    magic, header, rest = data[:4092].split(b"\n", 2)
    assert (magic, rest.strip(b" ")) == (b"snailps pages 1", b"")
    header = json.loads(header)
    assert header["pages"] == 2
    assert header["command"].startswith(path.name[7:39])
    assert header["keys"] == {"bands": 18, "rows": 9, "windows": 6, "window": 25, "seed": 0}
    begins = {name: begin for name, (begin, _) in header["sections"].items()}
    assert [*begins] == ["facts", "keys", "begins", "grams", "files"]
    facts = [struct.unpack_from("<IIQQQ", data, begins["facts"] + 32 * page) for page in range(2)]
    exact = PageKeys().of(*next(search.batches_of(texts)))[1].tolist()
    assert facts == [(4, 0, 1, *exact[0]), (2, 0, 3, *exact[2])]
    keys = np.frombuffer(data, "<u8", 2 * 25, begins["keys"]).reshape(2, 25)
    assert (keys[:, 24] == [exact[0][0], exact[2][0]]).all()
    assert struct.unpack_from("<3q", data, begins["begins"]) == (0, 2, 3)
    grams = np.frombuffer(data, "<u4", 3, begins["grams"])
    assert (grams[:2] == np.sort(search.sets_of(*next(search.batches_of(texts[:1])))[0])).all()
    size = header["sections"]["files"][1]
    files = data[begins["files"] : begins["files"] + size].decode().splitlines()
    assert [json.loads(line)[0] for line in files] == [str(tmp_path / "a/0.jsonl")]
    end = begins["files"] + size
    assert struct.unpack("<I", data[end : end + 4])[0] == zlib.crc32(data[4096:end])
    assert struct.unpack("<I", data[end + 4 :])[0] == zlib.crc32(data[end : end + 4])
