"""The lives of a cluster: the table of the design page is the program's."""

import re
from dataclasses import fields
from pathlib import Path

from snailps.master.life import LIVES, Life

PAGE = Path(__file__).parents[2] / "docs" / "design" / "lives.md"


def test_page_has_each_column_of_each_life():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    table = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}
    columns = [field.name for field in fields(Life) if field.name != "name"]
    assert table == {
        name: ["yes" if getattr(life, name) else "no" for life in LIVES] for name in columns
    }
    header = next(row for row in rows if row[0] == "column")
    assert header[1:] == [life.name for life in LIVES]


def test_each_column_has_a_reader():
    """A column that nothing reads would be a knob without a user."""
    master = Path(PAGE.parents[2], "snailps", "master")
    read = "".join(path.read_text() for path in master.rglob("*.py") if path.name != "life.py")
    for field in fields(Life):
        assert field.name == "name" or f"life.{field.name}" in read, field.name


def test_no_part_asks_which_life_it_lives():
    """A question of one life is a column: the next life would be forgotten where it is asked."""
    asks = re.compile(r"\blife(\.name|\s*(==|!=|is|in)\s)|\b(COMMAND|SESSION|LASTING)\.\w")
    package = PAGE.parents[2] / "snailps"
    asking = [path.name for path in package.rglob("*.py") if asks.search(path.read_text())]
    assert asking == []
