"""Recommends items by the rows of a running matrix factorisation, at bounded age.

    recommender(address) -> LiveRows, a driver that joins, and joins again
        names, settings: once a job     rows of all items: once in `max_age_s`     -> FactorModel
        row of a user: CachedRows       items of a user: its row solved            -> best items

Exact: all items are scored, by the rows of one moment or of a pull that saw pushes.  Owns when the
rows of items are pulled again, and what is answered when that fails.  Must not know how rows are
trained.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Keys, Rows, Table
from snailps.config import RawConfig, settings_of
from snailps.data.name_columns import Names
from snailps.dataclass import dataclass
from snailps.errors import ClusterError, ConfigError, DataError, SnailError
from snailps.local.driver import Driver
from snailps.models.embeddings import files, least_squares
from snailps.models.embeddings.factor_losses import encoding_of, loss_of
from snailps.models.embeddings.mf import ITEM, USER, MatrixFactorization
from snailps.models.embeddings.queries import (
    Answers,
    Best,
    FactorModel,
    Name,
    OneOrMore,
    is_one,
    repeatable,
)
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import PULLED_BYTES, TABLE
from snailps.models.rotation.shared_blocks import LostBlocks
from snailps.serving import reader
from snailps.serving.cached_rows import CachedRows, check_options
from snailps.serving.row_reader import RowReader

ItemsUnreachable = Literal["error", "stale"]


def recommender(
    address: str,
    *,
    max_age_s: float | None = reader.MAX_AGE_S,
    unreachable: ItemsUnreachable = "error",
    cache_bytes: int = reader.CACHE_BYTES,
    timeout_s: float | None = None,
    secret_file: str = "",
    tls: str = "",
    **settings: Any,
) -> Recommender:
    """Recommend items by the rows of a matrix factorisation that a cluster trains.

    Parameters
    ----------
    address : str
        The master's ``host:port``, which `snailps status` prints.
    max_age_s : float or None
        Rows older than this many seconds are pulled again, of all items and of a user; None: never,
        until another cluster is joined.
    unreachable : {"error", "stale"}
        What is answered when rows do not come within `timeout_s`.  "error": it raises.  "stale": by
        the rows that were pulled last, of any age; it raises where there are none.
    cache_bytes : int
        Memory in bytes of the cache of users' rows, 64 MiB by default.
    timeout_s : float, optional
        Limit in seconds of a pull of 16 MB of rows.  By default 1, or with "error"
        `request_timeout` (60).
    secret_file, tls : str
        As in the settings of the cluster's processes (docs/security.md).
    **settings
        Other settings of every process, as in `reader`.

    Returns
    -------
    Recommender

    Raises
    ------
    ConfigError
        A setting is wrong, or the cluster trains no matrix factorisation.
    ClusterError
        Nothing listens at the address, the cluster refuses this process, or its names are not
        counted yet.

    Examples
    --------
    >>> with snailps.recommender("node1:16831", max_age_s=30) as shop:  # doctest: +SKIP
    ...     shop.recommend(items=["i4", "i9"])
    """
    if unreachable not in ("error", "stale"):
        raise ConfigError(f"unreachable: expected error or stale, got {unreachable!r}")
    check_options(cache_bytes, max_age_s, unreachable)

    def choose(tables: reader.Tables, _: Table | None) -> tuple[int, Table]:
        if TABLE not in tables:
            raise ConfigError(f"the cluster at {address} trains no matrix factorisation")
        return tables[TABLE]

    live = reader.LiveRows(
        address, choose, timeout_s, caller="recommender", patient=unreachable == "error",
        secret_file=secret_file, tls=tls, settings=settings,
    )  # fmt: skip
    try:
        users = RowReader(
            CachedRows(live, cache_bytes=cache_bytes, max_age_s=max_age_s), unreachable
        )
        return Recommender(address, live, users, max_age_s, unreachable)
    except BaseException:
        live.close()
        raise


class JobRows:
    """Summary, settings and rows of the job that a cluster trains, as its model's methods read
    them (`shared_blocks.Puller`)."""

    def __init__(self, driver: Driver, address: str, limit_s: float) -> None:
        number, texts = driver.newest_job()
        if not settings_of(MfSettings).keys() <= texts.keys():
            what = texts.get("worker_class", "nothing")
            raise ConfigError(
                f"the cluster at {address} trains {what}: expected a matrix factorisation"
            )
        wanted = {name: texts[name] for name in settings_of(MfSettings)}
        settings = RawConfig.from_mapping(wanted, f"the job at {address}").build(MfSettings)
        assert isinstance(settings, MfSettings)
        self.settings, self.summary = settings, driver.summary(number)
        if not self.summary:
            raise ClusterError(f"the names of the job at {address} are not counted yet: try again")
        self._driver, self._limit_s = driver, limit_s
        self._tables: dict[str, tuple[int, Table]] = driver.all_tables()

    def pull(self, table: str, keys: Keys) -> Rows:
        number, declared = self._tables[table]
        rows = np.empty((len(keys), declared.dim), np.float32)
        pull = self._driver.client.pull_async(number, keys, rows)
        try:
            return pull.wait(self._limit_s)
        except SnailError:
            pull.abandon()
            raise


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """A job's model with the rows of items of a moment; its rows of users are zeros."""

    model: FactorModel
    names: Names
    rows: JobRows
    joins: int
    pulled_at: float

    def as_written(self, rows: Rows) -> Rows:
        """Rows of the servers as a model's file has them."""
        return self.model.loss.as_written(rows, encoding_of(self.names, self.rows.settings))


