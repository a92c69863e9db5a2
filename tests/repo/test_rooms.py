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
    assert without.is_meant(path, {"torch"}) == (not room)
    assert all(without.is_meant(path, without.beside(one), one) for one in room)
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


def test_prices_are_those_of_hand_made_rooms():
    promises = (
        "| promise | test | tier | room |\n|---|---|---|---|\n"
        "| Rows stay | `unit/test_a.py::test_x`, `unit/test_a.py::test_y` | unit | core |\n"
        "| Words too | `unit/test_a.py` | unit | core, words |\n"
    )
    texts = {
        "tests/README.md": promises,
        "tests/unit/test_a.py": "1\n2\n\n3\n4\n",
        "tests/unit/test_b.py": "from snailps.torch.rows import a\nfrom snailps.store.x import b\n",
        "tests/unit/test_c.py": "import os\n",
        "snailps/store/_store.pyx": "a\n\n  \nb\n",
        "snailps/models/word_vectors/__init__.py": "x\n",
        "docs/classifier.md": "three words here\n",
        "docs/operations.md": "two words\n",
    }
    found = rooms.prices(texts)
    assert found["promises"] == {"core": 1.5, "words": 0.5}
    assert found["code"] == {"core": 2, "words": 1}
    assert found["words"] == {"classifier": 3, "core": 2}
    # 4 lines of which promises name core twice and words once; 2 lines by imports, 1 of no room.
    assert found["tests"] == pytest.approx({"core": 8 / 3 + 1, "words": 4 / 3, "torch": 1, "?": 1})
    before = {**texts, "tests/README.md": promises.replace(" | core", "").replace(", words", "")}
    assert rooms.prices(before)["promises"] == {"?": 2}


def test_prices_of_a_checkout_are_printed_with_the_change(tmp_path, capsys):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True)

    git("init", "-q")
    for folder in ("snailps", "tests", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text("word\n")
    (tmp_path / "snailps" / "pieces.py").write_text("1\n")
    git("add", ".")
    git("commit", "-q", "-m", "First")
    (tmp_path / "snailps" / "pieces.py").write_text("1\n2\n3\n")
    git("commit", "-q", "-a", "-m", "Second")
    rooms.print_prices(tmp_path, rooms.last_release(tmp_path))
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["room"] == ["promises", "code", "tests", "words"]
    assert lines["core"] == ["0", "+0", "3", "+2", "0", "+0", "1", "+0"]
    assert lines["all"] == lines["core"]


WITHOUT_COMPILED = """
import without
without.begin({"retention", "server_products"})
import numpy as np
from shards import JOB, Shards, error_of
from snailps.api.tables import Table
from snailps.errors import ConfigError
from snailps.transport.frame import Frame, Kind

def refused(call, *args):
    try:
        call(*args)
    except ConfigError as error:
        print(str(error).partition(":")[0])

with Shards(1) as shards:
    refused(shards.declare, Table("limited", 2, rows_max=4))
    shards.declare(Table("plain", 2, admit_after=1))
    refused(shards.client().forward_async, 1, np.array([0, 1]), np.zeros(1, np.uint64), None, 2)
    with shards.raw() as client:
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            print(error_of(client.ask(Frame(kind, b"", 1, 1, JOB, 1, 1))))
"""


def test_compiled_options_that_are_gone_are_refused_by_name():
    path = [str(TESTS / "support"), str(TESTS)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{WITHOUT_COMPILED}"],
        capture_output=True,
        text=True,
    )
    gone = "table 1: the option server_products is not installed here"
    assert [
        line.partition(". ")[0].removeprefix("shard 0: ") for line in done.stdout.splitlines()
    ] == [
        "option retention is not installed",
        "option server_products.client is not installed",
        gone,
        gone,
    ], done.stderr
