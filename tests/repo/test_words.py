"""Words that are gone stay gone; docs/glossary.md has those that are said.

code and documents, less `earlier_names.py`, which translates files of 0.1 -> no gone word
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOCUMENTS.remove(ROOT / "CHANGELOG.md")  # which names what is gone
CODE = sorted(
    path
    for kind in ("py", "pyx", "pxd", "h", "js")
    for path in (ROOT / "snailps").rglob(f"*.{kind}")
    if not path.with_suffix(".pyx").exists() or kind != "h"  # else it may be generated
    if path.name != "earlier_names.py"
)

GONE = {
    r"\b(?:Borrow(?:ed)?|GiveBack|Settled)\b": "CheckOut, CheckedOut, CheckIn, Durable",
    r"""["'`]life["'`]""": "cluster_id",
    r"tenan(?:t|cy|cies)\b": "partition, partition lease",
    r"\b(?:visiting|resident) (?:part|row)s?\b": "output partition, input partition",
    r"\b(?:un)?dealt\b|\bdealers?\b": "encoded, split, assigned",
    r"\bg(?:i|a)ve_back\b|\blend_|\b_lent\b": "check_in, check_out, release",
    r"\b(?:event|settings|standby|stream|workers)_told\b|\btold_(?:clock|lost|phase|route)\b": (
        "reported, sent"
    ),
    r"is_ours\b|\bunsaid\b|\b(?:ours|theirs)\b *(?:=|\[|\.get)": "local, remote, own",
    r"\.(?:former|following)\b(?!\()": "previous, next",
    r"\.(?:leaves|takes)\b(?!\()": "source, target",
    r"\bwait_alone\b|\.alone\b": "wait_here, unbacked",
    r"\bclass (?:Past|Happened|_Affair|Works|Found|Motion)\b": "what it is",
}
OF_ROTATION = {
    r"\bborrow(?:s|ed|ing|er)?\b": "check out",
    r"\bvisit(?:s|ed)?\b": "checkout",
    r"\bsettled?\b|\bunsettled\b": "durable",
}
"""Gone where a rotation is made; borrowed memory, visited rows and settled requests are others."""
OF_KEPT_ROWS = {r"\brounds?\b(?!\()": "push period"}
"""A round is federated averaging's."""
KEEPS = re.compile(
    r"snailps/models/(?:kept_rows|exchange_times|recalled_bases|rows|pace|block_trainer)\.py"
)
ROTATES = re.compile(r"snailps/(?:worker/|models/word_vectors/|api/rotation|master/leases/)")


def found(words, paths):
    """Lines with a gone word, and what is said instead."""
    of_any = re.compile("|".join(words))
    for path in paths:
        for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern, instead in words.items() if of_any.search(line) else ():
                if re.search(pattern, line):
                    yield f"{path.relative_to(ROOT)}:{at}: say {instead}: {line.strip()}"


@pytest.mark.parametrize("paths", [CODE, DOCUMENTS], ids=["code", "documents"])
def test_gone_words_stay_gone(paths):
    assert list(found(GONE, paths)) == []


def test_a_rotation_has_partitions_and_checkouts():
    paths = [path for path in CODE if ROTATES.match(path.relative_to(ROOT).as_posix())]
    assert len(paths) > 20
    assert list(found(OF_ROTATION, paths)) == []


def test_kept_rows_are_pushed_by_push_periods():
    paths = [path for path in CODE if KEEPS.match(path.relative_to(ROOT).as_posix())]
    assert len(paths) == 6
    assert list(found(OF_KEPT_ROWS, paths)) == []
