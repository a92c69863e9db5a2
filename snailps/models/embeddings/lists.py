"""The best items of all users of a model, block by block, and files of them.

    FactorModel -> best_lists -> users, items, values, block by block -> ListWriter -> a file

Memory is that of the model, a copy of the items' rows and some blocks, whatever the number of
users.  Must not know the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError
from snailps.files.extras import optional_module
from snailps.models.embeddings import ranking
from snailps.models.embeddings.queries import FactorModel
from snailps.models.embeddings.ranking import Candidates
from snailps.vectors.words import to_bytes

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
    allowed = None
    if only is not None:
        numbers = model.numbers("items", only)
        allowed = np.unique(numbers[numbers >= 0]).astype(np.int32)
        if not len(allowed):
            raise DataError(
                f"{model.path}: knows none of the {len(only):,} items to choose from, the first is "
                f"{only[0]!r:.60}"
                if only
                else f"{model.path}: got no items to choose from"
            )
    queries, rows, shift = model.factors_to_rank()
    candidates = Candidates(rows if allowed is None else rows[allowed], allowed)
    for first, items, products in ranking.best_lists(
        queries, candidates, k, model.left_out(known), threads
    ):
        yield first, items, products + shift[first : first + len(items), None]


class ListWriter:
    """Writes lists: rows of user, item and value, one list after the other.

    `users` counts those who have a list, `without` those for whom no item is left.
    """

    def __init__(self, model: FactorModel, file: IO[bytes], format: Format) -> None:
        self.users = self.without = 0
        self._model, self._file = model, file
        self._parquet: Any = None
        if format == "parquet":
            self._arrow = optional_module("pyarrow", "lists as Parquet", "snailps[data]")
            parquet = optional_module("pyarrow.parquet", "lists as Parquet", "snailps[data]")
            arrow = self._arrow
            self._names = [self._named(kind) for kind in model.kinds]
            kinds = [*(names.type for names in self._names), arrow.float32()]
            schema = arrow.schema(list(zip(("user", "item", "value"), kinds, strict=True)))
            self._parquet = parquet.ParquetWriter(file, schema)
        else:
            self._texts = [
                list(map(to_bytes, map(str, names))) for names in (model.users, model.items)
            ]

    def _named(self, kind: str) -> Any:
        """The names of a kind as an array: as whole numbers if all are, like the columns of the
        tables that they come from."""
        names, arrow = self._model.names_of(kind), self._arrow
        if names and self._model.may_be_whole(kind):
            whole = list(map(int, names))
            if min(whole) >= -(1 << 63) and max(whole) < 1 << 63:
                return arrow.array(whole, arrow.int64())
        return arrow.array(list(map(str, names)), arrow.string())

    def write(self, lists: Lists) -> None:
        first, items, values = lists
        users = np.repeat(np.arange(first, first + len(items)), items.shape[1])
        there = items.ravel() >= 0
        columns = users[there], items.ravel()[there], values.ravel()[there]
        listed = int((items >= 0).any(axis=1).sum())
        self.users, self.without = self.users + listed, self.without + len(items) - listed
        if self._parquet is None:
            of_users, of_items = self._texts
            self._file.write(
                b"".join(
                    b"%b\t%b\t%.9g\n" % (of_users[user], of_items[item], value)
                    for user, item, value in zip(*(c.tolist() for c in columns), strict=True)
                )
            )
            return
        named = [names.take(numbers) for names, numbers in zip(self._names, columns, strict=False)]
        named.append(self._arrow.array(columns[2], self._arrow.float32()))
        self._parquet.write_table(self._arrow.table(named, schema=self._parquet.schema))

    def close(self) -> None:
        """Write the end of the file."""
        if self._parquet is not None:
            self._parquet.close()
