"""The tables of a cluster, at the master: their numbers, and that every server has made them.

    Declare -> numbers -> MakeTables on every server -> Declared

It owns which tables there are, and which of them are a job's; it knows no row and no route.
Servers are told of a table once: all others who declare it are answered when all have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snailps.api.tables import Table
from snailps.errors import ClusterError, ConfigError, ConnectionLost, SnailError
from snailps.master.journal import Fact, Journal
from snailps.master.member import Answer, Member
from snailps.transport import messages

TABLES_MAX = 4096


@dataclass(eq=False, slots=True)
class _Making:
    """An order to make tables, until every server has answered it; then `waiting` are told."""

    numbers: list[int]
    left: set[int]
    waiting: list[Callable[[str], None]] = field(default_factory=list)


class TableRegistry:
    """All tables of one life of a cluster.

    Parameters
    ----------
    servers : callable
        The servers that belong now.
    call : callable
        ``call(member, message, on_answer)``: gives a member an order.
    fail : callable
        Ends the cluster, with a sentence.
    journal : Journal
        Gets every table.
    """

    def __init__(
        self,
        servers: Callable[[], list[Member]],
        call: Callable[[Member, messages.Message, Callable[[Answer], None]], None],
        fail: Callable[[str], None],
        journal: Journal,
    ) -> None:
        self.tables: dict[str, tuple[int, Table]] = {}
        self._servers, self._call, self._fail = servers, call, fail
        self._journal = journal
        self._next_table = 1
        self._made: dict[int, Table] = {}
        self._of_job: set[str] = set()
        self._making: dict[int, _Making] = {}  # by table, until all servers have it

    def forget_job(self) -> None:
        """Lets the next job of a session declare its tables afresh.

        Until then the driver can read what the last job left.  The rows stay on the servers until
        the cluster ends.
        """
        for name in self._of_job:
            self.tables.pop(name, None)
        self._of_job.clear()

    def replay(self, fact: Fact) -> None:
        """Takes a table that an earlier master of this life has noted."""
        data = fact.data
        table = Table.from_dict(data["table"])
        self.tables[table.name] = (data["number"], table)
        self._made[data["number"]] = table
        self._next_table = max(self._next_table, data["number"] + 1)
        if data["of_job"]:
            self._of_job.add(table.name)

    def declare(
        self, member: Member, message: messages.Declare, reply: Callable[[Answer], None]
    ) -> None:
        """Numbers the tables and has every server make them, then answers.

        Raises
        ------
        ConfigError
            A table is declared in two ways, or there are too many.
        """
        tables = [Table.from_dict(item) for item in message.tables]
        self._declare(tables, member.role == "worker", reply)

    def adopt(self, tables: list[Table], reply: Callable[[Answer], None]) -> None:
        """The same for the tables of a checkpoint, before any worker declares them."""
        try:
            self._declare(tables, True, reply)
        except SnailError as error:
            reply(error)

    def _declare(self, tables: list[Table], of_job: bool, reply: Callable[[Answer], None]) -> None:
        numbers: list[int] = []
        new: dict[str, tuple[int, Table]] = {}
        for table in tables:  # all are looked at before any is kept: servers make all or none
            fresh = (self._next_table + len(new), table)
            number, known = self.tables.get(table.name) or new.get(table.name, fresh)
            if known != table:
                raise ConfigError(
                    f"table {table.name!r} is declared in two ways: {known} and {table}"
                )
            if number > TABLES_MAX:
                raise ConfigError(f"more than {TABLES_MAX:,} tables")
            if table.name not in self.tables:
                new[table.name] = (number, table)
            numbers.append(number)
        for name, (number, table) in new.items():
            fact = {"number": number, "table": table.to_dict(), "of_job": of_job}
            self._journal.note("table", fact)
            self.tables[name] = (number, table)
            self._made[number] = table
        self._next_table += len(new)
        if of_job:
            self._of_job |= new.keys()
        if new:
            self._order([number for number, _ in new.values()])
        open_ = {self._making[number] for number in numbers if number in self._making}
        left = len(open_)
        if not left:
            reply(messages.Declared(numbers))

        def told(error: str) -> None:
            nonlocal left
            if left <= 0:
                return
            left = 0 if error else left - 1
            if not left:
                reply(ClusterError(error) if error else messages.Declared(numbers))

        for making in open_:
            making.waiting.append(told)

    def _order(self, numbers: list[int]) -> _Making:
        """Has every server make these tables."""
        servers = self._servers()
        making = _Making(numbers, {member.number for member in servers})
        self._making.update(dict.fromkeys(numbers, making))
        tables = [[number, self._made[number].to_dict()] for number in numbers]
        order = messages.MakeTables(tables)

        def note(member: Member) -> Callable[[Answer], None]:
            def answered(answer: Answer) -> None:
                refused = isinstance(answer, SnailError) and not isinstance(answer, ConnectionLost)
                making.left.discard(member.number)
                if refused:
                    self._end(making, f"{member.name} cannot make the tables: {answer}")
                elif not making.left:
                    self._end(making, "")

            return answered

        for member in servers:
            self._call(member, order, note(member))
        if not servers:
            self._end(making, "")
        return making

    def _end(self, making: _Making, error: str) -> None:
        """All servers have answered, or one of them has refused."""
        for number in making.numbers:
            self._making.pop(number, None)
            if error and (table := self._made.pop(number, None)) is not None:
                self.tables.pop(table.name, None)
        waiting, making.waiting = making.waiting, []
        for told in waiting:
            told(error)

    def made(self) -> list[Any]:
        """All tables with their numbers, those of earlier jobs too: their rows are still there."""
        return [[number, table.to_dict()] for number, table in self._made.items()]

    def remake(self) -> None:
        """Has every server make all tables: a lost master may not have told all of them."""
        if self._made:
            self._order(list(self._made)).waiting.append(
                lambda error: self._fail(error) if error else None
            )
