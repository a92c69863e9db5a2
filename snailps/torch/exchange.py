"""The traffic of one module: rows of a batch in, gradients of rows out, with a bound on staleness.

    ids of each table -> Exchange.look_up -> Lookup: one array of different rows, every id's place
    dL/d(rows) of a step -> push_together -> pushes -> at most `staleness` steps unacknowledged

It owns which ids are the same, what was pulled ahead, and which pushes are not acknowledged yet.
It must not know autograd, nor what is computed from the rows.

What holds
----------
* A pull sees every push that this process called before it: rows are stale only where they were
  pulled ahead, and then lack at most `staleness` own steps.
* A row that only padding names is neither pulled nor pushed.
* Several tables share one array, so that a batch is one gather and one gradient, and their requests
  leave together; as do those of several modules (`push_together`).
* A row that came several times in a step is pushed once, also where several modules have its table.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Keys, Rows, Table
from snailps.data._key_numbering import number_columns, number_keys
from snailps.errors import MisuseError, NotFinite
from snailps.torch._bags import add_to_rows
from snailps.torch.rows import RowClient
from snailps.transport.client._client import Pending

Ids: TypeAlias = Sequence[Keys] | Keys
"""Ids of each table, uint64 (n,); or of all, a column each: uint64 (n, tables)."""
LARGE = 1 << 15
"""Floats from which arrays are kept; smaller ones are memory that the allocator has at hand."""
KEPT = 4
"""Arrays that are kept; what is not among them is freed when it is not in use any more."""
_listed = [np.empty(0)]
UNUSED = sys.getrefcount(_listed[0])
"""References to an array that a list alone refers to, as `sys.getrefcount` counts them."""
AHEAD_MAX = 8
"""Batches that wait for their `forward`, pulled ahead; the oldest is dropped beyond that."""


class RowBuffers:
    """Arrays that are used again once nothing refers to them: fresh memory costs a fault a page.

    A tensor made of an array refers to it, as does a pull or push under way, so an array that is
    given out is in no other use.
    """

    def __init__(self) -> None:
        self._arrays: list[Rows] = []
        self._lock = threading.Lock()

    def take(self, count: int, dim: int) -> Rows:
        """An array (count, dim) of any values."""
        size = count * dim
        if size < LARGE:
            return np.empty((count, dim), np.float32)
        with self._lock:
            for at in range(len(self._arrays)):
                if sys.getrefcount(self._arrays[at]) == UNUSED and len(self._arrays[at]) >= size:
                    return self._arrays[at][:size].reshape(count, dim)
            array: Rows = np.empty(size + size // 4, np.float32)
            self._arrays = [*self._arrays[-(KEPT - 1) :], array]
            return array[:size].reshape(count, dim)


class Lookup:
    """The rows of one batch: of each table its different ones, all in one array.

    `places` int32: the row of each id, `padding_place` of padding; ids of a table behind those of
    the table before, or row by row of a matrix.  `keys` uint64: the different ids of each table;
    `starts`: where their rows begin, and the number of all.  `rows` float32 (starts[-1] +
    has_padding, dim): a row of zeros at the end stands for padding.  `is_plain`: every id came
    once, and none is padding. `ids` as looked up; of a lookup that is `kept` alone.
    """

    __slots__ = (
        "_pulls", "has_padding", "ids", "is_plain", "keys", "places", "pulled_at", "rows", "starts",
    )  # fmt: skip

    def __init__(
        self, ids: Ids, padding: Sequence[int | None], dim: int, buffers: RowBuffers
    ) -> None:
        self.ids: Ids = ()
        self.keys: list[Keys] = []
        self.has_padding = False
        if not isinstance(ids, np.ndarray):
            self._number(ids, padding)
        elif all(pad is None or not (ids[:, i] == pad).any() for i, pad in enumerate(padding)):
            unique, self.starts, places = number_columns(ids)
            pairs = zip(self.starts, self.starts[1:], strict=False)
            self.keys = [unique[start:stop] for start, stop in pairs]
            self.places = places.reshape(-1)
        else:
            self._number(np.ascontiguousarray(ids.T), padding)
            self.places = np.ascontiguousarray(self.places.reshape(ids.shape[::-1]).T).reshape(-1)
        in_order = not isinstance(ids, np.ndarray) or ids.shape[1] == 1
        self.is_plain = in_order and len(self.places) == self.starts[-1] and not self.has_padding
        self.rows = buffers.take(self.starts[-1] + self.has_padding, dim)
        self.rows[self.starts[-1] :] = 0.0
        self.pulled_at = -1
        self._pulls: list[Pending] = []

    def _number(self, ids: Sequence[Keys] | Keys, padding: Sequence[int | None]) -> None:
        self.starts = [0]
        found: list[NDArray[np.int32]] = []
        blank: list[NDArray[np.bool_] | None] = []
        for wanted, pad in zip(ids, padding, strict=True):
            mask = wanted == np.uint64(pad) if pad is not None else None
            if mask is not None and mask.any():
                self.has_padding = True
                keys, numbers = number_keys(wanted[~mask])
                places = np.empty(len(wanted), np.int32)
                places[~mask] = numbers
            else:
                mask = None
                keys, places = number_keys(wanted)
            if self.starts[-1]:
                places += self.starts[-1]
            found.append(places)
            blank.append(mask)
            self.keys.append(keys)
            self.starts.append(self.starts[-1] + len(keys))
        for places, mask in zip(found, blank, strict=True):
            if mask is not None:
                places[mask] = self.starts[-1]
        self.places = found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def padding_place(self) -> int | None:
        """The place of the row of zeros, if there is one."""
        return self.starts[-1] if self.has_padding else None

    def slices(self) -> list[tuple[int, slice]]:
        """The part of the array of every table that has rows in it."""
        return [
            (i, slice(self.starts[i], self.starts[i + 1]))
            for i in range(len(self.keys))
            if len(self.keys[i])
        ]

    def wait(self) -> Rows:
        """The rows, once they are here."""
        for pull in self._pulls:
            pull.wait()
        self._pulls.clear()
        return self.rows

    def drop(self) -> None:
        """Gives up the pulls; the array may still be written to while it exists."""
        for pull in self._pulls:
            pull.abandon()
        self._pulls.clear()

    def keep(self, ids: Ids) -> None:
        """Remembers what it was made of, by copies: the caller may write the next batch there."""
        if isinstance(ids, np.ndarray):
            self.ids = ids.copy()
        else:
            self.ids = tuple(each.copy() for each in ids)

    def is_of(self, ids: Ids) -> bool:
        """Whether this lookup was made of equal ids."""
        if isinstance(ids, np.ndarray) or isinstance(self.ids, np.ndarray):
            return type(ids) is type(self.ids) and np.array_equal(ids, self.ids)
        return len(ids) == len(self.ids) and all(map(np.array_equal, ids, self.ids))


class Exchange:
    """The tables of a module, all of one width, and what is under way of them.

    `padding`: id of each table that stands for nothing.  `staleness`: own steps whose pushes may be
    unacknowledged, and that rows pulled ahead may lack.  While `held` is a list, gradients wait
    there for `take_held`; `unscales`: what takes them undoes the scale of a `GradScaler`.  `factor`
    is of the step size.  `pushed`: steps that were pushed.  `trained`: names of the tables that
    had a push, here or in the process that saved it.
    """

    def __init__(
        self,
        rows: RowClient,
        tables: Sequence[Table],
        padding: Sequence[int | None],
        staleness: int = 1,
        factor: float = 1.0,
        trained: Iterable[str] = (),
    ) -> None:
        if type(staleness) is not int or staleness < 0:
            raise MisuseError(f"staleness: expected 0 or more steps, got {staleness!r}")
        self.rows, self.tables, self.padding = rows, tuple(tables), tuple(padding)
        self.staleness, self.factor, self.trained = staleness, factor, set(trained)
        if (lacking := self.lacking) is not None:
            raise MisuseError(
                f"the rows of table {lacking!r} were trained, and this cluster has none of "
                "them: load the module where they are, or bring them here first, by Cluster.load"
            )
        for table in self.tables:
            rows.declare(table)
        self._begin()

    def _begin(self) -> None:
        self.held: list[tuple[Lookup, Rows]] | None = None
        self._owner: Exchange | None = None
        self.unscales = False
        self._holder: weakref.ref[object] = weakref.ref(self)
        self.buffers = RowBuffers()
        self._ahead: deque[Lookup] = deque()
        self._steps: deque[list[Pending]] = deque()  # not acknowledged
        self.number = int.from_bytes(os.urandom(7), "big")  # which it is, among all processes
        self.pushed = 0
        self._awaited = 0  # forwards whose gradient is still to come

    def __deepcopy__(self, memo: object) -> Exchange:
        """Another one of the same rows."""
        copied = object.__new__(Exchange)
        copied.__dict__.update(self.__dict__, trained=set(self.trained))
        copied._begin()
        return copied

    def __reduce__(self) -> Any:
        how = self.staleness, self.factor, sorted(self.trained)
        return Exchange, (self.rows, self.tables, self.padding, *how)

    @property
    def lacking(self) -> str | None:
        """A trained table of which the cluster has no row.

        Not one that may have none: rows that come too seldom, or have not come for long, are left
        out.
        """
        for table in self.tables:
            stays = not (table.admit_after or table.age_max)
            if stays and table.name in self.trained and not self.rows.has_rows(table.name):
                return table.name
        return None

    @property
    def owner(self) -> Exchange:
        """Where the gradients are held: here, or with those of another one of the same tables."""
        return self if self._owner is None else self._owner

    @property
    def identity(self) -> Any:
        """What exchanges of the same tables, in the same order, have in common."""
        return id(self.rows), tuple(table.name for table in self.tables)

    @property
    def names(self) -> str:
        """The names of its tables, for messages."""
        names = [repr(table.name) for table in self.tables]
        return ", ".join(names if len(names) < 4 else [*names[:3], "..."])

    def prefetch(self, ids: Ids) -> None:
        """Starts to pull the rows that `look_up` of the same ids will want."""
        lookup = self._made(ids)
        lookup.keep(ids)
        if self.staleness or not self._awaited:
            self._pull(lookup)
        self._ahead.append(lookup)
        while len(self._ahead) > AHEAD_MAX:
            self._ahead.popleft().drop()

    def look_up(self, ids: Ids, *, to_train: bool) -> Lookup:
        """The rows of `ids`, here; with `to_train` their gradient is expected."""
        lookup = None
        for at, ahead in enumerate(self._ahead):
            if ahead.is_of(ids):
                lookup = ahead
                del self._ahead[at]
                break
        else:
            lookup = self._made(ids)
        stale = self.pushed - lookup.pulled_at > self.staleness and not self.rows.clocked
        if lookup.pulled_at < 0 or stale:
            lookup.drop()
            self._pull(lookup)
        lookup.wait()
        if to_train:
            self._awaited += 1
        return lookup

    def _made(self, ids: Ids) -> Lookup:
        return Lookup(ids, self.padding, self.tables[0].dim, self.buffers)

    def _pull(self, lookup: Lookup) -> None:
        if lookup.pulled_at >= 0:  # the old answer may still come into the old array
            lookup.rows = lookup.rows.copy()
        lookup.pulled_at = self.pushed
        with self.rows.corked():
            for i, part in lookup.slices():
                table = self.tables[i].name
                pull = self.rows.pull_async(table, lookup.keys[i], lookup.rows[part])
                lookup._pulls.append(pull)

    @property
    def borrows(self) -> bool:
        """Whether a gradient that is given may be changed as soon as its step is pushed."""
        return self.held is None and not self.staleness and not self.rows.clocked

    def hold(
        self, holder: object, owner: Exchange | None = None, *, unscales: bool = False
    ) -> None:
        """Has gradients wait for `holder`, which takes them; with those of `owner`, of the same
        tables, so that a row has one gradient."""
        self._owner = owner
        self.held = [] if owner is None else owner.held
        self.unscales, self._holder = unscales, weakref.ref(holder)

    def give(self, lookup: Lookup, gradient: Rows) -> bool:
        """Takes the gradient of a lookup's rows; whether it waits, else it is to be pushed.

        Raises
        ------
        MisuseError
            What it would wait for is gone.
        """
        self._awaited = max(0, self._awaited - 1)
        if self.held is None:
            return False
        if self._holder() is None:
            raise MisuseError(
                f"the rows of {self.names} wait for a snailps.torch.Optimizer that is gone, so "
                "nothing steps them: keep it, or make another one of the model"
            )
        self.held.append((lookup, gradient))
        return True

    def held_gradient(self) -> Rows | None:
        """The gradient of each different row that is held, to be changed in place; None: nothing.

        Of modules that hold together the owner's has it all.
        """
        if not self.held or self.owner is not self:
            return None
        self.held[:] = self._merged(self.held)
        return self.held[0][1]

    def drop_held(self) -> None:
        """Drops the gradients that are held, as what was zeroed."""
        if self.held:
            self.held.clear()

    def _merged(self, held: list[tuple[Lookup, Rows]]) -> list[tuple[Lookup, Rows]]:
        """Sum gradients of a row, so that each row comes once."""
        if len(held) < 2:
            return held
        ids = [
            np.concatenate([lookup.keys[i] for lookup, _ in held]) for i in range(len(self.tables))
        ]
        given = [
            gradient[lookup.starts[i] : lookup.starts[i + 1]]
            for i in range(len(self.tables))
            for lookup, gradient in held
        ]
        lookup = Lookup(ids, [None] * len(self.tables), self.tables[0].dim, self.buffers)
        rows = np.zeros_like(lookup.rows)
        add_to_rows(np.concatenate(given), lookup.places, rows)
        return [(lookup, rows)]

    def pushes_of(self, given: list[tuple[Lookup, Rows]]) -> list[Push]:
        """The pushes of what a step has given; gradients of a row that came twice are summed."""
        self._awaited = 0
        return [
            Push([self], self.tables[i], lookup.keys[i], gradient[part])
            for lookup, gradient in self._merged(given)
            for i, part in lookup.slices()
        ]

    def begin_step(self, pushes: list[Pending]) -> None:
        """Counts a step, whose pushes are under way."""
        self.pushed += 1
        self._steps.append(pushes)
        for lookup in self._ahead:
            if lookup.pulled_at < 0:
                self._pull(lookup)

    def check_factor(self, other: Exchange) -> None:
        """Refuses to sum gradients with `other`, of the same table, where step sizes differ."""
        if self.factor != other.factor:
            raise MisuseError(
                f"modules of one table, {self.names} and {other.names}, have step sizes in the "
                f"proportion of {self.factor:g} to {other.factor:g}: a row has one gradient, and "
                "so one step size; give them the same"
            )

    def take_held(self) -> list[tuple[Lookup, Rows]]:
        """Return the gradients that are held, and hold them no longer."""
        if not self.held:
            return []
        taken = self.held[:]
        self.held.clear()
        return taken

    def settle(self, left: int | None = None) -> None:
        """Waits until pushes of no more than `left` steps, or `staleness`, are unacknowledged."""
        left = self.staleness if left is None else left
        if self.rows.clocked:  # a step's pushes are waited for with its block
            self._steps.clear()
        while len(self._steps) > left:
            for push in self._steps.popleft():
                push.wait()

    def forget_ahead(self) -> None:
        """Drops what was pulled ahead: its step is over, or its rows are replaced."""
        while self._ahead:
            self._ahead.popleft().drop()

    def flush(self) -> None:
        """Waits until every push is acknowledged."""
        self.settle(0)


@contextlib.contextmanager
def corked(exchanges: Iterable[Exchange]) -> Iterator[None]:
    """Send what these ask and push together, as far as they have one client."""
    with contextlib.ExitStack() as corks:
        for rows in {id(one.rows): one.rows for one in exchanges}.values():
            corks.enter_context(rows.corked())
        yield


class Push(NamedTuple):
    """A push of a step to one table: of modules that all have it."""

    exchanges: list[Exchange]
    table: Table
    keys: Keys
    values: Rows

    def plus(self, other: Push) -> Push:
        """Both in one, so that the servers make one step of the sum of a row's gradients."""
        of, also = self.exchanges[0], other.exchanges[0]
        of.check_factor(also)
        keys, places = number_keys(np.concatenate([self.keys, other.keys]))
        values = np.zeros((len(keys), self.table.dim), np.float32)
        add_to_rows(np.concatenate([self.values, other.values]), places, values)
        return Push([*self.exchanges, *other.exchanges], self.table, keys, values)

    def start(self) -> Pending:
        of = self.exchanges[0]
        return of.rows.push_async(self.table.name, self.keys, self.values, of.factor)


