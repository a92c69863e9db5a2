"""fastText's model object, over the classes that answer: `Vectors` and `LabelModel`.

    path -> load_model -> Model        a training's file -> Model.of_bin -> Model
    text -> Model.predict -> labels, probabilities          word -> Model.get_word_vector

Owns names, order of results and types of fastText's methods.  Computes nothing itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._subwords import ngram_hash
from snailps.data.arguments import whole_number
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.dataclass import replace
from snailps.errors import DataError, near_name
from snailps.fasttext.arguments import KEPT, arguments_of
from snailps.files.atomic import atomic_file
from snailps.vectors.calibration import Calibration, write_calibration
from snailps.vectors.fasttext_bin import MAGIC_BYTES, BinModel, is_large, read_bin
from snailps.vectors.files import open_bin
from snailps.vectors.label_meter import Meter
from snailps.vectors.label_prediction import LabelModel, as_threshold
from snailps.vectors.labelled_lines import labelled_lines
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.quantising import Codebooks
from snailps.vectors.query import Vectors
from snailps.vectors.saving import save_bin
from snailps.vectors.words import to_bytes, tokens_of

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Open a .bin or .ftz file of snailps or fastText.

    Parameters
    ----------
    path : path
        A .gz is unpacked into a temporary file.

    Raises
    ------
    ModelFileError
        The file is missing, damaged, or of another format.  It is a ValueError, as in fastText.

    Notes
    -----
    A file of 1 GiB or more is mapped: replace it by renaming another file to its name.
    """
    return Model(path)


def unknown_name(whose: str, name: str, names: Iterable[str]) -> AttributeError:
    """Make the error for a name that is not there, with the one that was meant."""
    near = near_name(name, (known for known in names if not known.startswith("_")))
    hint = f"; did you mean {near}?" if near else ""
    # With a name and no object, Python's traceback adds no second hint.
    return AttributeError(f"{whose} has no attribute {name!r}{hint}", name=name)


def tokenize(text: str) -> list[str]:
    """Split a text into words; a newline is the word ``</s>``."""
    return [token.decode() for token in tokens_of(to_bytes(text))]


