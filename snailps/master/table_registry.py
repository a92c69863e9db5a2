"""Owns the tables of a cluster: their numbers, whose they are, and that every server has made them.

    Declare -> numbers -> the journal, on disk -> MakeTables on every server -> Declared

Must not know rows or the route. A declaration is answered when every server has the table, as the
worker's first push goes to any of them. Servers get the order once; later declarations of the table
wait for the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from snailps.api.tables import Table
from snailps.errors import ClusterError, ConfigError, SnailError
from snailps.master.broadcast import Broadcast
from snailps.master.effects import Fact, Outbox
from snailps.master.events import Answer
from snailps.master.member import Member
from snailps.transport import messages

log = logging.getLogger(__name__)

TABLES_MAX = 4096
"""Most tables at the same time."""
NUMBER_MAX = 0xFFFF
"""Highest number of a table. Numbers are never given twice in a cluster: late messages to a dropped
table would reach another one."""

OnMade = Callable[[Answer, float], None]
"""Gets `Declared`, or why the tables could not be made; and the time."""


def _differences(one: Table, other: Table) -> str:
    """How two declarations of the same name differ, in words."""
    first, second = one.to_dict(), other.to_dict()
    fields = [field for field in first if first[field] != second[field]]
    ways = (", ".join(f"{field}={way[field]!r}" for field in fields) for way in (first, second))
    return ", and ".join(ways)


ANY_MODULE = "*"
"""In `modules`: servers may import any module that a driver names."""


def admits(table: Table, modules: Collection[str]) -> bool:
    """Whether servers may import the access method of a table that only a name identifies. A name
    may come from a stranger's file or script; importing it runs code."""
    module = table.access.partition(":")[0]
    return not table.in_python or module in modules or ANY_MODULE in modules


class _Making:
    """An order to make tables that not all servers have answered, and who waits for it."""

    __slots__ = ("numbers", "waiting")

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.waiting: list[Callable[[str, float], None]] = []


