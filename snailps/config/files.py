"""Reads `.conf` files: lines and imports -> entries, in the order in which they take effect.

    path -> read_conf -> [Entry(key, text of the value, "path:line"), ...]

    # a comment                       an imported file takes effect at its import line;
    import common.conf                later assignments win
    dim: 100         # another

Must not know which keys exist or what type they have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from snailps.config.fields import GONE, current_folder
from snailps.config.quoting import cut_comment, unquote
from snailps.dataclass import dataclass, field
from snailps.errors import ConfigError
from snailps.pointers import pointer_of

_ASSIGNMENT = re.compile(r"([A-Za-z_][\w.-]*)\s*:(.*)", re.DOTALL)
_IMPORT = re.compile(r"import\s+(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assignment: key, text of its value as written, and its origin for messages.

    `source` is the file, or ``environment``; empty for an assignment on the command line, which
    one process alone reads.  `shared`: other processes read that source, too (an imported file, the
    environment), so it may have settings that this process does not read.
    """

    key: str
    value: str
    origin: str
    source: str = field(default="", compare=False)
    shared: bool = field(default=False, compare=False)


def read_conf(path: str | Path) -> list[Assignment]:
    """Read all assignments of a file and its imports; of one key the last assignment wins.

    Imports are relative to the importing file.  `ConfigError` for a file that is missing, not
    UTF-8, or in a cycle of imports, and for a malformed line.
    """
    path = Path(path)
    if _is_missing(path):
        raise ConfigError(
            f"configuration file {str(path)!r} not found (current folder: {current_folder(GONE)}); "
            f"check the path given with -c"
        )
    if os.path.isdir(path):  # noqa: PTH112 (see `_is_missing`)
        raise ConfigError(f"{path} is a folder; name a .conf file in it with -c")
    return list(_read(path, str(path), ()))


def _read(path: Path, origin: str, importers: tuple[Path, ...]) -> Iterator[Assignment]:
    """Yield the entries of `path`, depth first; `origin` is the line that imports it."""
    chain = (*importers, path)
    # Not `Path.resolve`, which raises for a link to itself before Python 3.13.
    if os.path.realpath(path) in map(os.path.realpath, importers):
        names = " -> ".join(str(link) for link in chain)
        raise ConfigError(f"{origin}: import cycle: {names}; remove one of these imports")
    is_conf = path.suffix == ".conf"
    for number, line in enumerate(_lines(path, origin), start=1):
        here = f"{path}:{number}"
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if imported := _IMPORT.fullmatch(line):
            is_conf = True
            yield from _read(_imported(path, imported[1], here), here, chain)
        elif assignment := _ASSIGNMENT.fullmatch(line):
            is_conf = True
            text = cut_comment(assignment[2]).strip()
            yield Assignment(assignment[1], text, here, str(path), shared=bool(importers))
        else:
            raise ConfigError(
                f"{here}: expected 'key: value', 'import other.conf' or a '# comment'; "
                + (f"got {line[:80]!r}" if is_conf else f"is {path} a .conf file?")
            )


def _is_missing(path: Path) -> bool:
    """Whether there is no such file; False where that cannot be seen: opening it says why.

    `Path.exists` raises there before Python 3.14.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _lines(path: Path, origin: str) -> list[str]:
    try:
        raw = path.read_bytes()
        if pointer := pointer_of(raw):
            raise ConfigError(f"{path} is {pointer}")
        # Only line feeds end a line (str.splitlines would also split at form feeds and others).
        return raw.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{origin}: cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected UTF-8 text; got a byte that is not, at offset {error.start}; "
            "is it a .conf file?"
        ) from None


def _imported(importer: Path, text: str, here: str) -> Path:
    """Return the path of an import, which exists."""
    try:
        name = unquote(cut_comment(text))
    except ValueError as error:
        raise ConfigError(f"{here}: expected 'import other.conf'; got {text!r} ({error})") from None
    path = Path(os.path.normpath(importer.parent / name))
    if _is_missing(path):
        raise ConfigError(
            f"{here}: cannot import {name!r}: no such file (looked for {path.absolute()}; imports "
            f"are relative to the importing file)"
        )
    return path