class Model:
    """A model of words or a classifier, with fastText's methods.

    `train_supervised`, `train_unsupervised` and `load_model` make it.

    Parameters
    ----------
    model_path : path, optional
        File to open.  Without one, only `training` completes the object.
    args : object, optional
        Arguments of a training, which become attributes.

    Notes
    -----
    Errors are `DataError` and `ModelFileError`, which are ValueErrors.  A model can be pickled.
    """

    def __init__(self, model_path: str | os.PathLike[str] | None = None, args: Any = None) -> None:
        self._args: Mapping[str, Any] = _NO_ARGUMENTS
        if args is not None:
            self.set_args(args)
        if model_path is not None:
            is_mapped = is_large(model_path)
            self._take(open_bin(model_path, "a .bin or .ftz", mapped=is_mapped), model_path)

    @classmethod
    def of_bin(cls, model: BinModel, args: Mapping[str, Any] = _NO_ARGUMENTS) -> Model:
        """Make a model of an opened file, with the arguments of its training."""
        made = cls()
        made._take(model)
        made._args = args
        for name in KEPT:
            if name in args:
                setattr(made, name, args[name])
        return made

    def _take(self, model: BinModel, where: str | os.PathLike[str] = "the model") -> None:
        """Answer from this model; nothing computed from an earlier one stays.

        Errors name the file, `where`.
        """
        is_classifier = model.header.model == "supervised"
        labels = LabelModel.of_model(model, where) if is_classifier else None
        for name in ("words", "labels", "_vectors", "_label_numbers", "_is_utf8"):
            self.__dict__.pop(name, None)
        self._bin, self._classifier, self._names = model, labels, dict[str, list[str]]()
        self._is_changed = False

    def set_args(self, args: Any = None) -> None:
        """Set attributes by the arguments of a training, such as ``lr`` and ``wordNgrams``."""
        if args is not None:
            for name, value in vars(args).items():
                setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, tuple[bytes, dict[str, Any], Calibration | None]]:
        """For pickle and copy: the bytes of the file."""
        with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
            path = Path(folder, "model")
            self.save_model(path)
            return _of_bytes, (path.read_bytes(), dict(self._args), self._bin.calibration)

    def __getattr__(self, name: str) -> Any:
        """Of what `_take` sets: there is no model yet."""
        if name in ("_bin", "_classifier"):
            raise DataError(
                "the model is empty: expected one of load_model, train_supervised or "
                "train_unsupervised"
            )
        raise unknown_name(f"{type(self).__name__!r} object", name, dir(self))

    def __repr__(self) -> str:
        if "_bin" not in vars(self):
            return "<fastText model: empty>"
        return f"<fastText model: {self._classifier or self._vectors!r}>"

    @cached_property
    def _vectors(self) -> Vectors:
        return Vectors.of_model(self._bin)

    @cached_property
    def _label_numbers(self) -> dict[bytes, int]:
        return {label: number for number, label in enumerate(self._bin.labels)}

    def _labels_as(self, on_unicode_error: str) -> list[str]:
        """Return the labels decoded; the list is kept for each way of decoding."""
        if on_unicode_error not in self._names:
            self._names[on_unicode_error] = _decoded(self._bin.labels, on_unicode_error)
        return self._names[on_unicode_error]

    def _supervised(self, what: str) -> LabelModel:
        if self._classifier is None:
            raise DataError(
                f"{what}: expected a classifier, got a model of words "
                f"({self._bin.header.model}): train one with train_supervised"
            )
        return self._classifier

    # --- the model -------------------------------------------------------------------------------

    def is_quantized(self) -> bool:
        """Whether the rows of words are quantised, as in a .ftz."""
        return isinstance(self._bin.input, QuantisedRows)

    def get_dimension(self) -> int:
        """Return the length of a vector."""
        return self._bin.header.dim

    @property
    def f(self) -> Native:
        """fastText's compiled object, with the methods that scripts call."""
        return Native(self)

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write the model in fastText's format, whatever the ending of the name."""
        file_read = self._bin.mapped
        if self._is_changed or file_read[:4] != MAGIC_BYTES:  # or older than the format
            save_bin(path, self._bin)
            return
        with atomic_file(path, len(file_read)) as file:
            file.write(file_read)
        if self._bin.calibration is not None:
            write_calibration(path, self._bin.calibration)

    def quantize(
        self,
        input: str | os.PathLike[str] | None = None,
        qout: bool = False,
        cutoff: int = 0,
        retrain: bool = False,
        epoch: int | None = None,
        lr: float | None = None,
        thread: int | None = None,
        verbose: int | None = None,
        dsub: int = 2,
        qnorm: bool = False,
    ) -> None:
        """Quantise the rows of a classifier, in place.

        Parameters
        ----------
        input : path
            Labelled text, for `retrain`.
        qout, cutoff, dsub, qnorm
            As in `snailps.quantize`.
        retrain : bool
            Train on after `cutoff`; without a cutoff it has no effect.
        epoch, lr
            Of the retraining; by default the model's.
        thread : int
            By default one per core.
        verbose : int
            Has no effect.

        Raises
        ------
        DataError, ModelFileError
            As in `snailps.quantize`; or `retrain` without `input`, or a model of words.
        """
        if self._classifier is None:
            raise DataError(
                "quantize: expected a classifier, got a model of words, which fastText does not "
                "quantise: snailps.quantize(path, output) does"
            )
        for name, value in (("epoch", epoch), ("lr", lr), ("thread", thread)):
            if value is not None and not (isinstance(value, (int, float)) and value >= 0):
                raise DataError(
                    f"quantize: {name}: expected a number, 0 or more; got {value!r:.80}"
                )
        if retrain and not input:
            raise DataError("quantize: expected the path of a labelled text as input to retrain on")
        from snailps.estimators.quantizing import quantized  # here: loading a model needs none

        training = None
        if input and retrain and cutoff:
            from snailps.models.classifier.retraining import LR, Retraining

            training = Retraining(
                labelled_lines(self._classifier, os.fsdecode(input)),
                epoch or self._bin.header.epochs,
                lr or self._args.get("lr", LR),
                threads=thread or 0,
            )
        codebooks = Codebooks(dsub, qnorm, threads=thread or 0)
        model = quantized(self._bin, codebooks, qout=qout, cutoff=cutoff, training=training)
        self._take(model)
        self._is_changed = True

    # --- words -----------------------------------------------------------------------------------

    @cached_property
    def words(self) -> list[str]:
        """All words, most frequent first."""
        words: list[str] = self.get_words()
        return words

    @cached_property
    def labels(self) -> list[str]:
        """All labels with their prefix, most frequent first; the words, if it is no classifier."""
        labels: list[str] = self.get_labels()
        return labels

    def get_words(self, include_freq: bool = False, on_unicode_error: str = "strict") -> Any:
        """Return all words; with `include_freq` also how often each occurred, int64[n]."""
        words = _decoded(self._bin.words, on_unicode_error)
        return (words, np.array(self._bin.counts)) if include_freq else words

    def get_labels(self, include_freq: bool = False, on_unicode_error: str = "strict") -> Any:
        """Return all labels; with `include_freq` also how often each occurred, int64[n]."""
        if self._classifier is None:
            return self.get_words(include_freq, on_unicode_error)
        labels = list(self._labels_as(on_unicode_error))
        return (labels, np.array(self._bin.label_counts)) if include_freq else labels

    def get_word_id(self, word: str) -> int:
        """Return the number of a word's row, or -1."""
        return self._vectors.number(word)

    def get_label_id(self, label: str) -> int:
        """Return the number of a label, or -1; of a model of words the number of a word."""
        if self._classifier is None:
            return self.get_word_id(label)
        return self._label_numbers.get(to_bytes(label), -1)

    def get_subword_id(self, subword: str) -> int:
        """Return the row of the input matrix to which an n-gram is hashed.

        Raises
        ------
        DataError
            The model has no n-grams.
        """
        header = self._bin.header
        if not header.bucket:
            raise DataError("get_subword_id: the model has no n-grams (bucket 0)")
        return len(self._bin.words) + ngram_hash(to_bytes(subword)) % header.bucket

    def get_subwords(
        self, word: str, on_unicode_error: str = "strict"
    ) -> tuple[list[str], NDArray[np.int64]]:
        """Return a word, if it is known, and its n-grams, with the row of each, int64[k].

        N-grams whose rows a pruned model lacks are left out of both.
        """
        texts, rows = self._vectors.subwords(word)
        return _decoded(texts, on_unicode_error), rows.astype(np.int64)

    def get_word_vector(self, word: str) -> Float32:
        """Return the vector of a word, float32[dim]; zeros for one without row and n-grams."""
        return self._vectors.word_vector(word)

    def get_input_vector(self, ind: int) -> Float32:
        """Return a row of the input matrix, float32[dim]."""
        rows = self._bin.input
        ind = whole_number(ind, 0, f"ind: expected 0 to {len(rows) - 1:,}", len(rows) - 1)
        return np.array(rows[np.array([ind])][0], np.float32)

    def get_input_matrix(self) -> Float32:
        """Return a copy of the rows of words and n-grams, float32[words + bucket, dim]."""
        return self._dense(self._bin.input)

    def get_output_matrix(self) -> Float32:
        """Return a copy of the rows of labels, or of words as contexts, float32[n, dim]."""
        return self._dense(self._bin.output)

    def _dense(self, rows: Any) -> Float32:
        if self.is_quantized():
            raise DataError("expected a model with matrices, got a quantised one, which has none")
        return np.array(rows, np.float32)

    def set_matrices(self, input_matrix: NDArray[Any], output_matrix: NDArray[Any]) -> None:
        """Replace both matrices; their number of columns becomes the dimension.

        Raises
        ------
        DataError
            A number of rows or columns does not fit the model.
        """
        made = [np.ascontiguousarray(x, np.float32) for x in (input_matrix, output_matrix)]
        rows = [len(self._bin.input), len(self._bin.output)]
        if any(x.ndim != 2 for x in made) or [len(x) for x in made] != rows:
            raise DataError(
                f"set_matrices: expected {rows[0]:,} and {rows[1]:,} rows, got arrays of shape "
                f"{list(made[0].shape)} and {list(made[1].shape)}"
            )
        if not made[0].shape[1] == made[1].shape[1] > 0:
            raise DataError(
                f"set_matrices: expected equally many columns, got {made[0].shape[1]} and "
                f"{made[1].shape[1]}"
            )
        header = replace(self._bin.header, dim=made[0].shape[1])
        changed = replace(self._bin, header=header, input=made[0], output=made[1])
        self._take(replace(changed, calibration=None))
        self._is_changed = True

    def get_nearest_neighbors(
        self, word: str, k: int = 10, on_unicode_error: str = "strict"
    ) -> list[tuple[float, str]]:
        """Return the `k` words nearest to a word by cosine, best first: score, word."""
        near = self._vectors.neighbours(self._query(word), k)
        return [(score, _decode(to_bytes(name), on_unicode_error)) for name, score in near]

    def get_analogies(
        self, wordA: str, wordB: str, wordC: str, k: int = 10, on_unicode_error: str = "strict"
    ) -> list[tuple[float, str]]:
        """Return the `k` words nearest to A - B + C by cosine, best first: score, word."""
        a, b, c = map(self._query, (wordA, wordB, wordC))
        near = self._vectors.analogy(a, b, c, k)
        return [(score, _decode(to_bytes(name), on_unicode_error)) for name, score in near]

    def _query(self, word: str) -> str | Float32:
        """Return a word; zeros, as in fastText, for one without row and n-grams."""
        rows = self._vectors.row_numbers(word)
        return word if len(rows) or word in self._vectors else self._vectors.mean(rows)

    def __getitem__(self, word: str) -> Float32:
        return self.get_word_vector(word)

    def __contains__(self, word: object) -> bool:
        return word in self._vectors

    # --- lines -----------------------------------------------------------------------------------

    def get_line(self, text: str | Iterable[str], on_unicode_error: str = "strict") -> Any:
        """Split a line, or each of a list of lines, into words and known labels.

        Returns
        -------
        list of str, list of str
            Words, ``</s>`` at the end, and labels; for a list of lines, lists of these.
        """
        if isinstance(text, str):
            return self._line(text, on_unicode_error)
        lines = [self._line(line, on_unicode_error) for line in _lines(text, "get_line")]
        return [words for words, _ in lines], [labels for _, labels in lines]

    def _line(self, text: str, on_unicode_error: str) -> tuple[list[str], list[str]]:
        _refuse_newline(text, "get_line")
        words: list[bytes] = []
        labels: list[bytes] = []
        reader = self._vectors if self._classifier is None else self._classifier
        prefix = LABEL_PREFIX if self._classifier is None else self._classifier.prefix
        line = reader.normal_form(to_bytes(text) + b"\n")
        for token in tokens_of(line):
            if token in self._label_numbers:
                labels.append(token)
            elif token in self._vectors.index or not token.startswith(prefix):
                words.append(token)
            if token == b"</s>":
                break
        return _decoded(words, on_unicode_error), _decoded(labels, on_unicode_error)

    def get_sentence_vector(self, text: str) -> Float32:
        """Return the vector of a line, float32[dim].

        Of a classifier: the mean of the rows of its words and n-grams.  Else: the mean of the
        words' vectors at length 1.
        """
        _refuse_newline(text, "get_sentence_vector")
        if self._classifier is not None:
            return self._classifier.sentence_vector(text)
        return self._vectors.sentence_vector(text)

    def predict(
        self,
        text: str | Iterable[str],
        k: int = 1,
        threshold: float = 0.0,
        on_unicode_error: str = "strict",
    ) -> tuple[Any, Any]:
        """Predict the best labels of a line, or of each of a list of lines.

        Parameters
        ----------
        text : str or iterable of str
            Without newlines.
        k : int
            Labels a line, at most; -1: all.
        threshold : float
            Smallest probability of a label, 0 to 1.
        on_unicode_error : str
            How labels that are not UTF-8 are decoded, as in `bytes.decode`.

        Returns
        -------
        tuple of str, float64[k]
            Labels and probabilities of a line, best first.  For a list of n lines: a list of n
            lists of labels, and a list of n arrays, float32[k].

        Raises
        ------
        DataError
            The model is no classifier, a line has a newline, or `k` or `threshold` is out of range.
        """
        model, names = self._supervised("predict"), self._labels_as(on_unicode_error)
        if isinstance(text, str):
            _refuse_newline(text, "predict")
            (best,) = model.predict(text, k, threshold)
            labels = [label for label, _ in best]
            if not self._is_utf8:
                labels = [_decode(to_bytes(label), on_unicode_error) for label in labels]
            return tuple(labels), np.array([chance for _, chance in best])
        threshold = as_threshold(threshold)
        numbers, chances = model.predict_arrays(_lines(text, "predict"), k)
        reaches = (numbers >= 0) & (chances >= np.float32(threshold))
        if reaches.all():
            return [[names[i] for i in row] for row in numbers.tolist()], list(chances)
        counts = reaches.sum(axis=1).tolist()  # probabilities fall, so that the first ones reach
        rows = zip(numbers.tolist(), counts, strict=True)
        return (
            [[names[i] for i in row[:count]] for row, count in rows],
            [row[:count] for row, count in zip(chances, counts, strict=True)],
        )

    @cached_property
    def _is_utf8(self) -> bool:
        """Whether all labels are UTF-8, so that the way of decoding does not matter."""
        try:
            return bool(self._labels_as("strict"))
        except UnicodeDecodeError:
            return False

    def test(
        self, path: str | os.PathLike[str], k: int = 1, threshold: float = 0.0
    ) -> tuple[int, float, float]:
        """Return the number of labelled lines, precision and recall of the `k` best labels."""
        scores = self._scores(path, k, threshold, "test")
        return scores.lines, _number(scores.precision), _number(scores.recall)

    def test_label(
        self, path: str | os.PathLike[str], k: int = 1, threshold: float = 0.0
    ) -> dict[str, dict[str, float]]:
        """Return precision, recall and F1 of each label; NaN where one is undefined."""
        return {
            score.label.decode("utf-8", "surrogateescape"): {
                "precision": _number(score.precision),
                "recall": _number(score.recall),
                "f1score": _number(score.f1),
            }
            for score in self._scores(path, k, threshold, "test_label").labels
        }

    def _scores(self, path: str | os.PathLike[str], k: int, threshold: float, what: str) -> Any:
        lines = labelled_lines(self._supervised(what), os.fsdecode(path))
        return lines.model.scores(lines.texts, k, threshold, lines.where)

    def get_meter(self, path: str | os.PathLike[str], k: int = -1) -> Meter:
        """Return scores at every threshold, of the `k` best labels of each line; -1: of all."""
        lines = labelled_lines(self._supervised("get_meter"), os.fsdecode(path))
        names = self._labels_as("surrogateescape")
        return Meter(names, lines.model.answers(lines.texts(), k, lines.where))


