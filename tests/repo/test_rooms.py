"""What can be taken away: every module of the core is imported with each other room gone.

Which tests are run without which rooms is in support/without.py; `make test-rooms` runs them.
"""

import subprocess
import sys

import pytest
import without
from without import PRODUCTS, TESTS, rooms


@pytest.mark.limit(300)
def test_core_is_imported_without_each_option_and_product():
    script = TESTS / "support" / "without.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    lacking = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert lacking.keys() == {*rooms.OPTIONS, *rooms.PRODUCTS, *rooms.OTHERS}
    wrong = {room: what for room, what in lacking.items() if what != "nothing"}
    assert wrong.keys() <= without.ATTACHED, wrong


def test_modules_of_a_room_that_is_gone_are_refused_by_its_name():
    finder = without.Gone({"torch"})
    with pytest.raises(ModuleNotFoundError, match=r"snailps\.torch\.lists: room torch is gone"):
        finder.find_spec("snailps.torch.lists")
    assert finder.find_spec("snailps.store.route") is None


@pytest.mark.parametrize(
    ("file", "room"),
    [("test_route", set()), ("test_ranking", {"names"}), ("test_query", {"words"})],
)
def test_files_are_run_without_what_they_do_not_need(file, room):
    path = TESTS / "unit" / f"{file}.py"
    needs = without.needed(path) & {*rooms.PRODUCTS}
    assert needs == room
    assert without.is_meant(path, {"torch"})
    assert all(not without.is_meant(path, {one}) for one in room)


def test_core_has_tests_of_every_part_that_is_run_without_products():
    gone = without.named("all")
    run = {path.stem for path in TESTS.glob("*/test_*.py") if without.is_meant(path, gone)}
    assert {
        "test_sim", "test_lives", "test_membership", "test_replication_planner",
        "test_master_core", "test_journal", "test_frame", "test_client", "test_route", "test_store",
    } <= run  # fmt: skip


def test_every_product_has_tests_that_are_run_alone():
    rows = [line.split() for line in PRODUCTS.read_text().splitlines() if line[:1] != "#"]
    assert {room for room, *_ in rows} == without.products()
    for room, *names in rows:
        for name in names:
            path = TESTS / "unit" / f"test_{name}.py"
            assert without.is_meant(path, without.beside(room), room), f"{path.name}: not {room}'s"
