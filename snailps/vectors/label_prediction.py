"""A trained classifier: predicts labels of lines, and evaluates predictions.

    .bin, .ftz (ours or fastText's) -> LabelModel -> predict -> labels and probabilities per line
    labelled text -> evaluate_labels -> `label_scores`, in total and per label

Must not know training or printing.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import IO, Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data._labelled import LineReader, Lines
from snailps.data.blocks import files_of
from snailps.data.extras import optional_module
from snailps.data.in_order import in_order
from snailps.data.reading import Reading
from snailps.data.unpacking import read_errors
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError, ModelFileError, shown_bytes
from snailps.vectors._one_line import OneLine
from snailps.vectors.fasttext_bin import is_bin, read_bin
from snailps.vectors.files import identify
from snailps.vectors.label_arrow import label_names, label_table
from snailps.vectors.label_scores import LabelScores, Ranking, Sums, scores_of
from snailps.vectors.opening import START_BYTES, opened
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.query import Vectors
from snailps.vectors.texts import Piece, pieces_of
from snailps.vectors.words import one_line, to_bytes, to_text

log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P")

_SCORES_MAX = 1 << 22
"""Scores that are computed at once: 16 MiB."""
_COUNT_MAX = 10**15
"""fastText's bound on counts in its tree of labels."""


class Prediction(NamedTuple):
    """A label with its prefix, and its probability, 0 to 1."""

    label: bytes
    probability: float


class TextPrediction(NamedTuple):
    """A `Prediction` for text."""

    label: str
    probability: float


def warn_of_unread(words: int, where: str = "the texts") -> None:
    """Logs how many words were not read, if any."""
    if words:
        log.warning(
            "%s: %s words were not read: they come after the word </s> of their line, where "
            "fastText ends the line, too",
            where,
            f"{words:,}",
        )


