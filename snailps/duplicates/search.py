"""Which pages of a collection does a kept page cover?  Keys find pairs, complete sets judge them.

    texts -> facts_of -> PageFacts -> similar_pages: pairs -> CandidatePairs
    texts of the pages in pairs, read again -> write_sets -> verified -> Overlaps of the pairs
    Overlaps -> judged(keeps) -> JudgedPages: what a kept page has of each, and which are kept

Pages have an order: the longest first, then the least number.  The first page of a key is its
anchor.  A page is judged by the *kept* ones among its anchors, each of them before it in the order,
so a page that is removed always has a kept cover, and chains of similar pages end.  Every step is
a function of the pages alone: threads, and the sizes of batches, change nothing.
Must not know where texts come from, nor what removes a page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.abi.quota import memory
from snailps.data.in_order import in_order
from snailps.duplicates._pages import NO_KEY, KeyTable, PageKeys, sets_of, shared_grams
from snailps.errors import ConfigError
from snailps.files.atomic import free_bytes, human_bytes, write_error
from snailps.vectors.texts import WholeLines, pieces_of

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Batch = tuple[memoryview, Ints]
"""Bytes of texts, and where each begins, and the last one ends."""
PageSet = tuple[NDArray[np.uint32], Ints]
"""Sets of some pages, as of `sets_of`: 3-grams, and where each page's begin."""
NUMBER_BITS = 40
WORDS_MAX = (1 << 24) - 1
"""A row of the table: 24 bits of inverted length, then the page's number.  The least one wins."""
OLD = np.uint64(0x5851F42D4C957F2D)
"""Tells the key of old pages from that of new ones; any number would do."""
CHUNK_PAGES = 1 << 14
"""Pages whose keys one thread takes at a time."""
CHUNK_PAIRS = 1 << 12
PAGE_BYTES, PAIR_BYTES, PAIRED_BYTES = 48, 100, 90
"""Memory, about: of a page in the table of keys; of a pair; of a page that is in pairs.  A page has
no more pairs than keys."""


class PageFacts(NamedTuple):
    """Of consecutive pages: keys, uint64[pages, ...]; hash of all words, uint64[pages, 2]; words.

    The last key is the hash of all words: so equal pages meet even where longer pages have the
    same 3-grams, and `exact` misses none.
    """

    keys: NDArray[np.uint64]
    exact: NDArray[np.uint64]
    words: NDArray[np.uint32]


class KeyChunk(NamedTuple):
    """Consecutive pages, read as often as they are needed: `CHUNK_PAGES` of them or so.

    `first`: number of the first page; `load`: gives the keys, and the number of words of each page.
    `is_old`: pages of an index, which stay, whatever is found; `meets_old`: there are such.
    """

    first: int
    load: Callable[[], tuple[Keys, NDArray[np.uint32]]]
    is_old: bool = False
    meets_old: bool = False


class AnchorTable(Protocol):
    """The least value of each key that came more than once: `KeyTable`, or one at servers."""

    def note(self, keys: Keys) -> None: ...

    def push(self, keys: Keys, values: Keys) -> None: ...

    def pull(self, keys: Keys) -> Keys: ...


class CandidatePairs(NamedTuple):
    """Pages and their anchors, each pair once, sorted by page; `equal`: of the same words."""

    page: Ints
    anchor: Ints
    equal: Mask

    @property
    def pages(self) -> Ints:
        """Pages whose sets are to be compared, ascending."""
        open_pairs = ~self.equal
        return np.unique(np.concatenate([self.page[open_pairs], self.anchor[open_pairs]]))


class Overlaps(NamedTuple):
    """Pairs, with the shares of 3-grams: of the page's own in the anchor, and of both together."""

    page: Ints
    anchor: Ints
    equal: Mask
    contained: NDArray[np.float32]
    near: NDArray[np.float32]


class JudgedPages(NamedTuple):
    """By page: the most that a kept anchor has of it; `of`: the anchor, -1 if there is none."""

    contained: NDArray[np.float32]
    near: NDArray[np.float32]
    exact: Mask
    of: Ints
    kept: Mask

    @classmethod
    def none(cls, pages: int) -> JudgedPages:
        return cls(
            np.zeros(pages, np.float32), np.zeros(pages, np.float32), np.zeros(pages, bool),
            np.full(pages, -1), np.zeros(pages, bool),
        )  # fmt: skip

    def covers(self) -> Ints:
        """By page, how many removed pages it is the cover of."""
        removed = self.of[~self.kept & (self.of >= 0)]
        return np.bincount(removed, minlength=len(self.of))


