"""The sources of the package, read as text: which module each is, and what it imports.

An import counts wherever it stands: inside a function or under TYPE_CHECKING it is still knowledge
of another module.
"""

import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "snailps"
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}
BUILDS = {"_kernels", "_kernels_base", "_kernels_avx2", "_kernels_avx512"}


def module_name(path: Path) -> str:
    """``transport.frame`` for snailps/transport/frame.py; ``__init__`` for the package's own."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def is_generated(path: Path) -> bool:
    """The copies that setup.py makes of kernels/_build.pyx."""
    return path.stem in BUILDS - {"_kernels"}


@functools.cache
def sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*") if p.suffix in SUFFIXES and not is_generated(p))


STRINGS = re.compile(r'"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'')
COMMENTS = re.compile(r"#[^\n\"']*$", re.MULTILINE)
FROM = re.compile(
    r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+c?import[ \t]*(\([^)]*\)|[^\n;]*)", re.MULTILINE
)
PLAIN = re.compile(r"^[ \t]*c?import[ \t]+([^\n;]+)", re.MULTILINE)
EXTERN = re.compile(
    r"^[ \t]*cdef[ \t]+extern[ \t]+from[ \t]+[\"']<?([^\"'>]+)>?[\"']", re.MULTILINE
)


def imports_in(text: str) -> list[tuple[int, str, list[str]]]:
    """(level, module, names) of every import statement of a Python or Cython source.

    A C header counts as a module of its own name.  A scan costs a ninth of what `ast` does, which
    would take longer for all sources than a test of a module may.
    """
    text = COMMENTS.sub("", STRINGS.sub('""', text)).replace("\\\n", " ")
    found: list[tuple[int, str, list[str]]] = []
    for dots, module, names in FROM.findall(text):
        listed = [name.split()[0] for name in names.strip("() \n").split(",") if name.split()]
        found.append((len(dots), module, listed))
    for names in PLAIN.findall(text):
        found += [(0, name.split()[0], []) for name in names.split(",") if name.split()]
    return found + [(0, header, []) for header in EXTERN.findall(text)]


def absolute(path: Path, level: int, module: str, names: list[str]) -> list[str]:
    """Full names of what one import statement reaches."""
    if level:
        folder = path.parent
        for _ in range(level - 1):
            folder = folder.parent
        base = ".".join(("snailps", *folder.relative_to(PACKAGE).parts))
        module = f"{base}.{module}" if module else base
    # `from snailps import x` and `from snailps.store import route` name modules, or may.
    inside = module == "snailps" or (PACKAGE / module.removeprefix("snailps.").replace(".", "/"))
    is_package = inside is True or (module.startswith("snailps.") and Path(inside).is_dir())
    return [f"{module}.{name}" for name in names] if is_package and names else [module]


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Full names of everything that a source imports."""
    text = path.read_text(encoding="utf-8")
    return {name for found in imports_in(text) for name in absolute(path, *found)}


def own(names: set[str]) -> set[str]:
    """Those of `names` that are ours, without the leading ``snailps.``."""
    ours = {name for name in names if name == "snailps" or name.startswith("snailps.")}
    return {name.removeprefix("snailps").lstrip(".") or "__init__" for name in ours}
