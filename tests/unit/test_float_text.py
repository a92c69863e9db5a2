"""data/_float_text.pyx: numbers as text, to six decimals or five digits, and back."""

import numpy as np
import pytest

from snailps.data._float_text import read_word_lines, rows_as_text, word_lines


def test_rows_as_text_of_known_numbers():
    rows = np.array([[0.0, -0.5, 12.25], [-0.0000001, 999999999.0 - 63, 1e-6]], np.float32)
    assert (
        rows_as_text(rows) == b"0.000000 -0.500000 12.250000\n0.000000 999999936.000000 0.000001\n"
    )


def test_rows_as_text_reads_back_to_half_a_millionth():
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(300, 7)) * 10.0 ** rng.integers(-8, 6, (300, 7))).astype(np.float32)
    text = rows_as_text(rows[:, ::2])
    back = np.array([line.split() for line in text.splitlines()], float)
    np.testing.assert_allclose(back, rows[:, ::2], rtol=0, atol=5.1e-7)


def test_rows_as_text_of_no_rows_is_empty():
    assert rows_as_text(np.zeros((0, 3), np.float32)) == b""


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e9])
def test_rows_as_text_of_what_has_no_decimals_refuses(wrong):
    rows = np.ones((2, 2), np.float32)
    rows[1, 0] = wrong
    with pytest.raises(ValueError, match="1 of the numbers"):
        rows_as_text(rows)


# --- lines of words --------------------------------------------------------------------------


def printed(words, rows):
    """The twin of `word_lines`."""
    line = " ".join(["%.5g"] * rows.shape[1])
    pairs = zip(words, rows.tolist(), strict=True)
    return b"".join(word + b" " + (line % tuple(row)).encode() + b"\n" for word, row in pairs)


def bits_of_all_kinds(rng):
    return rng.integers(0, 1 << 32, 20_000, np.uint32).view(np.float32)


def short_decimals(rng):
    return np.round(rng.normal(size=20_000) * 10.0 ** rng.integers(-7, 7, 20_000), 6)


def halves(rng):
    """Of which many lie in the very middle between two numbers of five digits."""
    return rng.integers(-(10**6), 10**6, 20_000) / 2.0 ** rng.integers(0, 12, 20_000)


def powers(rng):
    tens = np.float32(10) ** np.arange(-45, 39, dtype=np.float32)
    near = [tens, np.nextafter(tens, np.float32(0)), np.nextafter(tens, np.float32(np.inf))]
    return np.concatenate([*near, -tens, tens * np.float32(9.9999), tens * np.float32(9.99995)])


@pytest.mark.parametrize("kind", [bits_of_all_kinds, short_decimals, halves, powers])
def test_word_lines_are_what_printf_writes(kind):
    with np.errstate(all="ignore"):
        values = np.asarray(kind(np.random.default_rng(1))).astype(np.float32)
    rows = values[: len(values) // 4 * 4].reshape(-1, 4)
    words = [b"word-%d" % i for i in range(len(rows))]
    assert bytes(word_lines(words, rows)) == printed(words, rows)


def test_word_lines_of_known_numbers():
    rows = np.array([[0.0, -0.0, 1.0, -12345.5], [1e-5, 0.0001, 99999.5, 0.1]], np.float32)
    text = b"a 0 -0 1 -12346\n\xff 1e-05 0.0001 1e+05 0.1\n"
    assert bytes(word_lines([b"a", b"\xff"], rows)) == text


def test_word_lines_of_none_are_empty_and_of_too_few_words_refused():
    assert bytes(word_lines([], np.zeros((0, 3), np.float32))) == b""
    with pytest.raises(ValueError, match="expected 2 words"):
        word_lines([b"a"], np.zeros((2, 3), np.float32))


def lines_of(text):
    return text.splitlines(keepends=True)


def test_word_lines_read_back_as_the_nearest_float32():
    rng = np.random.default_rng(1)
    values = bits_of_all_kinds(rng)
    values = values[np.isfinite(values)][:16_000].reshape(-1, 8)
    text = b"".join(
        b"w%d %s\n" % (i, " ".join(map(repr, row)).encode())
        for i, row in enumerate(values.tolist())
    )
    rows = np.empty_like(values)
    words = read_word_lines(lines_of(text), rows)
    assert words == [b"w%d" % i for i in range(len(rows))]
    assert (rows.view(np.uint32) == values.view(np.uint32)).all()


@pytest.mark.parametrize("text", [b"a 1 2\n", b"a  1\t2 \n", b"a 1 2 \r\n", b"a +1 2e0\n"])
def test_word_lines_with_any_blanks_are_read(text):
    rows = np.empty((1, 2), np.float32)
    assert read_word_lines([text], rows) == [b"a"]
    assert rows.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"a\n", b" 1 2\n", b"a 1\n", b"a 1 2 3\n", b"a 1 2", b"a 1 2x\n", b"a 1 nan\n",
     b"a 1 -\n", b"a 1 2\n3\n", b"a 1,2\n", b"a 1 1e99\n", b"a 1\0 2\n"],
)  # fmt: skip
def test_line_that_is_no_word_and_numbers_is_not_read(text):
    assert read_word_lines([b"a 1 2\n", text], np.empty((2, 2), np.float32)) is None