def batches_of(texts: object) -> Iterator[Batch]:
    """Texts in pieces for one thread."""
    return map(_batch, pieces_of(texts, what="text"))


def _batch(piece: WholeLines) -> Batch:
    data = np.frombuffer(piece.data, np.uint8)
    if piece.offsets is not None:
        return data.data, piece.offsets
    # A line keeps its newline: no word has one.
    begins: Ints = np.concatenate([[0], np.flatnonzero(data == ord("\n")) + 1])
    return data.data, begins[: piece.lines + 1]


def facts_of(batch: Batch, page_keys: PageKeys) -> PageFacts:
    """What the search needs of pages beside their sets."""
    keys, exact, words = page_keys.of(*batch)
    whole = np.where(words > 0, exact[:, 0], np.uint64(NO_KEY))
    return PageFacts(np.column_stack([keys, whole]), exact, words)


def order_of(words: NDArray[np.uint32], first: int = 0) -> NDArray[np.uint64]:
    """Places in the order of consecutive pages."""
    shorter = np.uint64(WORDS_MAX) - np.minimum(words, WORDS_MAX).astype(np.uint64)
    numbers = np.arange(first, first + len(words), dtype=np.uint64)
    places: NDArray[np.uint64] = shorter << np.uint64(NUMBER_BITS) | numbers
    return places


def _of_old(keys: Keys) -> Keys:
    """What stands for a key's first old page in the table, beside its first new one: both are
    anchors, as an old page that shares a key need not cover what a new one does."""
    return np.where(keys == np.uint64(NO_KEY), keys, keys ^ OLD)


def note_keys(table: AnchorTable, chunk: KeyChunk) -> None:
    """Say which keys there are: only those of several pages get rows."""
    keys = chunk.load()[0]
    if not chunk.is_old:
        table.note(keys)
    if chunk.is_old or chunk.meets_old:
        table.note(_of_old(keys))


def push_pages(table: AnchorTable, chunk: KeyChunk) -> None:
    """Offer pages as anchors of their keys."""
    keys, words = chunk.load()
    values = order_of(words, chunk.first)
    table.push(
        _of_old(keys) if chunk.is_old else keys,
        np.repeat(values, keys.shape[1]).reshape(keys.shape),
    )


def pull_anchors(table: AnchorTable, chunk: KeyChunk) -> tuple[Ints, Ints]:
    """New pages, ascending, and their anchors, each pair once."""
    if chunk.is_old:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = chunk.load()[0]
    values = table.pull(keys)
    if chunk.meets_old:
        values = np.column_stack([values, table.pull(_of_old(keys))])
    own = np.arange(chunk.first, chunk.first + len(values))[:, None]
    numbers = (values & np.uint64((1 << NUMBER_BITS) - 1)).astype(np.int64)
    anchors = np.sort(np.where(values == np.uint64(NO_KEY), own, numbers), axis=1)
    is_new = np.ones(anchors.shape, bool)
    is_new[:, 1:] = anchors[:, 1:] != anchors[:, :-1]
    rows, columns = np.nonzero(is_new & (anchors != own))
    return rows + chunk.first, anchors[rows, columns]


TABLE_PASSES = note_keys, push_pages, pull_anchors
"""Each over all chunks before the next one begins: a key gets its row only once all pages were
noted, and is asked for once all were pushed."""


def pairs_of(chunks: Sequence[KeyChunk], pages: int, count: int, threads: int) -> tuple[Ints, Ints]:
    """Each page with the anchors of its keys; `count`: of all keys of as many pages, old ones too.
    ConfigError: no memory."""
    check_memory(pages, PAGE_BYTES * pages)
    table, found = KeyTable(max(1, count)), list[tuple[Ints, Ints]]()
    for each in (note_keys, push_pages):
        for _ in in_order(partial(each, table), chunks, threads):
            pass
    found += in_order(partial(pull_anchors, table), chunks, threads)
    page, anchor = (
        np.concatenate([np.empty(0, np.int64), *(pair[side] for pair in found)]) for side in (0, 1)
    )
    return page, anchor


def set_bytes(words: NDArray[np.uint32]) -> int:
    """Bytes that the sets of pages of so many words take at most."""
    return 4 * int(np.maximum(words.astype(np.int64) - 2, 1).sum())


def check_disk(folder: Path, pages: int, foreseen: int, advice: str) -> None:
    """ConfigError: the disk of `folder` lacks the room that `set_bytes` has foreseen."""
    free = free_bytes(folder)
    if free is not None and free < foreseen:
        raise ConfigError(
            f"the 3-grams of {pages:,} texts that may be copies need up to {human_bytes(foreseen)} "
            f"of disk, and {folder} has {human_bytes(free)} free: {advice}"
        )


