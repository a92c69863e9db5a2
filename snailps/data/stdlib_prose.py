"""A text that every Python contains: the prose of its standard library.

    .py files of the library -> docstrings, comments, help topics -> lower-case words a-z, one
    sentence per line -> a text file

Half a million words about programming, the demo's corpus: enough for vectors with sensible
neighbours, without a download.  The text depends on the version of Python only.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from snailps.errors import DataError

# Tests repeat themselves; the others are not the library.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# `pydoc_data/topics.py` has the texts of `help()` as plain strings, not docstrings.
_TOPICS = "pydoc_data"
_BREAK = re.compile(r"[.!?:;](?:\s|$)|\n\s*\n")
_WORD = re.compile(r"[a-z]+")
# One or two words are a heading, a ruler, a piece of code.
_SENTENCE_WORDS_MIN = 3


def write_prose(path: str, bytes_max: int = 1 << 30, *, library: str = "") -> int:
    """Write the prose of the standard library, one sentence per line; return the number of words.

    Stops before the sentence that would exceed `bytes_max`.  `library`: the folder of the sources;
    empty: the running Python's.  DataError: it has no sources, as in some small installations.
    """
    root = Path(library or sysconfig.get_path("stdlib"))
    words = size = 0
    try:
        with Path(path).open("w", encoding="ascii", newline="\n") as out:
            for sentence in _sentences(root):
                size += len(sentence) + 1
                if size > bytes_max:
                    break
                out.write(sentence + "\n")
                words += sentence.count(" ") + 1
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    if words == 0:
        raise DataError(
            f"found no prose in the Python sources below {root}. Train on a text of your own "
            "instead, or use a Python that comes with its sources"
        )
    return words


def _sentences(root: Path) -> Iterator[str]:
    # Many files have the same licences and generated headers: keep each sentence once.
    seen: set[str] = set()
    for file in sorted(root.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(file.relative_to(root).parts):
            for text in _texts(file):
                for sentence in _BREAK.split(text.lower()):
                    words = _WORD.findall(sentence)
                    line = " ".join(words)
                    if len(words) >= _SENTENCE_WORDS_MIN and line not in seen:
                        seen.add(line)
                        yield line


def _texts(file: Path) -> Iterator[str]:
    """Docstrings and blocks of comments of a file; nothing if it cannot be parsed."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings of the standard library
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    help_topics = file.parent.name == _TOPICS
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield _without_code(text)
        elif help_topics and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _without_code(node.value)
    yield from _comments(source)


def _without_code(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">>>"))


def _comments(source: str) -> Iterator[str]:
    """Runs of comment lines.  A line inside a string that looks like one does no harm."""
    run: list[str] = []
    for line in source.splitlines():
        stripped = line.lstrip()
        if stripped.startswith("#"):
            run.append(stripped.lstrip("#"))
        elif run:
            yield "\n".join(run)
            run.clear()
    if run:
        yield "\n".join(run)
