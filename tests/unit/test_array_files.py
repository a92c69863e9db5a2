"""data.array_files: dense examples and labels in files, and the order they are trained in."""

import gzip
import io
import os
from itertools import product
from unittest import mock

import numpy as np
import pytest
from idx_files import CODES, idx_bytes, write_idx
from twins.kernels import GOLDEN, MASK, mix64

from snailps.abi.key_hash import order
from snailps.data.array_files import (
    Labelled,
    is_array_file,
    labels_of,
    read_array,
    read_header,
)
from snailps.data.matrix_writer import write_matrix
from snailps.errors import DataError
from snailps.files.array_archives import npy_header
from snailps.files.scratch import Scratch


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


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


# --- the format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *(("idx", kind) for kind in CODES),
        *(("npy", kind) for kind in ("u1", "i2", "i8", ">f4", "f4", "f8", "f2")),
    ],
)
def test_read_array_of_each_type_gives_its_values(tmp_path, scratch, form, kind, packed):
    values = np.random.default_rng(3).uniform(-100, 100, (5, 3, 2)).astype(kind)
    path = tmp_path / (f"x.{form}.gz" if packed else f"x.{form}")
    data = idx_bytes(values) if form == "idx" else npy_bytes(values)
    path.write_bytes(gzip.compress(data) if packed else data)
    header = read_header(str(path))
    assert (header.shape, header.width) == ((5, 3, 2), 6)
    assert np.array_equal(read_array(str(path), scratch), values)


def test_header_known_bytes():
    """MNIST's training images begin so."""
    assert idx_bytes(zeros(60_000, 28, 28))[:16].hex() == "00000803" + "0000ea60" + "0000001c" * 2


@pytest.mark.parametrize(
    ("form", "at"), [("idx", 0), ("npy", 8)]
)  # of npy: where its first bytes say that it is one
def test_read_array_of_every_truncation_is_refused(tmp_path, scratch, form, at):
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    whole = idx_bytes(values) if form == "idx" else npy_bytes(values)
    path = tmp_path / f"cut.{form}"
    for size in range(at, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"no (idx|\.npy) file|expected {len(whole)} bytes"):
            read_array(str(path), scratch)
    path.write_bytes(whole + b"x")
    expected = rf"expected {len(whole)} bytes for shape \(3, 4\), got {len(whole) + 1}"
    with pytest.raises(DataError, match=expected):
        read_array(str(path), scratch)


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


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        *product(*[["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"],
                   ["train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz"]]),
        ("X_train.npy", "y_train.npy"),
    ],
)  # fmt: skip
def test_labels_are_found_beside_images_packed_or_not(tmp_path, there, asked):
    (tmp_path / there).touch()
    assert labels_of(str(tmp_path / asked)) == str(tmp_path / there)


def test_npy_of_a_long_header_is_read(tmp_path, scratch):
    """Version 2 has a header of any length."""
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(6).reshape(3, 2), version=(2, 0))
    assert read_array(str(path), scratch).tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.asfortranarray(np.ones((3, 2))), "column by column.*ascontiguousarray"),
        (np.array([["a"]]), "expected an array of numbers, got <U1"),
        (np.ones((3, 2), complex), "expected an array of numbers, got complex128"),
        (np.float32(1), "expected 1 to 8 axes, got 0"),
        (np.ones((0, 2)), "is empty"),
    ],
)
def test_npy_that_has_no_examples_is_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(DataError, match=message):
        read_header(str(tmp_path / "x.npy"))


def test_examples_of_npy_beyond_32_bits_are_read_where_they_lie(tmp_path, scratch):
    """A file of holes, of which a process reads the rows that it is asked for."""
    rows, width, path = 1 << 21, 600, tmp_path / "X.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        )
        file.seek(4 * width * (rows - 1), 1)
        file.write(np.arange(width, dtype=np.float32).tobytes())
    np.save(tmp_path / "y.npy", np.zeros(rows, np.uint8))
    assert path.stat().st_size > 1 << 32
    found = Labelled([(str(path), str(tmp_path / "y.npy"))], scratch)
    assert len(found) == rows
    assert found.rows(np.array([rows - 1, 5])).sum(axis=1).tolist() == [width * (width - 1) / 2, 0]


@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_dense_matrix_file_has_examples_and_labels(tmp_path, scratch, kind):
    values, path = np.arange(30).reshape(6, 5).astype(kind), str(tmp_path / "m")
    write_matrix(path, values, [0, 1, 2, 0, 1, 2], dense=True)
    assert labels_of(path) == path
    found = Labelled([(path, path)], scratch)
    assert (found.width, found.labels.tolist()) == (5, [0, 1, 2, 0, 1, 2])
    assert found.rows(np.array([5, 0])).tolist() == values[[5, 0]].tolist()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (None, {"dense": True}, "has no labels: write the file with y"),
        ([0.5, 1], {"dense": True}, "expected class numbers from 0 on, got 0.5 in row 0"),
        ([0, -1], {"dense": True}, "from 0 on, got -1"),
        ([0, 1], {}, "expected dense examples, got sparse ones: write them with dense=True"),
    ],
)
def test_matrix_file_that_has_no_dense_examples_is_refused(
    tmp_path, scratch, labels, options, message
):
    path = str(tmp_path / "m")
    write_matrix(path, np.ones((2, 3)), labels, **options)
    with pytest.raises(DataError, match=message):
        Labelled([(path, path)], scratch)


