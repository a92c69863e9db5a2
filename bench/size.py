"""Lines of the package by part and kind, at some commits: what grew, and what went.

    python bench/size.py 99684dcb HEAD

Kinds: code, docstrings (and texts that stand alone), comments, blank lines; of .pyx, .pxd and .h
the first two are one.  Reads commits, not the folder: what is not committed does not count.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".pyx", ".pxd", ".h", ".pyi")
PARTS = ("snailps", "tests", "bench", "tools", "examples")


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout


def files(commit: str) -> Iterator[tuple[str, str]]:
    """Path and text of each source file of a commit."""
    for line in git("ls-tree", "-r", "--name-only", commit, *PARTS).splitlines():
        if line.endswith(ENDINGS):
            yield line, git("show", f"{commit}:{line}")


def kinds(path: str, text: str) -> Counter[str]:
    """Lines of each kind."""
    lines = text.splitlines()
    found: Counter[str] = Counter(total=len(lines))
    found["blank"] = sum(not line.strip() for line in lines)
    mark = "//" if path.endswith(".h") else "#"
    found["comments"] = sum(line.lstrip().startswith(mark) for line in lines)
    if path.endswith(".py"):
        inside = set()
        for node in ast.walk(ast.parse(text)):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                inside.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        found["docstrings"] = len(inside)
        found["blank"] -= sum(not lines[at - 1].strip() for at in inside)
    found["code"] = len(lines) - found["blank"] - found["comments"] - found["docstrings"]
    return found


def part_of(path: str) -> str:
    """The package, or the folder at the top."""
    names = PurePosixPath(path).parts
    return "/".join(names[:2]) if names[0] == "snailps" and len(names) > 2 else names[0]


def sizes(commit: str) -> dict[str, Counter[str]]:
    """Lines of each part."""
    found: dict[str, Counter[str]] = {}
    for path, text in files(commit):
        found.setdefault(part_of(path), Counter()).update(kinds(path, text))
    whole: Counter[str] = Counter()
    for part, counts in found.items():
        if part.startswith("snailps"):
            whole.update(counts)
    found["snailps, all"] = whole
    return found


def main() -> int:
    """Prints a table; the last commit's kinds, and what the ones before had in all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commits", nargs="*", default=["HEAD"], help="the last one is shown whole")
    commits = parser.parse_args().commits
    try:
        found = [sizes(commit) for commit in commits]
    except subprocess.CalledProcessError as error:
        sys.exit(f"bench/size.py: {error.stderr.strip()}")
    columns = ["total", "code", "docstrings", "comments", "blank"]
    print("| part |", " | ".join([*commits[:-1], *columns]), "|")
    print("|---|" + "---|" * (len(commits) - 1 + len(columns)))
    for part in sorted(found[-1]):
        before = [f"{one.get(part, Counter())['total']:,}" for one in found[:-1]]
        now = [f"{found[-1][part][column]:,}" for column in columns]
        print("|", " | ".join([part, *before, *now]), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
