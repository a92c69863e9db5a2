"""The import rules of ARCHITECTURE.md's code map, checked on the source of every module.

Python, stubs, .pyx and .pxd are read as text; nothing is imported.  An import counts wherever it
stands: inside a function or under TYPE_CHECKING it is still knowledge of another module.  What a
process imports at its start is asked of the other imports alone.
"""

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sources import (
    BUILDS,
    PACKAGE,
    STRINGS,
    SUFFIXES,
    absolute,
    imports_in,
    imports_of,
    module_name,
    own,
    sources,
)
from without import rooms

# Rooms of the package from the bottom up.  A module may import its own room and those that its
# room's row names: nothing beside it, nothing above.  A room is the first name below `snailps`.
LEAVES = {
    "outward",
    "dataclass",
    "earlier_names",
    "errors",
    "pieces",
    "pointers",
    "registry",
    "_version",
    "abi",
}
NUMERIC = {*LEAVES, "config", "files", "kernels", *BUILDS, "data", "vectors"}
PLANES = {*NUMERIC, "transport", "store"}
ALLOWED = {
    **{leaf: set() for leaf in LEAVES},
    "errors": {"outward"},  # whose texts are fit to be shown
    "registry": {"errors"},
    "abi": {"dataclass", "errors", *BUILDS},
    "pieces": {"dataclass"},  # values that are read, sent and leased
    **{build: {*LEAVES, "kernels"} for build in BUILDS},
    "config": {*LEAVES},
    "kernels": {*LEAVES, *BUILDS},
    "_kernel_probes": {*LEAVES, "kernels"},  # for tests: nothing of the package imports it
    "files": {*LEAVES, "config"},
    "data": {*LEAVES, "config", "files", "kernels", *BUILDS},
    "vectors": {*LEAVES, "config", "files", "kernels", *BUILDS, "data"},
    # Copies of texts, found by words.
    "duplicates": {*NUMERIC},
    # Texts that classifiers keep.
    "filtering": {*NUMERIC, "duplicates", "api"},
    "transport": {*LEAVES, "config"},
    "store": {*LEAVES, "config"},
    # What users touch: it knows no process.  What is below shard, node and models knows neither.
    "api": {*PLANES},
    "shard": {*PLANES, "api"},
    "node": {*PLANES, "api"},
    # Who looks on: the page, a process of its own; and in the master's, which gets it as it starts.
    "monitor": {*PLANES, "api", "node"},
    # Models know what users are given, and no process, socket or store.
    "models": {*NUMERIC, "api"},
    "server": {*PLANES, "api", "shard", "node"},
    "worker": {*PLANES, "api", "node"},
    "master": {*PLANES, "api", "node"},
    "diagnostics": {*PLANES, "api", "node", "master"},
    "local": {*PLANES, "api", "node", "server", "worker", "master"},
    # Models as objects: parameters, data of this process, jobs of a cluster.
    "estimators": {*PLANES, "api", "node", "models", "local"},
    # fastText's names for them.
    "fasttext": {*NUMERIC, "local", "models", "estimators", "__init__"},
    # Names of other packages for copies of texts.  Nothing imports them.
    "datasketch": {"duplicates"},
    "datatrove": {"duplicates", "errors"},
    # Trained rows, read only.
    "serving": {*PLANES, "api", "node", "local", "models"},  # models: `recommender` alone
    # PyTorch on rows of a session, or of a model on workers.  Nothing imports it.
    "torch": {*PLANES, "api", "local", "serving", "__init__"},
    "cli": {
        *PLANES, "api", "node", "models", "server", "worker", "master", "diagnostics", "local",
        "estimators", "monitor", "filtering", "fasttext", "__init__",
    },
    "__main__": {"cli"},
    # What users write `snailps.` before.
    "__init__": {
        *NUMERIC, "store", "api", "models", "local", "estimators", "serving", "filtering",
        "duplicates",
    },
}  # fmt: skip
LAYERS = [
    {"outward"},
    {"dataclass", "earlier_names", "errors"},
    {"pieces", "pointers", "registry"},
    {"config", "abi", "data", "files", "kernels", "vectors", "duplicates"},
    {"transport", "store"},
    {"api"},
    {"shard", "node"},
    {"models", "filtering", "server", "worker", "master", "monitor"},
    {"diagnostics", "local"},
    {"estimators", "serving"},
    {"torch", "fasttext", "datasketch", "datatrove"},
    {"cli"},
]
"""The rooms from the bottom up: none is imported by a lower one."""

