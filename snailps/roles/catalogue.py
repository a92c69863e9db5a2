"""The tables of a cluster, at the master: their numbers, and that every server has made them.

    Declare -> numbers -> MakeTables on every server -> Declared

It owns which tables there are, and which of them are a job's; it knows no row and no route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snailps.errors import ClusterError, ConfigError, ConnectionLost, SnailError
from snailps.roles.journal import Fact, Journal
from snailps.roles.member import Answer, Member, Reply
from snailps.roles.tables import Table
from snailps.transport import messages

TABLES_MAX = 4096


class Catalogue:
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

    def declare(self, member: Member, message: messages.Declare, reply: Reply) -> None:
        """Numbers the tables and has every server make them, then answers.

        Raises
        ------
        ConfigError
            A table is declared in two ways, or there are too many.
        """
        tables = [Table.from_dict(item) for item in message.tables]
        self._declare(tables, member.role == "worker", reply)

    def adopt(self, tables: list[Table], reply: Reply) -> None:
        """The same for the tables of a checkpoint, before any worker declares them."""
        try:
            self._declare(tables, True, reply)
        except SnailError as error:
            reply(error)

    def _declare(self, tables: list[Table], of_job: bool, reply: Reply) -> None:
        numbered: list[tuple[int, Table]] = []
        told = False
        for table in tables:
            number, known = self.tables.get(table.name, (self._next_table, table))
            if known != table:
                raise ConfigError(
                    f"table {table.name!r} is declared in two ways: {known} and {table}"
                )
            if number > TABLES_MAX:
                raise ConfigError(f"more than {TABLES_MAX:,} tables")
            if number == self._next_table:
                self._next_table += 1
                if of_job:
                    self._of_job.add(table.name)
            if table.name not in self.tables:
                fact = {"number": number, "table": table.to_dict(), "of_job": of_job}
                self._journal.note("table", fact)
            self.tables[table.name] = (number, table)
            self._made[number] = table
            numbered.append((number, table))
        order = messages.MakeTables([[number, table.to_dict()] for number, table in numbered])
        left = {member.number for member in self._servers()}

        def made(member: Member) -> Callable[[Answer], None]:
            def note(answer: Answer) -> None:
                nonlocal told
                if told:
                    return
                if isinstance(answer, SnailError) and not isinstance(answer, ConnectionLost):
                    told = True
                    for number, table in numbered:
                        self.tables.pop(table.name, None)
                        self._made.pop(number, None)
                    reply(ClusterError(f"{member.name} cannot make the tables: {answer}"))
                    return
                left.discard(member.number)
                if not left:
                    told = True
                    reply(messages.Declared([number for number, _ in numbered]))

            return note

        for member in self._servers():
            self._call(member, order, made(member))

    def made(self) -> list[Any]:
        """All tables with their numbers, those of earlier jobs too: their rows are still there."""
        return [[number, table.to_dict()] for number, table in self._made.items()]

    def remake(self) -> None:
        """Has every server make all tables: a lost master may not have told all of them."""
        order = messages.MakeTables(self.made())

        def note(member: Member) -> Callable[[Answer], None]:
            def answered(answer: Answer) -> None:
                if isinstance(answer, SnailError) and not isinstance(answer, ConnectionLost):
                    self._fail(f"{member.name} cannot make the tables: {answer}")

            return answered

        for member in self._servers():
            self._call(member, order, note(member))
