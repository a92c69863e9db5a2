"""models.embeddings.ranking and list_figures against plain loops."""

import numpy as np
import pytest

from snailps.models.embeddings import ranking
from snailps.models.embeddings.ranking import list_figures


def test_filtered_ranks_leave_out_other_known_answers():
    """Scores 5, 4, 3, 3, 1: the third is known too, of equal ones it is the middle."""
    rows = np.array([[5], [4], [3], [3], [1]], np.float32)

    def ranks(answer, known):
        pairs = np.zeros(1, np.int64)
        return ranking.ranks(
            lambda at: np.ones((1, 1), np.float32)[at], rows, 0, pairs,
            np.array([answer], np.int32), np.zeros(len(known), np.int64),
            np.array(known, np.int32),
        )[:, 0].tolist()  # fmt: skip

    assert ranks(2, []) == [3.5, 3.5]
    assert ranks(2, [0]) == [3.5, 2.5]
    assert ranks(2, [0, 3, 2]) == [3.5, 2]
    assert ranks(4, [0, 1]) == [5, 3]


@pytest.mark.parametrize("metric", [0, 1, 2, 3])
def test_filtered_ranks_equal_those_of_loops(metric):
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 1, (50, 8)).astype(np.float32)
    queries = rng.normal(0, 1, (70, 8)).astype(np.float32)
    pairs = rng.integers(0, 9, 70)
    answers = rng.integers(0, 50, 70).astype(np.int32)
    known_pairs, known = rng.integers(0, 9, 200), rng.integers(0, 50, 200).astype(np.int32)
    raw, got = ranking.ranks(
        lambda at: queries[at], rows, metric, pairs, answers, known_pairs, known
    )
    scores = ranking.scores(queries, rows, metric)
    for i in range(70):
        others = [
            e for e in range(50)
            if e != answers[i] and e not in set(known[known_pairs == pairs[i]].tolist())
        ]  # fmt: skip
        better = sum(scores[i, e] > scores[i, answers[i]] for e in others)
        assert got[i] == better + 1
        assert raw[i] == (scores[i] > scores[i, answers[i]]).sum() + 1


@pytest.mark.parametrize("dim", [1, 3, 8, 17, 64])
def test_equal_candidates_share_the_middle_rank_wherever_they_are(dim):
    """All rows are one row, so each rank is 13 of 25; products of matrices differ in last bits."""
    rng = np.random.default_rng(dim)
    rows = np.repeat(rng.normal(0, 1, (1, dim)), 25, axis=0).astype(np.float32)
    none = np.zeros(0, np.int64)
    for count in (5, 12, 24, 50, 100):
        queries = rng.normal(0, 1, (count, dim)).astype(np.float32)
        answers = (np.arange(count) * 7 % 25).astype(np.int32)
        ranks = ranking.ranks(
            lambda at, queries=queries: queries[at], rows, ranking.PRODUCT,
            np.arange(count), answers, none, none.astype(np.int32),
        )  # fmt: skip
        assert (ranks == 13).all()


def test_candidates_that_differ_in_the_last_bit_are_no_ties():
    """Rows e, e less a bit, e and a bit more, e: the first answer has one better and one equal."""
    row = np.random.default_rng(2).uniform(0.5, 1, 31).astype(np.float32)
    rows = np.stack([row, row, row, row])
    rows[1, 7], rows[2, 3] = np.nextafter(row[7], 0), np.nextafter(row[3], 2)
    ranks = ranking.ranks(
        lambda at: np.ones((4, 31), np.float32)[at], rows, ranking.PRODUCT, np.arange(4),
        np.arange(4, dtype=np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32),
    )  # fmt: skip
    assert ranks[0].tolist() == [2.5, 4, 1, 2.5]


def test_filtered_ranks_of_diverged_rows_are_the_worst():
    rows = np.array([[np.nan], [1], [0]], np.float32)
    ranks = ranking.ranks(
        lambda at: np.ones((3, 1), np.float32)[at], rows, 0, np.arange(3),
        np.array([0, 1, 2], np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32),
    )  # fmt: skip
    assert ranks.tolist() == [[3, 2, 3]] * 2


