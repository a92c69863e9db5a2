"""What must not grow again: special cases, questions for policies, strays in git, words to learn,
names with several meanings.

    python tools/ratchet.py .        exits with 1, and names the lines, where there are more

Run by `make lint`.  `MOST` is what there was when it was last counted: lower it with each deletion.
Prints lines of each package, and of the release before.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

RELEASE = "99684dcb"
"""The commit before the packages were merged; its lines are printed where it is in the clone."""
FORKS = "forks on the number of workers"
PARTS = "forks on the number of partitions"
ALONE = "questions whether a worker shares its rows"
POLICIES = "type tests of policies"
SCHEDULES = "questions for the schedule outside of its policy"
NOT_ME = "methods of schedules that answer nothing"
STRAYS = "names at the root that do not belong there"
PRIVATE = "lines of tests that touch private names"
SHARED = "class names with several classes"
PATTERNS = {
    FORKS: r"\bworkers\s*(==|!=|<=?|>=?)\s*[12]\b",
    PARTS: r"\bparts\s*(==|!=|<=|>)\s*1\b|\bsplit\.is_whole\b",
    ALONE: r"\bothers_push\b|\bhas_bases\b|\bof_workers\(|_ALONE\b|\b\w*outputs is (not )?None\b"
    r"|\b_?recalls\b|\bplaces\.first is\b",
    POLICIES: r"\b(isinstance|cast)\(.*?\b\w*(Schedule|Admission)\b",
    SCHEDULES: r"\bconsistency\s*(==|!=)|\bjob\.(rounds|clocked)\b",
}
"""By kind: a line of code that is one; of schedules, in packages that are no policy."""
MOST = {
    FORKS: 5,
    PARTS: 14,
    ALONE: 34,
    POLICIES: 0,
    SCHEDULES: 0,
    NOT_ME: 0,
    PRIVATE: 96,
    "stubs": 0,
    "terms": 62,
    STRAYS: 0,
    SHARED: 20,
}
ROOT_NAMES = frozenset(
    {
        ".ci", ".dockerignore", ".github", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md",
        "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md",
        "RELEASING.md", "SECURITY.md", "bench", "changelog.d", "config", "docs", "examples",
        "findings", "pyproject.toml", "setup.py", "snailps", "tests", "tools",
    }
)  # fmt: skip
"""What tools look for at the root, pages that a visitor opens first, and folders of the rest."""
DECIDE = ("snailps/master/leases/", "snailps/config/")
"""Places that define what a schedule is."""
LEASES = "snailps/master/leases"
"""Package of the schedules."""
HINTS = {
    FORKS: "make one worker a value of the general case",
    PARTS: "make one partition a value of the general case",
    ALONE: "make a single worker a value: of a pace, a rule, a room",
    POLICIES: "have the policy answer",
    SCHEDULES: "ask `steps_of(settings)`, the schedule, or `is_clocked`",
    NOT_ME: "make it a part, which a schedule has or lacks",
    PRIVATE: "use what the product's own callers use",
    "stubs": "tools/stubs.py makes them",
    "terms": "docs/glossary.md: use a word that is there",
    SHARED: "choose a name that says what the class holds, and that no other class has",
    STRAYS: "move it into a folder, add it to .gitignore, or name it in ROOT_NAMES with its reason",
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


NOTHING = re.compile(
    r"pass|return( None)?|return -?\d+|return (True|False|''|\[\]|\{\}|\(\))|raise .*"
)
"""A statement that answers nothing."""


def answers_nothing(method: ast.FunctionDef) -> bool:
    """Whether a method has no body but a constant, nothing, or an error."""
    if any("abstract" in ast.unparse(decorator) for decorator in method.decorator_list):
        return False
    lines = map(ast.unparse, method.body[ast.get_docstring(method) is not None :])
    return all(map(NOTHING.fullmatch, lines))


def silent_methods(root: Path) -> list[str]:
    """Methods of schedules and of their parts that answer nothing."""
    found = []
    for path in sorted((root / LEASES).glob("*.py")):
        for cls in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(cls, ast.ClassDef) and not any(
                "Protocol" in ast.unparse(b) for b in cls.bases
            ):
                found += [
                    f"{path.relative_to(root)}:{method.lineno}: {cls.name}.{method.name}"
                    for method in cls.body
                    if isinstance(method, ast.FunctionDef) and answers_nothing(method)
                ]
    return found


NOT_PRIVATE = {"_replace", "_asdict", "_fields", "_make", "_exit"}
"""Names of Python's library that begin with an underscore and are public."""


