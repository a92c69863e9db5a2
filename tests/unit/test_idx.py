"""data.idx and data.order: files of examples and labels, and the order they are trained in."""

import gzip
from collections import Counter

import numpy as np
import pytest
from idx_files import CODES, idx_bytes, write_idx

from snailps.data.idx import Labelled, labels_of, order, read_header, read_idx
from snailps.data.scratch import Scratch
from snailps.errors import DataError


@pytest.fixture
def scratch(tmp_path):
    found = Scratch(str(tmp_path / "scratch"), 1 << 20)
    yield found
    found.close()


def labelled(folder, scratch, *parts):
    """`Labelled` of (examples, labels) arrays, each in files of its own."""
    pairs = []
    for number, (examples, labels) in enumerate(parts):
        pairs.append(
            (
                str(write_idx(folder / f"x{number}", examples)),
                str(write_idx(folder / f"y{number}", labels)),
            )
        )
    return Labelled(pairs, scratch)


def zeros(count, *shape):
    return np.zeros((count, *shape), np.uint8)


# --- the format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", CODES)
def test_read_idx_of_each_type_gives_its_values(tmp_path, scratch, kind, packed):
    values = np.random.default_rng(3).uniform(-100, 100, (5, 3, 2)).astype(kind)
    path = str(write_idx(tmp_path / ("a.gz" if packed else "a"), values))
    header = read_header(path)
    assert (header.shape, header.width, header.bytes) == ((5, 3, 2), 6, 16)
    assert np.array_equal(read_idx(path, scratch), values)


def test_header_known_bytes():
    """MNIST's training images begin so."""
    assert idx_bytes(zeros(60_000, 28, 28))[:16].hex() == "00000803" + "0000ea60" + "0000001c" * 2


def test_read_idx_of_every_truncation_is_refused(tmp_path, scratch):
    whole = idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4))
    path = tmp_path / "cut"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"no idx file|expected 36 bytes"):
            read_idx(str(path), scratch)
    path.write_bytes(whole + b"x")
    with pytest.raises(DataError, match=r"expected 36 bytes for shape \(3, 4\), got 37"):
        read_idx(str(path), scratch)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"some text, a line of it", "no idx file: expected it to begin with two zeros"),
        (b"\0\0\x0a\x01\0\0\0\1x", "a type from 08 to 0e"),
        (b"\0\0\x08\x00\0\0\0\1x", "number of axes from 1 to 8"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255, "at most 8"),
        (b"\0\0\x08\x01\0\0\0\0", "is empty"),
    ],
)
def test_header_of_what_is_no_idx_file_is_refused(tmp_path, begin, message):
    path = tmp_path / "odd"
    path.write_bytes(begin)
    with pytest.raises(DataError, match=message):
        read_header(str(path))


def test_header_of_a_file_that_is_not_there_or_damaged_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_header(str(tmp_path / "none"))
    path = tmp_path / "damaged.gz"
    path.write_bytes(gzip.compress(idx_bytes(zeros(3, 2)))[:12])
    with pytest.raises(DataError, match="cannot read"):
        read_header(str(path))


@pytest.mark.parametrize("there", ["train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize("asked", ["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"])
def test_labels_are_found_beside_images_packed_or_not(tmp_path, there, asked):
    (tmp_path / there).touch()
    assert labels_of(str(tmp_path / asked)) == str(tmp_path / there)


def test_labels_that_cannot_be_found_are_asked_for(tmp_path):
    with pytest.raises(DataError, match="name their file"):
        labels_of(str(tmp_path / "mine"))
    with pytest.raises(DataError, match="does not exist"):
        labels_of(str(tmp_path / "train-images-idx3-ubyte"))


# --- examples with labels ------------------------------------------------------------------------


def test_labels_of_a_name_that_says_nothing_are_to_be_named(tmp_path):
    with pytest.raises(DataError, match=r"lacks 'images-idx3': name their file by --labels$"):
        labels_of(str(tmp_path / "digits.gz"))
    with pytest.raises(DataError, match=r"does not exist: name their file by --test-labels$"):
        labels_of(str(tmp_path / "t10k-images-idx3-ubyte"), "--test-labels")


def test_examples_of_two_files_count_on(tmp_path, scratch):
    random = np.random.default_rng(1)
    first, second = (random.integers(0, 256, (n, 2, 3)).astype(np.uint8) for n in (5, 4))
    found = labelled(tmp_path, scratch, (first, zeros(5)), (second, zeros(4) + 2))
    assert (len(found), found.width) == (9, 6)
    assert found.labels.tolist() == [0] * 5 + [2] * 4
    rows = found.rows(np.array([8, 0, 4, 5, 0]))
    assert rows.dtype == np.float32
    whole = np.concatenate([first, second]).reshape(9, 6)
    np.testing.assert_allclose(rows, whole[[8, 0, 4, 5, 0]] / 255, rtol=1e-6)


def test_examples_that_are_no_bytes_stay_as_they_are(tmp_path, scratch):
    values = np.linspace(-3, 1000, 12).reshape(4, 3)
    found = labelled(tmp_path, scratch, (values, zeros(4)))
    assert np.array_equal(found.rows(np.arange(4)), values.astype(np.float32))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([(zeros(3), zeros(3))], "are these the labels"),
        ([(zeros(3, 2), zeros(3, 1))], "whole numbers along one axis"),
        ([(zeros(3, 2), np.zeros(3))], "whole numbers along one axis"),
        ([(zeros(3, 2), zeros(2))], "expected 3 labels.*got 2"),
        ([(zeros(3, 2), zeros(3)), (zeros(3, 3), zeros(3))], "expected examples of 2 values"),
        ([(zeros(2, 2), np.array([1, -1], np.int32))], "from 0 on, got -1"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path, scratch, parts, message):
    with pytest.raises(DataError, match=message):
        labelled(tmp_path, scratch, *parts)


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_order_has_every_number_once(count):
    assert np.array_equal(np.sort(order(count, 7, 3)), np.arange(count))


def test_order_depends_on_seed_and_epoch_alone():
    found = {(s, e): order(1000, s, e).tobytes() for s in (0, 1, 2**32 - 1) for e in (0, 1, 2)}
    assert len(set(found.values())) == 9
    assert order(1000, 1, 2).tobytes() == found[1, 2]


def test_order_puts_every_number_everywhere():
    """Over 4,000 epochs each of 5 numbers stands at each of 5 places 800 times, give or take."""
    places = np.array([order(5, 11, epoch) for epoch in range(4000)])
    for place in range(5):
        counts = Counter(places[:, place].tolist())
        assert all(abs(counts[number] - 800) < 130 for number in range(5))  # 5 deviations


def test_order_equals_hashes_in_whole_numbers():
    """SplitMix64 as written, a number at a time."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    start = mixed((5 * golden + 2 + 1) & mask)
    draws = [mixed((start + (i + 1) * golden) & mask) for i in range(50)]
    assert order(50, 5, 2).tolist() == sorted(range(50), key=draws.__getitem__)
