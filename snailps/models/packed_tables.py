"""The rows of all tables of a model, with the state of their optimizer, to continue a training.

    a finished job -> Results.packed -> Packed [-> widened, grown] -> write_packed -> a file
    `continue_from` of the next job -> put_tables -> Results.put_packed -> tables

Owns the arrays in which such rows are stored, and how rows grow to more classes.  A file has two
arrays a table, ``NAME.keys`` (uint64) and ``NAME.rows`` (float32, weights and state).  A model's
file may have them too, by the names of `state_arrays`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table, Tensor
from snailps.api.worker import Results, Worker
from snailps.config import JobSettings, settings_of
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, ModelFileError
from snailps.files.array_archives import DAMAGED
from snailps.files.model_file import ModelFile, check_rows, refuse_pipe, write_model
from snailps.files.scratch import release_whole, whole_file
from snailps.vectors.model_reading import read_model

log = logging.getLogger(__name__)

S = TypeVar("S", bound=JobSettings)

STATE_BYTES_AUTO = 2 << 20
"""Most bytes of rows with state that ``keep_state: auto`` keeps."""
FIRST_TABLE = "weights"
"""The table whose arrays of state have no table's name in a model's file."""
_KEYS, _ROWS = ".keys", ".rows"
_STATE_KEYS, _STATE_ROWS = "state_keys", "state_rows"
_PUT_FLOATS = 1 << 20
"""Floats that are pushed at a time."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows with the state of their optimizer: keys uint64 (n,), rows float32 (n, dim + state)."""

    keys: NDArray[np.uint64]
    rows: NDArray[np.float32]


def write_packed(path: str, tables: Mapping[str, Packed]) -> str:
    arrays: dict[str, NDArray[Any]] = {}
    for name, table in tables.items():
        arrays |= {name + _KEYS: table.keys, name + _ROWS: table.rows}
    return write_model(path, arrays)


def state_names(table: str) -> tuple[str, str]:
    """Name the two arrays of a table's rows with state in a model's file."""
    suffix = "" if table == FIRST_TABLE else f".{table}"
    return _STATE_KEYS + suffix, _STATE_ROWS + suffix


def state_arrays(tables: Mapping[str, Packed]) -> dict[str, NDArray[Any]]:
    """Give rows with state as arrays for a model's file."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, table in tables.items():
        arrays |= dict(zip(state_names(name), (table.keys, table.rows), strict=True))
    return arrays


def take_state(arrays: dict[str, NDArray[Any]]) -> dict[str, Packed]:
    """Take the rows with state, by table, out of the arrays of a model's file."""
    tables = {}
    for name in [name for name in arrays if name.split(".")[0] == _STATE_KEYS]:
        table = name.removeprefix(_STATE_KEYS).removeprefix(".") or FIRST_TABLE
        keys, rows = (arrays.pop(array) for array in state_names(table))
        tables[table] = Packed(keys, rows)
    return tables


def read_packed(path: str) -> dict[str, Packed]:
    """Read what `write_packed` wrote, or the state in a model's file; else a `ModelFileError`."""
    what = "weights with the state of their optimizer"
    with read_model(path, what, ()) as (settings, arrays):
        names = [name.removesuffix(_KEYS) for name in arrays if name.endswith(_KEYS)]
    try:
        found = {name: Packed(arrays.pop(name + _KEYS), arrays.pop(name + _ROWS)) for name in names}
        is_whole = not arrays or bool(settings)
        found |= take_state(arrays)
        for name, table in found.items():
            check_rows(name, table.keys, table.rows)
    except (KeyError, ValueError):
        found = {}
    if not found or not is_whole:
        raise ModelFileError(
            f"{path}: continue_from: expected {what}, as keep_state: always and save of an "
            "estimator write them, got other arrays"
        )
    return found


def with_shape(
    s: S,
    shape: Mapping[str, Any],
    path: str,
    explicit: Callable[[str], str | None],
    habits: Mapping[str, Any] = MappingProxyType({}),
) -> S:
    """Take settings from the file that training starts from.

    Raises `ConfigError` if the user has set another value of its `shape`.  Its `habits` are taken
    unless the user has set them.
    """
    for name, value in shape.items():
        where = explicit(name)
        known = settings_of(type(s))[name]
        own = getattr(s, name)
        if where is not None and own != value and known.format(own) != "auto":
            shown = "nothing" if value in ("", ()) else known.format(value)
            raise ConfigError(
                f"{known.place(where)}: expected {shown}, as in {path}, from which the training "
                f"starts; got {known.format(own)}. Leave {name} out, or start without that file"
            )
    found = {name: value for name, value in habits.items() if explicit(name) is None}
    for name in [name for name in found if not settings_of(type(s))[name].allows(found[name])]:
        del found[name]  # such as fastText's minCount 0
    return replace(s, **found, **shape)


