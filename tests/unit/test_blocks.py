"""files.blocks: what the user names -> sources -> blocks -> bytes, every unit exactly once."""

import contextlib
import gzip
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import examples
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from snailps.data._text import WordCounter
from snailps.data.examples import ExampleReader, examples_of
from snailps.data.matrix_writer import write_matrix
from snailps.errors import DataError
from snailps.files import blocks
from snailps.files.blocks import (
    OF_FILTERS,
    STEP_BYTES,
    InputFile,
    behind_unit,
    cut,
    even_parts,
    expand,
    files_of,
    read_block,
    read_head,
    strands,
)
from snailps.files.file_kinds import SHOWING_BYTES, first_line_of
from snailps.files.joined import (
    join,
    open_parts,
    place_in_text,
    read_text,
    texts_of,
)
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch
from snailps.models.sparse.batch import BatchReader
from snailps.pieces import JoinedFile, Piece

PIECES = st.sampled_from(
    [b"a", b"bb", b"word", b" ", b"\n", b"\r\n", b"\t", b"\0", b"\v", b"\xff", b"</s>", b"\n\n"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=30).map(b"".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    scratch = Scratch(str(tmp_path_factory.mktemp("scratch")), 1 << 30)
    yield scratch
    scratch.close()


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def read_all(path, size, block_bytes, unit, scratch) -> list[bytes]:
    blocks = cut([InputFile(path, size)], block_bytes)
    return [read_block(b.path, b.start, b.stop, unit=unit, scratch=scratch) for b in blocks]


def counts_of(texts) -> dict:
    counter = WordCounter()
    for text in texts:
        counter.count(text)
    return dict(zip(counter.words(), counter.counts().tolist(), strict=True))


# ---- read_head ----

BLANK, LONG = b"\n" * STEP_BYTES, b"a" * STEP_BYTES


@pytest.mark.parametrize(
    ("data", "head", "line"),
    [
        (b"one\ntwo\n", b"one\ntwo\n", b"one"),
        (b"one", b"one", b"one"),
        (b"one\n" + LONG, b"one\n" + LONG[:SHOWING_BYTES], b"one"),
        (b"\xef\xbb\xbf\r\n \t\n\tone, \r\n", b"\xef\xbb\xbf\r\n \t\n\tone, \r\n", b"\tone, "),
        (BLANK + LONG + b"\nb", BLANK + LONG + b"\nb", LONG),
        (LONG + b"\n" + LONG, LONG + b"\n" + LONG[:SHOWING_BYTES], LONG),
        (b"\n \n", b"\n \n", b""),
    ],
)  # fmt: skip
def test_read_head_has_the_first_line_that_is_not_blank_and_some_of_what_follows(
    tmp_path, scratch, data, head, line
):
    found = read_head(write(tmp_path / "x", data), scratch)
    assert found == head
    assert first_line_of(data) == first_line_of(found) == line


def test_read_head_of_no_file_is_data_error(tmp_path, scratch):
    with pytest.raises(DataError, match=r"cannot read .*none: No such file"):
        read_head(str(tmp_path / "none"), scratch)


# ---- read_block ----


@given(TEXTS, st.integers(1, 40), st.sampled_from(["word", "line"]))
@example(b"one\ntwo\r\nthree", 1, "word")
@example(b"\n\n\n", 2, "line")
@examples(100)
def test_read_block_any_cut_gives_each_token_once(folder, scratch, text, block_bytes, unit):
    path = write(folder / "any.txt", text)
    parts = read_all(path, len(text), block_bytes, unit, scratch)
    assert b"".join(parts) == text
    # Counted block by block: no word is torn, and `</s>` is there once a newline.
    assert counts_of(parts) == counts_of([text])


@pytest.mark.parametrize("unit", ["word", "line"])
def test_read_block_every_two_cuts_of_a_text(folder, scratch, unit):
    text = b"ab\n\ncde f\r\n  gh\n"
    path = write(folder / "two.txt", text)
    whole = counts_of([text])
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            parts = [
                read_block(path, start, stop, unit=unit, scratch=scratch)
                for start, stop in [(0, i), (i, j), (j, len(text))]
            ]
            assert b"".join(parts) == text
            assert counts_of(parts) == whole


def test_read_block_word_keeps_the_newline_behind_it(folder, scratch):
    path = write(folder / "newline.txt", b"one two\nthree")
    assert read_block(path, 0, 6, unit="word", scratch=scratch) == b"one two\n"
    assert read_block(path, 6, 13, unit="word", scratch=scratch) == b"three"


def test_read_block_line_reads_to_the_end_of_its_last_line(folder, scratch):
    path = write(folder / "lines.txt", b"first line\nsecond line\nthird")
    assert read_block(path, 0, 3, unit="line", scratch=scratch) == b"first line\n"
    assert read_block(path, 3, 11, unit="line", scratch=scratch) == b""
    assert read_block(path, 3, 12, unit="line", scratch=scratch) == b"second line\n"
    assert read_block(path, 11, 28, unit="line", scratch=scratch) == b"second line\nthird"


def test_read_block_unit_longer_than_many_steps_and_blocks(folder, scratch):
    word = b"x" * (3 * STEP_BYTES + 17)
    text = b"a " + word + b" b\n" + word
    path = write(folder / "long.txt", text)
    parts = read_all(path, len(text), STEP_BYTES // 2, "word", scratch)
    assert b"".join(parts) == text
    assert parts[0] == b"a " + word + b" "
    assert [part for part in parts[1:] if part] == [b"b\n" + word]
    assert counts_of(parts) == {b"a": 1, word: 2, b"b": 1, b"</s>": 1}


def test_read_block_one_huge_line_is_read_in_even_words(folder, scratch):
    text = b"some words " * 500_000
    path = write(folder / "huge.txt", text)
    parts = read_all(path, len(text), 1 << 20, "word", scratch)
    assert b"".join(parts) == text
    assert max(map(len, parts)) <= (1 << 20) + len(b"words ")


def test_read_block_packed_file_is_named_by_its_own_path(folder, scratch):
    text = b"packed words\nand more\n" * 100
    path = write(folder / "packed.gz", gzip.compress(text))
    [source] = expand([path], scratch)
    assert source == InputFile(path, len(text))
    assert b"".join(read_all(path, source.bytes, 100, "line", scratch)) == text


def test_read_block_vanished_file_is_data_error(folder, scratch):
    with pytest.raises(DataError, match=r"gone\.txt .*No such file.*until the job ends"):
        read_block(str(folder / "gone.txt"), 0, 10, unit="word", scratch=scratch)


def test_read_block_shortened_file_is_data_error(folder, scratch):
    path = write(folder / "short.txt", b"few bytes")
    with pytest.raises(DataError, match="became shorter: expected at least 20 bytes, got 9"):
        read_block(path, 10, 20, unit="word", scratch=scratch)


def test_read_block_of_a_file_that_shrinks_meanwhile_is_data_error(folder, scratch, monkeypatch):
    path = write(folder / "short.txt", b"a few words more\n" * 1000)

    def shrinking(*arguments):
        found = behind_unit(*arguments)
        os.truncate(path, 10_000)
        return found

    monkeypatch.setattr(blocks, "behind_unit", shrinking)
    with pytest.raises(DataError, match=r"short\.txt .*: it ends before byte 17,000"):
        read_block(path, 0, 17_000, unit="line", scratch=scratch)


def test_read_block_unit_beyond_limit_is_data_error(folder, scratch, monkeypatch):
    monkeypatch.setattr("snailps.files.blocks.UNIT_BYTES_MAX", STEP_BYTES)
    path = write(folder / "binary.txt", b"x" * (3 * STEP_BYTES))
    with pytest.raises(DataError, match=r"no separator in 131,072 bytes.*is it text"):
        read_block(path, 0, 1, unit="word", scratch=scratch)


def test_read_block_empty_or_reversed_range(folder, scratch):
    assert read_block("/nowhere", 3, 3, unit="word", scratch=scratch) == b""
    with pytest.raises(ValueError, match="start <= stop"):
        read_block("/nowhere", 4, 3, unit="word", scratch=scratch)


# ---- cut ----


def test_cut_makes_even_pieces_and_numbers_them():
    blocks = cut([InputFile("/a", 10), InputFile("/b", 3)], 4)
    assert blocks == [
        Piece("/a", 0, 3),
        Piece("/a", 3, 6),
        Piece("/a", 6, 10),
        Piece("/b", 0, 3),
    ]


@given(st.integers(1, 10**12), st.integers(1, 10**9))
def test_cut_any_size_covers_without_empty_pieces(size, block_bytes):
    block_bytes = max(block_bytes, size // 1000 + 1)
    blocks = cut([InputFile("/a", size)], block_bytes)
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == size
    assert all(0 < b.stop - b.start <= block_bytes for b in blocks)


def test_cut_without_size_is_value_error():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cut([InputFile("/a", 1)], 0)


# ---- expand ----


@pytest.fixture
def tree(tmp_path) -> Path:
    for name in [
        "b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", ".git/e.txt", "_SUCCESS",
        "sub/_metadata", "_temporary/f.part", "_committed_123",
    ]:  # fmt: skip
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "in"


def names(sources, tree) -> list[str]:
    return [str(Path(source.path).relative_to(tree)) for source in sources]


def test_expand_folder_is_recursive_sorted_without_hidden_and_markers(tree, scratch):
    sources = expand([str(tree)], scratch)
    assert names(sources, tree) == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert sources[0].bytes == 5


def test_expand_patterns_and_repeats_keep_first_place(tree, scratch):
    inputs = [str(tree / "sub/c.txt"), str(tree / "*.txt"), str(tree / "**/*.txt")]
    found = names(expand(inputs, scratch), tree)
    assert found == ["sub/c.txt", "a.txt", "b.txt", "sub/deep/d.txt"]


def test_expand_relative_name_becomes_absolute(tree, scratch, monkeypatch):
    monkeypatch.chdir(tree)
    assert expand(["a.txt", "sub"], scratch)[0].path == str(tree / "a.txt")
    assert names(expand(["*.txt"], scratch), tree) == ["a.txt", "b.txt"]


def test_expand_existing_name_with_brackets_is_no_pattern(tree, scratch):
    path = write(tree / "x[1].txt", b"content")
    assert expand([path], scratch) == [InputFile(path, 7)]


def test_expand_pattern_leaves_out_what_a_filter_tells_of_its_files(tree, scratch):
    for name in OF_FILTERS:
        write(tree / "sub" / name, b"content")
    found = expand([str(tree / "sub" / "*")], scratch)
    assert OF_FILTERS.isdisjoint(Path(source.path).name for source in found)
    assert len(expand([str(tree / "sub" / min(OF_FILTERS))], scratch)) == 1


def test_byte_order_mark_of_a_text_is_warned_of(tree, caplog):
    write(tree / "x.txt", b"\xef\xbb\xbf__label__a text\n")
    for form in ("", "examples", "text"):
        with contextlib.closing(
            Scratch(str(tree / form), 1 << 20, tables=Reading(form))
        ) as scratch:
            expand([str(tree / "x.txt"), str(tree / "a.txt")], scratch)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tree}/x.txt begins with a byte order mark")


def test_expand_name_of_no_user_is_a_file(tree, scratch, monkeypatch):
    monkeypatch.chdir(tree)
    with pytest.raises(DataError, match="not found: ~nosuch does not exist"):
        expand(["~nosuch"], scratch)
    write(tree / "~nosuch", b"content")
    assert names(expand(["~nosuch"], scratch), tree) == ["~nosuch"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "at least one input"),
        (
            ["missing.txt"],
            r"not found: .*missing\.txt does not exist \(seen .*\)\. Correct the path",
        ),
        (["*.csv"], r"pattern .*\*\.csv matches no file"),
        (["nothing"], "files in the folder .*nothing, found none"),
        (["empty.txt"], r"input is empty: .*empty\.txt"),
        (["a.txt", "empty.txt"], r"an input file is empty: .*empty\.txt\. Remove"),
        (["empty.gz"], r"input is empty: .*empty\.gz"),
        (["damaged.gz"], r"cannot unpack .*damaged\.gz"),
        (["pipe"], "regular file.*pipe"),
        (["dangling"], "cannot read .*dangling"),
    ],
)
def test_expand_bad_input_is_data_error_naming_it(tree, scratch, inputs, message):
    (tree / "nothing").mkdir()
    (tree / "nothing" / ".hidden").write_bytes(b"x")
    (tree / "empty.txt").touch()
    (tree / "empty.gz").write_bytes(gzip.compress(b""))
    (tree / "damaged.gz").write_bytes(gzip.compress(b"some text")[:-9])
    os.mkfifo(tree / "pipe")
    (tree / "dangling").symlink_to("nowhere")
    with pytest.raises(DataError, match=message):
        expand([str(tree / name) for name in inputs], scratch)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["a.txt", "sub"])
