"""The traffic of one module: rows of a batch in, gradients of rows out, with a bound on staleness.

    ids of each table -> Exchange.look_up -> Lookup: one array of distinct rows, every id's place
    dL/d(rows) of a step -> ready_to_push -> pushes -> at most `staleness` steps unacknowledged

Owns which ids are equal, what was prefetched, and which pushes are not acknowledged yet.  Must not
know autograd, or what is computed from the rows.

What holds
----------
* A pull sees every earlier push of this process.  Rows are stale only if they were prefetched, and
  then lack at most `staleness` steps of this process.
* A row that only padding names is neither pulled nor pushed.
* Several tables share one array, so that a batch is one gather and one gradient, and their requests
  are sent together.  So are requests of several modules (`ready_to_push`).
* A row that occurs several times in a step is pushed once, even if several modules have its table:
  the servers' optimizers make one step per push.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Keys, Rows, Table
from snailps.data._key_numbering import number_columns, number_keys
from snailps.errors import ConfigError, MisuseError, NotFinite
from snailps.torch._bags import add_to_rows
from snailps.torch.rows import RowClient
from snailps.transport.client._client import Pending

Ids: TypeAlias = Sequence[Keys] | Keys
"""Ids of each table, uint64 (n,); or of all, a column each: uint64 (n, tables)."""
LARGE = 1 << 15
"""Floats from which reusing an array pays; the allocator has smaller ones without page faults."""
KEPT = 4
"""Arrays kept for reuse; others are freed when they are no longer in use."""
_listed = [np.empty(0)]
UNUSED = sys.getrefcount(_listed[0])
"""`sys.getrefcount` of an array to which only a list refers."""
AHEAD_MAX = 8
"""Most prefetched batches that wait for their `forward`; the oldest is dropped beyond that."""


class RowBuffers:
    """Reuses arrays to which nothing refers any more, because fresh memory costs a fault per page.

    A tensor made of an array refers to it, and so does a pull or push that is under way.  So an
    array that is handed out is never in use elsewhere.
    """

    def __init__(self) -> None:
        self._arrays: list[Rows] = []
        self._lock = threading.Lock()

    def take(self, count: int, dim: int) -> Rows:
        """Return an array (count, dim) with arbitrary values."""
        size = count * dim
        if size < LARGE:
            return np.empty((count, dim), np.float32)
        with self._lock:
            for i in range(len(self._arrays)):  # by index: a loop variable would be a reference
                if sys.getrefcount(self._arrays[i]) == UNUSED and len(self._arrays[i]) >= size:
                    return self._arrays[i][:size].reshape(count, dim)
            array: Rows = np.empty(size + size // 4, np.float32)
            self._arrays = [*self._arrays[-(KEPT - 1) :], array]
            return array[:size].reshape(count, dim)


class Lookup:
    """The distinct rows of one batch, of all tables in one array.

    `keys` uint64: the distinct ids of each table.  `starts`: where the rows of each table begin,
    and the number of all rows.  `rows` float32 (starts[-1] + has_padding, dim): a last row of zeros
    stands for padding.  `places` int32: the row of each id (`padding_place` for padding), table
    after table, or row by row if the ids are a matrix.  `is_plain`: every id occurs once, and none
    is padding, so rows are already in the order of the ids.  `ids`: a copy of the ids, after
    `keep`.  `pulled_at`: the steps that each table had at the pull; empty: it is not pulled.
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
        self.pulled_at: list[int] = []
        self._pulls: list[Pending] = []

    def _number(self, ids: Sequence[Keys] | Keys, padding: Sequence[int | None]) -> None:
        self.starts = [0]
        places_of: list[NDArray[np.int32]] = []
        masks: list[NDArray[np.bool_] | None] = []
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
            places_of.append(places)
            masks.append(mask)
            self.keys.append(keys)
            self.starts.append(self.starts[-1] + len(keys))
        for places, mask in zip(places_of, masks, strict=True):
            if mask is not None:  # only now is the place of the row of zeros known
                places[mask] = self.starts[-1]
        self.places = places_of[0] if len(places_of) == 1 else np.concatenate(places_of)

    @property
    def padding_place(self) -> int | None:
        """The place of the row of zeros; None: the batch has no padding."""
        return self.starts[-1] if self.has_padding else None

    def slices(self) -> list[tuple[int, slice]]:
        """Return each table that has rows in this batch, with its part of the array."""
        return [
            (i, slice(self.starts[i], self.starts[i + 1]))
            for i in range(len(self.keys))
            if len(self.keys[i])
        ]

    def wait(self) -> Rows:
        """Wait for the pulls, then return the rows."""
        for pull in self._pulls:
            pull.wait()
        self._pulls.clear()
        return self.rows

    def drop(self) -> None:
        """Abandon the pulls; late answers may still be written into the array."""
        for pull in self._pulls:
            pull.abandon()
        self._pulls.clear()

    def keep(self, ids: Ids) -> None:
        """Copy the ids, because the caller may write the next batch into the same array."""
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
    """The tables of a module, all of one width, with their pulls and pushes that are under way.

    `padding`: the padding id of each table, or None.  `staleness`: how many steps of this process
    may be unacknowledged, and how many prefetched rows may lack.  `held`: while it is a list,
    gradients wait there for `take_held`; `unscales`: whoever takes them undoes the scale of a
    `GradScaler`.  `factor` multiplies the tables' step size.  `pushed` counts steps.  `trained`:
    names of tables that had a push, in this process or in the one that saved the module.
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
        self.number = int.from_bytes(os.urandom(7), "big")  # unique among all processes
        self.pushed = 0
        self.steps_of = _steps_of.setdefault(self.rows, Counter())
        self._awaited = 0  # forwards whose gradient has not come yet

    def __deepcopy__(self, memo: object) -> Exchange:
        """Make another exchange of the same rows, with no traffic of its own yet."""
        copied = object.__new__(Exchange)
        copied.__dict__.update(self.__dict__, trained=set(self.trained))
        copied._begin()
        return copied

    def __reduce__(self) -> Any:
        how = self.staleness, self.factor, sorted(self.trained)
        return Exchange, (self.rows, self.tables, self.padding, *how)

    @property
    def lacking(self) -> str | None:
        """The name of a trained table of which the cluster has no row; None: there is none.

        Tables that may legitimately be empty are not reported: if they admit rows late or expire
        them.
        """
        for table in self.tables:
            stays = not (table.admit_after or table.age_max)
            if stays and table.name in self.trained and not self.rows.has_rows(table.name):
                return table.name
        return None

    @property
    def owner(self) -> Exchange:
        """The exchange that holds the gradients: this one, or another one of the same tables."""
        return self if self._owner is None else self._owner

    @property
    def identity(self) -> Any:
        """A value that exchanges of the same tables, in the same order, have in common."""
        return id(self.rows), tuple(table.name for table in self.tables)

    @property
    def names(self) -> str:
        """The names of its tables, for messages."""
        names = [repr(table.name) for table in self.tables]
        return ", ".join(names if len(names) < 4 else [*names[:3], "..."])

    def prefetch(self, ids: Ids) -> None:
        """Start to pull the rows that `look_up` of the same ids will need.

        With `staleness` 0, and a gradient still to come, the pull starts after that step's pushes.
        """
        lookup = self._made(ids)
        lookup.keep(ids)
        if self.staleness or not self._awaited:
            self._pull(lookup)
        self._ahead.append(lookup)
        while len(self._ahead) > AHEAD_MAX:
            self._ahead.popleft().drop()

    def look_up(self, ids: Ids, *, to_train: bool) -> Lookup:
        """Return the rows of `ids`, waiting for them; with `to_train` a gradient will follow."""
        lookup = None
        for i, ahead in enumerate(self._ahead):
            if ahead.is_of(ids):
                lookup = ahead
                del self._ahead[i]
                break
        else:
            lookup = self._made(ids)
        if not lookup.pulled_at or (not self.rows.clocked and self._is_stale(lookup)):
            lookup.drop()
            self._pull(lookup)
        lookup.wait()
        if to_train:
            self._awaited += 1
        return lookup

    def _made(self, ids: Ids) -> Lookup:
        return Lookup(ids, self.padding, self.tables[0].dim, self.buffers)

    def _pull(self, lookup: Lookup) -> None:
        if lookup.pulled_at:  # a late answer to the earlier pull may be written into its array
            lookup.rows = lookup.rows.copy()
        lookup.pulled_at = [self.steps_of[table.name] for table in self.tables]
        with self.rows.corked():
            for i, part in lookup.slices():
                table = self.tables[i].name
                pull = self.rows.pull_async(table, lookup.keys[i], lookup.rows[part])
                lookup._pulls.append(pull)

    def _is_stale(self, lookup: Lookup) -> bool:
        """Whether rows lack more steps than they may, of any module of this process."""
        pairs = zip(self.tables, lookup.pulled_at, strict=True)
        return any(self.steps_of[table.name] - steps > self.staleness for table, steps in pairs)

    @property
    def borrows(self) -> bool:
        """Whether a gradient may change once its step is pushed, so that it need not be copied."""
        return self.held is None and not self.staleness and not self.rows.clocked

    def hold(
        self, holder: object, owner: Exchange | None = None, *, unscales: bool = False
    ) -> None:
        """Let gradients wait for `holder`, which will take them.

        With `owner`, an exchange of the same tables, they wait together with its gradients, so that
        a row has one gradient.
        """
        # As in PyTorch, where a second optimizer finds the gradients in the parameters.
        waiting = [] if self._holder() is None else self.take_held()
        self._owner = owner
        self.held = [] if owner is None else owner.held
        assert self.held is not None
        self.held += waiting
        self.unscales, self._holder = unscales, weakref.ref(holder)

    def give(self, lookup: Lookup, gradient: Rows) -> bool:
        """Accept the gradient of a lookup's rows.

        Returns True if it waits for the holder; False if the caller must push it.

        Raises
        ------
        MisuseError
            The holder is gone, so nothing would ever push the gradient.
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
        """Return the held gradient of each distinct row, to change in place; None: nothing waits.

        For exchanges that hold together the owner returns all of it, the others None.
        """
        if not self.held or self.owner is not self:
            return None
        self.held[:] = self._merged(self.held)
        return self.held[0][1]

    def drop_held(self) -> None:
        """Drop the held gradients, as `zero_grad` does."""
        if self.held:
            self.held.clear()

    def _merged(self, held: list[tuple[Lookup, Rows]]) -> list[tuple[Lookup, Rows]]:
        """Sum the gradients of each row, so that it occurs once."""
        if len(held) < 2:
            return held
        ids = [
            np.concatenate([lookup.keys[i] for lookup, _ in held]) for i in range(len(self.tables))
        ]
        gradients = [
            gradient[lookup.starts[i] : lookup.starts[i + 1]]
            for i in range(len(self.tables))
            for lookup, gradient in held
        ]
        lookup = Lookup(ids, [None] * len(self.tables), self.tables[0].dim, self.buffers)
        rows = np.zeros_like(lookup.rows)
        add_to_rows(np.concatenate(gradients), lookup.places, rows)
        return [(lookup, rows)]

    def pushes_of(self, given: list[tuple[Lookup, Rows]]) -> list[Push]:
        """Return the pushes of a step's gradients, with the gradients of each row summed."""
        self._awaited = 0
        return [
            Push([self], self.tables[i], lookup.keys[i], gradient[part])
            for lookup, gradient in self._merged(given)
            for i, part in lookup.slices()
        ]

    def begin_step(self, pushes: list[Pending]) -> None:
        """Count a step whose pushes are under way; start the pulls that waited for them."""
        self.pushed += 1
        self._steps.append(pushes)
        for lookup in self._ahead:
            if not lookup.pulled_at:
                self._pull(lookup)

    def check_factor(self, other: Exchange) -> None:
        """Raise MisuseError if `other`, of the same table, has another step size."""
        if self.factor != other.factor:
            raise MisuseError(
                f"modules of one table, {self.names} and {other.names}, have step sizes in the "
                f"proportion of {self.factor:g} to {other.factor:g}: a row has one gradient, and "
                "so one step size; give them the same"
            )

    def take_held(self) -> list[tuple[Lookup, Rows]]:
        """Remove and return the held gradients."""
        if not self.held:
            return []
        taken = self.held[:]
        self.held.clear()
        return taken

    def settle(self, most: int | None = None) -> None:
        """Wait until at most `most` steps (default `staleness`) are unacknowledged."""
        most = self.staleness if most is None else most
        if self.rows.clocked:  # the block waits for the pushes of its step
            self._steps.clear()
        while len(self._steps) > most:
            for push in self._steps.popleft():
                push.wait()

    def forget_ahead(self) -> None:
        """Drop prefetched rows: their step is over, or they were replaced."""
        while self._ahead:
            self._ahead.popleft().drop()

    def flush(self) -> None:
        """Wait until every push is acknowledged."""
        self.settle(0)


