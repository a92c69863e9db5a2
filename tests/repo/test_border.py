"""The border of the parameter server: no line of its rooms (`tools/rooms.py`) leaves them.

What counts as a line that leaves: an import wherever it stands, a `cimport`, an `include` of C, and
a text that begins with ``snailps.``, which a module may be imported by.
"""

import re
import runpy
from pathlib import Path

import pytest
from sources import COMMENTS, PACKAGE, STRINGS, imports_of, module_name, own, sources

ROOMS = runpy.run_path(str(PACKAGE.parent / "tools" / "rooms.py"))
rooms_of, room_of = ROOMS["rooms_of"], ROOMS["room_of"]
INSIDE = {*ROOMS["CORE"], *ROOMS["FILES"]}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
NAMED = re.compile(r"(?<!b)[\"']snailps((?:\.\w+)+)")
"""A text that may name a module: ``snailps.`` and what follows it.  Bytes name a C capsule."""


def headers() -> list[Path]:
    return sorted(PACKAGE.rglob("*.h"))


def modules_named(path: Path) -> set[str]:
    """Modules that a source imports, includes or names, without ``snailps.``."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".h":
        return {module_of_header(path, name) for name in INCLUDE.findall(text)}
    named = NAMED.findall(COMMENTS.sub("", STRINGS.sub('""', text)))
    c_headers = {name for name in imports_of(path) if name.endswith(".h")}
    included = {module_of_header(path, name) for name in c_headers if is_ours(path, name)}
    modules = {name[1:].replace("_kernels_", "_kernels") for name in named}  # a build's name
    modules = {name for name in modules if rooms_of(name)}  # not a public name in a message
    return own(imports_of(path)) | included | modules


def is_ours(path: Path, header: str) -> bool:
    return any((folder / header).exists() for folder in (path.parent, PACKAGE))


def module_of_header(path: Path, header: str) -> str:
    """``abi._row_ops`` for ``abi/_row_ops.h``: beside who includes it, or below the package."""
    beside = path.parent / header
    return module_name(beside.resolve() if beside.exists() else PACKAGE / header)


def room_reached(name: str) -> str:
    """Room of a module, or of a name in one: of `__init__` for a name of the package itself."""
    return room_of(name) if rooms_of(name) else room_of("__init__")


def lines_out() -> dict[str, str]:
    """``path: module`` of each line of the core and of its files that leaves them -> its room."""
    reached = {
        f"{path.relative_to(PACKAGE)}: {name}": room_reached(name)
        for path in [*sources(), *headers()]
        if path.suffix != ".pyi" and room_of(module_name(path)) in INSIDE
        for name in modules_named(path)
    }
    return {line: room for line, room in reached.items() if room not in INSIDE}


def test_every_module_is_in_one_room():
    modules = {module_name(path) for path in [*sources(), *headers()]}
    assert {name: rooms_of(name) for name in modules if len(rooms_of(name)) != 1} == {}


def test_every_name_of_a_room_is_a_module_or_a_folder():
    modules = {module_name(path) for path in [*sources(), *headers()]}
    names = [name for names in ROOMS["ROOMS"].values() for name in names]
    assert len(names) == len(set(names))
    assert [n for n in names if not any(f"{m}.".startswith(f"{n}.") for m in modules)] == []


def test_core_and_files_import_nothing_else():
    assert lines_out() == {}, (
        "lines that leave the core: have what they need given, registered, or in files/"
    )


@pytest.mark.parametrize(
    ("name", "text", "reached"),
    [
        ("late.py", "def f():\n    from snailps.models import x\n", {"models.x"}),
        ("typed.py", "if TYPE_CHECKING:\n    import snailps.cli.main\n", {"cli.main"}),
        ("named.py", 'load(f"snailps.models.{name}")\n', {"models"}),
        ("near.py", "from ..models import lead\n", {"models.lead"}),
        ("public.py", "from snailps import Worker, vectors\n", {"Worker", "vectors"}),
        ("fast.pyx", "from snailps.shard._shard cimport Shard\n", {"shard._shard"}),
        ("c.pxd", 'cdef extern from "kernels/_rows.h":\n    pass\n', {"kernels._rows"}),
        ("libc.pxd", 'cdef extern from "time.h":\n    pass\n', set()),
        ("c.h", '#include "kernels/_rows.h"\n#include <time.h>\n', {"kernels._rows"}),
        ("text.py", '"""Of `snailps.models`, "snailps.cli"."""\n', set()),
    ],
)
def test_each_way_to_name_a_module_is_seen(monkeypatch, tmp_path, name, text, reached):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "kernels" / "_rows.h").touch()
    (tmp_path / "abi").mkdir()
    (path := tmp_path / "abi" / name).write_text(text)
    for module in ("sources", "test_border"):
        monkeypatch.setattr(f"{module}.PACKAGE", tmp_path)
    assert modules_named(path) == reached
