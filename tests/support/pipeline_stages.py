"""Stages of pipelines for tests: importable by the workers that run them."""

import itertools
import sys

import snailps
from snailps.data.pipeline import LAPS, Lap


class Numbers(snailps.Stage):
    """Source: 0 to n - 1."""

    def __init__(self, n):
        self.n = n

    def __call__(self, items):
        yield from range(self.n)


class Again(Numbers):
    """Source: 0 to n - 1, and all of it again."""

    def __call__(self, items):
        for lap in itertools.count():
            yield from range(self.n)
            if lap < LAPS:
                yield Lap()


class Nothing(snailps.Stage):
    """Makes nothing of anything."""

    def __call__(self, items):
        for _ in items:
            yield from ()


class Others(snailps.Stage):
    """Numbers of words that follow those of two words."""

    def __call__(self, items):
        for ids in items:
            yield ids + ids.dtype.type(2)


class Last(snailps.Stage):
    """The last of every `n` items, for however many times all of them that is."""

    gathers = True

    def __init__(self, n):
        self.n = n

    def __call__(self, items):
        while True:
            yield list(itertools.islice(items, self.n))[-1]


class Twice(snailps.Stage):
    """Every item, two times."""

    def __call__(self, items):
        for item in items:
            yield item
            yield item


class Fails(snailps.Stage):
    """Breaks at an item."""

    def __init__(self, at):
        self.at = at

    def __call__(self, items):
        for item in items:
            if item == self.at:
                raise ValueError(f"no {item}, please")
            yield item


class Awkward(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, number, why):
        super().__init__(f"no {number}, {why}")


class FailsAwkwardly(snailps.Stage):
    """Raises what cannot be pickled."""

    def __call__(self, items):
        for item in items:
            raise Awkward(item, "please")
        yield


class Leaves(snailps.Stage):
    """Ends its thread or process in the midst."""

    def __call__(self, items):
        for _ in items:
            sys.exit(0)
        yield


class LongWords(snailps.Stage):
    """Leaves out words of less than four letters."""

    def __call__(self, items):
        for words in items:
            yield b" ".join(word for word in words.split() if len(word) > 3)


class Texts(snailps.Stage):
    """Makes what no learner can use."""

    def __call__(self, items):
        for _ in items:
            yield "a text"