class Recommender(reader.FromCluster):
    """The items that suit a user best, by a running training; `snailps.recommender` makes one.

    A context manager that leaves the cluster at the end.  Thread-safe: one thread at a time pulls
    the items, and others wait for it.  A process that forks must make its own afterwards.

    Examples
    --------
    >>> with snailps.recommender("node1:16831", unreachable="stale") as shop:  # doctest: +SKIP
    ...     best = shop.recommend("u17", k=5)
    ...     print(best[0], shop.age_s, shop.connected)
    """

    def __init__(
        self,
        address: str,
        live: reader.LiveRows,
        users: RowReader,
        max_age_s: float | None,
        unreachable: ItemsUnreachable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(live)
        self._address, self._users = address, users
        self._max_age_s, self._stale_too, self._clock = max_age_s, unreachable == "stale", clock
        self._lock = threading.Lock()
        self._known: tuple[JobRows, least_squares.KnownLines] | None = None
        self._vain = 0, 0.0  # joins at the last vain attempt, and time of the next one
        self._snapshot: ModelSnapshot | None = None
        self._newest()

    def __repr__(self) -> str:
        state = "connected" if self.connected else "not connected"
        return f"<recommender of {self._address}, items {self.age_s:.1f} s old: {state}>"

    @property
    def age_s(self) -> float:
        """Seconds since the rows of the items were asked for."""
        snapshot = self._snapshot
        return self._clock() - snapshot.pulled_at if snapshot is not None else float("inf")

    def recommend(
        self,
        user: OneOrMore = None,
        k: int = 10,
        without: Iterable[Name] = (),
        *,
        items: Iterable[Name] | None = None,
        known: bool = False,
    ) -> Answers:
        """Return the `k` best items of a user, by rows of at most `max_age_s`.

        Parameters
        ----------
        user : str or int, or a list or array of them, optional
        k : int
        without : iterable of names
            Items to leave out; an unknown one gives a warning.
        items : iterable of names, optional
            In the place of `user`: the items of someone whom the training has or not; the row is
            solved from those of the items.  Loss "als".
        known : bool
            Do not leave out the user's items in this training, which loss "als" leaves out by
            default (up to 16 million lines), `items` too.

        Returns
        -------
        list of (name, value)
            Best first, of equal values the more frequent item; of several users a list of lists.

        Raises
        ------
        UnknownWord
            The user, or one of `items`, is unknown.
        DataError
            Neither `user` nor `items` is given, or both; or the loss has no `items`.
        SnailError
            Rows did not come in time, and `unreachable` does not allow older ones.
        """
        snapshot = self._newest()
        if user is None or items is not None:
            return snapshot.model.recommend(user, k, without, items=items, known=known)
        users, without = [user] if is_one(user) else list(user), repeatable(without)
        try:
            answers = self._of_users(snapshot, users, k, without, known)
        except ClusterError:
            if snapshot.joins == self._live.joins():
                raise
            # Of the cluster that was joined anew.
            answers = self._of_users(self._newest(), users, k, without, known)
        return answers[0] if is_one(user) else answers

    def _of_users(
        self,
        snapshot: ModelSnapshot,
        users: list[Name],
        k: int,
        without: Iterable[Name],
        known: bool,
    ) -> list[Best]:
        """The best items of each user; their rows come by one pull."""
        model = snapshot.model
        places = [model.place("users", user) for user in users]
        pairs = None if known else self._known_of(snapshot)
        rows, answers = self._user_rows(snapshot, places), []
        for place, row in zip(places, rows, strict=True):
            items = () if pairs is None else pairs.partners(USER, place).tolist()
            others = [model.items[item] for item in items]
            answers.append(model.best_for("users", row, k, without, others))
        return answers

    def neighbours(self, item: OneOrMore, k: int = 10) -> Answers:
        """Return the `k` items with the most similar rows, by their cosine; of several items a list
        of such lists.

        Raises `UnknownWord` for an unknown item; else as `recommend`.
        """
        return self._newest().model.neighbours(item, k, "items")

    def refresh(self) -> None:
        """Pull the rows of the items now, whatever their age; raises if they do not come."""
        self._check_open()
        with self._lock:
            self._snapshot = self._pulled(self._snapshot)

    # --- rows ------------------------------------------------------------------------------------

    def _newest(self) -> ModelSnapshot:
        """The rows of items, pulled again if they are too old."""
        self._check_open()
        with self._lock:
            snapshot = self._snapshot
            if snapshot is not None and self._is_good(snapshot):
                return snapshot
            try:
                self._snapshot = self._pulled(snapshot)
            except SnailError:
                if snapshot is None or not self._stale_too:
                    raise
                self._vain = self._live.joins(), self._clock() + reader.AGAIN_S
                return snapshot
            return self._snapshot

    def _is_good(self, snapshot: ModelSnapshot) -> bool:
        now = self._clock()
        joins_then, not_before = self._vain
        if self._stale_too and now < not_before and joins_then == self._live.joins():
            return True
        if snapshot.joins != self._live.joins():
            return False
        return self._max_age_s is None or now - snapshot.pulled_at < self._max_age_s

    def _pulled(self, before: ModelSnapshot | None) -> ModelSnapshot:
        """Pull the rows of all items; names and settings only of another job than before."""
        for _ in range(2):
            joins = self._live.joins()
            try:
                pulled = self._pulled_once(before, joins)
            except ClusterError:
                if joins == self._live.joins():
                    raise
            else:
                if joins == self._live.joins():
                    return pulled
        # Twice joined anew meanwhile: the rows may be of a cluster with other items.
        raise ClusterError(f"the cluster at {self._address} was joined anew meanwhile: ask again")

    def _pulled_once(self, before: ModelSnapshot | None, joins: int) -> ModelSnapshot:
        now = self._clock()
        if before is None or before.joins != joins:
            rows = JobRows(self._live.driver, self._address, self._live.limit_s)
            names = MatrixFactorization.names(rows)  # type: ignore[arg-type]
            before = ModelSnapshot(_model_of(self._address, rows, names), names, rows, joins, now)
        count, dim = before.model.item_rows.shape
        keys = MatrixFactorization.keys_of_kind(ITEM, count)
        items = np.empty((count, dim), np.float32)
        step = max(1, PULLED_BYTES // (4 * dim))
        for at in range(0, count, step):
            come, why = self._live.pull(keys[at : at + step], items[at : at + step])
            if why is not None or not come.all():
                raise why or ClusterError(f"the cluster at {self._address} sent too few rows")
        items = before.as_written(items)
        return ModelSnapshot(before.model.with_items(items), before.names, before.rows, joins, now)

    def _user_rows(self, snapshot: ModelSnapshot, places: Sequence[int]) -> Rows:
        rows = self._users.pull(MatrixFactorization.keys_of(USER, np.array(places, np.int64)))
        if snapshot.joins != self._live.joins():
            # The number of this user may be another one's in the job of that cluster.
            raise ClusterError(
                f"the cluster at {self._address} was joined anew, and its names are not read yet: "
                "ask again, or pass the items of the user"
            )
        return snapshot.as_written(rows)

    def _known_of(self, snapshot: ModelSnapshot) -> least_squares.KnownLines | None:
        """The items of users in this training, read when they are first needed; None: the loss does
        not know them, or there are too many."""
        names, rows = snapshot.names, snapshot.rows
        lines = int(names.counts[USER].sum())
        if not rows.settings.solves or lines > least_squares.KNOWN_MAX:
            return None
        with self._lock:
            if self._known is None or self._known[0] is not rows:
                try:
                    known = least_squares.written_lines(rows, rows.settings, names).known
                    lacking = lines - len(known.items)
                except LostBlocks:
                    lacking = lines
                if lacking:
                    raise DataError(
                        f"the servers at {self._address} do not have all lines of the training "
                        "yet, so that what a user has cannot be left out: ask again, or pass "
                        "known=True"
                    )
                self._known = rows, known
            return self._known[1]


def _model_of(address: str, rows: JobRows, names: Names) -> FactorModel:
    """A model with the job's names, whose rows are zeros that take no memory."""
    settings = rows.settings
    arrays: dict[str, NDArray[Any]] = {}
    for kind, of_kind in zip(MatrixFactorization.kinds, names.names, strict=True):
        zeros = np.broadcast_to(np.float32(0), (len(of_kind), settings.row_dim))
        arrays |= {kind: files.packed_names(of_kind), files.rows_of(kind): zeros}
    arrays |= loss_of(settings).arrays(names)
    return FactorModel.of(f"the job at {address}", settings, arrays)
