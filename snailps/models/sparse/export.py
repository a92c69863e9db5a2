"""Files of models of sparse examples.

    tables -> stored_rows (RowSorter) -> write_npz, write_liblinear -> files
    file -> read_npz -> SavedModel

An ``.npz`` has the arrays ``keys`` (uint64, ascending), ``rows`` (float32, a row a key), ``about``
(UTF-8 JSON: the model's class and its settings) and other arrays of the model.  Rows that are all
zeros are left out: a missing key means zeros.  `numpy.load` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import load_class
from snailps.config import JobSettings, RawConfig
from snailps.dataclass import dataclass
from snailps.errors import ModelFileError
from snailps.files.atomic import atomic_file
from snailps.files.model_file import (
    HEADER,
    ModelWriter,
    check_rows,
    header_of,
    model_settings,
    model_writer,
    write_model,
)
from snailps.files.row_sorter import RowSorter
from snailps.models.losses import LOSSES
from snailps.models.packed_tables import STATE_BYTES_AUTO, state_names
from snailps.models.sparse.batch import BIAS_KEY, TABLE, Floats, Keys
from snailps.models.sparse.model import SparseModel
from snailps.models.sparse.settings import ClassesSettings
from snailps.vectors.model_reading import read_model

if TYPE_CHECKING:
    from snailps.api.export_progress import ExportProgress
    from snailps.api.worker import Results

LIBLINEAR_KEYS_MAX = 1 << 28
"""Largest key in a LIBLINEAR file, which has a line for each possible index."""
_VALUES = 1 << 16
"""Values converted to text at a time."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The content of an ``.npz``: `rows` float32 (n, dim) of `keys` uint64 (n,), ascending."""

    cls: type[SparseModel]
    settings: JobSettings
    keys: Keys
    rows: Floats
    extras: Mapping[str, NDArray[Any]]

    def rows_of(self, keys: Keys) -> Floats:
        """Rows of keys, float32 (len(keys), dim); zeros for a key that is not stored."""
        found = np.zeros((len(keys), self.rows.shape[1]), np.float32)
        if len(self.keys) == 0:
            return found
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        there = self.keys[at] == keys
        found[there] = self.rows[at[there]]
        return found


class StoredRows(RowSorter):
    """Nonzero rows of a table by ascending key; `bias`: the bias's row, (1, dim), or (0, dim).

    `scanned` counts all rows.
    """

    def __init__(self, target: str, dim: int, progress: ExportProgress) -> None:
        super().__init__(target, dim)
        self.progress, self.scanned = progress, 0
        self.bias: Floats = np.empty((0, dim), np.float32)

    @property
    def features(self) -> int:
        """Number of rows without that of the bias."""
        return self.count

    def add(self, keys: Keys, rows: Floats) -> None:
        self.scanned += len(keys)
        used = rows.any(axis=1)
        of_bias = keys == BIAS_KEY
        if of_bias.any():
            self.bias = rows[of_bias & used].copy()
            used &= ~of_bias
        if not used.all():  # most pieces are whole
            keys, rows = keys[used], rows[used]
        super().add(keys, rows)

    def keys(self) -> Iterator[Keys]:
        """All keys, ascending; that of the bias is the largest uint64."""
        yield from super().keys()
        yield np.full(len(self.bias), BIAS_KEY, np.uint64)

    def counted(self, what: str) -> Iterator[tuple[Keys, Floats]]:
        """Rows of features with their keys, ascending, as a stage of the export."""
        pieces = self.pieces()
        return self.progress.count(what, self.count, "rows", pieces, lambda piece: len(piece[0]))


@contextmanager
def stored_rows(cls: type[SparseModel], results: Results, stages: int = 1) -> Iterator[StoredRows]:
    """All nonzero rows of the finished model; `stages` is the number of files to be written."""
    results.exporting.plan([1.0] * (1 + stages))
    target, dim = f"{results.settings.output}.npz", results.tables[TABLE].dim
    with StoredRows(target, dim, results.exporting) as stored:
        centred = cls.centred_rows(results)
        for keys, rows in results.scan(TABLE):
            stored.add(keys, cls.decoded(results.settings, keys, rows, centred))
        yield stored


def write_npz(
    path: str, results: Results, stored: StoredRows, extras: Mapping[str, NDArray[Any]]
) -> str:
    """Write a model, with the state of its optimizer where `keep_state` says so.

    No partial file is left after a `ModelFileError`.
    """
    n, settings = stored.features + len(stored.bias), results.settings

    def rows() -> Iterator[Floats]:
        for _, some in stored.counted(f"writing {path}"):
            yield some
        yield stored.bias

    with model_writer(path, n * (8 + 4 * stored.dim)) as file:
        file.add(HEADER, header_of(model_settings(settings)))
        file.add_pieces("keys", np.uint64, (n,), stored.keys())
        file.add_pieces("rows", np.float32, (n, stored.dim), rows())
        for name, array in extras.items():
            file.add(name, array)
        for table in results.tables if _keeps_state(results, stored) else ():
            _write_state(file, path, results, table)
    stored.progress.wrote(path)
    return path