OWNERS = ("self", "cls", "super()", "type(self)", "threading", "atexit")
"""Owners of private names that a test may touch: the test itself and Python's library."""


def is_private(node: ast.AST) -> bool:
    """Whether a node of a test is a private name of something other than itself."""
    if isinstance(node, ast.Attribute):
        owner, name = ast.unparse(node.value), node.attr
        mine = owner in OWNERS or owner.startswith("threading.")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("snailps"):
        folder = Path(*node.module.split("."))
        names = [a.name for a in node.names if not [*folder.glob(f"{a.name}.*")]]
        return any(re.match("_[a-z]", name) for name in names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("attr", "patch")):
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        name, mine = next((t for t in texts if isinstance(t, str)), "").rpartition(".")[2], False
    else:
        return False
    return not mine and bool(re.match("_[a-z]", name)) and name not in NOT_PRIVATE


def private_names(root: Path) -> list[str]:
    """Lines of tests that touch private names of others."""
    found = []
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines, nodes = text.splitlines(), ast.walk(ast.parse(text))
        own = set(re.findall(r"(?:def |self\.)(_[a-z]\w*)", text))
        numbers = sorted(
            {n.lineno for n in nodes if is_private(n) and getattr(n, "attr", "") not in own}
        )
        found += [f"{path.relative_to(root)}:{n}: {lines[n - 1].strip()}" for n in numbers]
    return found


CLASS = re.compile(
    r"^\s*(?:cdef |cpdef )?(?:public |api )?class (\w+)\s*(?:\(.*\))?:", re.MULTILINE
)
"""A class of a .pyx; its first line is one line."""


def shared_names(root: Path) -> list[str]:
    """Names that stand for several classes, with the places of these.

    Nested classes count.  A leading underscore does not tell classes apart: it is not spoken.
    """
    found: dict[str, list[str]] = {}
    for path in sorted((root / "snailps").rglob("*.py*")):
        text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".pyx") else ""
        if path.suffix == ".py":
            nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
            classes = [(node.name, node.lineno) for node in nodes]
        else:
            matches = CLASS.finditer(text)
            classes = [(m[1], text.count("\n", 0, m.start(1)) + 1) for m in matches]
        for name, line in classes:
            found.setdefault(name.lstrip("_"), []).append(f"{path.relative_to(root)}:{line}")
    names = sorted(name for name in found if len(found[name]) > 1)
    return [f"{name}: {', '.join(found[name])}" for name in names]


def places(root: Path) -> dict[str, list[str]]:
    """Where each kind of what must not grow is."""
    found: dict[str, list[str]] = {name: [] for name in MOST}
    sources = (
        path for end in ("py", "pyx", "pxd") for path in (root / "snailps").rglob(f"*.{end}")
    )
    for path in sorted(sources):
        where = path.relative_to(root)
        kinds = [k for k in PATTERNS if k != SCHEDULES or not str(where).startswith(DECIDE)]
        kinds = [k for k in kinds if k != ALONE or "kernels" not in str(where)]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name in kinds:
                if re.search(PATTERNS[name], line):
                    found[name].append(f"{where}:{number}: {line.strip()}")
    found[NOT_ME] = silent_methods(root)
    found[PRIVATE] = private_names(root)
    found[SHARED] = shared_names(root)
    found["stubs"] = git(root, "ls-files", "*.pyi")
    # Tracked names alone: what lies about in a checkout is its owner's, until it is added.
    roots = {name.partition("/")[0] for name in git(root, "ls-files")}
    found[STRAYS] = sorted(roots - ROOT_NAMES)
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
