"""docs/design/members.md is what the tables say, and one module writes a member, one a shard."""

import ast
import runpy
from pathlib import Path

from snailps.master.member import Member, Reports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "members.md"
page = runpy.run_path(str(ROOT / "tools" / "members_page.py"))["page"]
MEMBERS = {"member", "worker", "server", "driver", "newcomer", "other", "reports", "m"}
"""Names that a member, or what it has reported, goes by."""
FIELDS = dict.fromkeys(MEMBERS, (*Member.__slots__, *Reports.__slots__))
FIELDS |= dict.fromkeys(("shard", "s"), ("step", "move"))


def writes(tree):
    """Fields of members and shards that a module assigns: (name, field, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if node.attr in FIELDS.get(name, ()):
                yield name, node.attr, node.lineno


def test_members_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/design/members.md is out of date; run: "
        "python tools/members_page.py > docs/design/members.md"
    )


def test_no_other_module_writes_a_field_of_a_member_or_the_step_of_a_shard():
    found = {
        str(path.relative_to(ROOT)): written
        for path in (ROOT / "snailps" / "master").rglob("*.py")
        if path.name not in ("member.py", "placement.py")
        and (written := list(writes(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not found
