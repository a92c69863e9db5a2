"""Sets of pages that a cluster's workers compare, in files of their tasks.

    AskedPairs: what the command wants of a task -> PageSets: of its pages, written by one worker
    AskedPairs, PageSets of two tasks -> compared -> shares of the pairs, by any worker

A task is compared with one other task at a time, a few pairs at a time: memory does not grow with
the number of pages.  Must not know where the files are, nor what they are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.data.in_order import in_order
from snailps.duplicates._pages import shared_grams
from snailps.duplicates.search import Batch, Ints, PageSet, shares_of, write_sets
from snailps.files.atomic import atomic_file

CHUNK_GRAMS = 1 << 22
"""3-grams that a thread compares at a time, 16 MiB, or those of one pair."""


class AskedPairs:
    """What is to be compared of a task, mapped.

    `pages`: of the task, ascending, whose sets are needed; `rows`: of these, in the task; `page`,
    `anchor`: the task's pairs, by anchor, which is a page of any task.
    """

    def __init__(self, path: Path) -> None:
        numbers = np.asarray(np.memmap(path, np.int64, "r"))
        pages, pairs = numbers[:2].tolist()
        cuts = np.cumsum([2, pages, pages, pairs])
        self.pages, self.rows, self.page, self.anchor = np.split(numbers, cuts)[1:]

    @staticmethod
    def write(path: Path, pages: Ints, rows: Ints, page: Ints, anchor: Ints) -> None:
        sizes = np.array([len(pages), len(page)])
        with atomic_file(path) as file:
            file.writelines(part.tobytes() for part in (sizes, pages, rows, page, anchor))


class PageSets:
    """The sets of a task's `pages`, mapped: all 3-grams, then where each page's begin."""

    def __init__(self, path: Path, pages: Ints) -> None:
        words = np.asarray(np.memmap(path, np.uint32, "r"))
        begins = len(words) - 2 * (len(pages) + 1)
        self._pages, self._grams = pages, words[:begins]
        self._first: Ints = words[begins:].view(np.int64)

    @staticmethod
    def write(path: Path, readings: Iterable[Iterable[Batch]], pages: int, threads: int) -> None:
        with atomic_file(path) as file:
            first = write_sets(readings, threads, file.write, pages)
            file.write(bytes(4 * (int(first[-1]) % 2)))  # for numbers of 8 bytes to be aligned
            file.write(first.tobytes())

    def places(self, pages: Ints) -> Ints:
        return np.searchsorted(self._pages, pages)

    def sizes(self, places: Ints) -> Ints:
        return self._first[places + 1] - self._first[places]

    def grams(self, place: int) -> NDArray[np.uint32]:
        begin, end = self._first[place : place + 2]
        return self._grams[begin:end]


class KeptSets:
    """The sets of the rows of a task that stay, as they are written: all 3-grams, the size of each
    set, how many there are.  Texts without words have none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sizes = file, [np.empty(0, np.int64)]

    def write(self, sets: Iterable[PageSet]) -> None:
        for grams, first in sets:
            self._sizes.append(np.diff(first))
            self._file.write(grams.tobytes())

    def finish(self) -> None:
        sizes = np.concatenate(self._sizes)
        sizes = sizes[sizes > 0]
        self._file.write(bytes(4 * (int(sizes.sum()) % 2)))
        self._file.write(np.append(sizes, len(sizes)).tobytes())


class StoredSets:
    """What `KeptSets` has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        end = path.stat().st_size // 8
        pages = int(np.fromfile(path, np.int64, offset=8 * (end - 1))[0])
        self.sizes = np.fromfile(path, np.int64, pages, offset=8 * (end - 1 - pages))

    def grams(self) -> Iterator[NDArray[np.uint32]]:
        left = int(self.sizes.sum())
        with self._path.open("rb") as file:
            while left:
                grams = np.fromfile(file, np.uint32, min(left, CHUNK_GRAMS))
                left -= len(grams)
                yield grams


class ComparedSets(Protocol):
    """Sets that `compared` reads: of pages, by their places."""

    def places(self, pages: Ints) -> Ints: ...

    def sizes(self, places: Ints) -> Ints: ...

    def grams(self, place: int) -> NDArray[np.uint32]: ...


def compared(
    own: PageSets, page: Ints, other: ComparedSets, anchor: Ints, threads: int
) -> NDArray[np.float32]:
    """Contained and near of pairs, (n, 2): of pages in `own` and anchors in `other`."""
    pages, anchors = own.places(page), other.places(anchor)
    ends = np.cumsum(own.sizes(pages) + other.sizes(anchors))
    cuts = np.searchsorted(ends, np.arange(CHUNK_GRAMS, ends[-1], CHUNK_GRAMS)) + 1
    bounds = pairwise(np.unique([0, *cuts, len(page)]).tolist())
    chunks = [(pages[begin:end], anchors[begin:end]) for begin, end in bounds]
    return np.concatenate([*in_order(partial(_compared, own, other), chunks, threads)])


def _compared(own: PageSets, other: ComparedSets, pairs: tuple[Ints, Ints]) -> NDArray[np.float32]:
    (pages, page), (anchors, anchor) = (np.unique(side, return_inverse=True) for side in pairs)
    sets = [*map(own.grams, pages.tolist()), *map(other.grams, anchors.tolist())]
    first = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    shared = shared_grams(np.concatenate(sets), first, page, anchor + len(pages))
    return np.column_stack(shares_of(shared, own.sizes(pairs[0]), other.sizes(pairs[1])))
