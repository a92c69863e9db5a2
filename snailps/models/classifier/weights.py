"""Weights of a classifier's labels: of lines, of labels in lines, of classes.

    survey: text with weights -> WeighedPart -> plain text to count, sums of weights by label
            sums, `class_weights` -> factors_of -> a factor a label -> with_factors -> summary
    train:  Lines with the weights of the text, factors -> weighed -> Lines for `kernels`

A label of a line has one weight: that of the line times that of the label in it times that of its
class.  It multiplies the label's loss and gradient.  Owns how they combine, and what a label has
without a weight; `data._labelled` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Block
from snailps.data._labelled import NO_WEIGHTS, Lines, WeightError, without_weights
from snailps.data._text import NameTable
from snailps.data.examples import line_at
from snailps.data.label_words import no_label, word_of
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.data.word_counts import HEADER_BYTES, pack, unpack
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import Place
from snailps.models.class_weights import are_weights, balanced, class_weights_in
from snailps.models.text_model import WordPart, WordSurveyor
from snailps.vectors.words import to_text

Floats = NDArray[np.float32]

UNIT = 1 << 24
"""Sums are whole numbers of 1 / UNIT, so that the order in which workers add has no effect."""
SUM_MAX = 1 << 38
"""Largest sum of weights, so that these numbers stay below 2^63."""
_SUMS_MAGIC = b"SNLW"
_FACTORS_MAGIC = b"SNCW"
_COUNTS_MAGIC = b"SNCC"
_SIZE_BYTES = 8


class LabelSums:
    """Sums of the weights of labels, exact to 1 / `UNIT` a label."""

    def __init__(self) -> None:
        self._table, self._total = NameTable(), 0.0

    def add(self, labels: Sequence[bytes], weights: NDArray[np.float64]) -> None:
        """Add weights of labels, which may be repeated; DataError: the sum is too large."""
        self._add(labels, np.rint(weights * UNIT).astype(np.int64))

    def _add(self, labels: Sequence[bytes], units: NDArray[np.int64]) -> None:
        self._total += float(units.sum(dtype=np.float64)) / UNIT
        if self._total > SUM_MAX:
            raise DataError(
                f"the weights of the labels add up to more than {SUM_MAX:,}: divide all of them by "
                "the same number"
            )
        self._table.add(labels, units)

    def of(self, labels: PackedWords) -> NDArray[np.float64]:
        """Return the sum of each label, float64 (n,); 0 for an unknown one."""
        numbers = self._table.numbers(labels)
        sums = np.append(self._table.counts(), 0)[numbers]
        return np.asarray(sums / UNIT, np.float64)

    @property
    def dump_bytes(self) -> int:
        """Length of `dump` at most."""
        return HEADER_BYTES + 16 * len(self._table) + self._table.letters

    def dump(self) -> bytes:
        """The sums as bytes for `merge`."""
        units, names = self._table.counts(), self._table.names()
        above = np.flatnonzero(units)
        names, units = names.take(above), units[above]
        ends = names.starts[1:] - names.starts[0]
        return pack(_SUMS_MAGIC, units, ends, names.joined(), int(units.sum()))

    def merge(self, part: bytes) -> None:
        """Add the sums of a `dump`; DataError: malformed, or the sum is too large."""
        packed = unpack(_SUMS_MAGIC, part, complete=True)
        starts = np.concatenate((np.zeros(1, np.uint64), packed.ends))
        self._add(PackedWords(packed.text, starts), packed.counts.astype(np.int64))


def refuse_wrong(
    data: bytes, prefix: bytes, path: str, start: int, place: Place | None = None
) -> None:
    """Refuse a text with a wrong weight; DataError, with file and line (`line_at`)."""
    try:
        without_weights(data, prefix)
    except WeightError as error:
        raise DataError(f"{line_at(data, error.offset, path, start, place)}: {error}") from None


class WeighedPart(WordPart):
    """Counts the words of a worker's blocks, and sums the weights of labels.

    `weighed`: the text may have weights.  `shares`: a label without one has 1 / the number of its
    line's labels, as in the training (`weighed`).
    """

    def __init__(
        self,
        prefix: bytes,
        text_of: Callable[[Block], bytes],
        *,
        weighed: bool = True,
        shares: bool = False,
    ) -> None:
        super().__init__(text_of)
        self._prefix, self._sums = prefix, LabelSums()
        self._how = {"weighed": weighed, "shares": shares}

    @property
    def size_bytes(self) -> int:
        return _SIZE_BYTES + super().size_bytes + self._sums.dump_bytes

    def add(self, block: Block) -> None:
        """Count a block; DataError, with file and line: what a label has is no weight."""
        try:
            super().add(block)
        except WeightError:
            for data, path, start, place in block.texts():
                refuse_wrong(data, self._prefix, path, start, place)
            raise

    def count(self, text: bytes) -> None:
        plain, labels, weights = without_weights(text, self._prefix, **self._how)
        super().count(plain)
        self._sums.add(labels, weights)

    def take(self) -> bytes:
        words, sums = super().take(), self._sums.dump()
        self._sums = LabelSums()
        return len(words).to_bytes(_SIZE_BYTES, "little") + words + sums


class WeighedSurveyor(WordSurveyor):
    """Merge what `WeighedPart` took into a summary, ``summarize(counter, sums)``."""

    def __init__(self, summarize: Callable[..., bytes]) -> None:
        super().__init__(lambda counter: summarize(counter, self._sums))
        self._sums = LabelSums()

    def add(self, part: bytes) -> None:
        end = _SIZE_BYTES + int.from_bytes(part[:_SIZE_BYTES], "little")
        super().add(part[_SIZE_BYTES:end])
        self._sums.merge(part[end:])


def factors_of(
    texts: Sequence[str], labels: Vocabulary, prefix: bytes, sums: LabelSums | None
) -> Floats:
    """Return the factor of each label, float32 (n,), for `class_weights`; empty: all are 1.

    `sums` are for ``balanced``.  ConfigError: no such label, or all factors are 0.
    """
    weights = class_weights_in(texts)
    if weights is None:
        assert sums is not None
        return balanced(sums.of(labels.words)).astype(np.float32)
    if not weights:
        return NO_WEIGHTS
    factors, weighed = np.ones(len(labels), np.float32), set()
    for label, weight in weights.items():
        words = [label.encode(), prefix + label.encode(), prefix + word_of(label).encode()]
        number = max(map(labels.index, words))
        if number < 0:
            names = list(map(to_text, labels.words))
            raise ConfigError(f"class_weights: {no_label(label, names, to_text(prefix))}")
        if number in weighed:
            raise ConfigError(
                f"class_weights: expected one number for "
                f"{labels.words[number].decode(errors='replace')!r:.60}, got two"
            )
        weighed.add(number)
        factors[number] = weight
    if not are_weights(factors):
        raise ConfigError(
            "class_weights: expected a number above 0, got 0 for all labels of the text: nothing "
            "would be learnt"
        )
    return factors


def with_factors(summary: bytes, factors: Floats) -> bytes:
    """Put factors before a summary; none: the summary as it is."""
    return _with_array(summary, _FACTORS_MAGIC, factors.astype("<f4")) if len(factors) else summary


def factors_in(summary: bytes) -> tuple[Floats, bytes]:
    """The factors of labels (empty: all are 1), and the summary without them."""
    return _array_in(summary, _FACTORS_MAGIC, "<f4")


def with_counts(summary: bytes, counts: NDArray[np.int64]) -> bytes:
    """Put counts of labels in the trained text before a summary, where those of the model are
    others.
    """
    return _with_array(summary, _COUNTS_MAGIC, counts.astype("<i8"))


def counts_in(summary: bytes) -> tuple[NDArray[np.int64], bytes]:
    """The counts of labels in the trained text (empty: the model's), and the summary without."""
    return _array_in(summary, _COUNTS_MAGIC, "<i8")


def _with_array(summary: bytes, magic: bytes, array: NDArray[Any]) -> bytes:
    return magic + array.nbytes.to_bytes(_SIZE_BYTES, "little") + array.tobytes() + summary


def _array_in(summary: bytes, magic: bytes, kind: str) -> tuple[NDArray[Any], bytes]:
    if summary[: len(magic)] != magic:
        return np.zeros(0, kind), summary
    head = len(magic) + _SIZE_BYTES
    end = head + int.from_bytes(summary[len(magic) : head], "little")
    return np.frombuffer(summary[head:end], kind), summary[end:]


def weighed(lines: Lines, factors: Floats, loss: str, *, are_soft: bool) -> Lines:
    """Give lines the weights that their text and their classes say, as `kernels` take them.

    A label without a weight has 1; with a loss that expects one label a line, a share: 1 / the
    number of the line's labels.  Where neither labels nor classes have weights there are none
    (`NO_WEIGHTS`): a line of several labels is then trained on one that is drawn.
    """
    if not are_soft and not len(factors):
        return lines._replace(label_weights=NO_WEIGHTS)
    weights, rests = np.full(len(lines.labels), np.nan, np.float32), NO_WEIGHTS
    if are_soft:
        weights = lines.label_weights
    if loss == "ova":
        rests = np.maximum(0, 1 - np.nan_to_num(weights, nan=1.0)) if are_soft else rests
        without = np.ones(len(weights), np.float32)
    else:
        sizes = np.diff(lines.label_ptr)
        without = np.repeat(1 / np.maximum(sizes, 1), sizes).astype(np.float32)
    weights = np.where(np.isnan(weights), without, weights)
    if len(factors):
        weights = weights * factors[lines.labels]
    return lines._replace(label_weights=weights, rests=rests)


def weights_of_lines(lines: Lines, loss: str) -> Floats:
    """Return the weight with which each line is trained, float32 (n,)."""
    number = len(lines.label_ptr) - 1
    weights = lines.line_weights if len(lines.line_weights) else np.ones(number, np.float32)
    if len(lines.label_weights) and loss != "ova":
        owner = np.repeat(np.arange(number), np.diff(lines.label_ptr))
        weights = weights * np.bincount(owner, lines.label_weights, number)
    return weights.astype(np.float32)
