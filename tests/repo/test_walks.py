"""docs/design/walk-*.md name the files of ways through the tree: they exist, and are few."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WALKS = ROOT / "docs" / "design"

FILES_MAX = {
    "walk-pull.md": 16, "walk-register.md": 22, "walk-block.md": 18, "walk-setting.md": 8,
    "walk-schedule.md": 8, "walk-model.md": 11,
}  # fmt: skip
"""Files in the tables of a walk.  A way that gets longer needs a reason; one that gets shorter
lowers its number here."""


def stations(page):
    """Files that the tables of a page name, each once."""
    return set(re.findall(r"^\| `(snailps/[^`]+)` \|", (WALKS / page).read_text(), re.MULTILINE))


def named(page):
    """Everything in backticks that looks like a source file, tables and text alike."""
    found = re.findall(r"`([\w/]+\.(?:py|pyx|pxd|h))`", (WALKS / page).read_text())
    return {path if path.startswith("snailps/") else f"snailps/{path}" for path in found}


@pytest.mark.parametrize("page", FILES_MAX)
def test_files_of_walk_exist(page):
    missing = {path for path in stations(page) if not (ROOT / path).is_file()}
    names = [str(path.relative_to(ROOT)) for path in (ROOT / "snailps").rglob("*.[ph]*")]
    missing |= {
        path
        for path in named(page)
        if not any(name.endswith(path.removeprefix("snailps")) for name in names)
    }
    assert not missing


@pytest.mark.parametrize("page", FILES_MAX)
def test_walk_has_no_more_files_than_it_may(page):
    assert len(stations(page)) <= FILES_MAX[page]


@pytest.mark.parametrize("page", FILES_MAX)
def test_walk_says_what_happens_when_a_process_dies(page):
    assert "## If a process dies\n" in (WALKS / page).read_text()


def test_every_walk_is_tested():
    assert {path.name for path in WALKS.glob("walk-*.md")} == set(FILES_MAX)
