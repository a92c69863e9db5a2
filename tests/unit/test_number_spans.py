"""Spans of numbers hold the same numbers as a set, and are as few as they can be."""

import random
from itertools import pairwise

from snailps.master.number_spans import NumberSpans


def test_spans_are_those_of_a_set():
    rng = random.Random(5)
    for _ in range(200):
        spans, numbers = NumberSpans(), set()
        for _ in range(rng.randint(1, 40)):
            first = rng.randint(1, 60)
            last = first + rng.choice((0, 0, 0, 1, 7))
            spans.add(first, last)
            numbers.update(range(first, last + 1))
        ends = [(n, m) for n, m in spans]
        assert [n for first, last in ends for n in range(first, last + 1)] == sorted(numbers)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(ends))
        assert [n for n in range(80) if n in spans] == sorted(numbers)
        for first, last in ends:
            assert {spans.around(n) for n in range(first, last + 1)} == {(first, last)}
