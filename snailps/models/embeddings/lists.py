"""The best items of all users of a model, block by block, and files of them.

    FactorModel -> best_lists -> users, items, values, a block a core -> ListWriter -> a file

Exact: every item that is not left out is scored, by products of blocks.  Memory is that of the
model and of some blocks, whatever the number of users.  Must not know the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data.extras import optional_module
from snailps.data.in_order import in_order
from snailps.errors import DataError
from snailps.models.embeddings.queries import FactorModel
from snailps.models.embeddings.ranking import BLOCK_SCORES
from snailps.vectors.words import to_bytes

INSERTED = 1000
"""Items of the longest lists that the kernel makes; longer ones are sorted."""
Format = Literal["tsv", "parquet"]
Lists = tuple[int, NDArray[np.int32], NDArray[np.floating[Any]]]
"""First user of a block; items (users, k) and their values.  -1: no item is left."""


def best_lists(
    model: FactorModel,
    k: int,
    *,
    known: Sequence[NDArray[np.int32]] = (),
    only: Sequence[str] | None = None,
    threads: int = 0,
) -> Iterator[Lists]:
    """The `k` best items of each user, best first, with their values.

    Leaves out the user's items in the training, if the model's file has them, and in `known`:
    arrays of pairs, numbers of users and items (2, n).  `only` restricts the lists to these items;
    DataError if the model knows none of them.
    """
    allowed = np.arange(len(model.items), dtype=np.int32)
    if only is not None:
        numbers = model.numbers("items", only)
        allowed = np.unique(numbers[numbers >= 0]).astype(np.int32)
        if not len(allowed):
            raise DataError(f"{model.path}: knows none of the {len(only):,} items to choose from")
    k = min(k, len(allowed))  # lists are as long as can be, memory is not that of a wish
    column = np.full(len(model.items), -1, np.int32)
    column[allowed] = np.arange(len(allowed), dtype=np.int32)
    pairs = [np.asarray(some, np.int64) for some in (*model.known_pairs(), *known)]
    users, items = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)
    users, columns = users[column[items] >= 0], column[items]
    columns = columns[columns >= 0]
    order = np.argsort(users, kind="stable")
    users, columns = users[order], columns[order]
    queries, candidates, shift = model.factors_to_rank()
    candidates = np.ascontiguousarray(candidates[allowed])

    def of(at: slice) -> Lists:
        scores = queries[at] @ candidates.T
        begin, end = np.searchsorted(users, [at.start, at.stop])
        scores[users[begin:end] - at.start, columns[begin:end]] = -np.inf
        places, values = _top(scores, k)
        chosen = np.where(places >= 0, allowed[places], -1).astype(np.int32)
        return at.start, chosen, values + shift[at, None]

    threads = threads or kernels.cores()
    step = max(1, min(BLOCK_SCORES // max(1, len(allowed)), -(-len(queries) // threads)))
    blocks = (slice(at, min(len(queries), at + step)) for at in range(0, len(queries), step))
    yield from in_order(of, blocks, threads)


def _top(scores: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """`kernels.top_columns`, by a sort where lists are long: the kernel inserts into a list, whose
    time grows with its length (20,000 of 20,000 items: 234 ms a user, sorted 2)."""
    if k <= INSERTED:
        return kernels.top_columns(scores, k)
    places = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(scores, places, axis=1)
    return np.where(values > -np.inf, places, -1), values


class ListWriter:
    """Writes lists: rows of user, item and value, one list after the other."""

    def __init__(self, model: FactorModel, file: IO[bytes], format: Format) -> None:
        self.users = 0
        self._model, self._file = model, file
        self._parquet: Any = None
        if format == "parquet":
            self._arrow = optional_module("pyarrow", "lists as Parquet", "snailps[data]")
            parquet = optional_module("pyarrow.parquet", "lists as Parquet", "snailps[data]")
            arrow = self._arrow
            kinds = [self._kind(model.users), self._kind(model.items), arrow.float32()]
            schema = arrow.schema(list(zip(("user", "item", "value"), kinds, strict=True)))
            self._names = [
                arrow.array(names, kind)
                for names, kind in zip((model.users, model.items), kinds, strict=False)
            ]
            self._parquet = parquet.ParquetWriter(file, schema)
        else:
            self._texts = [
                list(map(to_bytes, map(str, names))) for names in (model.users, model.items)
            ]

    def _kind(self, names: Sequence[Any]) -> Any:
        is_whole = bool(len(names)) and isinstance(names[0], int)
        return self._arrow.int64() if is_whole else self._arrow.string()

    def write(self, lists: Lists) -> None:
        first, items, values = lists
        users = np.repeat(np.arange(first, first + len(items)), items.shape[1])
        there = items.ravel() >= 0
        columns = users[there], items.ravel()[there], values.ravel()[there]
        self.users += len(items)
        if self._parquet is None:
            of_users, of_items = self._texts
            self._file.write(
                b"".join(
                    b"%b\t%b\t%.9g\n" % (of_users[user], of_items[item], value)
                    for user, item, value in zip(*(c.tolist() for c in columns), strict=True)
                )
            )
            return
        named = [names.take(some) for names, some in zip(self._names, columns, strict=False)]
        named.append(self._arrow.array(columns[2], self._arrow.float32()))
        self._parquet.write_table(self._arrow.table(named, schema=self._parquet.schema))

    def close(self) -> None:
        """Write the end of the file."""
        if self._parquet is not None:
            self._parquet.close()
