"""duplicates._pages: words, keys, sets, overlap with benchmarks, least rows; beside plain twins."""

import mmap
import threading

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import pages as twin

from snailps.duplicates._pages import (
    NO_KEY,
    BenchmarkWindows,
    KeyTable,
    PageKeys,
    sets_of,
    shared_grams,
)

CHINESE = "近似重复的网页并不总是副本，所以每一页都要核对".encode()
SCRIPTS = [
    "吾輩は猫である。名前はまだ無い。".encode(),
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ".encode(),
    "ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ".encode(),
    "abc漢字def 漢 ﾊﾝｶｸ 𠀀𠀁x 々〇".encode(),
]
TEXTS = [
    b"", b" \n.,;", b"a", b"a b", b"a b c", b"Hello, World-wide_web 123!", b"x" * 64, b"x" * 65,
    b" " * 63 + b"ab", b" " * 64 + b"a" * 7 + b" " + b"b" * 8 + b" " + b"c" * 9 + b" " + b"d" * 17,
    "Žluťoučký kůň “quotes” – naïve".encode(), "ДОМ дом".encode(), CHINESE, *SCRIPTS,
    b"\xff\xfe \x80\x81start end\xc3", b"\xe3\x81", b"\xe3\xe3\x81\x82\xf0\x83\x81\x82\xe4\xb8",
    b"\xf0\xa0\x80", b"\xf5\xa0\x80\x80 \xed\xa0\x80", b"A\0b\0\0c", b"one two " * 40,
    bytes(range(256)) * 2, b" ".join(b"w%d" % i for i in range(700)),
]  # fmt: skip
anything = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=80).map(str.encode),
    st.lists(
        st.sampled_from(["漢", "字", "か", "ก", "é", "“", "a", "B", " ", "\ud800"]), max_size=90
    ).map(lambda found: "".join(found).encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from([b"to", b"be", b"or", b"not"]), max_size=99).map(b" ".join),
)


def batch(texts):
    """Texts in one buffer, as the kernel takes them."""
    begin = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=begin[1:])
    return b"".join(texts), begin


def some_words(count, seed=0, kinds=5000):
    rng = np.random.default_rng(seed)
    return b" ".join(b"w%d" % word for word in rng.integers(0, kinds, count))


def bytes_of_numpy(data):
    return np.frombuffer(data, np.uint8)


def hashed(texts):
    """Sequences of words, seen from outside: pages with equal words have equal 128 bits."""
    return [tuple(row) for row in PageKeys().of(*batch(texts)).exact.tolist()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"Don't STOP: 3.5kg", [b"don", b"t", b"stop", b"3", b"5kg"]),
        ("naïve café".encode(), ["naïve".encode(), "café".encode()]),
        ("漢字かな".encode(), ["漢字".encode(), "字か".encode(), "かな".encode(), "な".encode()]),
        ("ab漢 字".encode(), [b"ab", "漢".encode(), "字".encode()]),
        ("กา!".encode(), ["กา".encode(), "า".encode()]),
        (b"\xe3\x81 \xe3", [b"\xe3\x81", b"\xe3"]),
    ],
)
def test_words_known_answers(text, words):
    assert twin.words(text) == words
    # The kernel's words are seen by their number, and by 128 bits of their hashes in order.
    found = PageKeys().of(*batch([text]))
    assert found.words.tolist() == [len(words)]
    assert found.exact.tolist() == [twin.exact(text)]


def test_numbers_of_a_page_never_change():
    # Stored keys and indices of earlier dumps are compared with these: to change them breaks those.
    found = PageKeys(bands=2, rows=3, windows=2, window=4, seed=7).of(
        *batch([b"Near-duplicates are found by the words of a page, and by its windows."])
    )
    assert found.words.tolist() == [14]
    assert found.exact.tolist() == [[0x12CBCC65E2E2DE4F, 0xA0EE307705B487CC]]
    assert found.keys.tolist() == [
        [0x7F45CB45B2CF848C, 0x6909DC780D61D27E, 0xBF900DAF7648DC2B, 0x9D7EACD1C5408133]
    ]