@contextlib.contextmanager
def corked(exchanges: Iterable[Exchange]) -> Iterator[None]:
    """Send the pulls and pushes of exchanges together, as far as they share a client."""
    with contextlib.ExitStack() as corks:
        for rows in {id(exchange.rows): exchange.rows for exchange in exchanges}.values():
            corks.enter_context(rows.corked())
        yield


class Push(NamedTuple):
    """A step's push to one table, of all modules that have the table."""

    exchanges: list[Exchange]
    table: Table
    keys: Keys
    values: Rows

    def plus(self, other: Push) -> Push:
        """Combine two pushes, so that the servers make one step by the sum of a row's gradients."""
        self.exchanges[0].check_factor(other.exchanges[0])
        keys, places = number_keys(np.concatenate([self.keys, other.keys]))
        values = np.zeros((len(keys), self.table.dim), np.float32)
        add_to_rows(np.concatenate([self.values, other.values]), places, values)
        return Push([*self.exchanges, *other.exchanges], self.table, keys, values)

    def start(self) -> Pending:
        first = self.exchanges[0]  # all have the same client and factor
        return first.rows.push_async(self.table.name, self.keys, self.values, first.factor)


def ready_to_push(
    given: Mapping[Exchange, list[tuple[Lookup, Rows]]],
) -> Callable[[], None]:
    """Check a step of several modules, and return what pushes it.

    `given`: gradients float32 (rows or more, dim) of their lookups, which must not change
    afterwards (`Exchange.borrows`).  An exchange without gradients pushes nothing.  The requests
    are sent together.  If any value is not finite this raises, so that a step is never applied in
    part.
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
        push.table.check_lr_scale(push.exchanges[0].factor)
    return functools.partial(_push_together, list(pushes.values()), steps)


def _push_together(pushes: Sequence[Push], steps: Mapping[Exchange, list[Pending]]) -> None:
    with corked(steps):
        for push in pushes:
            under_way = push.start()
            push.exchanges[0].steps_of[push.table.name] += 1
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


def checked_lr(value: Any) -> float:
    """Return a step size; ConfigError unless it is a finite number, 0 or more."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(f"lr: expected a number, 0 or more, got {value!r}")
    return number


_steps_of: weakref.WeakKeyDictionary[RowClient, Counter[str]] = weakref.WeakKeyDictionary()
"""Steps of this process by table: of all modules, since several may have one table."""


def check_finite(table: Table, keys: Keys, values: Rows) -> None:
    """Raise NotFinite for values to push, before other pushes of the same step are sent."""
    if not table.finite or math.isfinite(values.sum()) or np.isfinite(values).all():
        return
    row, column = np.argwhere(~np.isfinite(values))[0].tolist()
    raise NotFinite(
        f"table {table.name!r}: expected finite values to push, got {values[row, column]} "
        f"for key {keys[row]}, column {column}: nothing of this step is pushed"
    )