# Modules of the standard library and C headers that mean: this code knows sockets, or time.
SOCKETS = {
    "socket", "ssl", "select", "selectors", "socketserver", "asyncio", "http", "urllib.request",
    "sys/socket.h", "netinet/in.h", "netinet/tcp.h", "sys/epoll.h", "arpa/inet.h", "netdb.h",
    "posix.select",
}  # fmt: skip
TIME = {"time", "datetime", "sched", "posix.time", "time.h", "libc.time"}
THREADS = {"threading", "multiprocessing", "concurrent.futures", "subprocess"}
DENIED = {
    "errors": SOCKETS | TIME | THREADS,
    "config": SOCKETS | THREADS,
    "duplicates": SOCKETS | TIME,
    "filtering": SOCKETS | THREADS,
    "_kernels": SOCKETS | TIME | THREADS,
    "kernels": SOCKETS | TIME | THREADS,
    "store": SOCKETS,
    "data": SOCKETS,
    "files": SOCKETS,
    "vectors": SOCKETS,
    "models": SOCKETS,
    "api": SOCKETS,
    "shard": SOCKETS,
    # Decisions: events and time in, what is to be done out.
    "master.replication.planner": SOCKETS | TIME | THREADS,
    "master.replication.actions": SOCKETS | TIME | THREADS,
    "master.replication.placed_shard": SOCKETS | TIME | THREADS,
    "master.replication.shard_index": SOCKETS | TIME | THREADS,
    "master.replication.placement": SOCKETS | TIME | THREADS,
    "master.replication.balance": SOCKETS | TIME | THREADS,
    "master.replication.effects": SOCKETS | TIME | THREADS,
    "master.leases": SOCKETS | TIME | THREADS,
    # Sans-IO: bytes in, events out, time as an argument.
    "transport.frame": SOCKETS | TIME | THREADS,
    "transport._frame": SOCKETS | TIME | THREADS,
    "transport.messages": SOCKETS | TIME | THREADS,
    "transport.handshake": SOCKETS | TIME | THREADS,
    "store.route": SOCKETS | TIME | THREADS,
    "cli.progress": SOCKETS | THREADS,
    "cli.view": SOCKETS | TIME | THREADS,
    "estimators": SOCKETS | THREADS,
    "monitor.picture": SOCKETS | TIME | THREADS,
    "monitor.series": SOCKETS | TIME | THREADS,
}
# Inside one part, the pure modules do not reach for those that do input and output.
INNER = {
    "transport.frame": set(),
    "transport._frame": set(),
    "transport.messages": {"transport.frame"},
    "transport.handshake": {"transport.frame", "transport.messages"},
    "store.route": set(),
}


# What the master's core may use beside its own parts: values and words, nothing that does anything.
CORE_USES = {
    "dataclass", "registry", "outward", "pieces",
    "_version", "abi.key_hash", "abi.loops", "errors", "config", "files.array_archives",
    "files.blocks", "transport.messages",
    "transport.frame", "transport.control.encoded", "store.route", "store.checkpoint.manifest",
    "node.effects", "node.limits", "node.phrases", "node.status", "api.tables", "api.worker",
    "api.concurrency", "api.passes", "api.results", "api.export_progress", "api.traits",
    "api.validation",
    "api.range_passes", "api.rotation", "api.plain_values",
    "api.counting",
}  # fmt: skip
# ... and the server's.  A shard's calls are named, and made elsewhere.
SERVER_CORE_USES = {
    "dataclass", "outward",
    "errors", "config", "transport.messages", "store.route", "node.effects", "node.limits",
    "api.tables", "api.access_method", "shard.shard",
}  # fmt: skip
# A part of a job that reads files, in a `Work` alone; nothing of the core calls it.
BESIDE = {"master.job.input"}
FILES = {"os", "pathlib", "shutil", "tempfile"}


@functools.cache
def part_of(name: str) -> str:
    """``transport`` of ``transport.frame``; a public name of snailps itself is __init__'s."""
    first = name.partition(".")[0]
    exists = any((PACKAGE / f"{first}{suffix}").exists() for suffix in ("", *SUFFIXES))
    return first if exists or first in ALLOWED else "__init__"


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


PARTS = sorted({part_of(module_name(path)) for path in sources()})