class Native:
    """What scripts call on ``model.f``; lines end in a newline there, which may be missing here."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(
        self, text: str, k: int = 1, threshold: float = 0.0, on_unicode_error: str = "strict"
    ) -> list[tuple[float, str]]:
        """Return the best labels of a line: probability, label."""
        labels, chances = self._model.predict(text.removesuffix("\n"), k, threshold,
                                              on_unicode_error)  # fmt: skip
        return list(zip(chances.tolist(), labels, strict=True))

    def multilinePredict(
        self,
        lines: Iterable[str],
        k: int = 1,
        threshold: float = 0.0,
        on_unicode_error: str = "strict",
    ) -> tuple[Any, Any]:
        """Return `Model.predict` of some lines."""
        texts = [line.removesuffix("\n") for line in lines]
        return self._model.predict(texts, k, threshold, on_unicode_error)

    def getArgs(self) -> SimpleNamespace:
        """Return the arguments in the model's file; a training in this process adds its own."""
        return SimpleNamespace(**{**arguments_of(self._model._bin.header), **self._model._args})

    def isQuant(self) -> bool:
        """Return `Model.is_quantized`."""
        return self._model.is_quantized()

    def saveModel(self, path: str) -> None:
        """Call `Model.save_model`."""
        self._model.save_model(path)


def _of_bytes(
    data: bytes, args: Mapping[str, Any], calibration: Calibration | None = None
) -> Model:
    with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
        path = Path(folder, "model")
        path.write_bytes(data)
        model = replace(read_bin(path, quantised=True), calibration=calibration)
        return Model.of_bin(model, args)


def _lines(texts: Iterable[str], what: str) -> list[str]:
    """Check a list of lines."""
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise DataError(f"{what}: expected a str, or a list of str, got {texts!r:.60}")
    lines = list(texts)
    for line in lines:
        _refuse_newline(line, what)
    return lines


def _refuse_newline(text: str, what: str) -> None:
    if not isinstance(text, str):
        raise DataError(f"{what}: expected a str, got {text!r:.60}")
    if "\n" in text:
        raise DataError(f"{what} takes one line at a time: remove '\\n' from {text!r:.60}")


def _decode(word: bytes, on_unicode_error: str) -> str:
    return word.decode("utf-8", on_unicode_error)


def _decoded(words: Iterable[bytes], on_unicode_error: str) -> list[str]:
    return [word.decode("utf-8", on_unicode_error) for word in words]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
