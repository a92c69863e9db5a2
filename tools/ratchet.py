"""What must not grow again: special cases, type tests of policies, stubs in git, words to learn.

    python tools/ratchet.py .        exits with 1, and names the lines, where there are more

Run by `make lint`.  `MOST` is what there was when it was last counted: lower it with each deletion.
Prints lines of each package, and of the release before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

RELEASE = "99684dcb"
"""The commit before the packages were merged; its lines are printed where it is in the clone."""
FORKS = re.compile(r"\bworkers\s*(==|!=|<=?|>=?)\s*[12]\b")
POLICIES = re.compile(r"\bisinstance\([^()]*,\s*\(?\s*\w*(Ledger|Rows|Admission)\b")
MOST = {"forks on the number of workers": 4, "type tests of policies": 5, "stubs": 0, "terms": 110}
HINTS = {
    "forks on the number of workers": "make one worker a value of the general case",
    "type tests of policies": "have the policy answer",
    "stubs": "tools/stubs.py makes them",
    "terms": "docs/glossary.md: use a word that is there",
}


def git(root: Path, *words: str) -> list[str]:
    """Lines that git prints; none where it fails."""
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def lines_of(root: Path, commit: str) -> Counter[str]:
    """Lines of each package of snailps/ in a commit."""
    found: Counter[str] = Counter()
    empty = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    for line in git(root, "diff", "--numstat", empty, commit, "--", "snailps"):
        added, _, name = line.split("\t")
        if name.endswith((".py", ".pyx", ".pxd", ".h", ".pyi")):
            parts = name.split("/")
            found["/".join(parts[:2]) if len(parts) > 2 else "snailps"] += int(added)
    return found


def places(root: Path) -> dict[str, list[str]]:
    """Where each kind of what must not grow is."""
    found: dict[str, list[str]] = {name: [] for name in MOST}
    for path in sorted((root / "snailps").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name, pattern in zip(MOST, (FORKS, POLICIES), strict=False):
                if pattern.search(line):
                    found[name].append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    found["stubs"] = git(root, "ls-files", "*.pyi")
    glossary = (root / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    found["terms"] = [line.split("|")[1].strip() for line in glossary if line.startswith("| ")][1:]
    return found


def main(root: Path) -> int:
    """Print lines of the packages, and what there is too much of."""
    now, before = lines_of(root, "HEAD"), lines_of(root, RELEASE)
    for name in sorted(now):
        print(f"{name}: {now[name]:,} lines, of {before[name]:,}" if before else "", end="; ")
    print(f"all: {now.total():,}, of {before.total():,}" if before else "")
    failed = False
    for name, found in places(root).items():
        if len(found) > MOST[name]:
            failed = True
            print(f"{name}: {len(found)}, at most {MOST[name]}: {HINTS[name]}", *found, sep="\n  ")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
