"""data/_float_text.pyx: numbers as text, to six decimals."""

import numpy as np
import pytest

from snailps.data._float_text import rows_as_text


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
