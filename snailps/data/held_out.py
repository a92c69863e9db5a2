"""Which lines of an input are held out of its training: a share, by a hash of their bytes.

    share, seed -> HeldOut -> trained(text) | held(text): the lines of either side
    HeldOut -> Side -> lines(text), rows(examples): one side, for a reader of examples

Equal lines are on the same side, whatever block, file or process reads them, so workers and master
decide alike.  The rows of a matrix file, which are a table's, are hashed as label, keys, values and
fields.  Weights are hashed nowhere, so equal examples are together whatever they count.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.data._labelled import WeightError, without_weights
from snailps.data._text import hashes_of_rows, split_lines
from snailps.dataclass import dataclass

_DRAWS = 1 << 64


def least_draw(share: float) -> int:
    """The least of 2^64 equally likely draws that a share from 0 to below 1 holds out."""
    # From above: 1 - share would round the share, and of 1e-17 leave nothing.
    return min(_DRAWS - 1, _DRAWS - int(share * _DRAWS))


def lines_of_share(share: float, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most lines of each of `counts`, below 2^53, that are no larger share than `share`.

    A product would round a share that has no exact binary fraction: .29 of 100 lines is 29.
    """
    lines = np.asarray(share * counts, np.int64)
    least = np.maximum(counts, 1)
    lines -= lines / least > share
    lines += (lines + 1) / least <= share
    return lines


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A share of the input's lines that is not trained: those whose hash is at least `least`.

    `weighed`: the prefix of labels that may have weights, which are not hashed; empty: none has.
    """

    least: int
    seed: int
    weighed: bytes = b""

    @classmethod
    def of(cls, share: float, seed: int, weighed: bytes = b"") -> HeldOut | None:
        """Hold out a share, 0 to below 1; None: all lines are trained."""
        return cls(least_draw(share), seed, weighed) if share else None

    def trained(self, text: bytes) -> bytes:
        """The lines that are trained."""
        return self._sides(text)[0]

    def held(self, text: bytes) -> bytes:
        """The lines that are held out."""
        return self._sides(text)[1]

    def _sides(self, text: bytes) -> tuple[bytes, bytes]:
        plain = None
        if self.weighed:
            with suppress(WeightError):  # the survey says in which file and line
                plain = without_weights(text, self.weighed)[0]
        return split_lines(text, self.seed, self.least, plain)


@dataclass(frozen=True, slots=True)
class Side:
    """The lines that are trained, or those that are held out (`is_held`)."""

    split: HeldOut
    is_held: bool = False

    def lines(self, text: bytes) -> bytes:
        """The lines of this side, in their order."""
        return self.split.held(text) if self.is_held else self.split.trained(text)

    def before(self, text: bytes, offset: int) -> int:
        """Bytes of the other side's lines in front of byte `offset` of this side's `lines`."""
        begin = other = 0
        while begin < len(text):
            end = text.find(b"\n", begin) + 1 or len(text)
            if not self.lines(text[begin:end]):
                other += end - begin
            elif begin - other >= offset:
                break
            begin = end
        return other

    def rows(self, examples: Examples) -> Examples:
        """The examples of this side, in their order."""
        hashes = hashes_of_rows(
            examples.labels, examples.ptr, examples.keys, examples.values, examples.fields,
            self.split.seed,
        )  # fmt: skip
        return examples_where(examples, (hashes >= np.uint64(self.split.least)) == self.is_held)


def examples_where(examples: Examples, chosen: NDArray[np.bool_]) -> Examples:
    """The chosen examples, in their order, without cells of columns of kind text."""
    if chosen.all():
        return examples
    sizes = np.diff(examples.ptr)
    entries = np.repeat(chosen, sizes)
    fields, weights = examples.fields, examples.weights
    return examples._replace(
        labels=examples.labels[chosen],
        ptr=np.concatenate(([0], np.cumsum(sizes[chosen]))),
        keys=examples.keys[entries],
        values=examples.values[entries],
        fields=fields[entries] if len(fields) else fields,
        weights=weights[chosen] if len(weights) else weights,
        cells=(),
    )
