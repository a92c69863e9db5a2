"""Loads classes that users name in a setting: ``package.module:Class`` -> class or `ConfigError`.

Each process imports the class itself; only its name is sent.  A process that outlives a job imports
edited modules again, so that each job uses the source as it is when the job starts.

A class that a file or a cluster names, not the user of this process, is imported only after `admit`
has allowed its module: a name in a file must not execute code.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from snailps.config.fields import current_folder
from snailps.errors import ConfigError, explain, is_own_code, place_of
from snailps.registry import MODELS

T = TypeVar("T")

_stamps: dict[str, tuple[int, int]] = {}
"""Modification time and size of each module's source when it was imported."""
_inherited: set[str] = set()
"""Modules that a fork has inherited without a stamp: nobody knows the version of their source."""
_looked_ns = 0
"""Time at which stamps were last recorded."""


def load_named(path: str, where: str, base: type[T]) -> type[T]:
    """Load the subclass of `base` that ``package.module:Class`` names; `where` begins messages.

    If the source of its module, or of another module of the user in that folder or below, has
    changed since this process imported it, all of them are imported again.

    Raises
    ------
    ConfigError
        No such module or class, no subclass of `base`, or the import fails.
    """
    module_name, _, class_name = path.partition(":")
    if not class_name or not all(map(str.isidentifier, module_name.split("."))):
        raise ConfigError(f"{where}: expected package.module:Class")
    if module_name.endswith(".py"):
        raise ConfigError(
            f"{where}: expected the name of a module, not of its file: leave out '.py', as in "
            f"{module_name[:-3]}:{class_name}"
        )
    if module_name == "__main__":
        raise ConfigError(
            f"{where}: a class defined in a script or a notebook cell exists in that process only; "
            "put it into a file (mymodel.py) and name it mymodel:" + class_name
        )
    if module_name not in sys.modules and not module_name.startswith("snailps."):
        search_here(module_name)
    module = _imported(module_name, where)
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        have = sorted(
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, base) and value is not base
        )
        raise ConfigError(
            f"{where}: {module_name} has no snailps.{base.__name__} of that name; it has: "
            f"{', '.join(have) or 'none'}"
        )
    return cls


OF_FILE = (
    "a file imports no module by itself: if you trust that code, name it: "
    "open_checkpoint(..., modules=[{module!r}]), or --allow-module {module}"
)
OF_CLUSTER = (
    "a reader imports no module by itself: if you trust that code, name it: "
    "reader(..., modules=[{module!r}])"
)

OF_SESSION = (
    "no module is imported because a cluster names it: if you trust that code, import {module} in "
    "this process first"
)


def admit(path: str, where: str, modules: Collection[str], cure: str = OF_FILE) -> None:
    """Import the module of a class that a file or a cluster names, if `modules` allows it.

    Models of snailps need no entry in `modules`.  The current folder is not searched, unless Python
    does so anyway.  `ConfigError` for any other module; `cure` is the end of its message.
    """
    name = path.partition(":")[0]
    if not name.startswith(tuple(MODELS)) and name not in (
        [modules] if isinstance(modules, str) else modules
    ):
        raise ConfigError(f"{where}: {path} is a class of your own, and {cure.format(module=name)}")
    _imported(name, f"{where}: {path}")


class _UserModuleFinder(MetaPathFinder):
    """Finds a module that a user has named first in the folder where the user named it.

    Only these modules: a folder of data may have files of any name, ``json.py`` among them.
    """

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self.folders.get(name)
        spec = None if folder is None else PathFinder.find_spec(name, [folder])
        return spec if spec is not None and spec.loader is not None else None  # not a mere folder


_named = _UserModuleFinder()


def search_here(module: str) -> None:
    """Look for a module in the current folder first, and for its own imports there last."""
    if not (here := current_folder()):
        return
    _named.folders[module.partition(".")[0]] = here
    if _named not in sys.meta_path:
        sys.meta_path.insert(0, _named)
    if here not in sys.path:
        sys.path.append(here)


def inherit() -> None:
    """Distrust the modules that this forked process has inherited: their files may have changed."""
    _inherited.update(sys.modules.keys() - _stamps.keys())


def _imported(module_name: str, where: str) -> ModuleType:
    """Import a module from its current source; `ConfigError` says how to mend a failure."""
    try:
        return _current(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise ConfigError(
                f"{where}: importing {module_name} fails: {error}{place_of(error)}. Install what "
                "it imports, on every machine, or correct that line"
            ) from None
        raise ConfigError(
            f"{where}: {error} on this machine. Start the process in the folder that holds "
            f"{module_name.split('.')[0]!r}, name that folder in PYTHONPATH, or pip install it "
            "on every machine"
        ) from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: importing {module_name} fails: {explain(error)}") from error


def _current(name: str) -> ModuleType:
    """Import a module, again if the source of it or of a module beside it has changed."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        beside = dict(_beside(loaded))
        if any(_is_stale(other, stamp) for other, stamp in beside.items()):
            # All of them: else one keeps names that it has imported from an old version of another.
            for other in beside:
                del sys.modules[other]
                _stamps.pop(other, None)
                _inherited.discard(other)
            importlib.invalidate_caches()
    global _looked_ns
    now = time.time_ns()
    module = importlib.import_module(name)
    for other, stamp in _beside(module):
        _stamps.setdefault(other, stamp)
    _looked_ns = now
    return module


def _is_stale(name: str, stamp: tuple[int, int]) -> bool:
    if name in _stamps:
        return _stamps[name] != stamp
    # Imported without a stamp: current only if its file is older than the last recording.
    return name in _inherited or 0 < _looked_ns < stamp[0]


def _beside(module: ModuleType) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and stamps of the user's modules in the folder of `module` and below it."""
    root = _root_of(module)
    if root is None:
        return
    for name, other in list(sys.modules.items()):
        file = getattr(other, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or not file.startswith(root):
            continue
        if file.endswith(".py") and is_own_code(file):
            try:
                source = Path(file).stat()
            except OSError:  # missing: the next import reports it
                yield name, (0, 0)
            else:
                yield name, (source.st_mtime_ns, source.st_size)


def _root_of(module: ModuleType) -> str | None:
    """The folder on the search path that holds a user's module; None for any other module."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not is_own_code(file):
        return None
    folder = Path(file).parent
    package = getattr(module, "__package__", None) or ""
    for _ in filter(None, package.split(".")):
        folder = folder.parent
    return str(folder) + os.sep
