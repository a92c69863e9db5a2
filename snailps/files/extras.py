"""Optional packages: imported at their first use, or an error that says what to install.

    name -> optional_module -> module, or ConfigError

`import snailps` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from snailps.errors import ConfigError


def optional_module(name: str, what: str, requirement: str) -> Any:
    """Import a module; ConfigError: `what` needs it, and ``pip install`` `requirement` helps."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        wanted = f"'{requirement}'" if "[" in requirement else requirement
        lacking = f"which is not installed: pip install {wanted}"
        if not isinstance(error, ModuleNotFoundError) or error.name != package:
            lacking = f"which cannot be loaded ({error}); install it again: pip install {wanted}"
        raise ConfigError(f"{what} needs {package}, {lacking}") from error
