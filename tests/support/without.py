"""Takes rooms of the package away: their modules cannot be imported, as if they were not installed.

    pytest --without words,torch       tests of the core, but of files that mention these rooms
    pytest --without all               ... of the parameter server alone
    pytest --product words             without every product but this one: the product's own tests
    python tests/support/without.py    modules of the core that cannot be imported, room by room

A room is a row of `tools/rooms.py`.  Processes that tests start lack the same rooms: by a variable
that `sitecustomize.py` reads, beside this file, which `PYTHONPATH` names for them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
sys.path.append(str(ROOT / "tools"))

import rooms  # noqa: E402  (no package: a table beside the tools)

VARIABLE = "SNAILPS_TESTS_WITHOUT"
ATTACHED = {"estimators"}
"""Rooms that the core still imports: `--without all`, and kinds, leave them where they are."""
CORES = {*rooms.CORE, *rooms.FILES}
"""What tests of the core may name."""
LEANED_ON = {"classifier", "examples"}
"""Products of which other products import modules, through what all share: `kernels` has the tables
of labels, `data.held_out` the readers of lines.  `--product` leaves them where they are."""
NEEDS = {
    "fasttext": {"classifier", "names", "serving", "words"},
    "names": {"serving", "words"},
}
"""Products that are made of others."""

MODULE = re.compile(r"\bsnailps((?:\.\w+)+)")
FROM = re.compile(r"^[ \t]*from[ \t]+snailps([.\w]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)", re.M)
HELPER = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w.]+))", re.M)
PRODUCTS = TESTS / "products.txt"
FOLDERS = ("", "support", "unit", "cluster", "repo", "browser")


def detachable() -> set[str]:
    """Options and products without which the core works."""
    return {*rooms.OPTIONS, *rooms.PRODUCTS} - ATTACHED


def products() -> set[str]:
    """Those whose tests need no extra; PyTorch is in an environment of its own."""
    return {*rooms.PRODUCTS} - {"torch"}


def named(words: str) -> set[str]:
    """The rooms that ``--without`` names, one by one or as a kind."""
    kinds = {
        "options": {*rooms.OPTIONS} - ATTACHED,
        "products": {*rooms.PRODUCTS} - ATTACHED,
        "all": {*rooms.OPTIONS, *rooms.PRODUCTS, *rooms.OTHERS} - ATTACHED,
    }
    known = {*rooms.ROOMS} - {*rooms.CORE}
    gone: set[str] = set()
    for word in filter(None, words.split(",")):
        if word not in kinds and word not in known:
            raise ValueError(f"no room is named {word!r}: expected {sorted({*kinds, *known})}")
        gone |= kinds.get(word, {word})
    return gone


def beside(product: str) -> set[str]:
    """Every product but one, and but what it is made of."""
    if product not in rooms.PRODUCTS:
        raise ValueError(f"no product is named {product!r}: expected {sorted(rooms.PRODUCTS)}")
    return {*rooms.PRODUCTS} - ATTACHED - LEANED_ON - {product} - NEEDS.get(product, set())


class Gone(importlib.abc.MetaPathFinder):
    """Refuses the modules of some rooms."""

    def __init__(self, gone: Iterable[str]) -> None:
        self.rooms = frozenset(gone)

    def find_spec(self, name, path=None, target=None):
        if name.startswith("snailps."):
            for room in rooms.rooms_of(name.removeprefix("snailps.")) & self.rooms:
                raise ModuleNotFoundError(f"{name}: room {room} is gone", name=name)


def begin(gone: Iterable[str]) -> None:
    """Take rooms away in this process and in those that it starts."""
    finder = Gone(gone)
    loaded = sorted(m for m in sys.modules if rooms_of_name(m) & finder.rooms)
    assert not loaded, f"already imported: {loaded}"
    sys.meta_path.insert(0, finder)
    os.environ[VARIABLE] = ",".join(sorted(finder.rooms))
    path = os.environ.get("PYTHONPATH", "")
    if str(TESTS / "support") not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS / "support"), path]))


def is_there(option: str) -> bool:
    """Whether an option can be imported: a test of what all schedules do includes it then."""
    from snailps.errors import ConfigError
    from snailps.registry import named as module_of

    try:
        module_of(option)
    except ConfigError:
        return False
    return True


def where_there(option: str, **settings: object) -> dict[str, object]:
    """Settings that ask for an option; empty where it is taken away."""
    return settings if is_there(option) else {}


# --- which tests are whose ----------------------------------------------------------------------


def rooms_of_name(name: str) -> set[str]:
    """Rooms of a module, or of a public name, and of the packages that are imported with it."""
    if not name.startswith("snailps."):
        return set()
    inner = name.removeprefix("snailps.")
    parts = public_names().get(inner.partition(".")[0], inner).split(".")
    return {room for n in range(len(parts)) for room in rooms.rooms_of(".".join(parts[: n + 1]))}


@functools.cache
def public_names() -> dict[str, str]:
    """Module of each name that `snailps` itself gives, read from its source."""
    text = (ROOT / "snailps" / "__init__.py").read_text(encoding="utf-8")
    table = text.partition("_HOMES = {")[2].partition("\n}")[0]
    homes = re.findall(r'"([\w.]+)": \(([^)]*)\)', table)
    names = {name: home for home, listed in homes for name in re.findall(r'"(\w+)"', listed)}
    text = (ROOT / "snailps" / "estimators" / "__init__.py").read_text(encoding="utf-8")
    listed = text.partition("__all__ = [")[2].partition("]")[0]
    return dict.fromkeys(re.findall(r'"(\w+)"', listed), "estimators") | names


@functools.cache
def helper(name: str) -> Path | None:
    """The file of tests/ that a test imports by this name, if it is one."""
    if name.startswith("tests."):
        name = name.removeprefix("tests.")
    parts = name.split(".")
    for folder in FOLDERS:
        path = TESTS.joinpath(folder, *parts)
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return None


@functools.cache
def mentions(path: Path) -> frozenset[str]:
    """Rooms of all modules that a test file names, in imports or texts."""
    text = path.read_text(encoding="utf-8")
    seen = {f"snailps{inner}" for inner in MODULE.findall(text)}
    for inner, names in FROM.findall(text):
        listed = re.findall(r"(\w+)(?:[ \t]+as[ \t]+\w+)?", re.sub(r"#.*", "", names))
        seen |= {f"snailps{inner}.{name}" for name in listed}
    return frozenset(room for name in seen for room in rooms_of_name(name))


@functools.cache
def helpers(path: Path) -> frozenset[Path]:
    """Files of tests/ that a test file imports, itself or by others."""
    seen, todo = {path}, [path]
    while todo:
        text = todo.pop().read_text(encoding="utf-8")
        for words in HELPER.findall(text):
            file = helper(words[0] or words[1])
            if file is not None and file not in seen:
                seen.add(file)
                todo.append(file)
    return frozenset(seen)


def needed(path: Path) -> set[str]:
    """Rooms that a test file needs, by itself and by what it shares with others."""
    return {room for file in helpers(path) for room in mentions(file)}


def is_meant(path: Path, gone: set[str], product: str = "") -> bool:
    """Whether a test file is run without some rooms: the product's, or else the core's, that needs
    none of them."""
    wanted = needed(path)
    return not wanted & gone and (product in wanted if product else wanted <= CORES)


# --- what is imported -----------------------------------------------------------------------------


def modules_of_core() -> list[str]:
    """Names of all modules that the parameter server is made of."""
    inside = {*rooms.CORE, *rooms.FILES}
    files = [path for path in (ROOT / "snailps").rglob("*") if path.suffix in (".py", ".pyx")]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(files))
    found = [name.removesuffix(".__init__") for name in names]
    return [name for name in found if (places := rooms.rooms_of(name[8:])) and places <= inside]


def lacking(room: str) -> str:
    """Modules of the core that cannot be imported without a room, and why; once in a process."""
    begin({room})
    why: dict[str, list[str]] = {}
    for name in modules_of_core():
        try:
            importlib.import_module(name)
        except ImportError as error:
            why.setdefault(str(error), []).append(name)
    return "; ".join(f"{len(names)} modules: {error}" for error, names in why.items()) or "nothing"


if __name__ == "__main__":
    for room in sys.argv[1:] or [*rooms.OPTIONS, *rooms.PRODUCTS, *rooms.OTHERS]:
        if os.fork() == 0:
            print(f"{room}: {lacking(room)}", flush=True)
            os._exit(0)
        _, status = os.wait()
        if status:
            sys.exit(f"{room}: status {status}")