class LabelModel:
    """A classifier read from a .bin or a quantised .ftz file.

    Attributes
    ----------
    labels : list of bytes
        By falling count in the training text.
    loss : {"softmax", "ova", "ns", "hs"}
        With softmax, and with the hierarchical one (hs, only fastText's own models), the
        probabilities of all labels add up to 1.

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
        """Opens a model; `file` and `mapped` are as in `read_bin`.

        Raises
        ------
        ModelFileError
            Missing, damaged, or not a classifier.

        Notes
        -----
        Label rows are read, word rows are mapped and paged in on access.  A .gz is unpacked into a
        temporary file (in TMPDIR).  A mapped file may be replaced by renaming another one, but not
        written over: a process that reads what is no longer there ends by SIGBUS.
        """
        self._mapped = mapped
        self._path = os.path.abspath(os.fspath(path))  # noqa: PTH100
        if file is None:
            with opened(path) as source:
                self._open(path, source)
        else:
            self._open(path, file)

    def _open(self, path: str | os.PathLike[str], file: IO[bytes]) -> None:
        if not is_bin(file.read(START_BYTES)):
            found = identify(path, file) or "a file of another format: fetch or export it again"
            raise ModelFileError(f"{path}: not a classifier (a .bin), but {found}")
        file.seek(0)
        model = read_bin(path, quantised=True, file=file, mapped=self._mapped)
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
        # Made now: Python 3.11 locks a cached property, also for a process that is forked then.
        self._names = [to_text(label) for label in self.labels]
        self.loss = header.loss
        if not model.labels:
            raise ModelFileError(f"{path}: a classifier without labels; fetch or export it again")
        counts = model.label_counts
        if header.loss == "hs" and not 0 <= counts.min() <= counts.max() < _COUNT_MAX:
            raise ModelFileError(f"{path}: damaged counts of labels; fetch or export it again")
        self._model = model
        self._words = len(model.words)
        self._pruned = model.pruned
        inputs: Any = model.input
        self._quantised = isinstance(inputs, QuantisedRows)
        if self._quantised:
            inputs = inputs.arrays
        output = kernels.padded(len(self.labels), header.dim)
        output[:, : header.dim] = model.output[:]
        self._labelling = kernels.labelling(
            inputs,
            output,
            header.dim,
            softmax=header.loss in ("softmax", "hs"),  # with one label there is no tree
            children=_label_tree(counts) if header.loss == "hs" else None,
        )
        try:
            self._reader = LineReader(
                model.words,
                model.labels,
                label_prefix=LABEL_PREFIX,
                word_ngrams=header.word_ngrams,
                minn=header.grams[0],
                maxn=header.grams[1],
                bucket=header.bucket,
            )
        except ValueError as error:
            raise ModelFileError(f"{path}: damaged: {error}; fetch or export it again") from error
        self._one = OneLine(self._reader, self._labelling, self._pruned)

    def __reduce__(self) -> tuple[Callable[[str | bytes], LabelModel], tuple[str | bytes]]:
        """Other processes open the file again: they share its memory if it is mapped."""
        return partial(LabelModel, mapped=self._mapped), (self._path,)

    def __repr__(self) -> str:
        quantised = ", quantised" * self._quantised
        return (
            f"LabelModel({len(self.labels):,} labels, {self._words:,} words, "
            f"dim {self._model.header.dim}, {self.loss}{quantised})"
        )

    @cached_property
    def wv(self) -> Vectors:
        """The vectors of the words of the training text."""
        return Vectors.of_model(self._model)

    def sentence_vector(self, text: str | bytes) -> NDArray[np.float32]:
        """Return the vector that classifies a line, float32[dim]: the mean of its features' rows.

        The numbers are those of the official package's ``get_sentence_vector`` for classifiers:
        words, their n-grams and the end of the line; zeros if none of them is known.

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
        threshold: float = 0.0,
        *,
        threads: int = 0,
    ) -> list[list[Prediction]]: ...
    @overload
    def predict(
        self, text: str | Iterable[str], k: int = 1, threshold: float = 0.0, *, threads: int = 0
    ) -> list[list[TextPrediction]]: ...
    def predict(
        self,
        text: str | bytes | Iterable[str | bytes],
        k: int = 1,
        threshold: float = 0.0,
        *,
        threads: int = 0,
    ) -> list[list[Prediction]] | list[list[TextPrediction]]:
        """The best labels of each line.

        Parameters
        ----------
        text : str or bytes, or a list of them
            Lines, the last of which may lack its newline (an empty text is a line); or one line an
            item, whose newlines are blanks: a list, a generator, a column of pandas, polars or
            pyarrow.  Labels in them are ignored, and so is what comes after the word ``</s>`` of
            a line, as in fastText; a warning says how many words that are.
        k : int
            Maximum number of labels per line, at least 1; -1: all.
        threshold : float
            Minimum probability of a label, 0 to 1; compared as float32, which probabilities are.
        threads : int
            Threads, 0 for one a core; answers do not depend on it.

        Returns
        -------
        list of list of TextPrediction, or of Prediction
            Best first; empty if no label is as probable as `threshold`.  Labels are bytes if the
            lines are.

        Raises
        ------
        DataError
            `text` is none, or `k` or `threads` is no such number.

        Notes
        -----
        The end of a line is a word, ``</s>``, as in fastText: an empty line, and one without
        another known word, has the labels of that.  Only where a model does not know it, or any
        word of a line, the line has none.

        Probabilities p are exact: fastText reports p + 0.00001, and reads the logistic function of
        `ova` and `ns` from a table of 512 entries, with errors up to 0.008.

        Examples
        --------
        >>> model = load("sections.bin")  # doctest: +SKIP
        >>> model.predict("plays chess over the network")  # doctest: +SKIP
        [[TextPrediction(label='__label__games', probability=0.98...)]]
        >>> model.predict(frame["title"], k=3)  # a list for each row  # doctest: +SKIP
        """
        k = self.number_of(k)
        if threads != 0:  # how many cores there are takes longer to find than one line's labels
            threads = threads_of(threads)
        threshold = as_threshold(threshold)
        if isinstance(text, (str, bytes)):
            best = self._one.best(to_bytes(text), k)
            if best is not None:
                if isinstance(text, bytes):
                    return [[Prediction(self.labels[i], p) for i, p in best if p >= threshold]]
                return [[TextPrediction(self._names[i], p) for i, p in best if p >= threshold]]
        are_bytes: list[bool] = []

        def noted() -> Iterator[Piece]:
            for piece in pieces_of(text, rows=_SCORES_MAX // k):
                are_bytes.append(piece.are_bytes)
                yield piece

        found = list(self.best_of(noted(), k, threads))
        if are_bytes and all(are_bytes):
            return list(_named(found, Prediction, self.labels, threshold))
        return list(_named(found, TextPrediction, self._names, threshold))

    def predict_pieces(
        self, pieces: Iterable[bytes], k: int = 1, threshold: float = 0.0
    ) -> Iterator[list[list[Prediction]]]:
        """Predict for pieces of whole lines, each answered before the next one is taken.

        The warning comes once, at the end.
        """
        threshold, rows = as_threshold(threshold), _SCORES_MAX // self.number_of(k)
        for found in self._answers(self._best(k), (pieces_of(text, rows=rows) for text in pieces)):
            yield list(_named([found], Prediction, self.labels, threshold))

    def predict_arrays(
        self, text: str | bytes | Iterable[str | bytes], k: int = 1, *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # fmt: skip
        """The best labels of each line as numbers; an object a line takes longer than its answer.

        Parameters
        ----------
        text, k, threads
            As of `predict`.
        unread : callable
            Is told how many words were not read; by default it warns.

        Returns
        -------
        int32[lines, min(k, labels)]
            Numbers of labels in `labels`, best first; -1 where there is none.
        float32[lines, min(k, labels)]
            Their probabilities; NaN where there is none.
        """
        k = self.number_of(k)
        pieces = pieces_of(text, rows=_SCORES_MAX // k)
        none = np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        best, chances = zip(none, *self.best_of(pieces, k, threads, unread), strict=True)
        return np.concatenate(best), np.concatenate(chances)

    def predict_arrow(
        self,
        text: str | bytes | Iterable[str | bytes],
        k: int | None = None,
        threshold: float = 0.0,
        *,
        threads: int = 0,
    ) -> Any:
        """The best label of each line as a table of Arrow's; a column of Arrow's is read in place.

        Parameters
        ----------
        text, threshold, threads
            As of `predict`.
        k : int, optional
            Lists of at most so many labels in the place of one.

        Returns
        -------
        pyarrow.Table
            `label`, a dictionary of strings, and `probability`, float32, both null where no label
            is as probable as `threshold`; with `k` `labels` and `probabilities`, lists of them.

        Raises
        ------
        ConfigError
            pyarrow is not installed.
        DataError
            As of `predict`, or a label that is no UTF-8.

        Examples
        --------
        >>> found = model.predict_arrow(table["text"])  # doctest: +SKIP
        >>> table.append_column("label", found["label"])  # doctest: +SKIP
        """
        threshold = as_threshold(threshold)
        names = label_names(
            optional_module("pyarrow", "predict_arrow", "snailps[data]"), self.labels
        )
        best, chances = self.predict_arrays(text, 1 if k is None else k, threads=threads)
        return label_table(best, chances, threshold, names, is_flat=k is None)

    def probabilities(
        self, text: str | bytes | Iterable[str | bytes], *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread,
    ) -> NDArray[np.float32]:  # fmt: skip
        """The probability of every label for each line, float32[lines, labels].

        Parameters
        ----------
        text : str or bytes, or a list of them
            As of `predict`, like `threads`.
        unread : callable
            As of `predict_arrays`.

        Returns
        -------
        float32[lines, labels]
            Columns in the order of `labels`; NaN in the row of a line that `predict` has no labels
            for.
        """
        return self.best_and_probabilities(text, threads=threads, unread=unread)[1]

    def best_and_probabilities(
        self, text: str | bytes | Iterable[str | bytes], *, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # fmt: skip
        """The best label of each line, int32[lines], or -1, beside `probabilities`.

        The label that `predict` gives, which compares scores: with `ova` and `ns` the largest
        probabilities are often equal, for they round to 1.
        """
        labels = len(self.labels)
        pieces = pieces_of(text, rows=_SCORES_MAX // labels)
        ask = self._labelling.chances
        none = np.empty(0, np.int32), np.empty((0, labels), np.float32)
        parts = self._answers(
            lambda lines: ask(lines.feature_ptr, lines.features), [pieces], threads, unread
        )
        best, chances = zip(none, *parts, strict=True)
        return np.concatenate(best), np.concatenate(chances)

    def probability_pieces(self, texts: Iterable[str | bytes]) -> Iterator[NDArray[np.float32]]:
        """Yield `probabilities` of some texts at a time; the warning comes once, at the end."""
        unread: list[int] = []
        texts = iter(texts)
        step = max(1, _SCORES_MAX // len(self.labels))
        pieces = iter(lambda: list(islice(texts, step)), [])
        for piece in pieces:
            yield self.probabilities(piece, unread=unread.append)
        warn_of_unread(sum(unread))

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How often each label occurred in the training text."""
        return self._model.label_counts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a .bin file, which fastText reads, too.

        Raises
        ------
        ModelFileError
            Another ending, a folder that is missing or full, or a quantised model.
        """
        ending = os.path.splitext(path)[1]  # noqa: PTH122
        if ending != ".bin":
            raise ModelFileError(
                f"{path}: expected a name that ends in .bin, the format of classifiers; got "
                f"{ending or 'no ending'}"
            )
        self.wv.save(path)

    def number_of(self, k: int) -> int:
        """Check `k`, at most the number of labels; -1: all of them, as in fastText."""
        expected = "k: expected a whole number of labels a line, at least 1, or -1 for all"
        number = _whole(k, -1, expected)
        if not number:
            raise DataError(f"{expected}, got {k!r:.80}")
        return len(self.labels) if number < 0 else min(number, len(self.labels))

    def best_of(
        self, pieces: Iterable[Piece], k: int, threads: int = 0,
        unread: Callable[[int], object] = warn_of_unread,
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:  # fmt: skip
        """Yield `predict_arrays` of pieces (`texts.pieces_of`), an answer each."""
        return self._answers(self._best(k), [pieces], threads, unread)

    def _best(self, k: int) -> Callable[[Lines], tuple[NDArray[np.int32], NDArray[np.float32]]]:
        k = self.number_of(k)
        return lambda lines: self._labelling.best(lines.feature_ptr, lines.features, k)

    def _answers(
        self,
        ask: Callable[[Lines], T],
        texts: Iterable[Iterable[Piece]],
        threads: int = 0,
        warn: Callable[[int], object] = warn_of_unread,
    ) -> Iterator[T]:
        """Ask about each piece of whole lines, in their order; an answer has a row a line.

        Threads share the pieces of one text; the next one is begun when it is answered.
        A piece that is answered by one thread is short, so its features are in the cache when their
        rows are summed; the answer depends neither on it nor on the number of threads.
        """
        unread, threads = 0, threads_of(threads)

        def answer(piece: Piece) -> tuple[T, int]:
            lines = self._read(piece.data, piece.offsets)
            rows = len(lines.feature_ptr) - 1
            if rows != piece.lines:
                raise DataError(
                    f"expected a row for each of {piece.lines:,} lines of text, got {rows:,}"
                )
            return ask(lines), lines.unread

        for pieces in texts:
            for found, words in in_order(answer, pieces, threads):
                unread += words
                yield found
        warn(unread)

    def _read(self, text: Any, offsets: NDArray[np.int64] | None = None) -> Lines:
        """Features and labels of lines, without n-grams that a pruned model has no rows for."""
        lines = self._reader.read(text, offsets)
        return lines if self._pruned is None else self._pruned.keep(lines, self._words)

    def scores(
        self,
        texts: Callable[[], Iterable[bytes]],
        k: int,
        threshold: float,
        where: str,
        *,
        ranking: bool = False,
        recall: float | None = None,
    ) -> LabelScores:
        """Scores of right and wrong labels of a labelled text: whole lines, anew at each call."""
        threshold, best, sums = as_threshold(threshold), self._best(k), Sums(len(self.labels))
        rows = _SCORES_MAX // (len(self.labels) if ranking else self.number_of(k))
        ranked = Ranking(len(self.labels)) if ranking else None

        def asked(
            ask: Callable[[Lines], T], warn: Callable[[int], object] = lambda words: None
        ) -> Iterator[tuple[Lines, T]]:
            pieces = (piece for text in texts() for piece in pieces_of(text, rows=rows))
            return self._answers(lambda lines: (lines, ask(lines)), [pieces], warn=warn)

        for lines, found in asked(best, partial(warn_of_unread, where=where)):
            sums.add(lines, *found, threshold)
        if ranked is not None and sums.lines:
            chances = self._labelling.chances
            for is_again in (False, True):
                if is_again:
                    ranked.again()
                for lines, (_, likely) in asked(lambda x: chances(x.feature_ptr, x.features)):
                    ranked.add(lines, likely)
        return scores_of(self.labels, sums, k, ranked, recall)

    def label_prefix(self, first: Callable[[str], Iterable[bytes]]) -> str:
        """The prefix by which a column of labels has most of the model's: what it was trained with.

        `first`: the first lines of a table with a prefix.
        """
        # Of the first and the last in order: no label between them has less in common with both.
        first_label, last_label = min(self.labels), max(self.labels)
        size = next(
            (at for at, (a, b) in enumerate(zip(first_label, last_label, strict=False)) if a != b),
            min(len(first_label), len(last_label)),
        )
        common = to_text(first_label[:size])
        known = LABEL_PREFIX.decode()
        if common.startswith(known):
            return known
        found = {known: -1}
        for size in range(len(common), 0, -1):
            with suppress(DataError):  # of a shorter one, whose beginning words of the texts have
                text = next(iter(first(common[:size])), b"")
                found[common[:size]] = len(self._read(text).labels)
        return max(found, key=lambda prefix: found[prefix])


def threads_of(given: int) -> int:
    """Check a number of threads; 0: one a core.  `DataError`: no such number."""
    expected = "threads: expected 0, for one a core, or a whole number above it"
    return _whole(given, 0, expected) or kernels.cores()


def as_threshold(given: float) -> float:
    """The float32 that is nearest to a threshold: what is shown as 0.9 is not below .9."""
    if not 0 <= given <= 1:
        raise DataError(f"threshold: expected a probability, 0 to 1, got {given!r:.80}")
    return float(np.float32(given)) if given else 0.0


def _whole(given: int, least: int, expected: str) -> int:
    number = operator.index(given) if hasattr(given, "__index__") else least - 1
    if number < least:
        raise DataError(f"{expected}, got {given!r:.80}")
    return number


def _label_tree(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """fastText's Huffman tree of labels by falling count: children of inner nodes, the root last.

    int32 (labels - 1, 2): numbers below the number of labels are labels, others inner nodes.
    """
    labels = len(counts)
    # Inner nodes that are not made yet are rarer than none.
    sizes = [*counts.tolist(), *[_COUNT_MAX] * (labels - 1)]
    children = np.empty((labels - 1, 2), np.int32)
    leaf, node = labels - 1, labels
    for made in range(labels, 2 * labels - 1):
        for side in range(2):
            if leaf >= 0 and sizes[leaf] < sizes[node]:
                children[made - labels, side] = leaf
                leaf -= 1
            else:
                children[made - labels, side] = node
                node += 1
        sizes[made] = sum(sizes[child] for child in children[made - labels].tolist())
    return children


def evaluate_labels(
    model: LabelModel,
    path: str | os.PathLike[str],
    k: int = 1,
    threshold: float = 0.0,
    *,
    column: str = "",
    label_column: str = "",
    ranking: bool = False,
    recall: float | None = None,
) -> LabelScores:
    """Scores of a model's `k` best labels (-1: of all) on a labelled text, in pieces of 1 MiB.

    `path` is a file, folder, pattern or URL.  Lines are as for training; `column`, `label_column`:
    of tables, those of texts and labels.  `ranking`, or a `recall`: also what asks for the
    probabilities of all labels, see `LabelScores`.
    """
    where = os.fsdecode(path)
    if recall is not None and not 0 < recall <= 1:
        raise DataError(f"recall: expected a share of lines, above 0 to 1, got {recall!r:.80}")
    prefix = LABEL_PREFIX.decode()
    if label_column:
        prefix = model.label_prefix(lambda one: _pieces(where, column, label_column, one))
    scores = model.scores(
        lambda: _pieces(where, column, label_column, prefix),
        k,
        threshold,
        where,
        ranking=ranking or recall is not None,
        recall=recall,
    )
    if scores.lines == 0:
        raise DataError(
            f"{path}: none of its {scores.skipped:,} lines has both a label and a word that the "
            f"model knows; its labels look like {shown_bytes(model.labels[0])}"
        )
    return scores


def _pieces(where: str, column: str, label_column: str, prefix: str) -> Iterator[bytes]:
    """Whole lines of files or tables."""
    from snailps.data.formats.text import File as TextFile
    from snailps.data.table_files import text_of

    reading = Reading("text", column=column, label_column=label_column, label_prefix=prefix)
    for path in files_of([where]):
        if reading.takes(path):
            yield from text_of(reading, path)
            continue
        with read_errors(path), TextFile(path) as text:
            yield from text.lines()


def _named(
    found: Iterable[tuple[NDArray[np.int32], NDArray[np.float32]]],
    kind: Callable[[Any, float], P],
    names: Sequence[bytes] | Sequence[str],
    threshold: float,
) -> Iterator[list[P]]:
    """The answers of each line as objects, those below the threshold left out."""
    for best, chances in found:
        for labels, likely in zip(best.tolist(), chances.tolist(), strict=True):
            both = zip(labels, likely, strict=True)
            yield [kind(names[label], p) for label, p in both if p >= threshold]
