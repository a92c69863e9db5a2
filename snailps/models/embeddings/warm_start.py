"""Continues embeddings of names from their file, as `partial_fit` does, with more lines and names.

    settings + an .npz -> adopt -> settings
    names of the .npz + names of the input -> known_names -> NameSurveyor: the file's come first
    .npz -> put -> rows with state [, its lines], before the training

Runs once, at the master, so that no lost worker has written a row that another writes again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Keys, Rows
from snailps.api.worker import Results, Worker
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.data.name_columns import Counted, Names
from snailps.dataclass import replace
from snailps.errors import ConfigError, ModelFileError
from snailps.files.model_file import OF_THE_RUN
from snailps.models.embeddings import files
from snailps.models.embeddings.settings import EmbeddingSettings
from snailps.models.packed_tables import (
    Packed,
    check_model_class,
    opened,
    opened_model,
    put_tables,
    with_shape,
)

Arrays = Mapping[str, NDArray[Any]]
_OF_EACH = {"keep_state"}
"""Settings that are never taken from the file."""


class Continued(Worker):
    """The methods by which a model of embeddings describes the file that its training continues."""

    table: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of names, in the order of their keys."""

    @classmethod
    @abstractmethod
    def in_units_of(cls, before: Any, adopted: Any, explicit: Callable[[str], str | None]) -> Any:
        """Return `adopted`, changed so that rows of a file with settings `before` go on."""

    @classmethod
    @abstractmethod
    def names(cls, results: Results) -> Names:
        """The names of the job, by kind."""

    @classmethod
    def as_trained(cls, settings: Any, rows: Rows) -> Rows:
        """Rows of a file as they are trained: the inverse of `finished`."""
        return rows

    @classmethod
    @abstractmethod
    def keys_of_kind(cls, kind: int, count: int) -> Keys:
        """Keys of the first `count` names of a kind."""

    @classmethod
    def lines_in(cls, settings: Any, arrays: Arrays) -> Sequence[NDArray[np.int64]]:
        """Lines of each name, by kind, that the file has and that are trained again; default: none.

        `arrays` are those of the file.
        """
        return [np.zeros(len(arrays[files.rows_of(kind)]), np.int64) for kind in cls.kinds]

    @classmethod
    def put_others(cls, results: Results, arrays: Arrays) -> None:
        """Set rows of further tables from the arrays of the file; default: none."""
        return


def habits_of(cls: type[JobSettings], shape: tuple[str, ...]) -> set[str]:
    """Settings that a training takes from its file unless they are set, besides its `shape`."""
    names = settings_of(cls).keys() - settings_of(JobSettings).keys() - OF_THE_RUN
    return {*names - _OF_EACH - {*shape}, "seed"}


def adopt(cls: type[Continued], s: Any, explicit: Callable[[str], str | None]) -> Any:
    """Take the settings of the continued model; `ConfigError` if the user set another shape."""
    if not s.continue_from:
        return s
    path = s.continue_from
    with opened_model(s) as model:
        texts, members = model.settings(), model.members
        check_model_class(cls, texts, path)
        before = RawConfig.from_mapping(texts, path).build(cls.Settings)
    assert isinstance(before, EmbeddingSettings)
    if before.method == "adagrad" and f"{files.state_of(cls.kinds[0])}.npy" not in members:
        raise ConfigError(
            f"{path}: continue_from: the file has rows without the state of their optimizer, from "
            "which training cannot go on: train that model with keep_state: always"
        )
    shape = {name: getattr(before, name) for name in (*before.shape, "learnt")}
    habits = {name: getattr(before, name) for name in habits_of(cls.Settings, before.shape)}
    adopted = with_shape(s, shape, path, explicit, habits)
    if adopted.method != before.method:
        adopted = with_shape(adopted, {"optimizer": before.method}, path, explicit)
    if adopted.keep_state == "auto":
        adopted = replace(adopted, keep_state="always")
    return cls.in_units_of(before, adopted, explicit)


def known_names(cls: type[Continued], s: Any) -> list[Counted]:
    """The names of each kind in the file, which keep their numbers, with their lines in it; empty
    without a file."""
    if not s.continue_from:
        return []
    _, arrays = _read(cls, s)
    names = [files.names_of(arrays[kind], arrays[files.rows_of(kind)]) for kind in cls.kinds]
    return list(zip(names, cls.lines_in(s, arrays), strict=True))


def _read(cls: type[Continued], s: Any) -> tuple[JobSettings, Arrays]:
    return files.read(opened(s), f"a model of {cls.model_name(s)}", cls.Settings, cls.kinds)


def arrays_of(cls: type[Continued], s: Any) -> Arrays:
    """Arrays of the file that a training continues from."""
    return _read(cls, s)[1]


def put(cls: type[Continued], results: Results) -> None:
    """Set all rows with their state, and what else the model takes from the file."""
    s: Any = results.settings
    _, arrays = _read(cls, s)
    names, keys, rows = cls.names(results), [], []
    for number, kind in enumerate(cls.kinds):
        written = arrays[files.rows_of(kind)]
        of_file = files.names_of(arrays[kind], written)
        if names.names[number][: len(of_file)] != of_file:
            raise ModelFileError(
                f"{s.continue_from}: changed while the names of the input were counted; start again"
            )
        of_kind = cls.as_trained(s, written)
        if results.tables[cls.table].state_floats:
            of_kind = np.hstack((of_kind, arrays[files.state_of(kind)]))
        keys.append(cls.keys_of_kind(number, len(of_file)))
        rows.append(of_kind)
    whole = Packed(np.concatenate(keys), np.concatenate(rows))
    put_tables(results, {cls.table: whole})
    cls.put_others(results, arrays)


def needs_encoding(before: Any, path: str) -> None:
    """Refuse a model of ratings whose file does not say how they were encoded."""
    if before.predicts and not before.encoding:
        raise ConfigError(
            f"{path}: continue_from: an earlier version wrote the file, without the deviation of "
            "its values: train that model again"
        )


def same_units(before: Any, adopted: Any, explicit: Callable[[str], str | None]) -> Any:
    """Keep the unit of RotatE's phases, the scale of its first weights, whatever the margin."""
    if before.model != "rotate" or adopted.first_scale == before.first_scale:
        return adopted
    if (where := explicit("scale")) is not None:
        place = settings_of(type(adopted))["scale"].place(where)
        raise ConfigError(
            f"{place}: expected {before.first_scale:g}, the unit of the phases in "
            f"{adopted.continue_from}; got {adopted.scale:g}"
        )
    return replace(adopted, scale=before.first_scale)