def modules_of(part: str) -> list[Path]:
    return [path for path in sources() if part_of(module_name(path)) == part]


def check_each(paths: list[Path], check: Callable[[Path], None]) -> None:
    """All modules of a room, whose name begins what is wrong with them."""
    wrong = []
    for path in paths:
        try:
            check(path)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", PARTS)
def test_modules_import_only_what_their_place_allows(part):
    check_each(modules_of(part), imports_what_its_place_allows)


def imports_what_its_place_allows(path):
    part = part_of(module_name(path))
    assert part in ALLOWED, f"snailps/{part} has no row in ALLOWED here, nor in ARCHITECTURE.md"
    wrong = {name for name in own(imports_of(path)) if part_of(name) not in ALLOWED[part] | {part}}
    assert not wrong, f"{ids(path)} may not import {sorted(wrong)}"


@pytest.mark.parametrize("part", PARTS)
def test_modules_know_no_sockets_or_clocks_that_their_place_denies(part):
    check_each(modules_of(part), knows_what_its_place_allows)


def knows_what_its_place_allows(path):
    name = module_name(path)
    names = imports_of(path)
    for place, denied in DENIED.items():
        if name == place or name.startswith(place + "."):
            wrong = {n for n in names if any(n == d or n.startswith(d + ".") for d in denied)}
            assert not wrong, f"{ids(path)} may not know {sorted(wrong)}"


@pytest.mark.parametrize("place", sorted(INNER))
def test_pure_module_imports_no_neighbour_that_does_io(place):
    part = place.partition(".")[0]
    for path in sources():
        if module_name(path) == place or module_name(path).startswith(place + "."):
            for name in own(imports_of(path)):
                if name.startswith(part + "."):
                    near = ".".join(name.split(".")[:2])
                    assert near in INNER[place] | {place}, f"{place} may not import {name}"


def parts_of_core(room, uses):
    """All modules of a core, which know no socket, thread, clock or file, and use only these."""
    seen: set[str] = set()
    options = {name for names in rooms.OPTIONS.values() for name in names}  # found by name
    todo = {f"{room}.core", *(name for name in options if name.startswith(f"{room}."))}
    while todo:
        name = todo.pop()
        path = next((p for p in sources() if module_name(p) == name), None)
        if path is None:  # a name in a module
            todo.add(name.rpartition(".")[0])
            continue
        seen.add(name)
        if name in BESIDE or name == room:
            continue
        names = imports_of(path)
        denied = SOCKETS | TIME | THREADS | FILES
        wrong = {n for n in names if any(n == d or n.startswith(d + ".") for d in denied)}
        assert not wrong, f"{name} may not know {sorted(wrong)}"
        parts = {n for n in own(names) if n.startswith(room)}
        other = {
            n for n in own(names) - parts if not any(f"{n}.".startswith(f"{u}.") for u in uses)
        }
        assert not other, f"{name} may not use {sorted(other)}"
        todo |= parts - seen
    return seen


def test_core_of_the_master_and_all_it_imports_know_no_socket_thread_clock_or_file():
    seen = parts_of_core("master", CORE_USES)
    assert {"master.membership", "master.checkpoints", "master.replication.planner"} <= seen
    outside = {"process", "journal", "checkpoint_files", "status_report", "job.model_reader"}
    assert not {f"master.{name}" for name in outside} & seen


def test_core_of_a_server_and_all_it_imports_know_no_socket_thread_clock_or_file():
    seen = parts_of_core("server", SERVER_CORE_USES)
    assert {"server.shard_host", "server.effects", "server.checkpoints"} <= seen
    assert not {"server.process", "server.checkpoint_io"} & seen


def test_allowed_rows_point_one_way():
    """The rules themselves have no cycle: no room may import what stands above it."""
    lower = set()
    for layer in LAYERS:
        for room in layer:
            ours = ALLOWED[room] - {"__init__", "_version", *BUILDS}
            assert ours <= lower | layer, f"{room} may import {sorted(ours - lower - layer)}"
        lower |= layer
    assert "store" not in ALLOWED["transport"]
    assert "transport" not in ALLOWED["store"]
    for model in ({"models"}, {"server"}, {"worker"}, {"master"}):
        assert not ALLOWED[min(model)] & {"models", "server", "worker", "master"}