def write_sets(
    readings: Iterable[Iterable[Batch]],
    threads: int,
    write: Callable[[Any], object],
    pages: int,
    stored: Iterable[PageSet] = (),
) -> Ints:
    """Write the 3-grams of so many pages one after the other; return where each page's begin.

    A reading is cut into batches by the thread that makes their sets; those that are `stored`
    follow.
    """
    sizes = [np.zeros(1, np.int64)]

    def sets(batches: Iterable[Batch]) -> list[PageSet]:
        return [sets_of(*batch) for batch in batches]

    for made in chain(in_order(sets, readings, threads), ([made] for made in stored)):
        for grams, first in made:
            sizes.append(np.diff(first))
            write(grams.view(np.uint8).data)
    first = np.cumsum(np.concatenate(sizes), dtype=np.int64)
    if len(first) != pages + 1:
        raise AssertionError(f"{len(first) - 1:,} texts were read of {pages:,}")
    return first


def chosen(batches: Iterable[Batch], pages: Ints) -> Iterator[Batch]:
    """Of batches of consecutive pages, those with these numbers (ascending) alone."""
    first = 0
    for data, begins in batches:
        bounds = np.searchsorted(pages, [first, first + len(begins) - 1])
        rows = pages[bounds[0] : bounds[1]] - first
        first += len(begins) - 1
        if len(rows) == len(begins) - 1:
            yield data, begins
        elif len(rows):
            spans = [data[begins[row] : begins[row + 1]] for row in rows.tolist()]
            sizes = begins[rows + 1] - begins[rows]
            yield memoryview(b"".join(spans)), np.concatenate([[0], np.cumsum(sizes)])


def shares_of(
    shared: NDArray[np.uint32], of_page: Ints, of_anchor: Ints
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """By pair, contained and near: of sizes of sets, and of what two have in common."""
    return (
        (shared / of_page).astype(np.float32),
        (shared / (of_page + of_anchor - shared)).astype(np.float32),
    )


def verified(
    pairs: CandidatePairs, pages: Ints, grams: NDArray[np.uint32], first: Ints, threads: int
) -> Overlaps:
    """The pairs, compared by complete sets; `pages`: whose sets these are, ascending."""
    contained = np.ones(len(pairs.page), np.float32)
    near = contained.copy()
    open_pairs = np.flatnonzero(~pairs.equal)
    # By anchor: an anchor of many pages stays in the cache.
    open_pairs = open_pairs[np.argsort(pairs.anchor[open_pairs], kind="stable")]
    places = [np.searchsorted(pages, side[open_pairs]) for side in (pairs.page, pairs.anchor)]

    def shared(begin: int) -> tuple[int, NDArray[np.uint32]]:
        page, anchor = (side[begin : begin + CHUNK_PAIRS] for side in places)
        return begin, shared_grams(grams, first, page, anchor)

    sizes = np.diff(first)
    for begin, both in in_order(shared, range(0, len(open_pairs), CHUNK_PAIRS), threads):
        rows = open_pairs[begin : begin + CHUNK_PAIRS]
        of_page, of_anchor = (sizes[side[begin : begin + CHUNK_PAIRS]] for side in places)
        contained[rows], near[rows] = shares_of(both, of_page, of_anchor)
    return Overlaps(*pairs, contained, near)


def compared_here(
    pairs: CandidatePairs,
    pages: Ints,
    foreseen: int,
    *,
    read: Callable[[Ints], Iterable[Iterable[Batch]]],
    threads: int,
    scratch: str | Path,
    stored: Callable[[Ints], Iterable[PageSet]] = lambda pages: (),
) -> Overlaps:
    """Compare the pairs in this process; the sets lie in a file without a name.

    `read`: the texts of some pages, in their order; `stored`: sets of those that are not read.
    """
    folder = Path(scratch or tempfile.gettempdir())
    advice = "name a folder with more room, scratch (--scratch)"
    check_disk(folder, len(pages), foreseen, advice)
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed below)
    except OSError as error:
        raise ConfigError(f"scratch {folder}: {error.strerror or error}") from error

    def write(grams: Any) -> None:
        try:
            file.write(grams)
            file.flush()
        except OSError as error:
            raise write_error(folder / "scratch", error, None) from error

    with file:
        first = write_sets(read(pages), threads, write, len(pages), stored(pages))
        grams = np.memmap(file, np.uint32, "r") if first[-1] else np.empty(0, np.uint32)
        return verified(pairs, pages, grams, first, threads)


