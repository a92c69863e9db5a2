"""`TableRegistry`: which tables there are, and that each server makes each of them once."""

from types import SimpleNamespace

import pytest
from master_parts import TestOutbox

from snailps.api.tables import Table
from snailps.errors import ClusterError, ConfigError, ConnectionLost
from snailps.master import table_registry
from snailps.master.effects import Fact
from snailps.master.member import Member
from snailps.master.table_registry import TableRegistry
from snailps.transport import messages as m


def member_of(role):
    return Member(1, role, "h", 1, 1, [])


WORKER = member_of("worker")


class World:
    """Some servers, which answer when a test says so."""

    def __init__(self, servers=3, modules=()):
        self.servers = [
            SimpleNamespace(number=n, peer=n, name=f"server {n}") for n in range(1, servers + 1)
        ]
        self.out = TestOutbox()
        self.table_registry = TableRegistry(lambda: list(self.servers), self.out, modules)

    def declare(self, *names, dim=4):
        """A worker declares tables; what it is answered."""
        answers = []
        tables = [Table(name, dim).to_dict() for name in names]
        self.table_registry.declare(WORKER, m.Declare(tables), answers.append, 0.0)
        return answers

    def answer(self, what=None):
        """Every server answers what it was told."""
        told, self.out.orders = self.out.orders, []
        for _, _, answer in told:
            answer(what or m.Ok(), 0.0)
        return [message for _, message, _ in told]


def test_servers_make_a_table_once_however_many_workers_declare_it():
    world = World()
    answers = [world.declare("rows", "bias") for _ in range(100)]
    assert not any(answers)
    orders = world.answer()
    assert len(orders) == len(world.servers)
    assert [number for number, _ in orders[0].tables] == [1, 2]
    assert all(answer == [m.Declared([1, 2])] for answer in answers)
    assert world.declare("bias") == [m.Declared([2])]  # it exists: no server is asked
    assert not world.out.orders


def test_tables_of_a_job_are_dropped_as_the_next_begins():
    world = World()
    driver = member_of("driver")
    world.declare("rows", "bias")
    own = Table("own", 4).to_dict()
    world.table_registry.declare(driver, m.Declare([own]), lambda *_: None, 0.0)
    world.answer()
    world.table_registry.forget_job(1.0)
    assert world.answer() == [m.DropTables([1, 2])] * 3
    assert [number for number, _ in world.table_registry.made()] == [3]
    assert world.table_registry.count == 1
    world.declare("rows")
    assert [number for number, _ in world.answer()[0].tables] == [4]  # numbers come once
    world.table_registry.forget_job(2.0)
    world.servers.clear()
    world.table_registry.forget_job(3.0)
    assert world.table_registry.count == 1


def test_tables_that_a_worker_is_still_at_go_with_the_next_jobs():
    world = World()
    world.declare("rows", "bias")
    world.answer()
    world.table_registry.forget_job(1.0, in_use=True)
    assert not world.out.orders
    assert [number for number, _ in world.table_registry.made()] == [1, 2]  # a server may join
    world.declare("rows")
    assert [number for number, _ in world.answer()[0].tables] == [3]
    world.table_registry.forget_job(2.0)
    assert world.answer() == [m.DropTables([1, 2, 3])] * 3
    assert world.table_registry.count == 0


def test_numbers_of_tables_end(monkeypatch):
    monkeypatch.setattr(table_registry, "NUMBER_MAX", 3)
    world = World()
    for _ in range(3):
        world.declare("rows")
        world.answer()
        world.table_registry.forget_job(0.0)
    with pytest.raises(ConfigError, match="has made 3 tables, as many as it can: start"):
        world.declare("rows")


def test_only_new_tables_are_ordered_and_all_are_waited_for():
    world = World()
    first = world.declare("rows")
    second = world.declare("rows", "bias")
    assert [[n for n, _ in message.tables] for _, message, _ in world.out.orders] == [[1]] * 3 + [
        [2]
    ] * 3
    later, world.out.orders = world.out.orders[3:], world.out.orders[:3]
    world.answer()
    assert first == [m.Declared([1])]
    assert not second
    world.out.orders = later
    world.answer()
    assert second == [m.Declared([1, 2])]


def test_a_server_that_refuses_fails_all_who_wait_and_the_table_is_declared_anew():
    world = World()
    answers = [world.declare("rows") for _ in range(2)]
    world.answer(ClusterError("no memory"))
    for (answer,) in answers:
        assert "server 1 cannot make the tables: no memory" in str(answer)
    # neither servers that have made it nor the next master know it
    assert world.answer() == [m.DropTables([1])] * 3
    assert ("drop", {"numbers": [1]}) in world.out.facts
    again = world.declare("rows")
    assert len(world.answer()) == 3
    assert again == [m.Declared([2])]


