"""Exact ranks of true answers among all candidates, by blocks of queries, in threads.

    queries, candidates, known answers -> ranks -> raw, filtered -> figures_of -> MRR, hits@k
    users, Candidates, LeftOut -> best_lists -> best items of each user -> files
    rows, held-out pairs, seen pairs -> list_figures -> recall, NDCG, MAP, ...

No names, no settings: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data.in_order import in_order
from snailps.dataclass import dataclass

BLOCK_SCORES = 1 << 22
"""Scores of a block of queries: 16 MB."""
LISTED = 1024
"""Most lists of a block: they share the rows that they read."""
PACKED = 1 << 12
"""Groups of candidates that are packed together: a copy of so many rows is all that it takes."""
PRODUCT, L1, L2, MODULUS = 0, 1, 2, 3
ROUNDING = 2.0**-24
"""Relative error of a float32 operation, at most."""
EXACT_FLOATS = 1 << 20
"""Products of numbers that are summed exactly at a time."""

SCORED = 1 << 16
"""Pairs that are scored at a time."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]
Lists = tuple[int, Ids]
"""First user of a block, and the items of each of its users."""


def scores(queries: Floats, rows: Floats, metric: int) -> Floats:
    """Scores (b, n) of queries (b, dim) and candidates (n, dim), C-contiguous: equal rows have
    equal scores, wherever they are."""
    queries, rows = np.ascontiguousarray(queries), np.ascontiguousarray(rows)
    return kernels.pair_scores(queries, rows, metric=metric, dim=rows.shape[1])


def own_scores(queries: Floats, rows: Floats, metric: int) -> Floats:
    """Score of each query with the row of the same number, float32 (n,)."""
    if metric == PRODUCT:
        found: Floats = np.einsum("ij,ij->i", queries, rows)
        return found
    gaps = queries - rows
    if metric == MODULUS:
        half = gaps.shape[1] // 2
        return np.asarray(-np.hypot(gaps[:, :half], gaps[:, half:]).sum(1), np.float32)
    if metric == L2:
        return np.asarray(-np.sqrt(np.square(gaps).sum(1)), np.float32)
    return np.asarray(-np.abs(gaps).sum(1), np.float32)


def product_scores(users: Floats, items: Floats, pairs: Ids) -> Floats:
    """Products (n,) of the rows of pairs (2, n)."""
    products = np.empty(pairs.shape[1], np.float32)
    for at in range(0, len(products), SCORED):
        of, to = pairs[:, at : at + SCORED]
        products[at : at + SCORED] = own_scores(users[of], items[to], PRODUCT)
    return products


def ranks(
    queries: Callable[[slice], Floats],
    rows: Floats,
    metric: int,
    pairs: Numbers,
    answers: Ids,
    known_pairs: Numbers,
    known_answers: Ids,
) -> NDArray[np.float64]:
    """Ranks of each query's answer, (2, n): among all candidates, and without other known answers.

    ``queries(range)`` gives queries, (b, dim).  `pairs` has a number for each query; the known
    answers of number p are the `known_answers` at which `known_pairs` is p.  Ranks count from 1; of
    equal scores the middle rank counts.
    """
    order = np.lexsort((known_answers, known_pairs))
    known_pairs, known_answers = known_pairs[order], known_answers[order]
    again = (np.diff(known_pairs) == 0) & (np.diff(known_answers) == 0)
    once = np.concatenate([np.ones(min(1, len(order)), bool), ~again])
    known_pairs, known_answers = known_pairs[once], known_answers[once]
    rows = np.ascontiguousarray(rows)
    lengths = np.linalg.norm(rows, axis=1) if metric == PRODUCT else np.zeros(0, np.float32)

    def of(at: slice) -> NDArray[np.float64]:
        if metric == PRODUCT:  # of matrices: several times as fast as pair by pair
            found = _with_ties(queries(at), rows, lengths, answers[at])
        else:
            found = scores(queries(at), rows, metric)
        here = np.arange(len(found))
        true = found[here, answers[at]]
        true = np.where(np.isnan(true), -np.inf, true)  # diverged: never the best
        found = np.where(np.isnan(found), np.inf, found)
        found[here, answers[at]] = true
        better, equal = (found > true[:, None]).sum(1), (found == true[:, None]).sum(1)
        raw = _middle(better, equal)
        first = np.searchsorted(known_pairs, pairs[at], "left")
        counts = np.searchsorted(known_pairs, pairs[at], "right") - first
        entry = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        which, known = np.repeat(here, counts), known_answers[entry + np.repeat(first, counts)]
        score, true_score = found[which, known], true[which]
        better -= np.bincount(which[score > true_score], minlength=len(found))
        is_other = known != answers[at][which]
        equal -= np.bincount(which[(score == true_score) & is_other], minlength=len(found))
        return np.stack((raw, _middle(better, equal)))

    return np.concatenate([np.zeros((2, 0)), *_in_threads(of, len(answers), len(rows))], axis=1)


