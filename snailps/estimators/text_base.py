"""Estimators of text, whose fitted model is a fastText `.bin` file that was opened.

    texts -> fit -> a job -> .bin -> `_open` of the class        .bin -> load, partial_fit, pickle

Owns how such a model goes on, is saved and travels; what it is when it is opened is the class's.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from snailps.data.spool import Spooled
from snailps.errors import ParameterError
from snailps.estimators.base import Estimator
from snailps.estimators.corpus import corpus, is_path, is_table
from snailps.estimators.display import SpoolDisplay
from snailps.estimators.jobs import Finished
from snailps.vectors.fasttext_bin import BinHeader, read_header

T = TypeVar("T", bound="TextEstimator")
COLUMN: Mapping[str, tuple[str, Any]] = MappingProxyType({"column": ("str", "")})
"""Parameter of estimators of text: which column of a table has the texts."""


class TextEstimator(Estimator):
    """A model of text; see the module."""

    job_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings of every job."""

    column: str
    _fitted_column: str = ""
    _header: BinHeader

    @abstractmethod
    def _open(self, path: str | os.PathLike[str]) -> None:
        """Takes the model of a .bin file, which may be removed afterwards: it is mapped.

        Raises
        ------
        ModelFileError
            It is damaged, or of another kind.
        """

    @abstractmethod
    def _write(self, path: str | os.PathLike[str]) -> None:
        """Writes the fitted model into a file."""

    @staticmethod
    @abstractmethod
    def _shape_of(header: BinHeader) -> dict[str, Any]:
        """The settings that a model keeps when it goes on."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model; ``.bin`` is fastText's, and whole: `load` and `snailps.load` read it.

        Raises
        ------
        ModelFileError
            Another ending, or a folder that is missing or full.
        """
        self._refuse_unfitted("save")
        self._write(path)

    @classmethod
    def load(cls: type[T], path: str | os.PathLike[str], **parameters: Any) -> T:
        """An estimator of a .bin file, ours or fastText's, that `partial_fit` goes on with.

        Parameters
        ----------
        path : path
        **parameters
            Those that the file does not decide, such as ``lr`` and ``epochs``.

        Raises
        ------
        ModelFileError
            It is no such file; `snailps.load` reads others, for queries.
        ParameterError
            The file has another value of a parameter.
        """
        estimator = cls(**parameters)
        estimator._open(path)
        estimator._header = read_header(path)
        for name, value in cls._shape_of(estimator._header).items():
            if (mine := parameters.get(name, cls.parameters.fixed.get(name, value))) != value:
                raise ParameterError(
                    f"{cls.__name__}: {name}: expected {value}, as in {path}; got {mine!r:.80}"
                )
            if name in cls.parameters.by_name:
                setattr(estimator, name, value)
        estimator.history_, estimator.figures_ = [], {}
        return estimator

    def _column(self, data: Any, given: str = "", *, goes_on: bool = True) -> str:
        """Which column of a table: that of the call, the parameter's, or that of the last fit."""
        own = self._parameter("column")
        if not isinstance(own, str):
            raise ParameterError(f"{type(self).__name__}: column: expected a str, got {own!r:.80}")
        if is_path(data):  # of text, or of tables
            return given or own
        last = self._fitted_column if goes_on else ""
        return given or ((own or last) if is_table(data) else "")

    @contextlib.contextmanager
    def _corpus(
        self, data: Any, *, labels: Any = None, column: str = ""
    ) -> Iterator[Spooled | list[str]]:
        """As `corpus`; shows how much is spooled."""
        with contextlib.ExitStack() as stack:
            display = SpoolDisplay(self._parameter("verbose"), type(self).__name__)
            try:
                given = stack.enter_context(
                    corpus(data, labels=labels, column=column, on_bytes=display.show)
                )
            finally:
                display.close()
            yield given

    def _check(self, *, goes_on: bool, epochs: int | None = None) -> dict[str, Any]:
        """Refuses wrong parameters, before data is read; the settings of this job.

        `columns` are the settings that name those of files that are tables.

        Raises
        ------
        ParameterError
        """
        own = {**self.job_settings, **({} if epochs is None else {"epochs": epochs})}
        self._checked(own, self._shape_of(self._header) if goes_on else ())
        if goes_on:
            self._refuse_other_shape()
        return own

    def _train(
        self, given: Spooled | list[str], settings: Mapping[str, Any], *, goes_on: bool
    ) -> None:
        """Trains; a model that `goes_on` keeps its rows.

        Parameters
        ----------
        given : Spooled or list of str
        settings : mapping
            Result of `_check`.
        goes_on : bool
        """
        if not goes_on:
            self._fit(given, settings)
            return
        with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
            before = os.path.join(folder, "before.bin")  # noqa: PTH118
            self._write(before)
            self._fit(
                given,
                {**settings, "continue_from": before},
                without=self._shape_of(self._header),
                first=False,
            )

    def _take(self, done: Finished) -> None:
        self._open(done.files[0])
        self._header = read_header(done.files[0])

    def _refuse_other_shape(self) -> None:
        """Raises ParameterError if the parameters are those of another model than the fitted."""
        name = type(self).__name__
        chosen = self.parameters.settings(self.get_params(), name)
        shape = self._shape_of(self._header)
        for one in (one for one in shape if one in self.parameters.by_name):
            mine = chosen.get(one, self.parameters.defaults[one])
            if mine not in (shape[one], "auto"):  # it keeps the number that was chosen for it
                raise ParameterError(
                    f"{name}: {one}: the fitted model has {shape[one]}, got {mine}: partial_fit "
                    "goes on with that model; call fit for another one"
                )

    # --- pickle ----------------------------------------------------------------------------------

    _opened: ClassVar[tuple[str, ...]] = ()
    """Attributes that `_open` sets from the file."""

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a fitted model as the bytes of its .bin."""
        state = super().__getstate__()
        state = {name: value for name, value in state.items() if name not in self._opened}
        if self._is_fitted:
            with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
                path = Path(folder, "model.bin")
                self._write(path)
                state["_bin"] = path.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From pickle."""
        data = state.pop("_bin", None)
        self.__dict__.update(state)
        if data is not None:
            with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
                path = Path(folder, "model.bin")
                path.write_bytes(data)
                self._open(path)