class TableRegistry:
    """All tables of one cluster."""

    def __init__(
        self,
        servers: Callable[[], list[Member]],
        out: Outbox,
        # whose access methods drivers may name; `ANY_MODULE`: all
        modules: Collection[str] = (),
        sync: Callable[[], None] | None = None,  # has the journal's facts on disk; blocks
    ) -> None:
        self._sync = sync
        self._modules = modules
        self.tables: dict[str, tuple[int, Table]] = {}
        self._servers, self._out = servers, out
        self._next_table = 1
        self._made: dict[int, Table] = {}
        self._of_job: set[str] = set()
        self._used: set[str] = set()  # names that the present job's workers have declared
        self._unnamed: list[int] = []  # numbers of tables of earlier jobs that are not dropped yet
        self._making: dict[int, _Making] = {}  # by table, until all servers have it

    @property
    def count(self) -> int:
        return len(self._made)

    @property
    def of_job(self) -> dict[str, int]:
        """Numbers of the tables that the present job's workers have declared, by name."""
        return {name: self.tables[name][0] for name in sorted(self._of_job & self.tables.keys())}

    @property
    def used(self) -> list[str]:
        """Names of the present job's tables, and of drivers' tables that its workers declared."""
        return sorted(self._used)

    def of_session(self, names: Iterable[str]) -> list[str]:
        """Return the tables that belong to no job: their rows outlive it."""
        return [name for name in names if name in self.tables and name not in self._of_job]

    def is_of_driver(self, name: str) -> bool:
        """Whether a driver has declared this table and the present job's workers have not."""
        return name in self.tables and name not in self._used

    def forget_job(self, now: float, in_use: bool = False) -> None:
        """As the next job of a session begins: have servers drop the tables of the last one, which
        its driver could read until now, and free their names.

        Nothing waits for the servers: each carries out orders in sequence, so it drops these before
        it makes others. `in_use`: a worker is still at a block of that job and pushes to them; they
        are dropped when the job after begins. See docs/design/tables-of-jobs.md.
        """
        gone = self._unnamed
        gone += [self.tables.pop(name)[0] for name in self._of_job if name in self.tables]
        self._of_job.clear()
        self._used.clear()
        self._unnamed = gone if in_use else []
        if in_use:
            return
        for number in gone:
            self._made.pop(number, None)
        self._drop(gone, "cannot drop the tables of the last job", now)

    def _drop(self, numbers: Iterable[int], refused: str, now: float) -> None:
        """Note that these tables are gone, and have servers drop them."""
        if gone := sorted(numbers):
            self._out.journal("drop", {"numbers": gone})
            order = messages.DropTables(gone)
            Broadcast(
                self._out, self._servers(), order, self._dropped, now, loss="drop", refused=refused
            )

    def _forget(self, number: int) -> Table:
        """Have neither this table nor, if it is still this one's, its name."""
        table = self._made.pop(number)
        if self.tables.get(table.name, (0,))[0] == number:
            del self.tables[table.name]
            self._of_job.discard(table.name)
        if number in self._unnamed:
            self._unnamed.remove(number)
        return table

    def _dropped(self, broadcast: Broadcast, now: float) -> None:
        if broadcast.error:  # tables that remain cost memory, and nothing else
            log.warning("%s", broadcast.error)

    def replay(self, fact: Fact) -> None:
        """Take a fact of an earlier master: a table that it numbered, or tables that it dropped."""
        data = fact.data
        if fact.kind == "drop":
            for number in data["numbers"]:
                if number in self._made:
                    self._forget(number)
            return
        table, number = Table.from_dict(data["table"]), data["number"]
        earlier, _ = self.tables.get(table.name, (number, table))
        if earlier != number:  # of a job before the last one
            self._unnamed.append(earlier)
        self.tables[table.name] = (number, table)
        self._made[number] = table
        self._next_table = max(self._next_table, number + 1)
        if data["of_job"]:
            self._of_job.add(table.name)
            self._used.add(table.name)
        else:  # perhaps of a job until a driver loaded its rows
            self._of_job.discard(table.name)

    def declare(self, member: Member, message: messages.Declare, call: int, now: float) -> None:
        """Number the tables, have every server make them, then answer. ConfigError if a table is
        declared in two ways, there are too many, or servers must not import its access method.
        A driver's tables belong to the session, even if a job has made them: the driver may push
        to them, and does not expect the next job to drop its rows."""
        tables = [Table.from_dict(item) for item in message.tables]
        is_driver = member.role == "driver"
        if is_driver:
            for table in tables:
                self._admit(table)
        member.declares()
        of_job = [table.name for table in tables if member.role == "worker"]
        self._declare(tables, of_job, partial(self._reply, call), now)
        if is_driver:
            self._give_to_session({table.name for table in tables})

    def _admit(self, table: Table) -> None:
        """Refuse a driver's table whose access method is in a module that the operator of the
        cluster has not allowed."""
        module, declared = table.access.partition(":")[0], self.tables.get(table.name)
        if admits(table, self._modules):
            return
        if declared is None or declared[1].access != table.access:
            raise ConfigError(
                f"table {table.name!r}: {table.access} is an access method of your own, and "
                "servers import no module that only a driver names: have the cluster's operator "
                f"set 'modules: {module}' at the master, or declare the table in a job's class"
            )

    def _reply(self, call: int, answer: Answer, now: float) -> None:
        self._out.reply(call, answer)

    def adopt(
        self, tables: Iterable[Table], on_made: OnMade, now: float, *, of_job: Collection[str]
    ) -> None:
        """Declare the tables of a checkpoint; `of_job`: names of those that go with a job. The
        others belong to the session from now on, even if the last job has made them: whoever loads
        rows does not expect the next job to drop them."""
        tables = [*tables]
        try:
            self._declare(tables, of_job, on_made, now)
        except SnailError as error:
            on_made(error, now)
            return
        self._give_to_session({table.name for table in tables} - set(of_job))

    def _give_to_session(self, names: set[str]) -> None:
        for name in sorted(self._of_job & names):
            self._of_job.discard(name)
            self._note(name)

    def _declare(
        self, tables: list[Table], of_job: Collection[str], answer: OnMade, now: float
    ) -> None:
        numbers: list[int] = []
        new: dict[str, tuple[int, Table]] = {}
        for table in tables:  # all are checked before any gets its number: servers make all or none
            fresh = (self._next_table + len(new), table)
            number, known = self.tables.get(table.name) or new.get(table.name, fresh)
            # The wire type may differ: each worker decides how its rows travel.
            table = replace(table, wire=known.wire)
            if known != table:
                raise ConfigError(
                    f"table {table.name!r} is declared in two ways: {_differences(known, table)}"
                )
            if len(self._made) + len(new) >= TABLES_MAX and table.name not in self.tables:
                raise ConfigError(f"more than {TABLES_MAX:,} tables: use fewer, with more rows")
            if number > NUMBER_MAX:
                raise ConfigError(
                    f"this session has made {NUMBER_MAX:,} tables, as many as it can: start the "
                    "cluster anew"
                )
            if table.name not in self.tables:
                new[table.name] = (number, table)
            numbers.append(number)
        self._of_job |= new.keys() & set(of_job)
        for name, (number, table) in new.items():
            self.tables[name] = (number, table)
            self._made[number] = table
            self._note(name)
        self._next_table += len(new)
        self._used |= set(of_job)
        if new:
            self._order_when_noted([number for number, _ in new.values()], now)
        # The tables may be in several orders: of this declaration, and of earlier ones that are
        # still under way.
        awaited = {self._making[number] for number in numbers if number in self._making}

        def ended(making: _Making, error: str, now: float) -> None:
            """One of the orders has ended; the first error is the answer."""
            if making not in awaited:
                return
            awaited.discard(making)
            if error:
                awaited.clear()
            if not awaited:
                answer(ClusterError(error) if error else messages.Declared(numbers), now)

        for making in awaited:
            making.waiting.append(partial(ended, making))
        if not awaited:
            answer(messages.Declared(numbers), now)

    def _note(self, name: str) -> None:
        """Note a table, or that it is another's now."""
        number, table = self.tables[name]
        fact = {"number": number, "table": table.to_dict(), "of_job": name in self._of_job}
        self._out.journal("table", fact)

    def _order_when_noted(self, numbers: list[int], now: float) -> None:
        """Have every server make these tables, once the journal has them on disk. Servers must not
        take pushes to tables that another master would not know: nothing would save their rows."""
        making = self._begin(numbers)
        if self._sync is None or not self._out.kept:
            self._send(making, now)
        else:
            self._out.work(self._sync, lambda done, now: self._send(making, now), "journal")

    def _begin(self, numbers: list[int]) -> _Making:
        making = _Making(numbers)
        self._making.update(dict.fromkeys(numbers, making))
        return making

    def _send(self, making: _Making, now: float) -> None:
        """Order every server to make the tables that were not dropped meanwhile. A lost server
        counts as done: its standbys get the tables with the others."""
        tables = [
            [number, self._made[number].to_dict()]
            for number in making.numbers
            if number in self._made
        ]
        Broadcast(
            self._out,
            self._servers(),
            messages.MakeTables(tables),
            partial(self._ordered, making),
            now,
            loss="drop",
            refused="cannot make the tables",
        )

    def _ordered(self, making: _Making, broadcast: Broadcast, now: float) -> None:
        """All servers have answered, or one has refused: then the tables do not exist, neither at
        the servers that have made them nor for the next master."""
        refused = []
        for number in making.numbers:
            self._making.pop(number, None)
            if broadcast.error and number in self._made:
                refused.append(number)
                self._forget(number)
        self._drop(refused, "cannot drop tables that another server refused", now)
        waiting, making.waiting = making.waiting, []
        for ended in waiting:
            ended(broadcast.error, now)

    def made(self) -> list[Any]:
        """All tables with their numbers, ascending: for a server that joins or hosts a standby."""
        return [[number, table.to_dict()] for number, table in self._made.items()]

    def named(self) -> list[Any]:
        """Number and declaration of all tables, except those of earlier jobs."""
        return [[number, table.to_dict()] for number, table in self.tables.values()]

    def drop_strange(self, now: float) -> bool:
        """As another master takes over a session: drop tables of its jobs whose access method no
        module of `modules` has; whether there were any.

        The job's class admitted them, and a journal alone does not (docs/security.md). The session
        has its other rows, which waiting for the operator would lose.
        """
        of_jobs = {*self._unnamed, *self.of_job.values()}
        strange = [
            number
            for number, table in self._made.items()
            if number in of_jobs and not admits(table, self._modules)
        ]
        for number in strange:
            table = self._forget(number)
            log.warning(
                "table %r of a job is dropped: the master that has taken over does not know its "
                "access method %s. Set 'modules: %s' at the master to keep such tables",
                table.name, table.access, table.access.partition(":")[0],
            )  # fmt: skip
        self._drop(strange, "cannot drop tables of a job", now)
        return bool(strange)

    def remake(self, now: float) -> None:
        """Have every server make all tables: a lost master may not have reached every server, nor
        heard that one refuses. An order each, so that a table that is refused is dropped alone.
        Making a table twice is harmless."""
        for number, table in list(self._made.items()):
            making = self._begin([number])
            making.waiting.append(partial(self._remade, table.name))
            self._send(making, now)

    def _remade(self, name: str, error: str, now: float) -> None:
        if error:
            log.warning("table %r is dropped, as the servers do not have it: %s", name, error)
