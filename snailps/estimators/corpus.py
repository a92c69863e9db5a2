"""Text as a job's input: paths are passed on, anything else is spooled into one scratch file.

    path, glob | list, array, column, generator [, labels] -> corpus -> FitInput of a job

Owns which values are paths and which are data.  `data.spool` decides what counts as a text.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import glob, has_magic
from typing import Any

import numpy as np

from snailps.config.fields import GONE, current_folder, home_expanded
from snailps.data.elements import a_kind, elements_of, is_missing
from snailps.data.spool import spool_text
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError
from snailps.estimators.base import FitInput
from snailps.files.file_kinds import CSV_BYTES
from snailps.files.reading import Reading
from snailps.files.unpacking import DAMAGED, is_url, open_content

SHOWN_CHARS = 60
NAMES_MAX, NAME_CHARS = 10_000, 4096
"""Longer lists and texts are not compared with names of files, which takes a system call each."""


@contextlib.contextmanager
def corpus(
    data: Any,
    *,
    labels: Any = None,
    weights: Any = None,
    has_weights: bool = False,
    label_prefix: str = LABEL_PREFIX.decode(),
    column: str = "",
    on_bytes: Callable[[int], object] | None = None,
) -> Iterator[FitInput]:
    """Yield the input of a job: paths, or a scratch file that lasts as long as the context.

    `labels` and `weights` are values for texts in memory; `has_weights` and `label_prefix` as in
    `spool_text`.  For tables in files `labels`, `weights` and `column` are names of columns; lines
    of other files begin with their labels.
    """
    if not is_path(data):
        refuse_names_of_files(data)
        with spool_text(
            data, labels=labels, weights=weights, has_weights=has_weights,
            label_prefix=label_prefix, column=column, on_bytes=on_bytes,
        ) as spooled:  # fmt: skip
            yield FitInput(spooled)
        return
    paths = paths_of(data, "text is given as a list of sentences: [text]")
    if not column:
        if labels is not None:
            raise DataError(
                f"y: expected none with the path {paths[0]!r:.80}, whose lines begin with their "
                "labels; for a table also give column=, the name of the column of texts"
            )
        if weights is not None:
            raise DataError(
                f"sample_weight: expected none with the path {paths[0]!r:.80}: a line of text has "
                "its weight itself, as the label __label__:2 (soft_labels=True); for a table also "
                "give column= and y"
            )
        for path in paths:
            _refuse_header(path)
    elif weights is not None and not (isinstance(weights, str) and labels):
        raise DataError(
            f"sample_weight: expected the name of the column of weights, and y, because "
            f"column={column!r} names one of files; got {a_kind(weights)}"
        )
    elif not isinstance(labels, (str, type(None))):
        raise DataError(
            f"y: expected the name of the column of labels, because column={column!r} "
            f"names one of files; got {a_kind(labels)}"
        )
    columns = {"column": column, "label_column": labels, "weight_column": weights}
    yield FitInput(paths, {name: value for name, value in columns.items() if value})


def _refuse_header(path: str) -> None:
    """Refuse CSV and TSV whose first line names columns, before a cluster is started.

    A file that cannot be opened is left to the job, whose error names the reason.
    """
    if is_url(path) or not os.path.isfile(path):  # noqa: PTH113
        return
    with contextlib.suppress(OSError, *DAMAGED), open_content(path) as file:
        Reading("text").refuse_header(file.read(CSV_BYTES), path)


def is_path(data: Any) -> bool:
    """Whether data is a path, or a list of `pathlib.Path`."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], os.PathLike)


def paths_of(data: Any, otherwise: str) -> list[str]:
    """Return the paths in `data`; raise DataError if they match nothing.

    `otherwise` completes the message for a str: how to pass data that is no path.
    """
    if not isinstance(data, (str, os.PathLike)):
        return [os.fspath(path) for path in data]
    path = os.fspath(data)
    if is_url(path):
        return [path]
    whole = home_expanded(path)
    if whole and (os.path.exists(whole) or glob(whole, recursive=True)):  # noqa: PTH110, PTH207
        return [path]
    shown = path if len(path) <= SHOWN_CHARS else path[:SHOWN_CHARS] + "..."
    seen = f"seen from {current_folder(GONE)}"
    if has_magic(path):
        raise DataError(f"the pattern {shown!r} matches no file ({seen})")
    also = "" if isinstance(data, os.PathLike) else f". A str is taken as a path; {otherwise}"
    raise DataError(f"{shown!r} is no file, folder, glob or URL ({seen}){also}")


def refuse_names_of_files(data: Any) -> None:
    """Refuse a list of str that all name files: else the names would be trained as texts."""
    if not (isinstance(data, (list, tuple)) and 0 < len(data) <= NAMES_MAX):
        return
    if all(isinstance(text, str) and _is_name(text) for text in data):
        raise DataError(
            f"X is a list of names of files, {data[0]!r:.80} first: pass several files as a list "
            "of pathlib.Path, a single file as a str"
        )


def _is_name(text: str) -> bool:
    return len(text) <= NAME_CHARS and "\0" not in text and os.path.isfile(text)  # noqa: PTH113


def is_table(data: Any) -> bool:
    """Whether data has columns by name."""
    names = ("columns", "column_names", "schema")
    # The class is asked first: polars' LazyFrame computes its `columns` when asked, and warns.
    return isinstance(data, Mapping) or any(
        hasattr(type(data), name) or hasattr(data, name) for name in names
    )


def lines_of(data: Any, column: str, what: str) -> Iterator[str | bytes]:
    """Yield texts as lines, for queries to a model; `what` is the method, for messages."""
    if isinstance(data, (str, bytes)):
        raise DataError(f"{what}: expected a list of texts, got one text: write [{data!r:.60}]")
    elements = elements_of(data, column if is_table(data) else "", what="X")
    for number, text in enumerate(elements.values):
        if hasattr(text, "as_py"):  # a scalar of pyarrow
            text = text.as_py()
        elif isinstance(text, np.ndarray):
            text = text.tolist()
        if is_missing(text):
            raise DataError(
                f"{what}: {elements.at(number)} is missing ({text!r}): leave such rows out, or "
                "fill them"
            )
        if not isinstance(text, (str, bytes)):
            words: list[Any] = list(text) if isinstance(text, Iterable) else [None]
            if all(isinstance(word, str) for word in words):
                text = " ".join(words)
        if not isinstance(text, (str, bytes)):
            raise DataError(
                f"{what}: {elements.at(number)} is {a_kind(text)}: expected a text, or a list of "
                "words"
            )
        yield text.replace("\n", " ") if isinstance(text, str) else text.replace(b"\n", b" ")
