"""Base of estimators of text, whose model is an opened fastText `.bin` file.

    texts -> `_input_of` -> a job -> .bin -> `_open` of the class  .bin -> load, partial_fit, pickle

Owns how such a model is saved, loaded, pickled and continued.  The class decides what it opens.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import IO, Any, TypeVar

from snailps.errors import ParameterError
from snailps.estimators.base import Data, Estimator, FitInput, WarmStart
from snailps.estimators.corpus import corpus, is_path, is_table
from snailps.estimators.display import SpoolDisplay
from snailps.estimators.jobs import FinishedJob
from snailps.vectors.calibration import path_beside
from snailps.vectors.fasttext_bin import BinHeader, read_header
from snailps.vectors.opening import opened

T = TypeVar("T", bound="TextEstimator")
OF_TEXT: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {"column": ("str", ""), "pretrained": ("str | os.PathLike[str]", "")}
)
"""Parameters of estimators of text: the column of a table that has the texts, and a file of word
vectors to start from."""


class TextEstimator(Estimator):
    """A model of text, opened from a .bin file."""

    column: str
    pretrained: str | os.PathLike[str]
    _fitted_column: str = ""
    _header: BinHeader

    @staticmethod
    @abstractmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> Any:
        """Open a .bin file; it is mapped, so its name may be removed afterwards.

        `file`, if given, is read instead of the path, which messages then name.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; the ending chooses the format.

        Parameters
        ----------
        path : path
            ``.bin``, fastText's format, is the complete model, which `load` reads back.  Word
            vectors may also be written as .vec or .npz, which `snailps.load` opens for queries.

        Raises
        ------
        NotFitted
            `fit` was not called.
        ModelFileError
            Unknown ending, or the file cannot be written.
        """
        self._refuse_unfitted("save")
        self._model.save(path)

    @classmethod
    def load(cls: type[T], path: str | os.PathLike[str], **parameters: Any) -> T:
        """Open a .bin file of snailps or fastText as a fitted estimator.

        Parameters
        ----------
        path : path
        **parameters
            For the next `fit` or `partial_fit`: ``lr``, ``epochs``, and others that the file does
            not have.  ``window``, ``negatives``, ``sample`` and ``min_count`` default to the
            file's.

        Raises
        ------
        ModelFileError
            The file cannot be read or is no such .bin; `snailps.load` opens other formats.
        ParameterError
            Unknown parameter, or the file has another value (``dim``, ``model``, ...).
        """
        return cls._loaded(path, parameters)

    @classmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        with opened(path) as file:
            attributes = cls._attributes_of(path, file)
        header: BinHeader = attributes["_header"]
        for name, value in header.shape.items():
            if (wanted := parameters.get(name, cls.parameters.fixed.get(name, value))) != value:
                raise ParameterError(
                    f"{cls.__name__}: {name}: expected {value}, as in {path}; got {wanted!r:.80}"
                )
            if name in cls.parameters.by_name:
                attributes[name] = value
        chosen = SimpleNamespace(**{"loss": header.loss, **header.shape})
        for name, value in header.habits.items():
            setting = cls.parameters.by_name.get(name)
            # fastText writes `neg` for every loss, even where it has no effect.
            if setting is not None and setting.allows(value) and setting.is_read(chosen):
                attributes[name] = value
        return attributes

    @classmethod
    def _attributes_of(
        cls, path: str | os.PathLike[str], file: IO[bytes] | None = None
    ) -> dict[str, Any]:
        return {"_model": cls._open(path, file), "_header": read_header(path, file)}

    def _text_column(self, X: Any, column: str = "", *, continues: bool = True) -> str:
        """Choose the column of texts: the call's argument, the parameter, or the last fit's."""
        parameter: Any = self.column
        if not isinstance(parameter, str):
            raise ParameterError(
                f"{type(self).__name__}: column: expected a str, got {parameter!r:.80}"
            )
        if is_path(X):  # of text, or of tables: the last fit's column may be of neither
            return column or parameter
        last = self._fitted_column if continues else ""
        return column or ((parameter or last) if is_table(X) else "")

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[FitInput]:
        """Yield texts as a job's input; show how much is spooled."""
        column = self._text_column(data.X, data.column, continues=data.continues)
        with contextlib.ExitStack() as stack:
            with contextlib.closing(SpoolDisplay(self.verbose, type(self).__name__)) as display:
                texts = corpus(
                    data.X, labels=data.y, weights=data.sample_weight,
                    has_weights=data.has_weights, label_prefix=data.label_prefix, column=column,
                    on_bytes=display.show,
                )  # fmt: skip
                source = stack.enter_context(texts)
            start = {} if data.continues else self._first_vectors()
            settings = {**source.settings, **start}
            yield replace(source, settings=settings, attributes={"_fitted_column": column})

    def _first_vectors(self) -> dict[str, str]:
        """Return the setting of the file of vectors to start from, if there is one."""
        path: Any = self.pretrained
        if not isinstance(path, (str, os.PathLike)):
            raise ParameterError(
                f"{type(self).__name__}: pretrained: expected the path of a file of word vectors, "
                f"got {path!r:.80}"
            )
        return {"pretrained": str(Path(path).expanduser().resolve())} if os.fspath(path) else {}

    def _start(self) -> WarmStart:
        shape = dict(self._header.shape)
        if self.pretrained:  # whose dim the model has, not the parameter's
            del shape["dim"]
        return WarmStart(shape, in_file=True, habits=frozenset(self._header.habits))

    def _write_start(self, folder: str, source: FitInput) -> str:
        path = os.path.join(folder, "before.bin")  # noqa: PTH118
        self._model.save(path)
        return path

    def _learned(self, done: FinishedJob, source: FitInput) -> dict[str, Any]:
        return self._attributes_of(done.files[0])

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a fitted model travels as the bytes of its .bin, because it is mapped."""
        state = super().__getstate__()
        if (model := state.pop("_model", None)) is not None:
            state["_bin"], state["_beside"] = file_bytes(model, "model.bin")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From pickle."""
        data, beside = state.pop("_bin", None), state.pop("_beside", None)
        self.__dict__.update(state)
        if data is not None:
            self._model = self._of_bytes("model.bin", data, beside)

    def _of_bytes(self, name: str, data: bytes, beside: bytes | None = None) -> Any:
        with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            if beside is not None:
                path_beside(path).write_bytes(beside)
            return self._open(path)


def file_bytes(model: Any, name: str) -> tuple[bytes, bytes | None]:
    """The file of a model as bytes, and the file beside it, if there is one."""
    with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
        path = Path(folder, name)
        model.save(path)
        beside = path_beside(path)
        return path.read_bytes(), beside.read_bytes() if beside.exists() else None