def test_figures_of_known_ranks():
    assert ranking.figures_of(np.array([2.0, 2, 4, 40]), np.array([1.0, 2, 4, 20])) == {
        "mrr": pytest.approx((1 + 0.5 + 0.25 + 0.05) / 4),
        "hits_at_1": 0.25, "hits_at_3": 0.5, "hits_at_10": 0.75, "mean_rank": 6.75,
        "raw_mrr": pytest.approx((0.5 + 0.5 + 0.25 + 0.025) / 4),
        "raw_hits_at_1": 0, "raw_hits_at_3": 0.5, "raw_hits_at_10": 0.75, "raw_mean_rank": 12,
    }  # fmt: skip
    assert ranking.figures_of(np.zeros(0), np.zeros(0)) == {}


def test_list_figures_of_a_known_case():
    """User 0 has items 0, 1 on test and has seen 3: of its list 0, 2 one of two is a hit."""
    users = np.array([[1], [-1]], np.float32)
    items = np.array([[3], [1], [2], [9]], np.float32)
    pairs = np.array([[0, 0, 1], [0, 1, 1]], np.int32)
    seen = np.array([[0, 1], [3, 0]], np.int32)
    got = list_figures(users, items, pairs, seen, 2)
    gains = 1 / np.log2([2, 3])
    ndcg = [gains[0] / gains.sum(), 1.0]  # user 1: items 1, 2, whose first is its only one
    assert got == {
        "recall_at_2": pytest.approx((0.5 + 1) / 2),
        "ndcg_at_2": pytest.approx(np.mean(ndcg)),
        "precision_at_2": pytest.approx((0.5 + 0.5) / 2),
        "map_at_2": pytest.approx((0.5 + 1) / 2),
        "coverage_at_2": 0.75,  # all but 3
        "users": 2,
        "users_without": 0,
        "seen": 0,
    }


def test_list_figures_against_a_loop_over_users():
    random, top = np.random.default_rng(3), 5
    users, items = random.normal(size=(30, 4)), random.normal(size=(20, 4))
    users, items = users.astype(np.float32), items.astype(np.float32)
    pairs = np.stack([random.integers(-1, 30, 60), random.integers(-1, 20, 60)]).astype(np.int32)
    seen = np.stack([random.integers(0, 30, 250), random.integers(0, 20, 250)]).astype(np.int32)
    figures, listed, without = [], set(), 0
    for user in set(pairs[0].tolist()) - {-1}:
        had = set(seen[1][seen[0] == user].tolist())
        relevant = set(pairs[1][pairs[0] == user].tolist()) - had - {-1}
        best = [item for item in np.argsort(-(items @ users[user])).tolist() if item not in had]
        if not relevant:
            without += 1
            continue
        listed |= {*best[:top]}
        hits = [item in relevant for item in best[:top]]
        most = min(top, len(relevant))
        gains = [1 / np.log2(place + 2) for place in range(top)]
        average = sum(sum(hits[: place + 1]) / (place + 1) for place in range(top) if hits[place])
        ndcg = np.dot(hits, gains) / sum(gains[:most])
        figures.append((sum(hits) / most, ndcg, sum(hits) / top, average / most))
    got = list_figures(users, items, pairs, seen, top)
    assert without > 0
    names = ("recall_at_5", "ndcg_at_5", "precision_at_5", "map_at_5")
    np.testing.assert_allclose([got[name] for name in names], np.mean(figures, 0), rtol=1e-6)
    assert got["coverage_at_5"] == len(listed) / 20
    assert (got["users"], got["users_without"]) == (len(figures), without)


def test_pairs_of_the_training_are_left_out_and_counted():
    users, items = np.ones((2, 1), np.float32), np.ones((4, 1), np.float32)
    pairs = np.array([[0, 0, 1], [0, 1, 1]], np.int32)
    assert list_figures(users, items, pairs, pairs[:, :1], 2)["seen"] == 1
    assert list_figures(users, items, pairs, pairs, 2) == {"seen": 3}


@pytest.mark.parametrize("metric", [ranking.PRODUCT, ranking.L1, ranking.L2, ranking.MODULUS])
def test_own_scores_are_the_diagonal_of_all_scores(metric):
    queries, rows = np.random.default_rng(2).normal(size=(2, 20, 8)).astype(np.float32)
    expected = np.diagonal(ranking.scores(queries, rows, metric))
    np.testing.assert_allclose(
        ranking.own_scores(queries, rows, metric), expected, rtol=1e-5, atol=1e-6
    )