def _with_ties(queries: Floats, rows: Floats, lengths: Floats, answers: Ids) -> Floats:
    """Products (b, n) in which candidates as good as a query's answer have exactly its product.

    A product of matrices sums in an order that depends on the place of a row, so that last bits of
    equal sums differ.  Products as near to the answer's as rounding goes are summed again, in
    float64; what still differs by no more than that sum's rounding is equal.
    """
    found: Floats = queries @ rows.T
    here, dim = np.arange(len(queries)), queries.shape[1]
    true = found[here, answers]
    reach = (dim + 2) * ROUNDING * np.linalg.norm(queries, axis=1)
    with np.errstate(invalid="ignore"):  # of rows that have diverged
        gaps = np.abs(found - true[:, None])
        near = gaps <= (reach[:, None] * (lengths + lengths[answers][:, None]))
    near[here, answers] = False
    which, candidates = np.nonzero(near)
    step = max(1, EXACT_FLOATS // dim)
    for at in range(0, len(which), step):
        of, other = which[at : at + step], candidates[at : at + step]
        asked = queries[of].astype(np.float64)
        products, wanted = asked * rows[other], asked * rows[answers[of]]
        gap = products.sum(1) - wanted.sum(1)
        slack = dim * 2.0**-52 * (np.abs(products).sum(1) + np.abs(wanted).sum(1))
        beside = np.nextafter(true[of], np.where(gap > 0, np.inf, -np.inf).astype(np.float32))
        found[of, other] = np.where(np.abs(gap) <= slack, true[of], beside)
    return found


def _middle(better: Numbers, equal: Numbers) -> NDArray[np.float64]:
    """Ranks of answers, by how many candidates are better, and how many equal with the answer."""
    places: NDArray[np.float64] = better + (np.maximum(equal, 1) - 1) / 2 + 1.0
    return places


def _in_threads(function: Callable[[slice], Any], queries: int, candidates: int) -> Iterator[Any]:
    """Call a function on ranges of queries."""
    threads = kernels.cores()
    step = max(1, min(-(-queries // threads), BLOCK_SCORES // max(1, candidates)))
    ranges = (slice(at, min(queries, at + step)) for at in range(0, queries, step))
    return in_order(function, ranges, threads)


def figures_of(raw: NDArray[np.float64], filtered: NDArray[np.float64]) -> dict[str, float]:
    """MRR, hits@1, @3 and @10, mean rank, of filtered ranks, and of raw ones as ``raw_...``."""
    if not len(filtered):
        return {}
    return {
        f"{name}{figure}": value
        for name, of_kind in (("", filtered), ("raw_", raw))
        for figure, value in (
            ("mrr", float((1 / of_kind).mean())),
            *((f"hits_at_{k}", float((of_kind <= k).mean())) for k in (1, 3, 10)),
            ("mean_rank", float(of_kind.mean())),
        )
    }


class Candidates:
    """Rows to choose the best of, packed for `kernels.best_products`: the longest first.

    Takes as much memory as the rows.  `numbers` are what lists call the rows; by default their
    places.
    """

    def __init__(self, rows: Floats, numbers: Ids | None = None) -> None:
        numbers = np.arange(len(rows), dtype=np.int32) if numbers is None else numbers
        dim = rows.shape[1]
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        lengths = np.sqrt(np.where(np.isnan(squares), np.inf, squares))
        order = np.argsort(-lengths, kind="stable")
        groups = -(-len(rows) // kernels.GROUP)
        self.across = np.zeros((groups, dim, kernels.GROUP), np.float32)
        for at in range(0, groups, PACKED):
            places = order[at * kernels.GROUP : (at + PACKED) * kernels.GROUP]
            packed = np.zeros((-(-len(places) // kernels.GROUP) * kernels.GROUP, dim), np.float32)
            packed[: len(places)] = rows[places]
            self.across[at : at + PACKED] = packed.reshape(-1, kernels.GROUP, dim).swapaxes(1, 2)
        # A sum of `dim` rounded products may be longer than the exact one, by so much.
        slack = 1 + (dim + 8) * 2.0**-23
        self.longest = (lengths[order[:: kernels.GROUP]] * slack).astype(np.float32)
        self.numbers = np.ascontiguousarray(numbers[order])

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What queries leave out: query i ``numbers[ptr[i] : ptr[i + 1]]``, which ascend."""

    ptr: Numbers
    numbers: Ids

    @classmethod
    def of(cls, queries: Ids, numbers: Ids, query_num: int) -> LeftOut:
        """Make it from pairs in any order."""
        pairs = np.sort(queries.astype(np.int64) << 32 | numbers)
        counts = np.bincount(pairs >> 32, minlength=query_num)
        return cls(np.concatenate(([0], np.cumsum(counts))), (pairs & 0xFFFFFFFF).astype(np.int32))


def best_lists(
    queries: Floats, candidates: Candidates, top: int, left_out: LeftOut, threads: int = 0
) -> Iterator[tuple[int, Ids, Floats]]:
    """Yield ranges of queries as (first query, numbers, products): each query's best candidates.

    Exact: the best come first, of equal products the lower number.  -1 stands for no candidate,
    where a query has fewer than `top` left.  Neither the bits nor the order depend on `threads`.
    """
    queries = np.ascontiguousarray(queries)
    top, threads = min(top, len(candidates)), threads or kernels.cores()

    def of(at: slice) -> tuple[int, Ids, Floats]:
        lists = kernels.best_products(
            queries, candidates.across, candidates.longest, candidates.numbers, left_out.ptr,
            left_out.numbers, top=top, first=at.start, last=at.stop,
        )  # fmt: skip
        return at.start, *lists

    most = min(LISTED, BLOCK_SCORES // max(1, top))
    step = max(1, min(-(-len(queries) // threads), most))
    ranges = (slice(at, min(len(queries), at + step)) for at in range(0, len(queries), step))
    yield from in_order(of, ranges, threads)


def top_lists(
    users: Floats, items: Floats, count: int, seen_users: Ids, seen_items: Ids
) -> Iterator[tuple[int, Ids]]:
    """Yield ranges of users as (first user, items): each user's best items that it has not seen.

    `seen_users` and `seen_items` are pairs; users are rows of `users`.  Lists as in `best_lists`.
    """
    seen = LeftOut.of(seen_users, seen_items, len(users))
    for first, numbers, _ in best_lists(users, Candidates(items), count, seen):
        yield first, numbers


def list_figures(
    users: Floats,
    items: Floats,
    pairs: Ids,
    seen: Ids,
    top: int,
    counted: Callable[[Iterable[Lists], int], Iterable[Lists]] = lambda lists, users: lists,
) -> dict[str, float]:
    """Judge each user's list of `top` best items, without `seen` pairs, by held-out `pairs`.

    A user's relevant items are those in `pairs`, each once, but not in `seen`; -1 in `pairs` is an
    unknown name.  Means over the users who have any: recall is hits / min(top, relevant);
    precision, hits / top; MAP, the sum of the precision at each hit / min(top, relevant); NDCG, the
    discounted gain / that of a perfect list.  Coverage is the share of all items that their lists
    have.  ``users`` counts these users, ``users_without`` users of `pairs` without a relevant item,
    ``seen`` pairs that are left out because `seen` has them.  Without a user to judge there is no
    figure but ``seen``.  ``counted(lists, users)`` passes lists on, and may count them.
    """
    pairs = pairs[:, pairs[0] >= 0]
    asked, of = np.unique(pairs[0], return_inverse=True)
    place = np.full(len(users), -1, np.int32)
    place[asked] = np.arange(len(asked), dtype=np.int32)
    named = pairs[1] >= 0
    was_seen = named & np.isin(_pair(pairs, len(items)), _pair(seen, len(items)))
    new = named & ~was_seen
    truth = np.unique(of[new].astype(np.int64) * len(items) + pairs[1][new])
    counts = np.bincount(truth // max(1, len(items)), minlength=len(asked))
    judged = counts > 0
    left_out: dict[str, float] = {"seen": int(was_seen.sum())}
    if not judged.any():
        return left_out
    seen = seen[:, place[seen[0]] >= 0]
    places = np.arange(1, top + 1)
    gains = 1 / np.log2(places + 1)
    best = np.concatenate([[0.0], np.cumsum(gains)])
    recall, precision, average, ndcg = np.zeros((4, len(asked)))
    listed = np.zeros(len(items), bool)
    made = top_lists(users[asked], items, top, place[seen[0]], seen[1])
    for first, lists in counted(made, len(asked)):
        here, length = np.arange(first, first + len(lists)), lists.shape[1]
        hits = np.isin(here[:, None] * len(items) + lists, truth) & (lists >= 0)
        perfect = np.minimum(counts[here], length)
        recall[here] = hits.sum(1) / np.maximum(perfect, 1)
        precision[here] = hits.sum(1) / top
        at_hits = np.where(hits, hits.cumsum(1) / places[:length], 0.0)
        average[here] = at_hits.sum(1) / np.maximum(perfect, 1)
        ndcg[here] = hits @ gains[:length] / np.maximum(best[perfect], 1e-9)
        chosen = lists[judged[here]]
        listed[chosen[chosen >= 0]] = True
    return {
        f"recall_at_{top}": float(recall[judged].mean()),
        f"ndcg_at_{top}": float(ndcg[judged].mean()),
        f"precision_at_{top}": float(precision[judged].mean()),
        f"map_at_{top}": float(average[judged].mean()),
        f"coverage_at_{top}": float(listed.mean()),
        "users": int(judged.sum()),
        "users_without": int((~judged).sum()),
        **left_out,
    }


def _pair(pairs: Ids, items: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = pairs[0].astype(np.int64) * items + pairs[1]
    return numbers
