"""Writes Python values as texts of settings, which parse back to exactly the same values.

    {"input": ["a", "b"], "lr": 0.1} -> setting_texts -> {"input": "a, b", "lr": "0.1"}

Refuses a value that no setting can have, by its name: a corpus that was passed instead of its path
must not become a file name or be sent to other processes.
"""

from __future__ import annotations

import numbers
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snailps.config.fields import format_value
from snailps.data.elements import a_kind
from snailps.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PATHS = ("input", "output", "test", "validation")
TEXT_CHARS_MAX = 4096
"""Largest text: the largest path that Linux allows."""
TEXTS_CHARS_MAX = 1 << 19


def setting_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Write settings as texts; a `ConfigError` names a value or name that no setting can have."""
    return {_name(key): _text(key, value) for key, value in values.items()}


def _name(key: object) -> str:
    if not isinstance(key, str) or not _NAME.fullmatch(key):
        raise ConfigError(f"unknown setting {key!r:.80}")
    return key


def _text(key: str, value: Any) -> str:
    plain = _plain(key, value, "")
    text = format_value(plain)
    if len(text) > TEXTS_CHARS_MAX:
        raise ConfigError(
            f"{key}: {len(plain):,} values of {len(text):,} characters together: at most "
            f"{TEXTS_CHARS_MAX:,} expected{_advice(key)}"
        )
    return text


def _plain(key: str, value: Any, where: str) -> Any:
    """Convert a value to a type that settings have: bool, int, float, str or a list of these."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy number
    if isinstance(value, bool):
        return value
    if isinstance(value, Path) or (isinstance(value, os.PathLike) and not isinstance(value, str)):
        value = os.fspath(value)
    if isinstance(value, str):
        return _checked(key, value, where)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (list, tuple)) and not where:
        return [_plain(key, item, f"element {index} is ") for index, item in enumerate(value)]
    raise ConfigError(f"{key}: {where}{_shown(value)}: {_expected(key)}{_advice(key)}")


def _checked(key: str, text: str, where: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise ConfigError(
            f"{key}: {where}a text of {len(text):,} characters, which begins {text[:40]!r}: "
            f"{_expected(key)}{_advice(key)}"
        )
    if "\0" in text or "\n" in text or "\r" in text:
        raise ConfigError(
            f"{key}: {where}{text[:60]!r}, which contains a line break or a NUL character: "
            f"{_expected(key)}{_advice(key)}"
        )
    return text


def _shown(value: Any) -> str:
    """Name a value by type and length in an error: its content may be large, or secret."""
    if value is None:
        return "None"
    try:
        size = f" of {len(value):,}"
    except TypeError:  # it has no length, or raises, as sparse matrices do
        size = ""
    return a_kind(value) + size


def _expected(key: str) -> str:
    return "expected a path, or a list of paths" if key in _PATHS else "expected a number or a text"


def _advice(key: str) -> str:
    if key != "input":
        return ""
    return ". Pass data in memory to fit() of a model, such as snailps.FastText"
