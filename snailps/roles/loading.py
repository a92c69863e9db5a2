"""Classes that users name in a setting: ``package.module:Class`` -> the class, or what is wrong.

Every process finds them for itself, by import: nothing but the name travels.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TypeVar

from snailps.errors import ConfigError

T = TypeVar("T")


def load_named(path: str, where: str, base: type[T]) -> type[T]:
    """The subclass of `base` that ``package.module:Class`` names.

    Parameters
    ----------
    path : str
    where : str
        What begins a message: where the user wrote it, and the path.
    base : type

    Raises
    ------
    ConfigError
        It cannot be imported or is no such class; says how to make it importable.
    """
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise ConfigError(f"{where}: expected package.module:Class")
    if module_name == "__main__":
        raise ConfigError(
            f"{where}: a class defined in a script or a notebook cell exists in that process only; "
            "put it into a file (mymodel.py) and name it mymodel:" + class_name
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{where}: {error} on this machine. Start the process in the folder that holds "
            f"{module_name.split('.')[0]!r}, name that folder in PYTHONPATH, or pip install it "
            "on every machine"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"{where}: importing {module_name} fails: {type(error).__name__}: {error}"
        ) from error
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