def test_a_lost_server_is_not_waited_for():
    world = World()
    answers = world.declare("rows")
    world.answer(ConnectionLost("gone"))
    assert answers == [m.Declared([1])]


def test_two_declarations_of_a_name_that_differ_are_refused():
    world = World()
    world.declare("rows")
    with pytest.raises(ConfigError, match=r"in two ways: dim=\d, and dim=\d$"):
        world.declare("rows", dim=5)


def test_tables_of_a_master_before_are_made_again_and_waited_for():
    """It may have told some servers only."""
    world = World()
    world.declare("rows")
    world.answer()
    world.table_registry.remake(0.0)
    answers = world.declare("rows")
    assert not answers
    assert len(world.answer()) == 3
    assert answers == [m.Declared([1])]


def test_table_that_servers_refuse_after_a_takeover_is_dropped_alone():
    """The master before was lost before it heard of the refusal: no server has the table."""
    world = World()
    for name in ("rows", "bad", "bias"):
        world.declare(name)
    world.answer()
    world.table_registry.remake(0.0)
    answers = world.declare("bad")
    orders, world.out.orders = world.out.orders, []
    for _, message, answer in orders:
        ((number, _),) = message.tables
        answer(ClusterError("no such module") if number == 2 else m.Ok(), 0.0)
    assert world.answer() == [m.DropTables([2])] * 3
    assert [number for number, _ in world.table_registry.made()] == [1, 3]
    assert ("drop", {"numbers": [2]}) in world.out.facts
    assert "cannot make the tables: no such module" in str(answers[0])  # who waits hears of it


@pytest.mark.parametrize("next_master", [False, True])
@pytest.mark.parametrize("way", ["declares", "loads"])
def test_tables_that_a_driver_declares_or_loads_are_the_sessions(way, next_master):
    world, answers = World(), []
    world.declare("rows", "bias")
    world.answer()
    registry = world.table_registry
    made = [Table("rows", 4), Table("new", 4)]
    if way == "loads":
        registry.adopt(made, lambda answer, now: answers.append(answer), 0.0, of_job=())
    else:
        declare = m.Declare([table.to_dict() for table in made])
        registry.declare(member_of("driver"), declare, answers.append, 0.0)
    world.answer()
    assert answers == [m.Declared([1, 3])]
    if next_master:
        facts = world.out.facts
        registry = World().table_registry
        for fact in facts:
            registry.replay(Fact(*fact))
    registry.forget_job(1.0)
    assert [number for number, _ in registry.made()] == [1, 3]
    assert sorted(registry.tables) == ["new", "rows"]


OWN = Table("w", 2, access="mymethods:Max")


@pytest.mark.parametrize(
    ("role", "modules", "admitted"),
    [
        ("driver", (), False), ("driver", ("other", "mymethod"), False), ("worker", (), True),
        ("driver", ("other", "mymethods"), True), ("driver", ("*",), True),
    ],
)  # fmt: skip
def test_servers_import_for_a_driver_what_their_operator_names(role, modules, admitted):
    world = World(modules=modules)
    declare = m.Declare([Table("plain", 2, access="add").to_dict(), OWN.to_dict()])
    registry, member = world.table_registry, member_of(role)
    if admitted:
        registry.declare(member, declare, [].append, 0.0)
        assert list(registry.tables) == ["plain", "w"]
        return
    with pytest.raises(ConfigError, match=r"'w': mymethods:Max .* 'modules: mymethods' at the mas"):
        registry.declare(member, declare, [].append, 0.0)
    assert not registry.tables
    assert not world.out.orders
    registry.declare(WORKER, declare, [].append, 0.0)  # the class of a job has it
    world.answer()
    registry.declare(member, declare, [].append, 0.0)


@pytest.mark.parametrize("modules", [(), ("mymethods",)])
def test_another_master_drops_a_jobs_tables_whose_methods_it_does_not_admit(modules):
    """Only those: it imports nothing that its journal alone names, and the session goes on."""
    world = World(modules=modules)
    registry = world.table_registry
    registry.declare(member_of("driver"), m.Declare([Table("own", 4).to_dict()]), print, 0.0)
    declare = m.Declare([OWN.to_dict(), Table("rows", 4).to_dict()])
    registry.declare(WORKER, declare, print, 0.0)
    world.answer()
    taken_over = World(modules=modules)
    for fact in world.out.facts:
        taken_over.table_registry.replay(Fact(*fact))
    assert taken_over.table_registry.drop_strange(0.0) == (not modules)
    taken_over.table_registry.remake(0.0)
    orders = taken_over.answer()
    numbers = [1, 2, 3] if modules else [1, 3]
    made = [order.tables[0][0] for order in orders if isinstance(order, m.MakeTables)]
    assert sorted(made) == sorted(numbers * 3)
    assert (m.DropTables([2]) in orders) == (not modules)
    assert [number for number, _ in taken_over.table_registry.made()] == numbers