def test_dense_matrix_file_that_is_packed_or_cut_is_refused(tmp_path, scratch):
    path = tmp_path / "m"
    write_matrix(path, np.ones((20, 3)), np.zeros(20), dense=True)
    (tmp_path / "m.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match="cannot be packed: unpack it"):
        read_header(str(tmp_path / "m.gz"))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(DataError, match="cut off"):
        read_header(str(path))


# --- examples with labels ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "option", "message"),
    [
        ("digits.gz", [], r"lacks 'images-idx3': name their file with --labels$"),
        ("y_train.npy", [], "lacks 'X': name their file with --labels"),
        (
            "t10k-images-idx3-ubyte", ["--test-labels"],
            "does not exist: name their file with --test-labels$",
        ),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_found_are_asked_for(tmp_path, asked, option, message):
    with pytest.raises(DataError, match=message):
        labels_of(str(tmp_path / asked), *option)


def test_examples_of_two_files_count_on(tmp_path, scratch):
    random = np.random.default_rng(1)
    first, second = (random.integers(0, 256, (n, 2, 3)).astype(np.uint8) for n in (5, 4))
    found = labelled(tmp_path, scratch, (first, zeros(5)), (second, zeros(4) + 2))
    assert (len(found), found.width) == (9, 6)
    assert found.labels.tolist() == [0] * 5 + [2] * 4
    rows = found.rows(np.array([8, 0, 4, 5, 0]))
    assert rows.dtype == np.float32
    whole = np.concatenate([first, second]).reshape(9, 6)
    assert rows.tolist() == whole[[8, 0, 4, 5, 0]].tolist()


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


@pytest.mark.parametrize(
    ("count", "seed", "epoch"), [(1, 7, 3), (2, 0, 0), (50, 5, 2), (1000, 2**32 - 1, 1)]
)
def test_order_equals_hashes_in_whole_numbers(count, seed, epoch):
    """SplitMix64 as written, a number at a time."""
    start = mix64((seed * GOLDEN + epoch + 1) & MASK)
    draws = [mix64((start + (i + 1) * GOLDEN) & MASK) for i in range(count)]
    assert order(count, seed, epoch).tolist() == sorted(range(count), key=draws.__getitem__)


TYPES = ["<f4", ">f8", "|u1", "|b1", "<U10", "<c16", [("a", "<i8"), ("lr", "<f8")]]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (0,), (1 << 62, 1 << 62), (-1,)])
def test_header_of_npy_is_read_as_numpy_reads_it(version, dtype, shape):
    for fortran in (False, True):
        file, head = io.BytesIO(), {"descr": dtype, "fortran_order": fortran, "shape": shape}
        getattr(np.lib.format, f"write_array_header_{version}_0")(file, head)
        end = file.tell()
        file.seek(0)
        assert npy_header(file) == (shape, fortran, np.dtype(dtype))
        assert file.tell() == end


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} and more",
        "{'descr': open('x'), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4', (2,))], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3 4)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}",
        "'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
        "(" * 5000,
    ],
)
def test_header_that_is_none_of_numpys_is_refused(header):
    size = len(header).to_bytes(2, "little")
    file = io.BytesIO(b"\x93NUMPY\x01\x00" + size + header.encode())
    with pytest.raises(ValueError, match=r"no header of an array|not understood"):
        npy_header(file)


def test_header_may_have_its_fields_in_any_order_and_numbers_of_python_2():
    text = b" {'shape': (2L, 3L), 'descr': '<f4', 'fortran_order': False, } \n"
    file = io.BytesIO(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    assert npy_header(file) == ((2, 3), False, np.dtype("<f4"))


def test_headers_are_read_while_other_threads_parse():
    """Python 3.11 counts the depth of all parsing threads as one: `ast` fails then, by chance."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (3,)}
    )
    with mock.patch("ast.parse", side_effect=SystemError("recursion depth mismatch")):
        file.seek(0)
        assert npy_header(file)[0] == (3,)


def test_array_files_are_known_by_their_first_bytes_and_pipes_are_left_unread(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((2, 3)))
    (tmp_path / "text").write_text("1 1:2\n")
    os.mkfifo(tmp_path / "pipe")  # without a writer: to open it would wait
    names = ("X.npy", "text", "pipe", "none", ".")
    assert [name for name in names if is_array_file(str(tmp_path / name))] == ["X.npy"]
