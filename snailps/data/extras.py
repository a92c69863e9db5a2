"""Packages that some functions need and an installation may lack.

    name -> optional_module -> module, or an error that says what to install

They are imported at the first use: `import snailps` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from snailps.errors import ConfigError


def optional_module(name: str, what: str, requirement: str) -> Any:
    """Import a module, or raise `ConfigError`: `what` needs ``pip install`` `requirement`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        wanted = f"'{requirement}'" if "[" in requirement else requirement
        lacking = f"which is not installed: pip install {wanted}"
        if not isinstance(error, ModuleNotFoundError) or error.name != package:
            lacking = f"which cannot be loaded ({error}); install it again: pip install {wanted}"
        raise ConfigError(f"{what} needs {package}, {lacking}") from error
