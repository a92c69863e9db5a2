"""A trained classifier of text: predicts the labels of lines, and evaluates them.

    .bin, .ftz (of snailps or fastText) -> LabelModel -> predict -> labels, probabilities per line
    labelled lines -> evaluate_labels -> `label_scores`, in total and per label

Must not know training or printing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import IO, Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data._labelled import LineReader, Lines
from snailps.data.arguments import whole_number
from snailps.data.in_order import in_order
from snailps.data.label_words import prefix_of
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.dataclass import replace
from snailps.errors import DataError, ModelFileError, shown_bytes
from snailps.files.extras import optional_module
from snailps.vectors._one_line import OneLine
from snailps.vectors.calibration import Calibration
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.files import open_bin
from snailps.vectors.label_arrow import label_names, label_table
from snailps.vectors.label_scores import (
    LabelScores,
    LabelScoreSums,
    LabelThreshold,
    Ranking,
    scores_of,
)
from snailps.vectors.labelled_lines import labelled_lines, warn_of_weights, weights_hint
from snailps.vectors.labelling import labelling_of
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.query import Vectors
from snailps.vectors.saving import save_model
from snailps.vectors.texts import WholeLines, pieces_of
from snailps.vectors.words import one_line, to_bytes, to_text

log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P")

_SCORES_MAX = 1 << 22
"""Scores computed at a time: 16 MiB."""
_NOT_FINITE = (
    "expected finite rows, and {} have NaN or infinity: the training has diverged, or the file is "
    "damaged. Train again with a lower lr, or fetch the file again"
)


class Prediction(NamedTuple):
    """A label with its prefix, as bytes, and its probability, 0 to 1."""

    label: bytes
    probability: float


class TextPrediction(NamedTuple):
    """A label with its prefix, as str, and its probability, 0 to 1."""

    label: str
    probability: float


def warn_of_unread(words: int, where: str = "the texts") -> None:
    """Log how many words were not read, if any."""
    if words:
        log.warning(
            "%s: %s words were not read: they come after the word </s>, which ends a line as in "
            "fastText",
            where,
            f"{words:,}",
        )


class LabelModel:
    """A classifier of text, opened from a .bin or a quantised .ftz file.

    Attributes
    ----------
    labels : list of bytes
        With their prefix, most frequent in the training text first.
    calibration : Calibration
        Temperature and shift of its probabilities and thresholds of its labels, from the file
        beside the model's (`snailps.calibrate`): ``temperature`` 1, ``shift`` 0 and no
        ``thresholds`` without one.
    prefix : bytes
        Words of labelled lines that begin with it are labels, known or not.
    loss : {"softmax", "ova", "ns", "hs"}
        With "softmax" and "hs" (hierarchical softmax, a tree of labels) the probabilities
        of all labels sum to 1, unless ``calibration.apart``; with "ova" and "ns" each label has a
        probability of its own.

    Examples
    --------
    >>> model = snailps.LabelModel("sections.bin")  # doctest: +SKIP
    >>> model.labels[:2]  # doctest: +SKIP
    [b'sports', b'weather']
    >>> [best.label for best, in model.predict(["wind and rain", "a late goal"])]  # doctest: +SKIP
    ['weather', 'sports']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        file: IO[bytes] | None = None,
        mapped: bool = True,
    ) -> None:
        """Open a model.

        Parameters
        ----------
        path : path
        file : binary file, optional
            Read instead of the path, which messages then name.
        mapped : bool
            False copies the file into memory, for files that may be overwritten in place.

        Raises
        ------
        ModelFileError
            The file is missing, damaged, or not a classifier.

        Notes
        -----
        Rows of labels are read into memory; rows of words are mapped and paged in on access.  A .gz
        is unpacked into a temporary file (in TMPDIR).  Replace a mapped file by renaming another
        file to its name: overwriting it in place kills the processes that have it mapped (SIGBUS).
        """
        self._mapped = mapped
        self._path = os.path.abspath(os.fspath(path))  # noqa: PTH100
        self._take(open_bin(path, "a classifier (a .bin)", file, mapped=mapped), path)

    @classmethod
    def of_model(cls, model: BinModel, path: str | os.PathLike[str] = "the model") -> LabelModel:
        """Make one of an opened .bin file, or of one whose matrices were changed.

        Errors name `path`.  It cannot be pickled, because other processes have no file to open.
        """
        made = cls.__new__(cls)
        made._mapped, made._path = True, ""
        made._take(model, path)
        return made

    def _take(self, model: BinModel, path: str | os.PathLike[str]) -> None:
        header = model.header
        if header.model != "supervised":
            raise ModelFileError(
                f"{path}: holds word vectors ({header.model}), not a classifier: query it with "
                "snailps nn, or train one with snailps train classifier"
            )
        if header.bucket == 0 and (header.maxn > 0 or header.word_ngrams > 1):
            raise ModelFileError(
                f"{path}: damaged header: n-grams (maxn {header.maxn}, wordNgrams "
                f"{header.word_ngrams}) without buckets; fetch or export it again"
            )
        self.labels = model.labels
        # Not a cached_property: Python 3.11 holds a lock while it computes, and a process that is
        # forked meanwhile would inherit the lock and wait forever.
        self._names = [to_text(label) for label in self.labels]
        self.loss = header.loss
        if not model.labels:
            raise ModelFileError(f"{path}: a classifier without labels; fetch or export it again")
        self.prefix = self.reader_prefix = training_prefix(model)
        self._model, self._shown, self._has_warned = model, os.fspath(path), False
        self._words = len(model.words)
        self._pruned = model.pruned
        inputs: Any = model.input
        self._quantised = isinstance(inputs, QuantisedRows)
        if self._quantised:
            inputs = inputs.arrays
        try:
            labelling_by = labelling_of(header.loss, model.label_counts)
        except DataError as error:
            raise ModelFileError(
                f"{path}: damaged counts of labels: {error}; fetch or export it again"
            ) from error

        def labelling(by: Calibration) -> Any:  # without `self`, which keeps it
            output = kernels.padded(len(model.labels), header.dim)
            output[:, : header.dim] = model.output[:]
            if not np.isfinite(output).all():  # else such a label is silently never predicted
                raise ModelFileError(f"{path}: {_NOT_FINITE.format('labels')}")
            of_odds = {}
            if by.apart and header.loss == "softmax":
                of_odds = {"apart": True, "slope": 1 / by.temperature}
            elif by.temperature != 1:
                output *= np.float32(1 / by.temperature)
            return labelling_by(
                inputs, output, header.dim, shift=by.shift, others=by.shift_of_others, **of_odds
            )

        self.calibration = model.calibration or Calibration()
        self._labelling, self._labelling_at = labelling(self.calibration), labelling
        self._least = _least_of(self.calibration, self._names)
        try:
            self._reader = line_reader(model)
        except ValueError as error:
            raise ModelFileError(f"{path}: damaged: {error}; fetch or export it again") from error
        self._one = OneLine(self._reader, self._labelling, self._pruned)

    def __reduce__(self) -> tuple[Callable[[str | bytes], LabelModel], tuple[str | bytes]]:
        """For pickle: the other process opens the file again, and shares its pages if mapped."""
        if not self._path:
            raise TypeError("a LabelModel without a file cannot be pickled: save and load it first")
        return partial(LabelModel, mapped=self._mapped), (self._path,)

    def __repr__(self) -> str:
        quantised = ", quantised" * self._quantised
        return (
            f"LabelModel({len(self.labels):,} labels, {self._words:,} words, "
            f"dim {self._model.header.dim}, {self.loss}{quantised})"
        )

    @cached_property
    def wv(self) -> Vectors:
        """The words of the training text and their vectors."""
        return Vectors.of_model(self._model)

    def sentence_vector(self, text: str | bytes) -> NDArray[np.float32]:
        """Return the vector by which a line is classified, float32[dim].

        It is the mean of the rows of words, n-grams and the end of line; zeros if the model knows
        none of them.  The numbers equal fastText's ``get_sentence_vector`` for classifiers.

        Raises
        ------
        DataError
            The text has more than one line.
        """
        lines = self._read(one_line(text) + b"\n")
        warn_of_unread(lines.unread, "the text")
        hidden: NDArray[np.float32] = self._labelling.hidden(lines.feature_ptr, lines.features)[0]
        return hidden

    @overload
    def predict(
        self,
        text: bytes | Sequence[bytes],
        k: int = 1,
        threshold: float | None = None,
        *,
        threads: int = 0,
    ) -> list[list[Prediction]]: ...
    @overload
    def predict(
        self,
        text: str | Iterable[str],
        k: int = 1,
        threshold: float | None = None,
        *,
        threads: int = 0,
    ) -> list[list[TextPrediction]]: ...
    def predict(
        self,
        text: str | bytes | Iterable[str | bytes],
        k: int = 1,
        threshold: float | None = None,
        *,
        threads: int = 0,
    ) -> list[list[Prediction]] | list[list[TextPrediction]]:
        """Predict the best labels of each line.

        Parameters
        ----------
        text : str or bytes, or an iterable of them
            A str or bytes is split into lines; the last line may lack its newline, and an empty
            text is one line.  A list, generator, or column of pandas, polars or pyarrow has one
            line an item; newlines in it count as blanks.  Labels in a line are ignored, and so are
            words after the word ``</s>``, as in fastText; a warning counts them.
        k : int
            Maximum number of labels per line, at least 1; -1: all.
        threshold : float, optional
            Minimum probability of a label, 0 to 1; compared as float32.  By default that of each
            label in `calibration`, or 0.
        threads : int
            Number of threads; 0: one per core.  The answers do not depend on it.

        Returns
        -------
        list of list of TextPrediction, or of Prediction
            One list per line, best label first; empty if no label reaches `threshold`.  Labels are
            bytes (`Prediction`) if all lines are bytes.

        Raises
        ------
        DataError
            `text` is not text, or `k`, `threshold` or `threads` is out of range.

        Notes
        -----
        The end of a line is the word ``</s>``, as in fastText: an empty line, or one without known
        words, is classified by it.  If the model lacks ``</s>`` too, the line has no labels.

        Probabilities p are exact.  fastText reports p + 0.00001, and for `ova` and `ns` looks the
        logistic function up in a table of 512 entries, with errors up to 0.008.

        Examples
        --------
        >>> model = load("sections.bin")  # doctest: +SKIP
        >>> model.predict("plays chess over the network")  # doctest: +SKIP
        [[TextPrediction(label='__label__games', probability=0.98...)]]
        >>> model.predict(frame["title"], k=3)  # a list for each row  # doctest: +SKIP
        """
        k = self.number_of(k)
        if threads != 0:  # counting the cores takes longer than labelling one line
            threads = threads_of(threads)
        own, threshold = threshold is None, as_threshold(threshold)
        if isinstance(text, (str, bytes)):
            best = self._one.best(to_bytes(text), k)
            if best is not None:
                if own and self._least is not None:
                    best = [(i, p) for i, p in best if p >= self._least[i]]
                if isinstance(text, bytes):
                    return [[Prediction(self.labels[i], p) for i, p in best if p >= threshold]]
                return [[TextPrediction(self._names[i], p) for i, p in best if p >= threshold]]
        are_bytes: list[bool] = []

        def noted() -> Iterator[WholeLines]:
            for piece in pieces_of(text, rows=_SCORES_MAX // k):
                are_bytes.append(piece.are_bytes)
                yield piece

        answers = list(self.best_of(noted(), k, threads, thresholds=own))
        if are_bytes and all(are_bytes):
            return list(_named(answers, Prediction, self.labels, threshold))
        return list(_named(answers, TextPrediction, self._names, threshold))

    def predict_pieces(
        self, pieces: Iterable[bytes], k: int = 1, threshold: float | None = None
    ) -> Iterator[list[list[Prediction]]]:
        """Yield `predict` for each piece of whole lines before the next piece is taken.

        Suits a pipe whose writer waits for answers.  The warning of unread words comes at the end.
        """
        ask, rows = self._best(k, thresholds=threshold is None), _SCORES_MAX // self.number_of(k)
        threshold = as_threshold(threshold)
        texts = (pieces_of(text, rows=rows) for text in pieces)
        for answer in self._answers(ask, texts):
            yield list(_named([answer], Prediction, self.labels, threshold))

    def predict_arrays(
        self, text: str | bytes | Iterable[str | bytes], k: int = 1, *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread, strict: bool = False,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # fmt: skip
        """Predict the best labels of each line as arrays, which is faster than objects.

        Parameters
        ----------
        text, k, threads
            As in `predict`.
        unread : callable
            Called with the number of words that were not read; by default it logs a warning.
        strict : bool
            Raise `ModelFileError` for a line whose words have rows with NaN or infinity; else it
            has no labels, and a warning is logged once.

        Returns
        -------
        int32[lines, min(k, labels)]
            Indices into `labels`, best first; -1 if a line has no labels.
        float32[lines, min(k, labels)]
            Their probabilities; NaN if a line has no labels.
        """
        ask = self._best(k, strict=strict)
        return self._predicted(text, self.number_of(k), threads, unread, ask)

    def _predicted(
        self, text: Any, k: int, threads: int, unread: Callable[[int], object],
        ask: Callable[[Lines], tuple[NDArray[np.int32], NDArray[np.float32]]],
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # fmt: skip
        pieces = pieces_of(text, rows=_SCORES_MAX // k)
        none = np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        answers = self._answers(ask, [pieces], threads, unread)
        best, chances = zip(none, *answers, strict=True)
        return np.concatenate(best), np.concatenate(chances)

    def predict_arrow(
        self,
        text: str | bytes | Iterable[str | bytes],
        k: int | None = None,
        threshold: float | None = None,
        *,
        threads: int = 0,
    ) -> Any:
        """Predict the best label of each line as an Arrow table; Arrow columns are not copied.

        Parameters
        ----------
        text, threshold, threads
            As in `predict`.
        k : int, optional
            Return lists of up to `k` labels instead of a single label.

        Returns
        -------
        pyarrow.Table
            One row per line.  Without `k`: `label` (dictionary of strings) and `probability`
            (float32), both null if no label reaches `threshold`.  With `k`: `labels` and
            `probabilities`, lists of these.

        Raises
        ------
        ConfigError
            pyarrow is not installed.
        DataError
            As in `predict`; or a label is not UTF-8.

        Examples
        --------
        >>> found = model.predict_arrow(table["text"])  # doctest: +SKIP
        >>> table.append_column("label", found["label"])  # doctest: +SKIP
        """
        own, threshold = threshold is None, as_threshold(threshold)
        names = label_names(
            optional_module("pyarrow", "predict_arrow", "snailps[data]"), self.labels
        )
        width = self.number_of(1 if k is None else k)
        ask = self._best(width, thresholds=own)
        best, chances = self._predicted(text, width, threads, warn_of_unread, ask)
        return label_table(best, chances, threshold, names, is_flat=k is None)

    def probabilities(
        self, text: str | bytes | Iterable[str | bytes], *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread, strict: bool = False,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Return the probability of every label for each line.

        Parameters
        ----------
        text, threads
            As in `predict`.
        unread, strict
            As in `predict_arrays`.

        Returns
        -------
        float32[lines, labels]
            Columns in the order of `labels`; a row of NaN if the line has no labels.
        """
        return self.best_and_probabilities(text, threads=threads, unread=unread, strict=strict)[1]

    def best_and_probabilities(
        self, text: str | bytes | Iterable[str | bytes], *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread, strict: bool = False,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # fmt: skip
        """Return the best label of each line, int32[lines] (-1: none), and `probabilities`.

        The best label is chosen by score, as in `predict`, because with `ova` and `ns` several
        probabilities are often rounded to 1.
        """
        labels = len(self.labels)
        pieces = pieces_of(text, rows=_SCORES_MAX // labels)
        ask = partial(self._chances, strict=strict)
        none = np.empty(0, np.int32), np.empty((0, labels), np.float32)
        parts = self._answers(ask, [pieces], threads, unread)
        best, chances = zip(none, *parts, strict=True)
        return np.concatenate(best), np.concatenate(chances)

    def probability_pieces(
        self, texts: Iterable[str | bytes], *, strict: bool = False
    ) -> Iterator[NDArray[np.float32]]:
        """Yield `probabilities` for some texts at a time; a warning comes at the end only."""
        unread: list[int] = []
        texts = iter(texts)
        step = max(1, _SCORES_MAX // len(self.labels))
        pieces = iter(lambda: list(islice(texts, step)), [])
        for piece in pieces:
            yield self.probabilities(piece, unread=unread.append, strict=strict)
        warn_of_unread(sum(unread))

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Occurrences of each label in the training text, int64[labels]."""
        return self._model.label_counts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .bin file, or a .ftz of a quantised model; fastText reads both.

        Raises
        ------
        ModelFileError
            Another ending, or a file that cannot be written.
        """
        ending = os.path.splitext(path)[1]  # noqa: PTH122
        if ending not in (".bin", ".ftz"):
            raise ModelFileError(
                f"{path}: expected a name that ends in .bin or .ftz, the formats of classifiers; "
                f"got {ending or 'no ending'}"
            )
        save_model(path, self._model)

    def changed(self, change: Callable[[BinModel], BinModel]) -> LabelModel:
        """Return a model of what `change` makes of the file; itself if that is the same."""
        model = change(self._model)
        return self if model is self._model else LabelModel.of_model(model)

    def number_of(self, k: int) -> int:
        """Check `k` and limit it to the number of labels; -1: all of them, as in fastText."""
        expected = "k: expected a whole number of labels a line, at least 1, or -1 for all"
        number = whole_number(k, -1, expected)
        if not number:
            raise DataError(f"{expected}, got {k!r:.80}")
        return len(self.labels) if number < 0 else min(number, len(self.labels))

    def best_of(
        self, pieces: Iterable[WholeLines], k: int, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread, *, thresholds: bool = False,
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:  # fmt: skip
        """Yield the `predict_arrays` of each piece (`texts.pieces_of`).

        `thresholds`: without labels that do not reach their threshold of `calibration`.
        """
        return self._answers(self._best(k, thresholds=thresholds), [pieces], threads, unread)

    def _best(
        self, k: int, *, thresholds: bool = False, strict: bool = False
    ) -> Callable[[Lines], tuple[NDArray[np.int32], NDArray[np.float32]]]:
        k, least = self.number_of(k), self._least if thresholds else None

        def ask(lines: Lines) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            best, chances = self._labelling.best(lines.feature_ptr, lines.features, k)
            self._look_for_wrong_rows(lines, best[:, 0], strict)
            if least is not None:
                below = ~(chances >= least[best])
                best[below], chances[below] = -1, np.nan
            return best, chances

        return ask

    def _chances(
        self, lines: Lines, *, strict: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The best label of each line, and the probabilities of all."""
        best, chances = self._labelling.chances(lines.feature_ptr, lines.features)
        self._look_for_wrong_rows(lines, best, strict)
        return best, chances

    def _look_for_wrong_rows(self, lines: Lines, best: NDArray[np.int32], strict: bool) -> None:
        """Warn once of a line without a label whose words the model knows; `strict`: refuse it.

        Such rows are looked for here, where they are used: a model has many, which are mapped.
        """
        if self._has_warned and not strict:
            return
        if not (best < 0).any() or not (np.diff(lines.feature_ptr)[best < 0] > 0).any():
            return
        what = f"{self._shown}: {_NOT_FINITE.format('words of the texts')}"
        if strict:
            raise ModelFileError(what)
        self._has_warned = True
        log.warning("%s. Lines with these words get no label", what)

    def _answers(
        self,
        ask: Callable[[Lines], T],
        texts: Iterable[Iterable[WholeLines]],
        threads: int = 0,
        warn: Callable[[int], object] = warn_of_unread,
    ) -> Iterator[T]:
        """Yield an answer for each piece of whole lines, in order; it has a row for each line.

        Threads share the pieces of one text; the next text is begun when all are answered.  Pieces
        are short, so that a line's features are still in the cache when their rows are summed.
        Answers depend neither on the size of pieces nor on the number of threads.
        """
        unread, threads = 0, threads_of(threads)

        def answer(piece: WholeLines) -> tuple[T, int]:
            lines = self._read(piece.data, piece.offsets)
            rows = len(lines.feature_ptr) - 1
            if rows != piece.lines:
                raise DataError(
                    f"expected a row for each of {piece.lines:,} lines of text, got {rows:,}"
                )
            return ask(lines), lines.unread

        for pieces in texts:
            for result, words in in_order(answer, pieces, threads):
                unread += words
                yield result
        warn(unread)

    def normal_form(self, text: bytes) -> bytes:
        """Return a text as the model reads it: in its normal form (setting `normalize`)."""
        normaliser = self._reader.normaliser
        return text if normaliser is None else normaliser.of(text)

    def _read(self, text: Any, offsets: NDArray[np.int64] | None = None) -> Lines:
        """Read features and labels of lines, without n-grams that a pruned model lacks."""
        lines = self._reader.read(text, offsets)
        return lines if self._pruned is None else self._pruned.keep(lines, self._words)

    def reading(self, prefix: bytes = b"", *, weighed: bool = False) -> LabelModel:
        """Return the same model, for lines whose labels begin with `prefix` (by default that of the
        training), and that may have weights."""
        model = LabelModel.__new__(LabelModel)
        model.__dict__.update(self.__dict__)  # copy.copy would open the file again
        model.reader_prefix = prefix or self.prefix
        model._reader = line_reader(self._model, prefix, weighed=weighed)
        return model

    def reading_like(self, other: LabelModel) -> LabelModel:
        """Return the same model with another's reader of lines."""
        model = self.reading()
        model.reader_prefix, model._reader = other.reader_prefix, other._reader
        return model

    @property
    def says_prefix(self) -> bool:
        """Whether the file says the prefix of labels, or all labels begin with the usual one."""
        is_usual = self.labels[0].startswith(LABEL_PREFIX) and self.prefix == LABEL_PREFIX
        return bool(self._model.header.prefix) or is_usual

    def labels_in(self, text: bytes) -> int:
        """Count the labels of the model in some lines."""
        return len(self._read(text).labels)

    def best_and_hidden(
        self, texts: Iterable[bytes]
    ) -> Iterator[tuple[Lines, tuple[NDArray[np.int32], NDArray[np.float32]]]]:
        """Yield lines, the best label of each, int32[lines], and `sentence_vector` of each."""

        def ask(lines: Lines) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            best, _ = self._best(1)(lines)
            return best[:, 0], self._labelling.hidden(lines.feature_ptr, lines.features)

        return self._labelled_answers(ask, texts, max(1, self._model.header.dim))

    def thresholds(
        self, texts: Callable[[], Iterable[bytes]], **wanted: float
    ) -> list[LabelThreshold]:
        """Find thresholds of labels on labelled lines, which `texts` yields at each call.

        `wanted` is a `precision` or a `recall`.
        """
        ranked = Ranking(len(self.labels))
        self._rank(ranked, texts)
        return ranked.thresholds(self.labels, **wanted)

    def evaluate(
        self,
        text: Any,
        k: int = 1,
        threshold: float | None = None,
        *,
        column: str = "",
        label_column: str = "",
        weight_column: str = "",
        soft_labels: bool = False,
        average_precision: bool = False,
        at_recall: float | None = None,
    ) -> LabelScores:
        """Score the `k` best labels of labelled lines, as ``snailps test`` does.

        Parameters
        ----------
        text : path, pair of texts and labels, table, or list of str
            As in `snailps.calibrate`.
        k : int
            Labels per line, at most, at least 1; -1: all.
        threshold : float, 0 to 1, optional
            Only labels of at least this probability.  By default the model's own thresholds, if it
            has some.
        column, label_column, weight_column, soft_labels
            As in `snailps.calibrate`.
        average_precision : bool
            Also compute the average precision, the area under the precision-recall curve, which
            reads the lines twice more.
        at_recall : float, 0 to 1, optional
            Also find the best precision at this recall or more, and its threshold.

        Returns
        -------
        LabelScores

        Raises
        ------
        DataError
            A parameter is out of range, or no line has both a label and a word of the model.
        """
        return evaluate_labels(
            self, text, k, threshold, column=column, label_column=label_column,
            weight_column=weight_column, soft_labels=soft_labels, ranking=average_precision,
            recall=at_recall,
        )  # fmt: skip

    def _rank(self, ranked: Ranking, texts: Callable[[], Iterable[bytes]]) -> None:
        """Rank the probabilities of all labels, by two passes."""
        for is_again in (False, True):
            if is_again:
                ranked.again()
            answers = self._labelled_answers(self._chances, texts(), len(self.labels))
            for lines, (_, likely) in answers:
                ranked.add(lines, likely)

    def answers(
        self, texts: Iterable[bytes], k: int, where: str
    ) -> Iterator[tuple[Lines, tuple[NDArray[np.int32], NDArray[np.float32]]]]:
        """Yield the features and labels of some lines, with their `predict_arrays`."""
        warn = partial(warn_of_unread, where=where)
        return self._labelled_answers(self._best(k), texts, self.number_of(k), warn)

    def _labelled_answers(
        self,
        ask: Callable[[Lines], T],
        texts: Iterable[bytes],
        width: int,
        warn: Callable[[int], object] = lambda words: None,
    ) -> Iterator[tuple[Lines, T]]:
        """Yield lines and their answers, of `width` scores a line."""
        rows = _SCORES_MAX // width
        pieces = (piece for text in texts for piece in pieces_of(text, rows=rows))
        return self._answers(lambda lines: (lines, ask(lines)), [pieces], warn=warn)

    def scores(
        self,
        texts: Callable[[], Iterable[bytes]],
        k: int,
        threshold: float | None,
        where: str,
        *,
        ranking: bool = False,
        recall: float | None = None,
    ) -> LabelScores:
        """Evaluate the model on labelled lines; `threshold` None: those of `calibration`.

        `texts` yields them from the start at each call: a ranking reads them three times, because
        keeping the probabilities of all labels would take lines x labels floats.
        """
        least = self._least if threshold is None else None
        threshold, sums = as_threshold(threshold), LabelScoreSums(len(self.labels))
        ranked = Ranking(len(self.labels)) if ranking else None
        plain, before = None, LabelScoreSums(len(self.labels))
        if self.calibration.changes_probabilities:
            plain = self._labelling_at(Calibration())
        for lines, (best, chances) in self.answers(texts(), k, where):
            sums.add(lines, best, chances, threshold if least is None else least[best])
            if plain is not None:
                top, chance = plain.best(lines.feature_ptr, lines.features, 1)
                before.add(lines, top, chance, 0.0)
        if ranked is not None and sums.lines:
            self._rank(ranked, texts)
        scores = scores_of(self.labels, sums, k, ranked, recall)
        return replace(
            scores,
            calibration_error=sums.bins.error,
            uncalibrated_error=before.bins.error,
        )


def training_prefix(model: BinModel) -> bytes:
    """Return the prefix of labels in a classifier's training.

    A file that does not say it (fastText's, or one of an older snailps) has what all labels begin
    with: a longer prefix than the training's, so that no word is taken for a label that was none.
    Letters alone are none: ``en`` and ``es`` are labels that another program has written bare.
    """
    first, size = model.labels[0], model.header.prefix
    if size and all(label[:size] == first[:size] for label in model.labels):
        return first[:size]
    common = prefix_of(model.labels)
    if common.decode(errors="replace").isalnum() and not model.header.normalize:
        return LABEL_PREFIX
    return common or LABEL_PREFIX


def line_reader(model: BinModel, prefix: bytes = b"", *, weighed: bool = False) -> LineReader:
    """Make the reader of a classifier's lines; ValueError if the file is damaged.

    Words that begin with the `prefix` are labels, known or not. Its default: the training's.
    """
    header = model.header
    return LineReader(
        model.words,
        model.labels,
        label_prefix=prefix or training_prefix(model),
        weighed=weighed,
        word_ngrams=header.word_ngrams,
        minn=header.grams[0],
        maxn=header.grams[1],
        bucket=header.bucket,
        normalize=header.normalize,
    )


def threads_of(threads: int) -> int:
    """Check a number of threads; 0: one per core."""
    expected = "threads: expected 0, for one a core, or a whole number above it"
    return whole_number(threads, 0, expected) or kernels.cores()


def as_threshold(threshold: float | None) -> float:
    """Round a threshold to float32, as probabilities are: a probability of 0.9 is not below 0.9.

    None, no threshold, is 0.
    """
    if threshold is None:
        return 0.0
    if not 0 <= threshold <= 1:
        raise DataError(f"threshold: expected a probability, 0 to 1, got {threshold!r:.80}")
    return float(np.float32(threshold)) if threshold else 0.0


def _least_of(calibration: Calibration, names: Sequence[str]) -> NDArray[np.float32] | None:
    """Return the least probability of each label, infinite for one that is never predicted."""
    if not calibration.thresholds:
        return None
    values = (calibration.thresholds[name] for name in names)
    return np.array([np.inf if value is None else value for value in values], np.float32)


def evaluate_labels(
    model: LabelModel,
    source: Any,
    k: int = 1,
    threshold: float | None = None,
    *,
    column: str = "",
    label_column: str = "",
    weight_column: str = "",
    soft_labels: bool = False,
    ranking: bool = False,
    recall: float | None = None,
) -> LabelScores:
    """Evaluate a model's `k` best labels (-1: all) on labelled lines (`labelled_lines`).

    Weights count as scikit-learn's `sample_weight`.  `ranking`, or a `recall`, adds the scores of
    `LabelScores` that need the probabilities of all labels.
    """
    if recall is not None and not 0 < recall <= 1:
        raise DataError(f"recall: expected a share of lines, above 0 to 1, got {recall!r:.80}")
    lines = labelled_lines(
        model, source, column=column, label_column=label_column, weight_column=weight_column,
        soft_labels=soft_labels,
    )  # fmt: skip
    scores: LabelScores = lines.model.scores(
        lines.texts,
        k,
        threshold,
        lines.where,
        ranking=ranking or recall is not None,
        recall=recall,
    )
    hint = weights_hint(lines)
    if scores.lines == 0:
        raise DataError(
            f"{lines.where}: none of its {scores.skipped:,} lines has both a label and a word that "
            f"the model knows; its labels look like {shown_bytes(model.labels[0])}{hint}"
        )
    if hint and scores.skipped:
        log.warning("%s: %s lines are left out%s", lines.where, f"{scores.skipped:,}", hint)
    else:
        warn_of_weights(lines)
    return scores


def _named(
    answers: Iterable[tuple[NDArray[np.int32], NDArray[np.float32]]],
    kind: Callable[[Any, float], P],
    names: Sequence[bytes] | Sequence[str],
    threshold: float,
) -> Iterator[list[P]]:
    """Yield each line's labels as objects of `kind`, without those below the threshold."""
    for best, chances in answers:
        for labels, likely in zip(best.tolist(), chances.tolist(), strict=True):
            both = zip(labels, likely, strict=True)
            yield [kind(names[label], p) for label, p in both if p >= threshold]
