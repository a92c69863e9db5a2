"""Lines are held out one by one: no block of users x items, no share but the asked one."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from snailps.data._text import hashes_of_rows, split_lines
from snailps.data.held_out import HeldOut, least_draw, lines_of_share
from snailps.data.name_columns import Columns
from snailps.data.packed_words import PackedWords
from snailps.models.classifier.held_out import split_of
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.embeddings.held_out import HeldOutRule, draws_of, pairs_held_out

USERS, ITEMS = 120, 160
DEVIATIONS = 5
"""A sum of many terms is beyond this by chance once in 1.7 million times."""
NAMES = {
    "numbers": (b"%d", b"%d"),
    "long": (b"user-with-a-long-name-%06d", b"i%d"),
}
WAYS = ["line", "user", "text", "rows"]


def pairs():
    return np.repeat(np.arange(USERS), ITEMS), np.tile(np.arange(ITEMS), USERS)


def names_of(pattern, numbers):
    return PackedWords.of([pattern % number for number in numbers.tolist()])


def held_pairs(way, kind, share, seed):
    """Which of all pairs are held out, bool (USERS, ITEMS), drawn in one of `WAYS`."""
    users, items = pairs()
    user_names, item_names = (
        names_of(pattern, numbers)
        for pattern, numbers in zip(NAMES[kind], (users, items), strict=True)
    )
    if way == "text":
        lines = [b"%s %s\n" % pair for pair in zip(user_names, item_names, strict=True)]
        _, text = split_lines(b"".join(lines), seed, least_draw(share))
        held = np.isin(lines, text.splitlines(keepends=True))
    elif way == "rows":
        keys = np.stack([users, USERS + items], axis=1).astype(np.uint64).ravel()
        ptr, values = np.arange(0, len(keys) + 1, 2), np.ones(len(keys), np.float32)
        labels = np.zeros(len(users))
        hashes = hashes_of_rows(labels, ptr, keys, values, np.zeros(0, np.int32), seed)
        held = hashes >= np.uint64(least_draw(share))
    else:
        lines = Columns([user_names, item_names], np.zeros(0))
        draws = draws_of(lines, seed)
        if way == "line":
            split = HeldOutRule(share, "line", np.inf, seed).split
            held = split.held_by(draws, np.zeros(0), len(draws))
        else:
            chosen = pairs_held_out(users.astype(np.int32), draws, np.zeros(0), share)
            held = np.isin(draws, chosen)
    return held.reshape(USERS, ITEMS)


def deviations(sums, variance, freedom):
    """By how many deviations a sum of squares is above that of as many normal numbers."""
    return (np.square(sums).sum() / variance - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_lines_are_drawn_one_by_one(way, kind, share):
    """Chi-square over users, over items, and over the correlations of all pairs of users and of
    items: in blocks of users x items these are far from 0.

    Of two rows of n numbers in drawn order the square of the correlation is 1 / (n - 1) on average.
    """
    for seed in (1, 2):
        held = held_pairs(way, kind, share, seed)
        variance, apart = share * (1 - share), held - share
        if way == "user":
            assert set(held.sum(1).tolist()) == {int(share * ITEMS)}  # each its share, exactly
        else:
            assert abs(deviations(apart.sum(1), ITEMS * variance, USERS)) < DEVIATIONS
        assert abs(deviations(apart.sum(0), USERS * variance, ITEMS)) < DEVIATIONS
        for rows in (apart, apart.T):
            of_pairs = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
            mean_square = 1 / (rows.shape[1] - 1)
            assert abs(deviations(of_pairs, mean_square, len(of_pairs))) < DEVIATIONS


@pytest.mark.parametrize("way", WAYS)
def test_seeds_draw_apart(way):
    first, second = (held_pairs(way, "numbers", 0.5, seed) for seed in (1, 2))
    both = (first & second).sum()
    assert abs(both - first.size / 4) < DEVIATIONS * (first.size * 3 / 16) ** 0.5


SHARES = [0.1, 0.29, 0.57, 0.58, 0.3, 0.7, 0.01, 0.07, 1 / 3, 2 / 3, 1 / 7, 0.999, 0.123456789]


@pytest.mark.parametrize("share", SHARES)
def test_a_share_of_lines_is_exact(share):
    """The most lines that are no larger share, where a share is what its digits say or a quotient
    of whole numbers."""
    counts = np.array([0, 1, 2, 3, 7, 10, 100, 300, 700, 1000, 10**9, 10**12, 21 * 10**12])
    exact = Fraction(share).limit_denominator(10**9)
    expected = [int(exact * count) for count in counts.tolist()]
    assert lines_of_share(share, counts).tolist() == expected


@pytest.mark.parametrize("share", [*SHARES, 1e-9, 1e-17, 2.0**-64, 1e-300, 1 - 2.0**-53])
def test_a_share_of_draws_is_exact(share):
    """Whole, but for the last of 2^64 draws: one at least is held out."""
    draws = (1 << 64) - least_draw(share)
    assert draws == max(1, int(Fraction(share) * (1 << 64)))


def test_share_by_time_and_of_users_is_not_rounded_twice():
    times = np.arange(100.0)
    for share, lines in ((0.1, 10), (0.29, 29), (0.57, 57), (0.58, 58)):
        draws = np.arange(100, dtype=np.uint64)
        assert len(pairs_held_out(np.zeros(100, np.int32), draws, times, share)) == lines


WEIGHED = ClassifierSettings(held_out=0.3, weight_column="votes", seed=2)
COPIES = [b"", b" __label__:2", b" __label__:0.125", b" __label__:1000000"]


def test_copies_of_a_text_are_on_one_side_whatever_their_weights():
    split, plain = split_of(WEIGHED), split_of(replace(WEIGHED, weight_column=""))
    sides = set()
    for number in range(100):
        text = b"__label__a%s the text number %d\n"
        held = {len(split.held(text % (weight, number))) > 0 for weight in COPIES}
        # As without weights: who adds some holds the same texts out.
        assert held == {len(plain.held(text % (b"", number))) > 0}
        sides |= held
    assert sides == {False, True}
    soft = ClassifierSettings(held_out=0.3, soft_labels=True, seed=2)
    for number in range(100):
        lines = [b"__label__a:%s __label__b:%s text %d" % (*pair, number) for pair in
                 ((b".75", b".25"), (b"0.5", b"0.5"), (b"1", b"0"))]  # fmt: skip
        assert len({len(split_of(soft).held(line)) > 0 for line in lines}) == 1


def test_weighed_texts_are_whole_on_either_side_and_wrong_weights_reach_the_survey():
    split = HeldOut.of(0.5, 1, b"__label__")
    text = b"".join(b"__label__x  __label__:%d  two  blanks %d\n" % (n % 5, n) for n in range(200))
    assert sorted((split.trained(text) + split.held(text)).splitlines()) == sorted(
        text.splitlines()
    )
    wrong = b"__label__:-1 text\n" * 3
    assert split.trained(wrong) + split.held(wrong) == wrong
    with pytest.raises(ValueError, match="expected a plain text of 3 bytes, got 2"):
        split_lines(b"abc", 1, 1, b"ab")