def refuse_other_split(
    s: Any, before: Any, explicit: Callable[[str], str | None], decide: Collection[str] = ("seed",)
) -> None:
    """Refuse settings that hold other lines out than the continued model's, those that `decide`.

    Lines that were tested would be trained, and the model tested on lines that it has seen.  Warn
    if more lines are held out than before: of the same input it has seen some of them.
    """
    path = s.continue_from
    for name in decide if before.held_out and s.held_out else ():
        where, value = explicit(name), getattr(before, name)
        if where is not None and getattr(s, name) != value:
            raise ConfigError(
                f"{settings_of(type(s))[name].place(where)}: expected {value}, by which lines were "
                f"held out of {path}; got {getattr(s, name)}, which holds other ones out: the model"
                " would be tested on lines that it was trained on. Leave "
                f"{name} out, or set held_out: 0"
            )
    if s.held_out > before.held_out:
        log.warning(
            "held_out: %g, and %g were held out of %s: on the same input it is tested on lines "
            "that it was trained on",
            s.held_out, before.held_out, path,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GrownClasses:
    """The classes of a model that has grown.

    `places` are the places of its earlier classes among all; `shares` (float64) is the share of all
    examples that each class has.
    """

    places: NDArray[np.int64]
    shares: NDArray[np.float64]

    @classmethod
    def of_counts(cls, places: NDArray[np.int64], counts: NDArray[np.float64]) -> GrownClasses:
        """Make shares from counts of examples; a class without any counts as half an example.

        No class gets more than an equal share: how many examples earlier classes had may be
        unknown.
        """
        counts = np.maximum(counts, 0.5)
        return cls(places, np.minimum(counts / counts.sum(), 1 / len(counts)))

    def __len__(self) -> int:
        return len(self.shares)

    def begin(self, scores: NDArray[np.float32]) -> None:
        """Set the constant scores of new classes, so that an example whose features say nothing has
        each class with the probability of its share.

        The scores of earlier classes are given; 0 for a first class without an output.
        """
        is_new = np.ones(len(self), bool)
        is_new[self.places] = False
        of_new = self.shares[is_new]
        total = np.logaddexp.reduce(scores[~is_new].astype(np.float64))
        scores[is_new] = np.log(of_new / (1 - of_new.sum())) + total


def grown(packed: Packed, classes: GrownClasses, bias: int) -> Packed:
    """Grow rows with state to more classes.

    Weights and state of new classes start at zero; in the row of key `bias`, if there is one, by
    the classes' shares.  Two classes have one output, the second's; more have an output each.
    """
    places, count = classes.places, len(classes)
    outputs = 1 if len(places) == 2 else len(places)
    number = len(packed.rows)
    parts = packed.rows.shape[1] // outputs
    made = np.zeros((number, parts, count), np.float32)
    made[:, :, places[-outputs:]] = packed.rows.reshape(number, parts, outputs)
    for row in np.flatnonzero(packed.keys == np.uint64(bias)):
        classes.begin(made[row, 0])
    return Packed(packed.keys, made.reshape(number, parts * count))


def grown_tensors(
    packed: Mapping[str, Packed],
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    classes: GrownClasses,
    outputs: int,
) -> dict[str, Packed]:
    """Grow the last layer of a network from `outputs` to an output for each class.

    The last tensor has the biases.
    """
    made, places = dict(packed), classes.places[-outputs:]
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            begin = classes.begin if new is after[-1] else None
            made[old.name] = widened(packed[old.name], old, new, places, begin)
    return made


def widened(
    packed: Packed,
    before: Tensor,
    after: Tensor,
    places: NDArray[np.int64],
    begin: Callable[[NDArray[np.float32]], None] | None = None,
) -> Packed:
    """Grow the last axis of a tensor's rows; new values start at zero, or as `begin` sets them.

    `packed` has all chunks, keys ascending.  `places` (int64, ascending) are the new places of the
    last old values, relative to the first of these.
    """
    table = before.table()
    steps = int(table.access == "adam")  # a number of a chunk; all chunks take every step
    if packed.rows.shape != (len(before.keys()), table.dim + table.state_floats):
        raise ModelFileError(
            f"tensor {before.name}: expected {len(before.keys())} rows of "
            f"{table.dim + table.state_floats} numbers, got {packed.rows.shape}"
        )
    kept = before.shape[-1] - len(places)
    at = np.concatenate((np.arange(kept), kept + places))
    parts = []
    for first in range(0, packed.rows.shape[1] - steps, table.dim):
        made = np.zeros(after.shape, np.float32)
        part = np.ascontiguousarray(packed.rows[:, first : first + table.dim])
        made[..., at] = before.from_rows(part)
        if begin is not None and first == 0:
            begin(made[kept:])
        parts.append(after.to_rows(made))
    if steps:
        parts.append(np.full((len(after.keys()), 1), packed.rows[:, -1].max(), np.float32))
    return Packed(after.keys(), np.hstack(parts))


def opened(settings: JobSettings, name: str = "continue_from") -> str:
    """The path in the setting `name`, fetched first if it is a driver's file."""
    path: str = getattr(settings, name)
    refuse_pipe(path)
    return whole_file(path, settings.scratch_dir, settings.scratch_bytes)


@contextmanager
def opened_model(settings: JobSettings) -> Iterator[ModelFile]:
    """Open the file of `continue_from`; ModelFileError: it is damaged, or no model file."""
    said: str = settings.continue_from  # type: ignore[attr-defined]
    path = opened(settings)
    try:
        with open(path, "rb") as file:
            yield ModelFile(path, file)
    except OSError as error:
        raise ModelFileError(f"{said}: continue_from: {error.strerror or error}") from None
    except DAMAGED as error:
        raise ModelFileError(
            f"{said}: continue_from: expected the .npz of a model, got {error!r:.120}"
        ) from None


def check_model_class(cls: type[Worker], settings: Mapping[str, Any], said: str) -> None:
    """Raise `ConfigError` if the settings in the file `said` belong to another model."""
    if settings.get("worker_class") != f"{cls.__module__}:{cls.__qualname__}":
        raise ConfigError(
            f"{said}: continue_from: expected a model of {cls.__name__}, got one of "
            f"{settings.get('worker_class')}"
        )


def put_tables(results: Results, given: Mapping[str, Packed] | None = None) -> None:
    """Set rows and state from `continue_from`, or as `given`; else a `ModelFileError`."""
    path: str = results.settings.continue_from  # type: ignore[attr-defined]
    tables = read_packed(opened(results.settings)) if given is None else given
    results.exporting.plan([packed.rows.size for packed in tables.values()])
    for name, packed in tables.items():
        table = results.tables.get(name)
        width = packed.rows.shape[1]
        if table is None or width != table.dim + table.state_floats:
            expected = f"tables {sorted(results.tables)}"
            if table is not None:
                expected = f"rows of {table.dim + table.state_floats} numbers"
            raise ModelFileError(
                f"{path}: continue_from: table {name}: expected {expected}, as the settings have "
                f"it, got {width} numbers a row"
            )
        step = max(1, _PUT_FLOATS // width)
        edges = range(0, len(packed.keys), step)
        pieces = (
            (packed.keys[at : at + step], _resumed(table, packed.rows[at : at + step]))
            for at in edges
        )
        results.put_packed(
            name,
            results.exporting.count(
                f"reading {path}", len(packed.keys), "rows", pieces, lambda piece: len(piece[0])
            ),
        )
    release_whole(path)


def _resumed(table: Table, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Change FTRL's rows so that their weights stay under the table's hyper-parameters.

    The weights follow from z and n: after a change of `lr`, `beta` or `l1`, the old z would scale
    them.  Where a weight is 0, z must not exceed `l1`.  Rows that fit stay to the bit.
    """
    if table.access != "ftrl":
        return rows
    w, z, n = np.split(rows, 3, axis=1)
    wanted = -w * (table.beta + np.sqrt(n)) / table.lr - table.l1 * np.sign(w)
    wanted = np.where(w == 0, np.clip(z, -table.l1, table.l1), wanted)
    return np.hstack((w, np.where(np.isclose(z, wanted, 1e-5, 0), z, wanted), n))


class NoSurvey:
    """A survey without a result, for models that set rows: rows are set after a survey."""

    def add(self, part: bytes) -> None:
        """Ignore the part."""

    def result(self) -> bytes:
        return b""