def judged(
    overlaps: Overlaps,
    words: NDArray[np.uint32],
    keeps: Callable[[JudgedPages, Ints], Mask],
    new: int | None = None,
) -> JudgedPages:
    """Judge all pages, in waves: a page once all its anchors are judged.

    `keeps`: which of some pages stay, by what the kept ones among their anchors have of them;
    `new`: how many are judged, the first ones: the others stay.
    """
    count, order = len(words), order_of(words)
    new = count if new is None else new
    best = np.lexsort(
        (
            order[overlaps.anchor],
            overlaps.anchor < new,
            -overlaps.near,
            -overlaps.contained,
            overlaps.page,
        )
    )  # the greatest contained, then near, then an old one, then the first in the order
    page, anchor, equal, contained, near = (array[best] for array in overlaps)
    begins = np.searchsorted(page, np.arange(count + 1))
    by_anchor = np.argsort(anchor, kind="stable")
    followers = np.searchsorted(anchor[by_anchor], np.arange(count + 1))
    waiting = np.diff(begins)
    done = JudgedPages.none(count)
    wave = np.flatnonzero(waiting == 0)
    while len(wave):
        rows = _ranges(begins, wave)
        rows = rows[done.kept[anchor[rows]]]
        if len(rows):
            firsts = np.flatnonzero(np.diff(page[rows], prepend=-1))
            of_pages = page[rows[firsts]]
            done.contained[of_pages] = contained[rows[firsts]]
            done.near[of_pages] = np.maximum.reduceat(near[rows], firsts)
            done.exact[of_pages] = np.logical_or.reduceat(equal[rows], firsts)
            done.of[of_pages] = anchor[rows[firsts]]
        done.kept[wave] = keeps(done, wave)
        done.kept[wave[wave >= new]] = True
        pages, counts = np.unique(page[by_anchor[_ranges(followers, wave)]], return_counts=True)
        waiting[pages] -= counts
        wave = pages[waiting[pages] == 0]
    return done


def _ranges(begins: Ints, chosen: Ints) -> Ints:
    """The numbers ``begins[row] .. begins[row + 1]`` of all chosen rows, one after the other."""
    sizes = begins[chosen + 1] - begins[chosen]
    ends = np.cumsum(sizes)
    numbers: Ints = np.arange(ends[-1] if len(ends) else 0)
    numbers += np.repeat(begins[chosen] - ends + sizes, sizes)
    return numbers


def check_memory(pages: int, needed: int) -> None:
    """ConfigError: there is less memory than so many bytes."""
    free, why = memory()
    if 0 < free < needed:
        raise ConfigError(
            f"{pages:,} texts need about {human_bytes(needed)} of memory, and {human_bytes(free)} "
            f"is free ({why}): compare {pages * free // needed:,} at once at most"
        )


def similar_pages(
    pages: int,
    find_pairs: Callable[[], tuple[Ints, Ints]],
    facts: Callable[[Ints], tuple[NDArray[np.uint32], NDArray[np.uint64]]],
    compare: Callable[[CandidatePairs, Ints, int], Overlaps],
    keeps: Callable[[JudgedPages, Ints], Mask],
    note: Callable[[str], object] = lambda words: None,
) -> tuple[Ints, JudgedPages]:
    """Search so many pages: those that are in pairs, ascending, and what each has of a kept one.

    Pages with higher numbers are old ones, which cover others and stay.

    `of` is a place in the pages that are returned.  All others are as a page without an anchor:
    nothing is held of them.  `find_pairs`: like `pairs_of`; `facts`: words and `exact` of some
    pages; `compare`: like `compared_here`, of the pairs, the pages in them that are not equal and
    the bytes of their sets; `note`: called with what it needs.  ConfigError: there is less.
    """
    page, anchor = find_pairs()
    paired = np.unique(np.concatenate([page, anchor]))
    needed = PAIR_BYTES * len(page) + PAIRED_BYTES * len(paired)
    check_memory(pages, needed)
    words, exact = facts(paired)
    places = np.searchsorted(paired, page), np.searchsorted(paired, anchor)
    pairs = CandidatePairs(page, anchor, (exact[places[0]] == exact[places[1]]).all(axis=1))
    asked = pairs.pages
    foreseen = set_bytes(words[np.searchsorted(paired, asked)])
    note(
        f"{pages:,} texts: {len(page):,} pairs of possible copies, which need about "
        f"{human_bytes(needed)} of memory; the 3-grams of {len(asked):,} texts are compared, and "
        f"need up to {human_bytes(foreseen)} of disk"
    )
    overlaps = compare(pairs, asked, foreseen)
    # In the order are the places as the numbers are.
    overlaps = overlaps._replace(page=places[0], anchor=places[1])
    return paired, judged(overlaps, words, keeps, int(np.searchsorted(paired, pages)))
