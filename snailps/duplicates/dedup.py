"""Near-duplicates among texts in memory.

    texts -> dedup -> Duplicates: which to keep, and what covers the others

`search` owns the rule; this module knows in which forms libraries hold texts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.quota import cores
from snailps.data.elements import column_of, decoded, is_missing
from snailps.data.in_order import in_order
from snailps.dataclass import dataclass
from snailps.duplicates._pages import PageKeys
from snailps.duplicates.search import (
    CHUNK_PAGES,
    Batch,
    Ints,
    JudgedPages,
    KeyChunk,
    Mask,
    batches_of,
    chosen,
    compared_here,
    facts_of,
    pairs_of,
    similar_pages,
)
from snailps.errors import ConfigError, DataError

CONTAINED, NEAR = 0.98, 0.85


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What `dedup` has found, in arrays with one value per text.

    Attributes
    ----------
    keep : array of bool
        True for the texts to keep: ``frame[found.keep]``, ``table.filter(found.keep)``.
    of : array of int64
        Number of the kept text that is most like this one; -1: none was found.
    contained : array of float32
        Share of the text's 3-grams of words that the text `of` has.
    near : array of float32
        Jaccard similarity of 3-grams, the greatest with any kept text that was compared.
    exact : array of bool
        Whether a kept text has the same words in the same order.
    covers : array of int64
        For how many removed texts this one stands.
    """

    keep: NDArray[np.bool_]
    of: NDArray[np.int64]
    contained: NDArray[np.float32]
    near: NDArray[np.float32]
    exact: NDArray[np.bool_]
    covers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keep)

    def __repr__(self) -> str:
        return f"Duplicates(texts={len(self)}, kept={int(self.keep.sum())})"


def dedup(
    texts: Any,
    *,
    contained: float | None = CONTAINED,
    near: float | None = NEAR,
    threads: int = 0,
    scratch: str | os.PathLike[str] = "",
) -> Duplicates:
    """Find texts that are copies, or nearly so, of others.

    A text is removed only if a *kept* text covers it: it has the same words, or at least
    `contained` of the text's 3-grams of words, or a Jaccard similarity of at least `near`.
    Complete sets are compared, so what is removed is a copy by this definition; docs/duplicates.md
    says which copies are found.  Of texts that cover each other the longest stays, then the first.

    Parameters
    ----------
    texts : sequence or column of str or bytes
        A list, or a column of NumPy, pandas, polars or Arrow.  A missing text is kept.
    contained, near : float or None
        Bounds above 0, at most 1; None: not used.  With neither only texts of equal words go.
    threads : int
        Threads; 0: one per core.  The result does not depend on it.
    scratch : path
        Folder for the 3-grams of texts that are compared, 4 bytes per word; empty: the system's.

    Returns
    -------
    Duplicates
        Arrays with one value per text: `keep`, `of`, `contained`, `near`, `exact`, `covers`.

    Raises
    ------
    ConfigError
        A bound out of range; `scratch` lacks the room.
    DataError
        `texts` is no column of texts.

    Examples
    --------
    >>> found = dedup(["one two three four", "ONE, two: three - four!", "five six"])
    >>> found.keep.tolist(), found.of.tolist()
    ([True, False, True], [-1, 0, -1])
    """
    for name, bound in (("contained", contained), ("near", near)):
        if bound is not None and (isinstance(bound, bool) or not _is_share(bound)):
            raise ConfigError(f"{name}: expected a number above 0, at most 1, or None; got {bound}")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise ConfigError(f"threads: expected 0 (one per core) or more, got {threads!r}")
    threads = threads or cores()
    column = _column(texts)
    page_keys = PageKeys()
    facts = list(in_order(lambda batch: facts_of(batch, page_keys), batches_of(column), threads))
    facts = facts or [facts_of((memoryview(b""), np.zeros(1, np.int64)), page_keys)]
    keys, exact, words = map(np.concatenate, zip(*facts, strict=True))
    del facts
    chunks = [
        KeyChunk(first, partial(_part, keys, words, first))
        for first in range(0, len(words), CHUNK_PAGES)
    ]

    def read(pages: Ints) -> Iterator[list[Batch]]:
        return ([batch] for batch in chosen(batches_of(column), pages))

    def keeps(now: JudgedPages, rows: Ints) -> Mask:
        covered = now.exact[rows]
        for values, bound in ((now.contained, contained), (now.near, near)):
            if bound is not None:
                covered = covered | (values[rows] >= np.float32(bound))
        return ~covered

    count = len(words)
    pages, found = similar_pages(
        count, partial(pairs_of, chunks, count, keys.size, threads),
        lambda pages: (words[pages], exact[pages]),
        partial(compared_here, read=read, threads=threads, scratch=os.fsdecode(scratch)), keeps,
    )  # fmt: skip
    done = JudgedPages.none(count)
    done.kept[:] = True  # a text without a pair
    arrays: tuple[NDArray[Any], ...] = done
    for values, of_pages in zip(arrays, found, strict=True):
        values[pages] = of_pages
    has_cover = done.of >= 0
    done.of[has_cover] = pages[done.of[has_cover]]
    return Duplicates(done.kept, done.of, done.contained, done.near, done.exact, done.covers())


def _part(
    keys: NDArray[np.uint64], words: NDArray[np.uint32], first: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    here = slice(first, first + CHUNK_PAGES)
    return keys[here], words[here]


def _is_share(bound: Any) -> bool:
    try:
        return bool(0 < bound <= 1)
    except TypeError:
        return False


def _column(texts: Any) -> Any:
    """The texts in a form that can be read twice, with an empty one in place of a missing one."""
    if isinstance(texts, (str, bytes)):
        raise DataError(f"texts: expected a list or column of texts, got one text: {texts!r:.60}")
    if isinstance(texts, (Mapping, Set)) or not isinstance(texts, Iterable):
        raise DataError(f"texts: expected a list or column of texts, got {texts!r:.60}")
    column = column_of(texts, "texts")
    if hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__"):
        with suppress(ImportError):  # without pyarrow a column is a sequence of texts
            return _arrow_column(importlib.import_module("pyarrow"), column)
    rows: list[Any] = column if isinstance(column, list) else list(column)
    if any(map(is_missing, rows)):
        return ["" if is_missing(text) else text for text in rows]
    return rows


def _arrow_column(arrow: Any, column: Any) -> Any:
    try:
        texts = decoded(arrow.chunked_array(column))
    except (TypeError, ValueError, arrow.ArrowException):
        return column  # `batches_of` says what is wrong with it
    kind = str(texts.type)
    if texts.null_count and kind.startswith(("string", "large_string", "null")):
        return texts.cast("large_string").fill_null("")
    if texts.null_count and kind.startswith(("binary", "large_binary")):
        return texts.cast("large_binary").fill_null(b"")
    return texts
