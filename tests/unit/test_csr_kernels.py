"""kernels.csr_product and csr_gradients against NumPy twins, and what they refuse."""

import numpy as np
import pytest
from twins import csr as twin

from snailps import kernels

builds = pytest.mark.parametrize("build", kernels.builds_available())
# Around the widths of a quad, of one and two vectors and of a tile, in every build.
DIMS = (1, 4, 17, 64, 130)


def toy(dim, examples=40, columns=60, entries=9, seed=2):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 2 * entries, examples)
    counts[3] = 70  # more terms than are summed at a time
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = rng.integers(0, columns, ptr[-1]).astype(np.int32)
    values = rng.normal(size=ptr[-1]).astype(np.float32)
    table = rng.normal(size=(columns, dim)).astype(np.float32)
    dz = rng.normal(size=(examples, dim)).astype(np.float32)
    return ptr, rows, values, table, dz


@builds
@pytest.mark.parametrize("dim", DIMS)
def test_products_equal_their_twins(build, dim):
    made = kernels.load(build)
    ptr, rows, values, table, dz = toy(dim)
    z = np.full((len(ptr) - 1, dim), np.nan, np.float32)
    made.csr_product(ptr, rows, values, table, z)
    assert np.allclose(z, twin.csr_product(ptr, rows, values, table), rtol=1e-5, atol=1e-4)
    gradients = np.full(table.shape, np.nan, np.float32)
    made.csr_gradients(ptr, rows, values, dz, gradients)
    wanted = twin.csr_gradients(ptr, rows, values, dz, len(table))
    assert np.allclose(gradients, wanted, rtol=1e-5, atol=1e-4)


@builds
def test_product_of_rows_with_a_stride_is_the_same_to_the_bit(build):
    made = kernels.load(build)
    ptr, rows, values, table, _ = toy(50)
    whole = np.empty((40, 50), np.float32)
    made.csr_product(ptr, rows, values, table, whole)
    wide = np.full((60, 64), np.nan, np.float32)
    wide[:, 7:57] = table
    parts = np.full((40, 50), np.nan, np.float32)
    made.csr_product(ptr, rows, values, wide[:, 7:57], parts)
    assert np.array_equal(whole, parts)


@builds
def test_exact_numbers_give_exact_sums(build):
    """Small whole numbers: every order of summation is right, every slip is seen."""
    made = kernels.load(build)
    ptr, rows, _, _, _ = toy(33)
    values = (rows % 7 - 3).astype(np.float32)
    table = np.arange(60 * 33, dtype=np.float32).reshape(60, 33) % 11
    z = np.empty((40, 33), np.float32)
    made.csr_product(ptr, rows, values, table, z)
    assert np.array_equal(z, twin.csr_product(ptr, rows, values, table))
    gradients = np.empty((60, 33), np.float32)
    made.csr_gradients(ptr, rows, values, z, gradients)
    assert np.array_equal(gradients, twin.csr_gradients(ptr, rows, values, z, 60))


def test_nothing_to_do_is_done():
    ptr, none, zeros = np.zeros(4, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
    z = np.full((3, 5), np.nan, np.float32)
    kernels.csr_product(ptr, none, zeros, np.empty((0, 5), np.float32), z)
    assert not z.any()
    gradients = np.full((2, 5), np.nan, np.float32)
    kernels.csr_gradients(ptr, none, zeros, z, gradients)
    assert not gradients.any()
    kernels.csr_product(ptr[:1], none, zeros, np.empty((0, 5), np.float32), z[:0])


def test_wrong_arrays_are_refused_in_words():
    ptr, rows, values, table, dz = toy(8)
    z, gradients = np.empty((40, 8), np.float32), np.empty((60, 8), np.float32)
    high, low = rows.copy(), rows.copy()
    high[5], low[5] = 60, -1
    for bad, said in [
        ((ptr, high, values, table, z), "0..59"),
        ((ptr, low, values, table, z), "0..59"),
        ((ptr + 1, rows, values, table, z), "start with 0"),
        ((ptr[::-1].copy(), rows, values, table, z), "ptr must"),
        ((ptr, rows, values[:-1].copy(), table, z), "a number an entry"),
        ((ptr, rows, values, table, z[:-1]), "a row an example"),
        ((ptr, rows, values, table[:, ::2], z[:, :4].copy()), "contiguous"),
    ]:
        with pytest.raises(ValueError, match=said):
            kernels.csr_product(*bad)
    for bad, said in [
        ((ptr, high, values, dz, gradients), "0..59"),
        ((ptr, rows, values, dz[:-1], gradients), "a row an example"),
        ((ptr, rows, values, dz, gradients[:, :7].copy()), "columns of out"),
    ]:
        with pytest.raises(ValueError, match=said):
            kernels.csr_gradients(*bad)