def test_expand_unreadable_is_data_error_naming_it(tree, scratch, name):
    (tree / name).chmod(0)
    try:
        with pytest.raises(DataError, match=f"{name}.*Permission denied"):
            expand([str(tree / name)], scratch)
    finally:
        (tree / name).chmod(0o700)


def test_expand_unreadable_by_any_cause_is_data_error(tree, scratch, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        expand([str(tree / "a.txt")], scratch)


# ---- strands ----


def lines_of(data):
    return data.removesuffix(b"\n").split(b"\n") if data else []


@examples(80)
@given(st.integers(1, 3000), st.integers(1, 900))
def test_strands_of_a_files_blocks_are_the_file_each_byte_once(size, block_bytes):
    blocks = cut([InputFile("/f", size)], block_bytes)
    ranges = [one for block in blocks for one in strands(block.start, block.stop, size)]
    assert all(first < last for first, last in ranges)
    assert np.array_equal(
        np.sort(np.concatenate([np.arange(*one) for one in ranges])), np.arange(size)
    )
    assert strands(0, blocks[0].stop, size)[0][0] == 0  # where a header is
    for block in blocks:
        assert strands(block.start, block.stop, 0) == [(block.start, block.stop)]


def test_strands_of_a_part_of_a_block_are_all_over_the_file():
    size = 1 << 20
    for part in even_parts(strands(size // 4, size // 2, size), 4):
        bands = sorted(first * 8 // size for first, _ in part)
        assert bands == list(range(8))


def read_spread(path, start, stop, scratch, spread):
    """A block that is spread over its file, or is a range of it (`spread` 0)."""
    texts = texts_of([JoinedFile(path, 0, max(stop, spread))], start, stop, spread, by_file=True)
    return b"".join(read_text(text, scratch, by_file=True) for text in texts)


def placed(path, start, stop, offset, scratch, spread):
    """Where byte or row `offset` of a block is in its file."""
    files = [JoinedFile(path, 0, max(stop, spread))]
    (text,) = texts_of(files, start, stop, spread, by_file=True)
    of_file, at = place_in_text(text, scratch, offset, by_file=True)
    assert of_file == path
    return at


@examples(60)
@given(TEXTS, st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_blocks_in_strands_have_the_lines_of_the_file_each_once(
    folder, scratch, text, block_bytes, part_bytes, packed
):
    path = write(folder / "s.txt", text)
    if packed:
        path = write(folder / f"s{hash(text)}.txt.gz", gzip.compress(text, mtime=0))
    got = []
    for block in cut([InputFile(path, len(text))], block_bytes):
        where = block.path, block.start, block.stop
        data = read_spread(*where, scratch, len(text))
        got += lines_of(data)
        for offset in range(len(data)):
            at = placed(*where, offset, scratch, len(text))
            assert text[at] == data[offset]
        parts = parts_of(*where, part_bytes, scratch, len(text))
        if parts is not None:
            with contextlib.closing(parts):
                found = texts_in(parts)
            assert sorted(line for part in found for line in lines_of(part)) == sorted(
                lines_of(data)
            )
    assert sorted(got) == sorted(lines_of(text))


def test_matrix_blocks_in_strands_have_the_rows_of_the_file_each_once(folder, scratch):
    path, rng = folder / "strands.mx", np.random.default_rng(3)
    x = np.where(rng.random((517, 6)) < 0.5, rng.random((517, 6)), 0).astype(np.float32)
    write_matrix(path, x, np.arange(517), sample_weight=np.arange(517) / 8)
    size, found = path.stat().st_size, {}
    for block in cut([InputFile(str(path), size)], 900):
        where = block.path, block.start, block.stop
        data = read_spread(*where, scratch, size)
        examples = examples_of(data, "m")
        for row, (label, weight) in enumerate(
            zip(examples.labels.tolist(), examples.weights.tolist(), strict=True)
        ):
            entries = slice(*examples.ptr[row : row + 2])
            whole = np.zeros(6, np.float32)
            whole[examples.keys[entries].astype(int)] = examples.values[entries]
            assert np.array_equal(whole, x[int(label)])
            assert weight == label / 8
            assert found.setdefault(label, block) == block
            at = placed(*where, row, scratch, size)
            assert at == int(label)
    assert len(found) == 517


def test_ends_of_strands_are_looked_for_in_small_steps(folder, scratch, monkeypatch):
    path, read = write(folder / "ends.txt", b"a line of text\n" * 200_000), []
    read_at = blocks.read_at

    def counted(file, at, most):
        read.append(most)
        return read_at(file, at, most)

    monkeypatch.setattr(blocks, "read_at", counted)
    size = 200_000 * 15
    data = read_spread(path, 0, size // 3, scratch, size)
    assert len(data) == pytest.approx(size // 3, rel=0.01)
    assert sum(read) < len(data) / 3


@pytest.mark.parametrize("part_bytes", [1 << 20, 300])
def test_damaged_row_of_a_matrix_block_in_strands_is_named_by_its_number(
    folder, scratch, monkeypatch, part_bytes
):
    """Whether a block is looked at in one piece or in several."""
    monkeypatch.setattr("snailps.models.sparse.batch.PIECE_BYTES", part_bytes)
    path, x = folder / "damaged.mx", np.ones((300, 2), np.float32)
    x[177, 1] = 7
    write_matrix(path, csr_matrix(x), np.zeros(300))
    data = path.read_bytes()
    seven, nan = np.array([7, np.nan], np.float32)
    assert data.count(seven.tobytes()) == 1
    path.write_bytes(data.replace(seven.tobytes(), nan.tobytes()))
    size = path.stat().st_size
    told = []
    for block in cut([InputFile(str(path), size)], size // 3):
        where = block.path, block.start, block.stop
        content = read_spread(*where, scratch, size)
        at = partial(placed, *where, scratch=scratch, spread=size)
        try:
            BatchReader(ExampleReader()).pieces(
                content, list, str(path), place=lambda row, at=at: (str(path), at(row))
            )
        except DataError as error:
            told.append(str(error))
    assert len(told) == 1
    assert "row 177 has value nan" in told[0]


# ---- files of more bytes than 32 bits count ----

BEYOND = (1 << 32) + (1 << 30)


def write_far(path, ranges):
    """A file of holes with lines of eight bytes at these ranges: the number of the line."""
    with path.open("wb") as file:
        file.truncate(BEYOND)
        for first, last in ranges:
            begin = max(0, first // 8 - 2)
            file.seek(8 * begin)
            file.write(b"".join(far_line(at) for at in range(begin, min(last + 24, BEYOND) // 8)))
    return str(path)


def far_line(number):
    return b"%d:1\n" % (10_000 + number % 90_000)


def assert_far(data, ranges, place):
    """The lines of the ranges in sequence, each of which is known by its place in the file."""
    places = [at for first, last in ranges for at in range(-(-first // 8) * 8, last, 8)]
    assert data == b"".join(far_line(at // 8) for at in places)
    assert [place(8 * number) for number in range(len(places))] == places


@pytest.mark.parametrize("spread", [0, BEYOND])
def test_block_beyond_32_bits_has_its_lines_and_names_their_places(folder, scratch, spread):
    start = BEYOND - (1 << 20) + 5  # spread: near the end of each of 32 bands
    for stop in (start + 6_000, BEYOND):
        begin = max(start, stop - 6_000)
        ranges = strands(begin, stop, spread)
        path = write_far(folder / "far.txt", ranges)
        where = path, begin, stop
        data = read_spread(*where, scratch, spread)
        place = partial(placed, *where, scratch=scratch, spread=spread)
        whole = sorted(ranges, key=lambda one: one[1] == BEYOND)
        assert_far(data, whole, place)
        with contextlib.closing(parts_of(*where, 2_500, scratch, spread)) as parts:
            assert len(parts.parts) == 2
            texts = [text for part in (0, 1) for text in parts.texts(part)]
        assert sorted(lines_of(b"".join(text.data for text in texts))) == sorted(lines_of(data))
        for text in texts:
            of_file, at = text.place(0)
            assert (of_file, text.data[:8]) == (path, far_line(at // 8))
        if not spread:
            assert texts[-1].place(0)[1] > 1 << 32
            assert read_block(*where, unit="word", scratch=scratch) == data
    os.truncate(path, 0)


@pytest.mark.parametrize(
    ("line", "columns"), [(b"1 3:1.5\n", ""), (b"1,3,1.5\n", "y:label,a:numeric,b:numeric")]
)
def test_examples_of_a_block_beyond_32_bits(folder, scratch, line, columns):
    """A header is looked for at the beginning of the file, which is a hole here."""
    path, at = folder / "far", (1 << 32) + (1 << 20)
    with path.open("wb") as file:
        file.truncate(at)
        file.seek(at - 8)
        file.write(line * 1001)
    data = read_block(str(path), at, at + 8_000, unit="line", scratch=scratch)
    reader = ExampleReader("csv", columns=columns) if columns else ExampleReader()
    found = reader.read(data, str(path), at)
    assert found.labels.tolist() == [1] * 1000
    assert found.values.reshape(1000, -1)[:, -1].tolist() == [1.5] * 1000
    path.unlink()


# ---- open_parts ----


def parts_of(path, start, stop, part_bytes, scratch, spread=0):
    files = [JoinedFile(path, 0, max(stop, spread))]
    return open_parts(files, start, stop, part_bytes, scratch, spread)


def texts_in(parts):
    return [text.data for part in range(len(parts.parts)) for text in parts.texts(part)]


@examples(60)
@given(TEXTS, st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_open_parts_are_whole_lines_that_make_the_block(
    folder, scratch, text, block_bytes, part_bytes, packed
):
    path = write(folder / "p.txt", text)
    if packed:
        path = write(folder / f"p{hash(text)}.txt.gz", gzip.compress(text, mtime=0))
    for block in cut([InputFile(path, len(text))], block_bytes):
        whole = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
        parts = parts_of(block.path, block.start, block.stop, part_bytes, scratch)
        if parts is None:
            assert (block.stop - block.start) // part_bytes < 2
            continue
        with contextlib.closing(parts):
            got = [text for part in range(len(parts.parts)) for text in parts.texts(part)]
        assert b"".join(one.data for one in got).removesuffix(b"\n") == whole.removesuffix(b"\n")
        for data, _, first, _ in got:
            assert text[first : first + len(data)] in (data, data[:-1])
            assert first == 0 or not data or text[first - 1 : first] == b"\n"


def test_open_parts_of_what_is_no_readable_text_are_none(folder, scratch):
    matrix = folder / "m.snail"
    write_matrix(matrix, np.ones((9, 4)), np.ones(9))
    size = matrix.stat().st_size
    assert parts_of(str(matrix), 0, size, size // 2, scratch) is None
    assert parts_of(str(folder / "none.txt"), 0, 100, 10, scratch) is None
    short = write(folder / "short.txt", b"1 2:1\n" * 3)
    assert parts_of(short, 0, 19, 6, scratch) is None


def test_read_of_a_part_of_a_file_that_became_shorter_refuses(folder, scratch):
    path = write(folder / "shrinks.txt", b"1 2:1\n" * 9)
    with contextlib.closing(parts_of(path, 0, 54, 18, scratch)) as parts:
        assert texts_in(parts) == [b"1 2:1\n" * 3] * 3
        os.truncate(path, 40)
        assert next(parts.texts(0)).data == b"1 2:1\n" * 3
        with pytest.raises(DataError, match=r"cannot read .*shrinks\.txt: it ends before byte 54"):
            next(parts.texts(2))


# ---- several files ----


FILES = st.lists(TEXTS, min_size=2, max_size=6)


@examples(60)
@given(FILES, st.integers(1, 60), st.integers(1, 20))
def test_blocks_over_several_files_have_the_lines_of_all_each_once(
    tmp_path_factory, scratch, contents, block_bytes, part_bytes
):
    folder, read = tmp_path_factory.mktemp("several"), {}
    for number, content in enumerate(contents):
        packed = number % 3 == 2
        path = folder / (f"{number}.txt" + ".gz" * packed)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        read[str(path)] = content
    (joined,) = join([InputFile(path, len(read[path])) for path in reversed(read)], scratch, "line")
    assert joined.source.path == f"{folder}/0.txt and {len(read) - 1} more"
    assert joined.source.bytes == sum(map(len, contents))
    got, begun = [], []
    for block in cut([joined.source], block_bytes):
        where = (
            joined.files(block.start, block.stop), block.start, block.stop, joined.source.bytes
        )  # fmt: skip
        lines = []
        for ranges in texts_of(*where):
            data = read_text(ranges, scratch)
            assert data == b"" or data.endswith(b"\n")
            begun += [one.file.path for one in ranges if one.first == 0]
            assert all(one.first > 0 for one in ranges[1:])  # else it had a header in it
            lines += lines_of(data)
            for offset in range(len(data)):
                path, at = place_in_text(ranges, scratch, offset)
                assert (read[path] + b"\n")[at : at + 1] == data[offset : offset + 1]
        parts = open_parts(*where[:3], part_bytes, scratch, where[3])
        if parts is not None:
            with contextlib.closing(parts):
                found = [line for text in texts_in(parts) for line in lines_of(text)]
            assert sorted(found) == sorted(lines)
        got += lines
    assert sorted(got) == sorted(line for content in contents for line in lines_of(content))
    assert sorted(begun) == sorted(read)


def test_block_over_many_files_opens_few_at_once_and_names_what_it_cannot_read(
    folder, scratch, monkeypatch
):
    paths = [write(folder / f"many{number:03}.txt", b"1 2:1\n" * 4) for number in range(100)]
    (joined,) = join([InputFile(path, 24) for path in paths], scratch, "line")
    files = joined.files(0, 2400)
    (ranges,) = texts_of(files, 0, 2400, 0)[:1]
    assert len(files) == 100
    open_files, most = scratch.open, [0, 0]

    def counted(path):
        file = open_files(path)
        close = file.close
        most[0] += 1
        most[1] = max(most)

        class Closing:
            def __getattr__(self, name):
                return getattr(file, name)

            def close(self):
                most[0] -= 1
                close()

        return Closing()

    monkeypatch.setattr(scratch, "open", counted)
    everything = [one for text in texts_of(files, 0, 2400, 0) for one in text]
    assert read_text(everything, scratch) == b"1 2:1\n" * 400
    assert most == [0, 64]
    assert open_parts(files, 0, 2400, 100, scratch) is None
    Path(paths[0]).unlink()
    with pytest.raises(DataError, match=r"cannot read .*many000\.txt: No such file"):
        read_text(ranges, scratch)


def test_matrix_files_of_several_are_read_one_by_one(folder, scratch):
    sources = []
    for label in range(3):
        path = folder / f"class{label}.mx"
        write_matrix(path, csr_matrix(np.ones((40, 2))), np.full(40, label))
        sources.append(InputFile(str(path), path.stat().st_size))
    text = InputFile(write(folder / "one.csv", b"1,2\n"), 4)
    single, joined = join([*sources, text], scratch, "line")
    assert (single.source, joined.by_file) == (text, True)
    for block in cut([joined.source], joined.source.bytes // 4):
        where = block.start, block.stop, joined.source.bytes
        labels = [
            np.unique(examples_of(read_text(ranges, scratch, by_file=True), "m").labels).tolist()
            for ranges in texts_of(joined.files(*where[:2]), *where, by_file=True)
        ]
        assert labels == [[0], [1], [2]]


def test_sources_that_are_cut_by_themselves_come_before_those_that_are_cut_as_one(folder, scratch):
    sources = [
        InputFile(write(folder / name, b"1,2\n"), 4)
        for name in ("k1.csv", "k2.txt", "k3.csv", "k4.tsv")
    ]
    found = join(sources, scratch, "line")
    assert [one.source.path for one in found] == [
        sources[1].path, sources[3].path, f"{sources[0].path} and 1 more"
    ]  # fmt: skip
    assert [one.by_file for one in found] == [True, True, False]
    assert [one.source for one in join(sources, scratch, "word")] == sources


def test_files_of_a_folder_with_linked_folders_come_once_each(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.txt").write_text("a b")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "y.txt").write_text("c")
    (folder / "linked").symlink_to(tmp_path / "real")
    (folder / "linked again").symlink_to(tmp_path / "real")
    (folder / "round").symlink_to(folder)
    assert files_of([str(folder)]) == [
        str(folder / "y.txt"), str(folder / "linked" / "x.txt")
    ]  # fmt: skip


def test_files_of_one_file_by_two_ways_is_there_once(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "y.txt").write_text("c")
    names = ["in/y.txt", "in/../in/y.txt", "in/../in", "in/../in/*.txt"]
    found = files_of([str(tmp_path / "in" / "y.txt"), *(f"{tmp_path}/{name}" for name in names)])
    assert found == [str(tmp_path / "in" / "y.txt")]


def test_test_files_without_content_are_refused(tmp_path):
    (tmp_path / "full").write_text("1 1:2\n")
    assert blocks.test_files([str(tmp_path / "full")]) == [str(tmp_path / "full")]
    (tmp_path / "empty").touch()
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b""))
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("empty", "is empty"), ("packed.gz", "is empty"), ("pipe", "a regular file")):
        with pytest.raises(DataError, match=why):
            blocks.test_files([str(tmp_path / name)])