@given(st.lists(anything, max_size=6))
@examples(60)
def test_pages_agree_with_the_definitions(texts):
    agree(texts, PageKeys(bands=3, rows=4, windows=3, window=5, seed=11))


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_keys_sets_and_numbers_of_odd_texts(seed):
    agree(TEXTS, PageKeys(seed=seed))


@pytest.mark.parametrize("shape", [(1, 1, 0, 1), (1, 2, 1, 1), (7, 1, 40, 2), (14, 8, 4, 64)])
def test_any_shape_of_keys(shape):
    agree(TEXTS, PageKeys(*shape))


def agree(texts, keys):
    data, begin = batch(texts)
    found, (grams, first) = keys.of(data, begin), sets_of(data, begin)
    assert found.keys.shape == (len(texts), keys.count)
    assert first[0] == 0
    assert first[-1] == len(grams)
    for i, text in enumerate(texts):
        assert found.words[i] == len(twin.words(text)), text
        assert found.exact[i].tolist() == twin.exact(text), text
        bands = twin.band_keys(text, keys.bands, keys.rows, keys.seed)
        windows = twin.window_keys(text, keys.windows, keys.window, keys.seed)
        assert found.keys[i].tolist() == bands + windows, text
        assert grams[first[i] : first[i + 1]].tolist() == twin.gram_set(text), text


def test_case_signs_and_gaps_are_no_words():
    same = hashed([b"the cat, sat", b"The  CAT sat.", b"the cat sat\n"])
    assert len(set(same)) == 1
    assert (
        len(set(hashed([b"the cat sat", b"the sat cat", b"thecat sat", b"the cat sat sat"]))) == 4
    )


def test_a_page_without_words_has_no_key():
    found = PageKeys().of(*batch([b"", b" .\n"]))
    assert found.keys.tolist() == [[NO_KEY] * 24] * 2
    assert found.exact.tolist() == [[0, 0]] * 2
    assert found.words.tolist() == [0, 0]
    assert sets_of(*batch([b"", b" ."]))[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("words", [24, 25, 29, 30, 31])
def test_windows_need_as_many_words(words):
    keys = PageKeys().of(*batch([some_words(words)])).keys[0, 18:]
    assert (keys != NO_KEY).sum() == min(6, max(0, words - 24))


def test_a_million_repeated_words_take_their_time_once():
    text = b"again " * 10**6
    data, begin = batch([text, b"again again again", some_words(10**5, kinds=3)])
    found, (grams, first) = PageKeys().of(data, begin), sets_of(data, begin)
    assert found.words.tolist() == [10**6, 3, 10**5]
    assert np.diff(first).tolist() == [1, 1, 27]  # 3 x 3 x 3 in the last
    assert grams[0] == grams[1]
    assert (found.keys[0, :18] == found.keys[1, :18]).all()
    assert (found.keys[0, 18:] != NO_KEY).sum() == 1  # all windows are one


def test_a_page_inside_a_longer_one_shares_windows():
    # The least of a page's windows are, unless lesser ones of the other text come between.
    page = some_words(400, seed=1)
    inside = b" ".join([some_words(60, seed=2), page, some_words(60, seed=3)])
    found = PageKeys(windows=6).of(*batch([page, inside])).keys[:, 18:]
    assert len({*found[0].tolist()} & {*found[1].tolist()}) >= 3


def test_similar_pages_share_bands_as_often_as_theory_says():
    # One word of 60 replaced: 55 of 61 3-grams are shared. A band of 2 bins is shared with J^2.
    rng = np.random.default_rng(4)
    texts, pairs = [], 400
    for seed in range(pairs):
        words = some_words(60, seed=seed).split()
        texts.append(b" ".join(words))
        words[int(rng.integers(2, 58))] = b"other"
        texts.append(b" ".join(words))
    keys = PageKeys(bands=40, rows=2, windows=0).of(*batch(texts)).keys
    shared = (keys[::2] == keys[1::2]).mean()
    wanted = (55 / 61) ** 2
    # Bands of one pair depend on one draw; so the error is at most that of `pairs` draws.
    assert abs(shared - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / pairs)


def test_bytes_beside_a_page_are_never_read():
    # The buffer ends where its memory does: a byte more may end this process.
    for text in (
        some_words(20),
        b"ab" * 31 + b"c",
        CHINESE,
        b"x" * 64,
        "漢".encode()[:2],
        b"\xf0\xa0",
    ):
        with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
            start = mmap.PAGESIZE * 2 - len(text)
            memory[start:] = text
            begin = np.array([start, start + len(text)])
            beside = np.frombuffer(memory, np.uint8)
            assert PageKeys().of(beside, begin).exact.tolist() == [twin.exact(text)]
            del beside
    # And what follows a page in the same buffer belongs to no word of it.
    alone = PageKeys().of(*batch([b"some words", "漢".encode()])).exact
    data = b"##some wordsmore##" + "漢字".encode()
    spans = np.array([2, 12, 18, 21])
    assert (PageKeys().of(data, spans).exact[[0, 2]] == alone).all()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, bytes_of_numpy])