# Modules that take a process 8 to 70 ms (docs/design/start.md), and that few runs need: they are
# imported where they are used.  The last two import some of the others.
LATE = {"numpy.ma", "ssl", "pydantic", "http", "importlib.metadata", "urllib.request", "asyncio"}
# What every training imports: its processes, and what they import by name or at its end.
STARTS = (
    "master.process", "server.process", "worker.process", "cli.main", "cli.train",
    "cli.fork_server", "local.session", "estimators", "models", "monitor.report",
)  # fmt: skip
IN_A_BLOCK = re.compile(r"^[ \t]+(?:from|import|cimport)\b.*$", re.MULTILINE)


@functools.cache
def imports_at_start(path: Path) -> set[str]:
    """Full names of what a source imports as soon as it is imported itself."""
    text = IN_A_BLOCK.sub("", STRINGS.sub('""', path.read_text(encoding="utf-8")))
    reached = set()
    for level, module, names in imports_in(text):
        for name in absolute(path, level, module, names):
            reached |= {name, *(f"{name}.{inner}" for inner in names)}
    return reached


@pytest.mark.parametrize("start", STARTS)
def test_training_imports_nothing_at_its_start_that_few_runs_need(start):
    modules = {module_name(path): path for path in sources() if path.suffix != ".pyi"}
    todo = [name for name in modules if f"{name}.".startswith(f"{start}.")]
    assert todo, f"there is no snailps.{start}"
    seen = set(todo)
    while todo:
        name = todo.pop()
        for imported in imports_at_start(modules[name]):
            is_late = any(f"{imported}.".startswith(f"{late}.") for late in LATE)
            assert not is_late, f"snailps.{start} imports {name}, and so {imported} at once"
            parts = imported.split(".")[1:] if imported.startswith("snailps.") else []
            for length in range(1, len(parts) + 1):  # a module's packages are imported with it
                inner = ".".join(parts[:length])
                if inner in modules and inner not in seen:
                    seen.add(inner)
                    todo.append(inner)


# Modules that still import one another in a circle.
IN_CIRCLES = {"vectors.files", "vectors.label_prediction"}


def without_lowest(imports):
    """The modules that import others for ever: those that circles are among."""
    left = {name: set(others) for name, others in imports.items()}
    above = {}
    for name, others in imports.items():
        for other in others:
            above.setdefault(other, []).append(name)
    ready = [name for name, others in left.items() if not others]
    while ready:
        lowest = ready.pop()
        del left[lowest]
        for name in above.get(lowest, ()):
            left[name].discard(lowest)
            if not left[name]:
                ready.append(name)
    return left


def modules_reached(name, imports):
    """All modules that a module imports, itself or by those that it imports."""
    reached, todo = set(), [name]
    while todo:
        new = imports[todo.pop()] - reached
        reached |= new
        todo += new
    return reached


def test_no_module_imports_itself_by_others():
    """A room has floors, too: its modules stand in an order in which each imports lower ones."""
    paths = [path for path in sources() if path.suffix != ".pyi"]  # made of the modules
    imports = {module_name(path): set() for path in paths}
    for path in paths:
        for name in own(imports_of(path)):
            while name and name not in imports:  # a name in a module
                name = name.rpartition(".")[0]
            if name and name != module_name(path):
                imports[module_name(path)].add(name)
    left = without_lowest(imports)
    circles = {name for name in left if name in modules_reached(name, left)}
    assert not circles - IN_CIRCLES, "new circles of imports"
    assert not IN_CIRCLES - circles, "no circle any more: take it out of IN_CIRCLES"


def test_parts_of_the_master_get_the_neighbours_that_its_page_draws():
    page = (PACKAGE.parent / "docs" / "design" / "master-core.md").read_text(encoding="utf-8")
    drawn = page.partition("## Parts and their neighbours")[2].split("```")[1]
    parts = dict(re.findall(r"^ *(\w+)\(([^)]*)\)$", drawn, re.MULTILINE))
    arguments = {}
    for path in (PACKAGE / "master").rglob("*.py"):
        for part in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(part, ast.ClassDef) and part.name in parts:
                made = next(one for one in part.body if getattr(one, "name", "") == "__init__")
                arguments[part.name] = ", ".join(arg.arg for arg in made.args.args[1:])
    assert len(parts) >= 12
    assert arguments == parts


def test_sources_cover_every_room():
    """Every room that ALLOWED names is really there, and is looked at."""
    parts = {part_of(module_name(path)) for path in sources()}
    assert set().union(*LAYERS) | {"__main__", "__init__"} <= parts
