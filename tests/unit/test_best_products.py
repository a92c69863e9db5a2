"""kernels.best_products and ranking.best_lists against a sort of all products, in every build."""

import numpy as np
import pytest

from snailps import kernels
from snailps.models.embeddings import ranking
from snailps.models.embeddings.ranking import Candidates, LeftOut

builds = pytest.mark.parametrize("build", kernels.builds_available())


def of_whole_numbers(dim=5, queries=300, rows=70, seed=1):
    """Queries, rows and what queries leave out; products are exact, and many of them are equal."""
    rng = np.random.default_rng(seed)
    queries, rows = (rng.integers(-3, 4, (n, dim)).astype(np.float32) for n in (queries, rows))
    rows *= rng.integers(0, 3, (len(rows), 1))  # some are long, some are zeros
    queries[3] = 0
    asked = rng.integers(0, len(queries), 4 * len(queries)).astype(np.int32)
    numbers = rng.integers(0, len(rows), len(asked)).astype(np.int32)
    return queries, rows, LeftOut.of(asked, numbers, len(queries))


def sorted_lists(queries, rows, top, left_out):
    """Numbers and products of each query by a stable sort."""
    products = (queries @ rows.T).astype(np.float32)
    products[np.isnan(products)] = -np.inf
    for query, (first, last) in enumerate(zip(left_out.ptr, left_out.ptr[1:], strict=False)):
        products[query, left_out.numbers[first:last]] = -np.inf
    numbers = np.argsort(-products, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(products, numbers, axis=1)
    return np.where(best > -np.inf, numbers, -1), best


def lists_of(build, queries, rows, top, left_out, first=0, last=None):
    packed = Candidates(rows)
    return kernels.load(build).best_products(
        queries, packed.across, packed.longest, packed.numbers, left_out.ptr, left_out.numbers,
        top=top, first=first, last=len(queries) if last is None else last,
    )  # fmt: skip


@builds
@pytest.mark.parametrize("top", [1, 3, 16, 70])
@pytest.mark.parametrize("rows", [1, 16, 70])
def test_best_products_are_those_of_a_sort(build, rows, top):
    queries, rows, left_out = of_whole_numbers(rows=rows)
    lists = lists_of(build, queries, rows, min(top, len(rows)), left_out)
    for mine, wanted in zip(
        lists, sorted_lists(queries, rows, min(top, len(rows)), left_out), strict=True
    ):
        np.testing.assert_array_equal(mine, wanted)


@builds
def test_products_that_are_no_numbers_are_in_no_list(build):
    queries, rows, left_out = of_whole_numbers()
    rows[5], rows[6, 1], queries[7] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        wanted = sorted_lists(queries, rows, 10, left_out)
        lists = lists_of(build, queries, rows, 10, left_out)
    np.testing.assert_array_equal(lists[0], wanted[0])
    np.testing.assert_array_equal(lists[1], wanted[1])
    assert (lists[0][7] == -1).all()
    assert 5 not in lists[0]
    assert 6 in lists[0]


@builds
def test_equal_rows_of_real_numbers_have_equal_products(build):
    """Each row comes three times, far apart, and each list has all three, the first one first."""
    rng = np.random.default_rng(2)
    queries = rng.normal(size=(40, 33)).astype(np.float32)
    rows = np.tile(rng.normal(size=(50, 33)).astype(np.float32), (3, 1))
    nothing = LeftOut(np.zeros(41, np.int64), np.zeros(0, np.int32))
    numbers, products = lists_of(build, queries, rows, 9, nothing)
    for at in range(0, 9, 3):
        assert (products[:, at] == products[:, at + 2]).all()
        assert (numbers[:, at + 1] == numbers[:, at] + 50).all()
        assert (numbers[:, at + 2] == numbers[:, at] + 100).all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e17])
def test_no_row_is_left_unseen_for_rounding(scale):
    """Rows of one length in the direction of the query: products differ by rounding alone."""
    rng = np.random.default_rng(3)
    query = np.full((1, 64), 0.1, np.float32)
    row = (1 + 1e-4 * rng.normal(size=64)) * scale
    rows = np.stack([rng.permutation(row) for _ in range(4000)]).astype(np.float32)
    nothing = LeftOut(np.zeros(2, np.int64), np.zeros(0, np.int32))
    ((_, numbers, products),) = ranking.best_lists(query, Candidates(rows), 5, nothing)
    ((_, all_numbers, all_products),) = ranking.best_lists(query, Candidates(rows), 4000, nothing)
    np.testing.assert_array_equal(numbers, all_numbers[:, :5])
    np.testing.assert_array_equal(products, all_products[:, :5])
    assert (np.diff(all_products) <= 0).all()


def test_lists_do_not_depend_on_threads_or_blocks(monkeypatch):
    rng = np.random.default_rng(4)
    queries, rows = (rng.normal(size=(n, 20)).astype(np.float32) for n in (500, 300))
    nothing = LeftOut(np.zeros(501, np.int64), np.zeros(0, np.int32))

    def lists(threads):
        parts = list(ranking.best_lists(queries, Candidates(rows), 7, nothing, threads))
        sizes = [len(part[1]) for part in parts]
        assert [part[0] for part in parts] == np.cumsum([0, *sizes[:-1]]).tolist()
        return [np.concatenate([part[at] for part in parts]) for at in (1, 2)]

    whole = lists(1)
    monkeypatch.setattr(ranking, "LISTED", 13)
    for threads in (1, 3):
        for mine, wanted in zip(lists(threads), whole, strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_candidates_of_some_rows_keep_their_numbers(monkeypatch):
    queries, rows, left_out = of_whole_numbers()
    some = np.array([3, 8, 20, 21, 50], np.int32)
    monkeypatch.setattr(ranking, "PACKED", 2)
    ((_, numbers, _),) = ranking.best_lists(queries, Candidates(rows[some], some), 9, left_out, 1)
    everything, _ = sorted_lists(queries, rows, len(rows), left_out)
    for mine, all_of in zip(numbers, everything, strict=True):
        wanted = [number for number in all_of.tolist() if number in some]
        assert mine.tolist() == wanted + [-1] * (len(some) - len(wanted))
    for _, numbers, _ in ranking.best_lists(queries, Candidates(rows[:0]), 3, left_out):
        assert numbers.shape[1] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ptr": np.zeros(3, np.int64)}, "of the 300 queries"),
        ({"ptr": np.arange(301)[::-1].copy()}, "ptr must start with 0"),
        ({"across": np.zeros((5, 4, 16), np.float32)}, "across must be groups of"),
        ({"numbers": np.zeros(99, np.int32)}, "5 bounds and the numbers"),
        ({"longest": np.zeros(4, np.float32)}, "5 bounds and the numbers"),
        ({"last": 301}, "among the 300"),
        ({"top": -1}, "top must be at least 0"),
    ],
)
def test_best_products_refuse_what_they_would_read_outside_of(changed, message):
    queries, rows, left_out = of_whole_numbers()
    packed = Candidates(rows)
    arguments = {
        "queries": queries, "across": packed.across, "longest": packed.longest,
        "numbers": packed.numbers, "ptr": left_out.ptr, "without": left_out.numbers, "top": 3,
        "first": 0, "last": 300, **changed,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        kernels.best_products(**arguments)