def test_any_buffer_is_read_in_place(kind):
    data, begin = batch([b"the cat sat", b"on the mat"])
    assert (PageKeys().of(kind(data), begin).keys == PageKeys().of(data, begin).keys).all()


def test_buffers_of_arrow_are_read_in_place():
    pa = pytest.importorskip("pyarrow")
    texts = pa.array(["not this", "the cat sat", "", "on the mat"], pa.large_string())[1:]
    places, data = (texts.buffers()[at] for at in (1, 2))
    begin = np.frombuffer(places, np.int64)[1:5]
    found = PageKeys().of(data, begin)
    assert (found.keys == PageKeys().of(*batch([b"the cat sat", b"", b"on the mat"])).keys).all()


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ([0, 4, 3], "got 3 at 2 after 4"),
        ([0, 11], "from 0 to 10, the length of the data, got 11 at 1 after 0"),
        ([-1, 3], "got -1 at 0"),
        ([11, 11], "got 11 at 0"),
        ([], "expected one begin more than there are pages, got none"),
    ],
)
def test_offsets_that_leave_the_data_are_refused(begin, message):
    begin = np.array(begin, np.int64)
    for read in (PageKeys().of, sets_of, BenchmarkWindows(*batch([])).of, BenchmarkWindows):
        with pytest.raises(ValueError, match=message):
            read(b"0123456789", begin)


def test_wrong_arrays_are_refused_with_what_came():
    with pytest.raises(
        ValueError, match=r"begin of int64 in one dimension, got int32 of shape \(2,\)"
    ):
        sets_of(b"ab", np.array([0, 2], np.int32))
    with pytest.raises(
        ValueError, match=r"begin of int64 in one dimension, got int64 of shape \(1, 2\)"
    ):
        sets_of(b"ab", np.array([[0, 2]]))
    grams, first = sets_of(*batch([b"a b c d", b"a b c"]))
    zero = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="got 1 pages and 2 anchors"):
        shared_grams(grams, first, zero, np.zeros(2, np.int64))
    for pages, anchors in ((zero + 2, zero), (zero, zero - 1)):
        with pytest.raises(
            ValueError, match=f"below 2, the number of sets, got {pages[0]} and {anchors[0]} at 0"
        ):
            shared_grams(grams, first, pages, anchors)
    with pytest.raises(ValueError, match="first that ascend from 0 to 1"):
        shared_grams(grams[:1], first, zero, zero)
    table, keys = KeyTable(10), np.zeros((2, 3), np.uint64)
    with pytest.raises(ValueError, match=r"keys of shape \(2, 3\) and values of \(3, 2\)"):
        table.push(keys, keys.reshape(3, 2))
    with pytest.raises(ValueError, match="expected keys of uint64, got int64"):
        table.note(keys.astype(np.int64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bands": 0}, "expected bands from 1 to"),
        ({"rows": 0}, "expected rows from 1 to"),
        ({"windows": -1}, "expected windows from 0 to"),
        ({"window": 0}, "expected window from 1 to"),
        ({"bands": 300, "rows": 300}, "got 300 x 300"),
    ],
)
def test_settings_of_keys_have_limits(wrong, message):
    with pytest.raises(ValueError, match=message):
        PageKeys(**wrong)
    with pytest.raises(ValueError, match="got shortest=14 and window=13"):
        BenchmarkWindows(*batch([]), shortest=14)


