"""docs/design/members.md is what the tables say, and one module writes a member, one a shard."""

import ast
import runpy
from pathlib import Path

import pytest

from snailps.master.member import Member, Reports
from snailps.master.replication.placed_shard import Copy, PlacedShard, Server
from snailps.master.replication.placement import Placement
from snailps.master.replication.shard_index import ShardIndex

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "members.md"
page = runpy.run_path(str(ROOT / "tools" / "members_page.py"))["page"]
MEMBERS = {"member", "worker", "server", "driver", "newcomer", "other", "reports", "m"}
"""Names that a member, or what it has reported, goes by."""
FIELDS = dict.fromkeys(MEMBERS, (*Member.__slots__, *Reports.__slots__))
PLACED = {*PlacedShard.__slots__, *Copy.__slots__, *Server.__slots__, *Placement.__slots__}
INDEXED = {*ShardIndex.__slots__}
CHANGES = {"add", "append", "clear", "discard", "pop", "remove", "update"}
"""Methods that change a set, a list or a dict."""


def writes(tree):
    """Fields of members and shards that a module assigns: (name, field, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if node.attr in FIELDS.get(name, ()):
                yield name, node.attr, node.lineno


def placed(tree, fields=frozenset(PLACED | INDEXED)):
    """Lines of a module that change a shard, a copy, a server, or an index over them: (name, line).

    By the name of the field, whatever its owner is called; a part may have a field of its own that
    is called so.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in fields:
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not is_own and not isinstance(node.ctx, ast.Load):
                yield node.attr, node.lineno
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if getattr(node.value, "attr", "") in fields:
                yield node.value.attr, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            index = node.func.value
            if node.func.attr in CHANGES and getattr(index, "attr", "") in fields:
                yield index.attr, node.lineno


def test_members_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/design/members.md is out of date; run: "
        "python tools/members_page.py > docs/design/members.md"
    )


def test_placement_alone_writes_where_shards_are():
    """What others wrote, the journal or an index could lack: rows would be lost at a takeover."""
    folder = ROOT / "snailps" / "master" / "replication"
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")}
    for fields, writer in ((PLACED, "placement.py"), (INDEXED, "shard_index.py")):
        assert [name for name, tree in trees.items() if list(placed(tree, fields))] == [writer]


@pytest.mark.parametrize(
    "line",
    [
        "shard.standby = copy", "copy, shard.next = shard.next, None", "x.failures += 1",
        "del one.previous", "self.placement.bare.add(3)", "self.places.shards[2] = shard",
        "for shard.step in steps: pass", "placement.going.clear()",
    ],
)  # fmt: skip
def test_no_way_to_write_a_shard_is_overlooked(line):
    assert list(placed(ast.parse(line)))


def test_no_other_module_writes_a_field_of_a_member():
    found = {
        str(path.relative_to(ROOT)): written
        for path in (ROOT / "snailps" / "master").rglob("*.py")
        if path.name != "member.py"
        and (written := list(writes(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not found
