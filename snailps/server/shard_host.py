"""The shards of a server: primaries, standbys, and the changes between the two.

    TakeRoute, HostStandby, BackUp, Promote, Yield, DropShard -> ShardHost -> posts to shards, dials
    answers, streams, time -> Backed, Unbacked, Yielded

A part of `ServerCore`. Owns which shard is a primary, a standby or yielding here, by its number in
the route and by the handle of its `StartShard`. Must not know why a shard moves: the master
decides. Nothing here waits: each shard executes its orders in sequence, and a shard that hangs, or
waits for its standby, delays neither the others nor the order that ends its wait.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from snailps.api.access_method import AccessMethod
from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.dataclass import dataclass, replace
from snailps.errors import ClusterError, ConnectionLost, ProtocolError, SnailError, explain
from snailps.node.effects import WorkDone
from snailps.node.limits import DIAL_S
from snailps.server.effects import (
    CloseLink,
    CloseListeners,
    Dial,
    Do,
    GiveUp,
    Outbox,
    StartShard,
    StopShard,
    Stream,
    Withdraw,
    results,
)
from snailps.server.events import Address, StreamReported
from snailps.shard.shard import Shard
from snailps.store.route import Route
from snailps.transport import messages

log = logging.getLogger(__name__)

LOOK_S = 0.001
"""How often a yielding shard is asked whether its standby has everything: clients wait
meanwhile."""
HANG_S = 60.0
"""Seconds that a shard may take to execute a step of a yield."""

Tables = Sequence[tuple[int, Table]]


@dataclass(slots=True)
class _HostedCopy:
    """A shard's replication order and its state. `reported`: the last report to the
    master; None: none yet; empty: the standby has all rows; else why the copy failed."""

    order: messages.BackUp
    shard: int
    dial: int = 0  # the dial under way; 0: none
    stream: int = 0
    reported: str | None = None


@dataclass(slots=True)
class _HandOver:
    """A shard that is handing over, or has handed over: its current step and deadlines."""

    number: int
    shard: int
    stay: bool
    limit_s: float
    until: float = math.inf
    look_at: float = math.inf  # when the shard is asked again whether its standby has everything
    post: int = 0  # the step that the shard executes; 0: none
    hangs_at: float = math.inf  # when that step is withdrawn


@dataclass(slots=True)
class _Hosting:
    """An order to host a standby, until the standby is ready or refused."""

    call: int
    number: int
    shard: int
    endpoint: Address | None = None
    answers: dict[int, WorkDone] | None = None


class ShardHost:
    def __init__(
        self,
        settings: ServerSettings,
        welcome: messages.Welcome,
        # as registered: one for each shard that this server may begin with
        endpoints: Sequence[Address],
        load_method: Callable[[Table], AccessMethod],  # the access method of a table in Python
        out: Outbox,
    ) -> None:
        self._settings, self._welcome, self._out = settings, welcome, out
        self._load_method = load_method
        self._listeners = dict(enumerate(endpoints))  # free ones, until the cluster is complete
        self.primaries: dict[int, int] = {}  # shard number -> handle
        self.standbys: dict[int, int] = {}  # shard number -> handle
        self.touched: set[int] = set()  # tables that track touches
        self._names: dict[int, str] = {}
        self._begun: dict[Address, int] = {}  # by endpoint, while the cluster forms
        self._route: Route | None = None
        self._hosting: dict[int, _Hosting] = {}  # by shard
        self._yielding: dict[int, _HandOver] = {}  # by number; also shards that have yielded
        self._copies: dict[int, _HostedCopy] = {}  # by number: the current copy of each shard
        self._streams: dict[int, _HostedCopy] = {}

    @property
    def route_epoch(self) -> int:
        """Epoch of the last route; 0: none."""
        return self._route.epoch if self._route is not None else 0

    @property
    def due(self) -> float:
        """When `tick` has something to do; inf: not before the next event."""
        return min(
            (min(handing.look_at, handing.hangs_at) for handing in self._yielding.values()),
            default=math.inf,
        )

    # --- orders of the master --------------------------------------------------------------------

    def take_route(self, call: int, order: messages.TakeRoute, now: float) -> None:
        """Take the fragments and the epoch of a route, and start shards while the cluster forms.
        Until the cluster is complete, a lost server leads to a new route: a shard then keeps its
        endpoint, and may get another number."""
        route = Route.from_dict(order.route)
        local = [
            (number, (address.host, address.port))
            for number, address in enumerate(route.shards)
            if address.server == self._welcome.node
        ]
        # Later shards come and go by orders alone, and a route only says where they are.
        if self._route is None or self._begun or self._listeners:
            for number, place in local:
                if place not in self._begun:
                    self._begun[place] = self._start(number, False, self._listener_at(place))
            self.primaries = {number: self._begun[place] for number, place in local}
        self._route = route
        posts = [(n, shard, self._own(n, route)) for n, shard in self.primaries.items()]
        self.post_all(call, posts, _ok, now)

    def formed(self) -> None:
        """Start no shard by a route any more: the cluster is complete, and only orders of the
        master start or move shards."""
        self._begun.clear()
        if self._listeners:
            self._listeners.clear()
            self._out.put(CloseListeners())

    def host_standby(self, call: int, order: messages.HostStandby, now: float) -> None:
        """Create a standby of a shard; the answer has its endpoint."""
        number = order.shard
        if self._route is None or number in self.primaries or number in self.standbys:
            raise ClusterError(f"shard {number} is here already, or there is no route yet")
        adding = self._adding(self._tables_of(order.tables), 1)
        shard = self._start(number, True, None)
        self.standbys[number] = shard
        self._hosting[shard] = _Hosting(call, number, shard)
        first = [self._own(number, self._route), *adding[0]]
        posts = [(i, shard, do) for i, do in enumerate(first)]
        self._out.post_all(posts, partial(self._standby_has_tables, shard), now)

    def _started(self, done: WorkDone, now: float) -> None:
        hosting = self._hosting.get(done.work)
        if hosting is None:
            return
        if isinstance(done.error, SnailError):
            self._refuse_hosting(hosting, done.error)
            return
        assert self._route is not None
        taken = [(address.host, address.port) for address in self._route.shards]
        if self._settings.advertise_addr and done.result in taken:
            text = "advertise_addr gives all shards one port: leave its port out, or use port_range"
            self._refuse_hosting(hosting, ClusterError(text))
            self._out.put(StopShard(hosting.shard))
            return
        hosting.endpoint = done.result
        self._hosted(hosting)

    def make_tables(self, call: int, order: messages.MakeTables, now: float) -> None:
        """Create tables in every shard here. A shard that stops meanwhile needs none: no error."""
        shards = [*self.primaries.values(), *self.standbys.values()]
        adding = self._adding(self._tables_of(order.tables), len(shards))
        posts = [(shard, do) for shard, each in zip(shards, adding, strict=True) for do in each]

        def ended(answers: dict[int, WorkDone], now: float) -> None:
            of_running = {
                i: answer
                for i, answer in answers.items()
                if not isinstance(answer.error, ConnectionLost)
            }
            self._out.reply_by(call, lambda: _ok(results(of_running)))

        self._out.post_all([(i, *post) for i, post in enumerate(posts)], ended, now)

    def drop_tables(self, call: int, order: messages.DropTables, now: float) -> None:
        """Drop tables in every shard here. A shard that stops meanwhile loses them anyway."""
        self.touched.difference_update(order.numbers)
        for number in order.numbers:
            self._names.pop(number, None)
        do = partial(Shard.drop_tables, numbers=order.numbers)
        shards = [*self.primaries.values(), *self.standbys.values()]
        posts = [(i, shard, do) for i, shard in enumerate(shards)]

        def ended(answers: dict[int, WorkDone], now: float) -> None:
            self._out.reply(call, messages.Ok())

        self._out.post_all(posts, ended, now)

    def back_up(self, call: int, order: messages.BackUp, now: float) -> None:
        """Start to copy a primary or complete standby to its standby; `Backed` or `Unbacked`
        follows."""
        shard = self.standbys.get(order.shard)
        if shard is None:
            shard = self._served(order.shard)
        previous = self._copies.get(order.shard)
        # The same order at another pace, of this master or the next: the copy goes on.
        if previous is not None and order == replace(previous.order, paced=order.paced):
            previous.order = order
            self._out.post(shard, partial(Shard.pace, paced=order.paced))
        else:
            self._end_copy(order.shard)
            copy = self._copies[order.shard] = _HostedCopy(order, shard)
            copy.dial = self._out.expect(partial(self._dialled, copy))
            self._out.put(Dial(copy.dial, order.shard, (order.host, order.port), DIAL_S))
        self._out.reply(call, messages.Ok())

    def unback(self, call: int, order: messages.Alone, now: float) -> None:
        """End the copy of a shard: it has no standby, and acknowledges without one from now on."""
        self._end_copy(order.shard)
        shard = self.primaries.get(order.shard, self.standbys.get(order.shard))
        posts = [(0, shard, partial(Shard.unback))] if shard is not None else []
        self.post_all(call, posts, _ok, now)

    def promote(self, call: int, order: messages.Promote, now: float) -> None:
        """Have a standby serve, or have a shard serve again that yielded or is yielding."""
        number = order.shard
        shard = self.standbys.pop(number, None)
        if shard is None and (handing := self._yielding.pop(number, None)) is not None:
            shard = handing.shard
        if shard is not None:
            self.primaries[number] = shard
        serves = self._served(number)
        do = partial(Shard.promote, epoch=order.epoch)
        self.post_all(call, [(number, serves, do)], _ok, now, at_standby=True)

    def yield_(self, call: int, order: messages.Yield, now: float) -> None:
        """Hand a shard over to its standby; with `stay` the two change places. `Yielded`
        follows."""
        shard = self._served(order.shard)
        handing = _HandOver(order.shard, shard, order.stay, order.limit_s)
        self._yielding[order.shard] = handing
        self._step(handing, partial(Shard.begin_yield), self._yield_begun, now)
        self._out.reply(call, messages.Ok())

    def drop(self, call: int, order: messages.DropShard, now: float) -> None:
        """Stop and remove a standby, or a shard that has yielded."""
        self._drop(order.shard)
        self._out.reply(call, messages.Ok())

    def keep(self, call: int, order: messages.KeepShards, now: float) -> None:
        """Remove standbys and yielded shards other than these, and end the copies of standbys: a
        master that took over knows of no others."""
        for number in sorted({*self.standbys, *self._yielding} - set(order.shards)):
            self._drop(number)
        for number, shard in self.standbys.items():
            self._end_copy(number)
            self._out.post(shard, partial(Shard.unback))
        self._out.reply(call, messages.Ok())

    # --- for other parts of the core -------------------------------------------------------------

    def post_all(
        self,
        call: int,
        posts: Iterable[tuple[Any, int, Do]],
        answer: Callable[[dict[Any, Any]], messages.Message],
        now: float,
        *,
        at_standby: bool = False,
    ) -> None:
        """Post calls to shards; the order is answered by `answer(results)`, or by the first
        error."""

        def ended(answers: dict[Any, WorkDone], now: float) -> None:
            self._out.reply_by(call, lambda: answer(results(answers)))

        self._out.post_all(posts, ended, now, at_standby=at_standby)

    def post_each(
        self,
        call: int,
        numbers: Iterable[int],
        do: Callable[[int], Sequence[Do]],
        answer: Callable[[dict[int, list[Any]]], messages.Message],
        now: float,
    ) -> None:
        """Have those of these shards that serve here execute orders, and their standbys, too.
        `answer` gets the results by shard number. It lacks shards that stop before they and their
        standbys have executed everything: the master repeats the order where such a shard serves
        then."""
        posts = [
            ((number, i), self.primaries[number], step)
            for number in numbers
            if number in self.primaries
            for i, step in enumerate(do(number))
        ]

        def ended(answers: dict[tuple[int, int], WorkDone], now: float) -> None:
            stopped = {
                number
                for (number, _), done in answers.items()
                if isinstance(done.error, ConnectionLost)
            }

            def make() -> messages.Message:
                by_number: dict[int, list[Any]] = {}
                served = {key: done for key, done in answers.items() if key[0] not in stopped}
                for (number, _), result in results(served).items():
                    by_number.setdefault(number, []).append(result)
                return answer(by_number)

            self._out.reply_by(call, make)

        self._out.post_all(posts, ended, now, at_standby=True)

    def fragments_of(self, number: int) -> list[int]:
        assert self._route is not None
        return [int(fragment) for fragment in self._route.fragments_of(number)]

    def stats(self, call: int, own: dict[str, Any], now: float) -> None:
        """Answer with the counters of the shards, beside those of the server."""
        both = {"shards": self.primaries, "standbys": self.standbys}
        posts = [
            ((kind, number), shard, partial(Shard.stats, now=now))
            for kind, shards in both.items()
            for number, shard in sorted(shards.items())
        ]

        def ended(answers: dict[tuple[str, int], WorkDone], now: float) -> None:
            served = {
                key: done
                for key, done in answers.items()
                if not isinstance(done.error, ConnectionLost)  # dropped meanwhile
            }

            def make() -> messages.Message:
                by_kind: dict[str, Any] = {kind: [] for kind in both}
                for (kind, number), result in results(served).items():
                    counters = {**result, "shard": number}
                    if "tables" in result:
                        counters["tables"] = {
                            table: {**counts, "name": self._names.get(table, str(table))}
                            for table, counts in result["tables"].items()
                        }
                    by_kind[kind].append(counters)
                return messages.Report({**by_kind, **own})

            self._out.reply_by(call, make)

        self._out.post_all(posts, ended, now)

    def resume_state(self) -> list[list[Any]]:
        """Return [shard, copy, trouble] of each reported standby; trouble: empty, or why it
        failed."""
        return [
            [number, copy.order.copy, copy.reported]
            for number, copy in self._copies.items()
            if copy.reported is not None
        ]

    def tick(self, now: float) -> None:
        """Ask yielding shards again, and withdraw steps that a shard has not begun for `HANG_S`."""
        for handing in list(self._yielding.values()):
            if now >= handing.look_at:
                handing.look_at = math.inf
                do = partial(Shard.finish_yield, stay=handing.stay)
                self._step(handing, do, self._yield_looked, now)
            if now >= handing.hangs_at:
                handing.hangs_at = math.inf
                self._out.put(Withdraw(handing.post))

    # --- starting --------------------------------------------------------------------------------

    def _start(self, number: int, standby: bool, listener: int | None) -> int:
        shard = self._out.expect(self._started)
        self._out.put(StartShard(shard, number, standby, listener))
        return shard

    def _listener_at(self, place: Address) -> int:
        for listener, endpoint in self._listeners.items():
            if endpoint == place:
                del self._listeners[listener]
                return listener
        raise ProtocolError("the route has more shards for this server than it runs")

    def _own(self, number: int, route: Route) -> Do:
        return partial(Shard.take_route, epoch=route.epoch, fragments=route.fragments_of(number))

    def _tables_of(self, items: Iterable[Any]) -> Tables:
        tables = [(number, Table.from_dict(declared)) for number, declared in items]
        self.touched.update(number for number, table in tables if "touch" in table.track)
        self._names.update((number, table.name) for number, table in tables)
        return tables

    def _adding(self, tables: Tables, shards: int) -> list[list[Do]]:
        """Return calls that make tables, for each of `shards` shards: an access method in Python is
        an object of its own in each, since shards run in different threads."""

        def adds(number: int, table: Table) -> Do:
            method = self._load_method(table) if table.in_python else None
            dim, access, init, scale, seed, hyper, track, retention, finite = (
                table.store_arguments()
            )
            return partial(
                Shard.add_table, number=number, dim=dim, access=access, init=init, scale=scale,
                seed=seed, hyper=hyper, track=track, retention=retention, finite=finite,
                method=method,
            )  # fmt: skip

        return [[adds(number, table) for number, table in tables] for _ in range(shards)]

    def _standby_has_tables(self, shard: int, answers: dict[int, WorkDone], now: float) -> None:
        hosting = self._hosting.get(shard)
        if hosting is not None:
            hosting.answers = answers
            self._hosted(hosting)

    def _hosted(self, hosting: _Hosting) -> None:
        """Answer once a standby has both its endpoint and its tables: only then can it be streamed
        to."""
        endpoint, answers = hosting.endpoint, hosting.answers
        if endpoint is None or answers is None:
            return
        del self._hosting[hosting.shard]

        def make() -> messages.Message:
            results(answers)
            return messages.Report({"endpoint": list(endpoint)})

        self._out.reply_by(hosting.call, make)

    def _refuse_hosting(self, hosting: _Hosting, error: SnailError) -> None:
        del self._hosting[hosting.shard]
        if self.standbys.get(hosting.number) == hosting.shard:
            del self.standbys[hosting.number]
        self._out.reply(hosting.call, error)

    def _served(self, number: int) -> int:
        shard = self.primaries.get(number)
        if shard is None:
            raise ClusterError(f"shard {number} is not served by server {self._welcome.node}")
        return shard

    def _drop(self, number: int) -> None:
        shard = self.standbys.pop(number, None)
        handing = self._yielding.pop(number, None) if shard is None else None
        if shard is None and handing is None:
            return
        if handing is not None:
            shard = handing.shard
        assert shard is not None
        if self.primaries.get(number) == shard:
            del self.primaries[number]
        self._end_copy(number)
        if (hosting := self._hosting.get(shard)) is not None:
            self._refuse_hosting(hosting, ClusterError(f"shard {number} was dropped meanwhile"))
        self._out.put(StopShard(shard))

    # --- copies ----------------------------------------------------------------------------------

    def _end_copy(self, number: int) -> None:
        """Forget a shard's copy: late reports on it would be taken for reports on the next one."""
        copy = self._copies.pop(number, None)
        if copy is None:
            return
        if copy.dial:
            self._out.put(GiveUp(copy.dial))
        self._streams.pop(copy.stream, None)

    def _dialled(self, copy: _HostedCopy, done: WorkDone, now: float) -> None:
        """Have the shard stream to the connected standby, or report that it cannot be reached."""
        copy.dial = 0
        current, order = self._copies.get(copy.order.shard) is copy, copy.order
        if done.error is not None:
            if current:
                self._report(copy, str(done.error) or "lost")
            return
        if not current:
            self._out.put(CloseLink(done.result))
            return
        log.debug("shard %d is copied to %s:%d", order.shard, order.host, order.port)
        copy.stream = self._out.number()
        self._streams[copy.stream] = copy
        self._out.put(
            Stream(copy.shard, copy.stream, done.result, order.sync, order.paced, order.resume)
        )

    def stream_reported(self, event: StreamReported) -> None:
        """Pass on a shard's report on its stream, unless its copy has ended."""
        copy = self._streams.get(event.stream)
        if copy is not None:
            self._report(copy, event.trouble)

    def _report(self, copy: _HostedCopy, trouble: str) -> None:
        """Report a standby's state to the master, and keep it for a master that takes over."""
        copy.reported = trouble
        order = copy.order
        if trouble:
            self._out.note(messages.Unbacked(order.shard, order.copy, trouble))
        else:
            self._out.note(messages.Backed(order.shard, order.copy))

    # --- yielding --------------------------------------------------------------------------------
    #
    # begin_yield -> finish_yield, again and again until the standby has everything -> end_yield
    #
    # Pushes are parked from begin_yield on, so the order has a limit; after it the shard serves on.
    # A yield ends early when its shard is promoted again or dropped: then it is not in `_yielding`
    # any more, and later answers of its shard are ignored.  A late note would be taken for one of
    # the next attempt.

    def _step(
        self,
        handing: _HandOver,
        do: Do,
        then: Callable[[_HandOver, WorkDone, float], None],
        now: float,
    ) -> None:
        def heard(answer: WorkDone, now: float) -> None:
            handing.post, handing.hangs_at = 0, math.inf
            if self._yielding.get(handing.number) is handing:
                then(handing, answer, now)

        handing.hangs_at = now + HANG_S
        handing.post = self._out.post(handing.shard, do, heard)

    def _yield_begun(self, handing: _HandOver, answer: WorkDone, now: float) -> None:
        if answer.error is not None:
            self._yielded(handing, explain(answer.error))
            return
        handing.until = now + handing.limit_s
        handing.look_at = now

    def _yield_looked(self, handing: _HandOver, answer: WorkDone, now: float) -> None:
        if answer.error is None and not answer.result and now <= handing.until:
            handing.look_at = now + LOOK_S
            return
        trouble = ""
        if answer.error is not None:
            trouble = explain(answer.error)
        elif not answer.result:
            trouble = (
                f"the standby did not acknowledge all pushes in {handing.limit_s:g} s: "
                "this shard goes on serving"
            )
        self._step(handing, partial(Shard.end_yield), partial(self._yield_ended, trouble), now)

    def _yield_ended(self, trouble: str, handing: _HandOver, answer: WorkDone, now: float) -> None:
        self._yielded(handing, explain(answer.error) if answer.error is not None else trouble)

    def _yielded(self, handing: _HandOver, trouble: str) -> None:
        number = handing.number
        if trouble or handing.stay:
            del self._yielding[number]
        if handing.stay and not trouble:
            self.standbys[number] = self.primaries.pop(number)
        self._out.note(messages.Yielded(number, trouble))


def _ok(_: object) -> messages.Message:
    return messages.Ok()