@given(st.lists(anything, min_size=1, max_size=6))
@examples(40)
def test_shared_grams_are_those_of_python_sets(texts):
    grams, first = sets_of(*batch(texts))
    pages, anchors = (found.ravel() for found in np.indices((len(texts), len(texts))))
    shared = shared_grams(grams, first, pages, anchors)
    sets = [{*twin.grams(text)} for text in texts]
    assert shared.tolist() == [len(sets[a] & sets[b]) for a, b in zip(pages, anchors, strict=True)]


@pytest.mark.parametrize("few", [1, 30, 35, 60])
def test_a_small_set_is_compared_with_a_large_one(few):
    small = some_words(few + 2, kinds=99)
    texts = [small, small + b" x " + some_words(500), some_words(500, seed=2), b"a b c"]
    grams, first = sets_of(*batch(texts))
    sets = [{*twin.grams(text)} for text in texts]
    pages, anchors = (found.ravel() for found in np.indices((4, 4)))
    wanted = [len(sets[a] & sets[b]) for a, b in zip(pages, anchors, strict=True)]
    assert shared_grams(grams, first, pages, anchors).tolist() == wanted


def filled(keys, values, calls, threads):
    """A table that `threads` threads fill, each with every so-manieth of the calls."""
    table = KeyTable(keys.size // 3)  # too small a guess costs rows, and nothing else

    def work(what, mine):
        for at in mine:
            what(at)

    for what in (
        lambda at: table.note(keys[at]),
        lambda at: table.push(keys[at], values[at]),
    ):
        team = [
            threading.Thread(target=work, args=(what, calls[mine::threads]))
            for mine in range(threads)
        ]
        for member in team:
            member.start()
        for member in team:
            member.join()
    return table


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_table_keeps_the_least_of_repeated_keys_whatever_the_threads(threads):
    rng = np.random.default_rng(threads)
    keys = rng.integers(0, 40_000, (60, 500)).astype(np.uint64)  # a half comes again
    keys[:, ::50] = NO_KEY
    values = rng.integers(0, 2**63, keys.shape).astype(np.uint64)
    wanted = {}
    for key, value in zip(keys.ravel().tolist(), values.ravel().tolist(), strict=True):
        wanted.setdefault(key, []).append(value)
    calls = [*range(60), *range(0, 60, 3), *range(0, 60, 10)]  # a worker that died comes again
    table = filled(keys, values, [int(call) for call in rng.permutation(calls)], threads)
    pulled = dict(zip(keys.ravel().tolist(), table.pull(keys).ravel().tolist(), strict=True))
    assert pulled.pop(NO_KEY) == NO_KEY
    for key, value in pulled.items():
        repeated = len(wanted[key]) > 1
        assert value == min(wanted[key]) or (not repeated and value == NO_KEY)
    assert table.rows <= len(pulled)
    assert table.pull(rng.integers(10**6, 10**7, 1000).astype(np.uint64)).min() == NO_KEY


def test_table_gives_rows_to_few_keys_that_came_once():
    rng = np.random.default_rng(3)
    single = rng.permutation(200_000).astype(np.uint64)
    again = np.arange(200_000, 220_000, dtype=np.uint64)
    table = KeyTable(240_000)
    for keys in (single, again, again):
        table.note(keys)
    for keys in (single, again):
        table.push(keys, keys)
    assert (table.pull(again) == again).all()
    needless = table.rows - len(again)
    # In the end .36 of a line's 512 bits are set, 4 for each of 58 keys; .36^4 is .017.
    assert needless < 0.02 * len(single)
    assert table.bytes < 240_000 * 8 / 8 * 1.2 + 64 * 1024 + 16 * 2 * 4 / 3 * table.rows


def test_empty_calls_of_a_table():
    table = KeyTable(0)
    nothing = np.zeros((0, 24), np.uint64)
    table.note(nothing)
    table.push(nothing, nothing)
    assert table.pull(nothing).shape == (0, 24)
    one = np.array([5], np.uint64)
    table.note(one)
    table.note(one)
    table.push(one, np.array([NO_KEY], np.uint64))  # no value
    assert (table.rows, table.pull(one).tolist()) == (0, [NO_KEY])
    with pytest.raises(ValueError, match="expected_keys may not be negative"):
        KeyTable(-1)
    with pytest.raises(ValueError, match="bits_a_key from 1 to 64, got 0"):
        KeyTable(1, bits_a_key=0)


LINES = [
    b"one two three four five six seven", b"a b c d e f g h", some_words(12, seed=5),
    some_words(13, seed=6), some_words(40, seed=7), b"A, B c d e f g h", some_words(20, seed=7),
    b"",
]  # fmt: skip


def test_benchmarks_agree_with_the_definition():
    pages = [
        b"", b"x", *LINES, b"first " + LINES[4] + b" last", b" ".join(LINES),
        some_words(300, seed=8),
        LINES[3][:-3], b" ".join(LINES[4].split()[:13]), b" ".join(LINES[4].split()[5:17]),
        b"x a b c d e f g h a b c d e f g h i", LINES[2].upper(),
    ]  # fmt: skip
    lines = BenchmarkWindows(*batch(LINES))
    assert (lines.count, lines.short) == (8, 2)
    overlap, hits = lines.of(*batch(pages))
    wanted = [twin.covered(page, LINES, 13, 8) for page in pages]
    assert overlap.tolist() == [np.float32(share) for share, _ in wanted]
    assert hits.tolist() == np.sum([found for _, found in wanted], axis=0).tolist()


@pytest.mark.parametrize(("window", "shortest"), [(1, 1), (3, 1), (13, 13), (9, 4)])
def test_other_windows_of_benchmarks(window, shortest):
    pages = [some_words(50, seed=seed, kinds=40) for seed in range(20)]
    lines = [some_words(int(count), seed=99 + count, kinds=40) for count in range(25)]
    overlap, hits = BenchmarkWindows(*batch(lines), window=window, shortest=shortest).of(
        *batch(pages)
    )
    wanted = [twin.covered(page, lines, window, shortest) for page in pages]
    assert overlap.tolist() == [np.float32(share) for share, _ in wanted]
    assert hits.tolist() == np.sum([found for _, found in wanted], axis=0).tolist()


def test_lines_of_eight_words_are_found_whatever_is_around_them():
    lines = [some_words(count, seed=count) for count in range(5, 61)]
    pages = [
        some_words(200, seed=99) + b"\n# " + line.upper().replace(b" ", b", ") + b".\n"
        for line in lines
    ]
    overlap, hits = BenchmarkWindows(*batch(lines)).of(*batch(pages))
    assert (hits > 0).tolist() == [count >= 8 for count in range(5, 61)]
    assert overlap.tolist() == [
        np.float32(count / (200 + count)) if count >= 8 else 0 for count in range(5, 61)
    ]