def push_together(given: Mapping[Exchange, list[tuple[Lookup, Rows]]]) -> None:
    """Pushes a step of several modules, float32 (rows or more, dim) of each of their lookups.

    Their requests leave together.  The gradients must not change afterwards (`Exchange.borrows`).
    Nothing of an exchange that has given nothing, and nothing at all if a value is not finite.
    """
    pushes: dict[tuple[int, str], Push] = {}
    steps: dict[Exchange, list[Pending]] = {}
    for exchange in given:
        if given[exchange] or given.get(exchange.owner):
            steps[exchange] = []
        for push in exchange.pushes_of(given[exchange]) if given[exchange] else ():
            key = id(exchange.rows), push.table.name
            pushes[key] = pushes[key].plus(push) if key in pushes else push
    for push in pushes.values():
        check_finite(push.table, push.keys, push.values)
    with corked(steps):
        for push in pushes.values():
            under_way = push.start()
            for exchange in push.exchanges:
                steps[exchange].append(under_way)
                exchange.trained.add(push.table.name)
        for exchange, started in steps.items():
            if exchange.owner is not exchange:
                started.extend(steps.get(exchange.owner, ()))
                exchange.trained |= exchange.owner.trained
            exchange.begin_step(started)
    for exchange in steps:
        exchange.settle()


def check_finite(table: Table, keys: Keys, values: Rows) -> None:
    """Refuses what is to be pushed, before other pushes of its step are sent."""
    if not table.finite or math.isfinite(values.sum()) or np.isfinite(values).all():
        return
    row, column = np.argwhere(~np.isfinite(values))[0].tolist()
    raise NotFinite(
        f"table {table.name!r}: expected finite values to push, got {values[row, column]} "
        f"for key {keys[row]}, column {column}: nothing of this step is pushed"
    )