def _keeps_state(results: Results, stored: StoredRows) -> bool:
    """Whether the file has the rows as the servers have them; a driver may keep them itself."""
    wanted = results.settings.keep_state  # type: ignore[attr-defined]
    if results.scanned is not None or wanted == "never":
        return False
    table = results.tables[TABLE]
    size = 4 * (table.dim + table.state_floats) * stored.scanned
    return bool(wanted == "always" or size <= STATE_BYTES_AUTO)


def _write_state(file: ModelWriter, path: str, results: Results, table: str) -> None:
    """Write a table's rows with their state, keys ascending."""
    declared = results.tables[table]
    width = declared.dim + declared.state_floats
    with RowSorter(path, width) as rows:
        for piece in results.packed(table):
            rows.add(*piece)
        of_keys, of_rows = state_names(table)
        file.add_pieces(of_keys, np.uint64, (rows.count,), rows.keys())
        some = (part for _, part in rows.pieces())
        file.add_pieces(of_rows, np.float32, (rows.count, width), some)


def read_npz(path: str | Path) -> SavedModel:
    """Read a model, or raise a `ModelFileError`."""
    from snailps import models

    with read_model(path, "a model of sparse examples", (HEADER, "keys", "rows")) as found:
        kept, arrays = found
        keys, rows = arrays.pop("keys"), arrays.pop("rows")
        check_rows("the model", keys, rows)
        name = kept["worker_class"]
        if name not in models.CLASSES.values():  # an untrusted file must not import anything
            raise ValueError(f"worker_class {name!r}")
        cls: type[SparseModel] = load_class(name, str(path))  # type: ignore[assignment]
        settings = RawConfig.from_mapping(kept, str(path)).build(cls.Settings)
        return SavedModel(cls, settings, keys, rows, arrays)


def write_saved(path: str | Path, model: SavedModel, extras: Mapping[str, NDArray[Any]]) -> str:
    """Write a model that is in memory, with further arrays."""
    arrays: dict[str, NDArray[Any]] = {"keys": model.keys, "rows": model.rows}
    return write_model(
        str(path), {**arrays, **model.extras, **extras}, model_settings(model.settings)
    )


def write_liblinear(path: str, settings: ClassesSettings, stored: StoredRows) -> str:
    """Write weights as the text that LIBLINEAR's `predict` reads.

    Index i of the text is key i; labels are 1 and -1 for yes and no, or class numbers.  A
    `ModelFileError` if a key is 0, or too large for a line each.
    """
    size = stored.last
    if stored.features and (stored.first == 0 or size > LIBLINEAR_KEYS_MAX):
        raise ModelFileError(
            f"{path}: LIBLINEAR counts features from 1, with a line for each; expected keys from 1 "
            f"to {LIBLINEAR_KEYS_MAX:,}, got {stored.first:,} to {size:,}. The .npz has them all"
        )
    with atomic_file(path) as file:
        file.write(_liblinear_head(settings, size, len(stored.bias) > 0).encode())
        for some in with_zeros(stored.counted(f"writing {path}"), size, stored.dim):
            file.write(_liblinear_lines(some))
        file.write(_liblinear_lines(stored.bias))
    stored.progress.wrote(path)
    return path


def with_zeros(pieces: Iterable[tuple[Keys, Floats]], size: int, dim: int) -> Iterator[Floats]:
    """Rows of the keys 1 to `size`, zeros for missing keys, in pieces."""
    step = max(1, _VALUES // dim)
    first, some = 1, np.zeros((min(step, size), dim), np.float32)
    for keys, rows in pieces:
        done = 0
        while done < len(keys):
            stop = int(np.searchsorted(keys, np.uint64(first + len(some))))
            at = (keys[done:stop] - np.uint64(first)).astype(np.int64)
            some[at] = rows[done:stop]
            done = stop
            if done < len(keys):
                yield some
                first += len(some)
                some = np.zeros((min(step, size + 1 - first), dim), np.float32)
    yield some


def _liblinear_head(settings: ClassesSettings, size: int, bias: bool) -> str:
    labels = range(settings.classes) or (1, -1)
    named = f"label {' '.join(map(str, labels))}\n" if settings.class_num else ""
    return (
        f"solver_type {LOSSES[settings.loss].solver}\nnr_class {len(labels)}\n{named}"
        f"nr_feature {size}\nbias {1 if bias else -1}\nw\n"
    )


def _liblinear_lines(rows: Floats) -> bytes:
    return "".join(" ".join(map("{:.9g}".format, row)) + " \n" for row in rows.tolist()).encode()
