"""What the core knows by name, because it must not import it: options, readers of tables, models.

    snailps/__init__.py -> OPTIONS: name -> module        named("tables") -> that module

A compiled option fills a table of C functions, which the core declares, as it is imported.

The package's `__init__` runs before any other module of it, so every process has the names, and
imports a module when a job asks for it first.
"""

from __future__ import annotations

import importlib
from typing import Any

from snailps.errors import ConfigError

OPTIONS: dict[str, str] = {}
"""Module of each option; `snailps/__init__.py` fills it."""
MODELS: list[str] = []
"""What names of modules with models begin with, which any file may name; filled likewise."""


def fill(option: str) -> None:
    """Have an option fill its table of functions, where this installation has it."""
    try:
        named(option)
    except ConfigError:  # who asks for it is refused
        return


def named(option: str) -> Any:
    """The module of an option; ConfigError: this installation lacks it."""
    module = OPTIONS[option]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # it is there, and what it imports is not
            raise
        raise ConfigError(
            f"option {option} is not installed: there is no module {module}. Install snailps "
            "again, or do without the option"
        ) from error
