"""Files of models of sparse examples.

    tables -> stored_rows -> write_npz, write_liblinear -> files        read_npz -> SavedModel

An ``.npz`` has the arrays ``keys`` (uint64, ascending), ``rows`` (float32, a row a key), ``about``
(UTF-8 JSON: the model's class and its settings) and whatever else the model has.  Rows that are all
zeros are left out: a key that is not there means zeros.  `numpy.load` reads it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.config import CHECKPOINT_SETTINGS, JobSettings, RawConfig, to_mapping
from snailps.errors import ModelFileError, SnailError
from snailps.models.npz import write_arrays
from snailps.models.sparse.batch import BIAS_KEY, Floats, Keys
from snailps.roles.worker import load_class
from snailps.vectors.atomic import atomic_file

if TYPE_CHECKING:
    from snailps.models.sparse.linear_settings import LinearSettings
    from snailps.models.sparse.worker import SparseWorker
    from snailps.roles.worker import Results

VERSION = 1
LIBLINEAR_KEYS_MAX = 1 << 28
"""Its text has a line for each possible index."""
_OF_THE_RUN = {"input", "output", "test", "scratch_dir", "scratch_bytes", *CHECKPOINT_SETTINGS}
_LINES = 1 << 16
_EXPECTED = "expected the .npz of a model of sparse examples, as snailps train writes it"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """What an ``.npz`` holds."""

    cls: type[SparseWorker]
    settings: JobSettings
    keys: Keys
    rows: Floats
    extras: Mapping[str, Floats]

    def rows_of(self, keys: Keys) -> Floats:
        """Rows of keys, zeros where there is none."""
        found = np.zeros((len(keys), self.rows.shape[1]), np.float32)
        if len(self.keys) == 0:
            return found
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        there = self.keys[at] == keys
        found[there] = self.rows[at[there]]
        return found


def stored_rows(results: Results, table: str = "weights") -> tuple[Keys, Floats]:
    """All rows of a table that are not zeros, keys ascending."""
    dim = results.tables[table].dim
    keys, rows = [np.empty(0, np.uint64)], [np.empty((0, dim), np.float32)]
    for some_keys, some_rows in results.scan(table):
        used = some_rows.any(axis=1)
        keys.append(some_keys[used])
        rows.append(some_rows[used])
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys)
    return all_keys[order], np.concatenate(rows)[order]


def has_bias(keys: Keys) -> bool:
    """Whether ascending keys end with the bias."""
    return len(keys) > 0 and int(keys[-1]) == BIAS_KEY


def write_npz(
    path: str, settings: JobSettings, keys: Keys, rows: Floats, extras: Mapping[str, Floats]
) -> str:
    """Writes a model; returns the path.

    Raises
    ------
    ModelFileError
        The folder is missing or not writable, or the disk is full.  No half a file is left.
    """
    kept = {k: v for k, v in to_mapping(settings).items() if k not in _OF_THE_RUN}
    about = json.dumps({"snailps": VERSION, "settings": kept}).encode()
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(about, np.uint8), "keys": keys, "rows": rows, **extras,
    }  # fmt: skip
    return write_arrays(path, arrays)


def read_npz(path: str | Path) -> SavedModel:
    """The model of a file.

    Raises
    ------
    ModelFileError
        It cannot be read or is no such model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read as a model: {error.strerror or error}"
        ) from None
    except (AttributeError, EOFError, TypeError, ValueError, zipfile.BadZipFile):  # of numpy.load
        raise ModelFileError(f"{path}: {_EXPECTED}, got a file that is no sound .npz") from None
    from snailps import models

    lacks = [name for name in ("about", "keys", "rows") if name not in arrays]
    if lacks:
        raise ModelFileError(f"{path}: {_EXPECTED}, got an .npz without {', '.join(lacks)}")
    try:
        about = json.loads(arrays.pop("about").tobytes())
        keys, rows = arrays.pop("keys"), arrays.pop("rows")
        if about["snailps"] != VERSION:
            raise ValueError(f"version {about['snailps']}, this program reads {VERSION}")
        if keys.dtype != np.uint64 or rows.dtype != np.float32 or rows.shape[:1] != keys.shape:
            raise ValueError(f"keys {keys.dtype}{keys.shape} and rows {rows.dtype}{rows.shape}")
        name = about["settings"]["worker_class"]
        if name not in models.CLASSES.values():  # a file of a stranger's must not import anything
            raise ValueError(f"worker_class {name!r}")
        cls = load_class(name, str(path))
        settings = RawConfig.from_mapping(about["settings"], str(path)).build(cls.Settings)
    except (KeyError, TypeError, ValueError, SnailError) as error:
        raise ModelFileError(
            f"{path}: no model of sparse examples as snailps writes it: {error!r:.200}"
        ) from None
    return SavedModel(cls, settings, keys, rows, arrays)  # type: ignore[arg-type]


def write_liblinear(path: str, settings: LinearSettings, keys: Keys, rows: Floats) -> str:
    """Writes weights as the text that LIBLINEAR's `predict` reads; returns the path.

    Index i of the text is key i; labels are 1 and -1 for yes and no, or class numbers.

    Raises
    ------
    ModelFileError
        A key is 0 or too large for a line each; or as `write_npz`.
    """
    bias = rows[-1] if has_bias(keys) else None
    own = keys[: len(keys) - (bias is not None)]
    size = int(own[-1]) if len(own) else 0
    if len(own) and (own[0] == 0 or size > LIBLINEAR_KEYS_MAX):
        raise ModelFileError(
            f"{path}: LIBLINEAR counts features from 1, with a line for each; expected keys from 1 "
            f"to {LIBLINEAR_KEYS_MAX:,}, got {int(own[0]):,} to {size:,}. The .npz has them all"
        )
    with atomic_file(path) as file:
        file.write(_liblinear_head(settings, size, bias is not None).encode())
        zeros = np.zeros((_LINES, rows.shape[1]), np.float32)
        for first in range(1, size + 1, _LINES):
            some = zeros[: min(_LINES, size + 1 - first)].copy()
            a, b = np.searchsorted(own, (first, first + len(some)))
            some[(own[a:b] - np.uint64(first)).astype(np.int64)] = rows[a:b]
            file.write(_liblinear_lines(some))
        if bias is not None:
            file.write(_liblinear_lines(bias[None]))
    return path


def _liblinear_head(settings: LinearSettings, size: int, bias: bool) -> str:
    solver, classes, labels = {
        "logistic": ("L2R_LR", 2, "label 1 -1\n"),
        "squared": ("L2R_L2LOSS_SVR", 2, ""),
        # Of its solvers, the one whose prediction is the class of the highest score.
        "multinomial": (
            "MCSVM_CS",
            settings.classes,
            "label " + " ".join(map(str, range(settings.classes))) + "\n",
        ),
    }[settings.loss]
    return (
        f"solver_type {solver}\nnr_class {classes}\n{labels}nr_feature {size}\n"
        f"bias {1 if bias else -1}\nw\n"
    )


def _liblinear_lines(rows: Floats) -> bytes:
    return "".join(" ".join(map("{:.9g}".format, row)) + " \n" for row in rows.tolist()).encode()
