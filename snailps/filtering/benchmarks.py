"""Lines of benchmarks, and how much of a text they are.

    files -> Benchmarks -> search(texts) -> share of each text's words, lines that were met

Every text in a file counts, in any column and at any depth, each as a line of its own: a question,
its choices, the answer.  Must not know conditions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.formats.table import open_table, table_errors
from snailps.duplicates._pages import BenchmarkWindows
from snailps.duplicates.search import batches_of
from snailps.errors import ConfigError
from snailps.outward import without_secrets

SHOWN_LETTERS = 200
LINES_SHOWN = 1000
"""Most lines that the manifest names: those in the most texts."""


class BenchmarkLine(NamedTuple):
    file: str
    row: int
    text: str


class Benchmarks:
    """The lines of some files, in memory; threads may share it.

    ConfigError: the files have no text, or only short ones.  DataError: one cannot be read.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.lines = [line for path in paths for line in _lines_of(path)]
        texts = [line.text for line in self.lines]
        if not texts:
            raise ConfigError(f"benchmarks: no text in {', '.join(paths)}: name files with lines")
        data = [text.encode("utf-8", "surrogatepass") for text in texts]
        begins = np.cumsum([0, *map(len, data)], dtype=np.int64)
        self.digest = hashlib.sha256(b"\0".join(data)).hexdigest()
        """Of all lines: results depend on these, and not on whose they are."""
        self._windows = BenchmarkWindows(b"".join(data), begins)
        if self._windows.short == len(texts):
            raise ConfigError(
                f"benchmarks: none of {len(texts):,} lines in {', '.join(paths)} has "
                f"{self._windows.shortest} words or more, and shorter ones are not searched for"
            )

    def search(self, texts: object) -> tuple[NDArray[np.float32], dict[str, int]]:
        """Share of each text's words in windows of lines; texts that have one, by line."""
        parts, total = [], np.zeros(len(self.lines), np.int64)
        for batch in batches_of(texts):
            overlap, hits = self._windows.of(*batch)
            parts.append(overlap)
            total += hits
        met = np.flatnonzero(total)
        counts = zip(met.tolist(), total[met].tolist(), strict=True)
        return np.concatenate(parts), {str(line): count for line, count in counts}

    def manifest(self, hits: dict[str, int]) -> dict[str, Any]:
        """What `_manifest.json` says: the lines that were met, those in the most texts first."""
        most = sorted(hits.items(), key=lambda item: (-item[1], int(item[0])))
        return {
            "sha256": self.digest, "lines": len(self.lines), "short": self._windows.short,
            "met": len(most),
            "hits": [
                {**self.lines[int(line)]._asdict(), "texts": count,
                 "text": self.lines[int(line)].text[:SHOWN_LETTERS]}
                for line, count in most[:LINES_SHOWN]
            ],
        }  # fmt: skip


def _lines_of(path: str) -> Iterator[BenchmarkLine]:
    """Each text of a file, with the number of its row, from 1."""
    shown = without_secrets(path)
    with table_errors(path), open_table(path) as table:
        for batch in table.rows():
            columns = [batch.column(name).data for name in batch.columns]
            rows = zip(*map(_listed, columns), strict=True)
            for row, values in zip(batch.numbers, rows, strict=True):
                yield from (BenchmarkLine(shown, row, text) for text in _texts_in(values))


def _listed(column: Any) -> Sequence[Any]:
    to_list = getattr(column, "to_pylist", None)
    return to_list() if to_list is not None else list(column)


def _texts_in(value: Any) -> Iterator[str]:
    """The texts in a value, in their order, however deep."""
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        if text.strip():
            yield text
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts_in(inner)
