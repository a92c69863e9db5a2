"""Makes a quantised model of a full one: a .ftz of a .bin, with a tenth of its size or less.

    BinModel -> pruned: the rows that matter most -> BinModel, in memory
    BinModel -> quantised -> BinModel whose rows are `QuantisedRows`
    float32 rows -> quantise_rows: codebooks by k-means of a sample, codes -> QuantisedRows

Results depend on the rows and the seed, not on the number of threads.  A classifier keeps the rows
that fastText's ``quantize`` keeps.  Must not know training, files or printing.

References
----------
Jegou, Douze, Schmid, "Product Quantization for Nearest Neighbor Search", 2011.
Joulin et al., "FastText.zip: Compressing text classification models", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from snailps import kernels
from snailps.data._labelled import KeptGrams
from snailps.data._subwords import subwords_csr
from snailps.data.arguments import whole_number
from snailps.data.in_order import in_order
from snailps.data.packed_words import PackedWords
from snailps.data.word_counts import END_OF_LINE
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError, ModelFileError
from snailps.vectors.fasttext_bin import (
    ENTRY_BYTES,
    BinModel,
    Float32,
    bin_bytes,
)
from snailps.vectors.quantised import CODE_BYTES_MAX, QuantisedRows, Quantiser

Counts = npt.NDArray[np.int64]

ROUNDS = 50
"""Most rounds of k-means for a codebook."""
SAMPLE = 65_536
"""Rows that codebooks are trained on, at most: 256 for each centroid."""
OUTPUT_WIDTH = 2
"""Columns of a part of output rows, as in fastText."""
_CHUNK_BYTES = 1 << 22
"""Bytes of rows that a thread encodes at a time."""
_PAIR_BYTES = 8
"""Bytes of an entry in a pruned model's list of n-grams."""


class SizeError(DataError):
    """No quantised model of these dimensions is as small as is asked for."""


@dataclass(frozen=True, slots=True)
class Codebooks:
    """How rows are quantised.

    Attributes
    ----------
    width : int
        Columns of a part of a row, which takes one byte, at least 1; above dim like dim.  More
        columns: a smaller file that is less exact.
    norms : bool
        Whether a row's length is quantised apart from its direction, by one more byte.
    seed : int
    threads : int
        0: one per core.
    progress : callable
        Called with the share that is done, 0 to 1, as rows are quantised.
    """

    width: int = 2
    norms: bool = False
    seed: int = 0
    threads: int = 0
    progress: Callable[[float], object] = lambda share: None

    def __post_init__(self) -> None:
        whole_number(self.width, 1, "dsub: expected a number of columns of at least 1")
        whole_number(self.seed, 0, "seed: expected a whole number of at least 0")
        expected = "threads: expected 0, for one a core, or a whole number above it"
        whole_number(self.threads, 0, expected)


def pruned(model: BinModel, cutoff: int) -> BinModel:
    """Leave only the most important input rows; those of other words and n-grams are dropped.

    A classifier keeps `cutoff` rows: the row of ``</s>``, and the longest rows of words or n-grams.
    Word vectors keep all words and the longest rows of n-grams that these words have.

    Returns
    -------
    BinModel
        Its input rows are a copy in memory, float32[rows, dim]; `pruned` lists the n-grams.

    Raises
    ------
    DataError
        `cutoff` is below 1.
    ModelFileError
        The model is pruned or quantised already, or is of floret's own mode.
    """
    if cutoff < 1:
        raise DataError(f"cutoff: expected a number of rows of at least 1, got {cutoff}")
    rows = _full(model.input)
    if model.header.hashes:
        raise ModelFileError(
            "cutoff: a model of floret's own mode shares its rows among all words: none can be "
            "left out; set bucket when it is trained"
        )
    if cutoff >= len(rows):
        return model
    if model.pruned is not None and model.header.model != "supervised":
        raise ModelFileError("the model is pruned already: quantise the .bin that it was made from")
    lengths = _lengths_of(rows, threads=1)
    first = len(model.words)
    if model.header.model == "supervised":
        order = _by_importance(model, lengths)[:cutoff]
    else:
        grams = _used_grams(model) + first
        longest = grams[np.argsort(-lengths[grams], kind="stable")]
        order = np.concatenate((np.arange(first), longest[: max(0, cutoff - first)]))
    return _with_rows(model, rows, np.sort(order))


def rows_within(model: BinModel, codebooks: Codebooks, size: int) -> int:
    """Return the `cutoff` with which a classifier's file has at most `size` bytes; 0: all rows.

    Raises
    ------
    SizeError
        The size is too small, whatever is left out.
    """
    rows, dim = _full(model.input), model.header.dim
    if len(rows) < kernels.CENTROIDS:
        raise SizeError(
            f"size: the model has {len(rows)} rows, and a quantised one needs {kernels.CENTROIDS}: "
            "leave it as it is"
        )
    width = min(codebooks.width, dim)
    a_row = -(-dim // width) + codebooks.norms
    names = PackedWords.of(model.words)
    lengths = np.diff(names.starts).astype(np.int64)
    head = QuantisedRows.head_bytes(dim, norms=codebooks.norms)
    fixed = bin_bytes([PackedWords.of(model.labels)], len(model.labels), dim, head)
    whole = fixed + int((lengths + ENTRY_BYTES).sum()) + len(rows) * a_row
    if model.pruned is None and whole <= size:
        return 0
    costs = np.full(len(rows), a_row + _PAIR_BYTES, np.int64)
    costs[: len(names)] = a_row + ENTRY_BYTES + lengths
    order = _by_importance(model, _lengths_of(rows, threads=1))
    number = int(np.searchsorted(fixed + np.cumsum(costs[order]), size, side="right"))
    if number < kernels.CENTROIDS:
        least = fixed + int(costs[order][: kernels.CENTROIDS].sum())
        raise SizeError(
            f"size: expected at least {least:,} bytes for a quantised model of {dim} dimensions "
            f"and {len(model.labels):,} labels, got {size:,}: train one with a smaller dim"
        )
    return number


def _by_importance(model: BinModel, lengths: Float32) -> Counts:
    """Sort a classifier's input rows: the row of ``</s>``, then by falling length."""
    names, lengths = PackedWords.of(model.words), lengths.copy()
    for number in np.flatnonzero(names.begin_with(END_OF_LINE)).tolist():
        if names[number] == END_OF_LINE:
            lengths[number] = np.inf
    return np.argsort(-lengths, kind="stable")


def without_unused(model: BinModel, width: int) -> BinModel:
    """Drop rows of n-grams that none of the words has, if that makes the quantised file smaller.

    Only for word vectors: such rows were never trained.  A classifier also has n-grams of words,
    which its file does not list.
    """
    header = model.header
    is_whole = model.pruned is None and not header.hashes and header.grams[1] > 0
    if header.model == "supervised" or not header.bucket or not is_whole:
        return model
    grams = _used_grams(model)
    bytes_a_row = -(-header.dim // width)
    if len(grams) * (bytes_a_row + _PAIR_BYTES) >= header.bucket * bytes_a_row:
        return model
    first = len(model.words)
    return _with_rows(model, _full(model.input), np.concatenate((np.arange(first), grams + first)))


def quantised(model: BinModel, codebooks: Codebooks, *, outputs: bool = False) -> BinModel:
    """Quantise the input rows, and with `outputs` a classifier's label rows too.

    Word vectors lose their output rows, which no query needs; a training could not go on with
    quantised rows anyway.

    Raises
    ------
    DataError
        A parameter is out of range, or there are fewer than 256 rows: the codebooks alone would be
        larger than the rows.
    ModelFileError
        The model is quantised already, or a row has a value that is not finite.
    """
    rows, labels = _full(model.input), _full(model.output)
    is_classifier = model.header.model == "supervised"
    if outputs and not is_classifier:
        raise DataError("outputs: word vectors have none in a quantised file: leave it out")
    share = len(rows) / (len(rows) + len(labels) * outputs)
    done = codebooks.progress
    inputs = quantise_rows(rows, replace(codebooks, progress=lambda x: done(share * x)), "input")
    if not is_classifier:
        return replace(model, input=inputs, output=np.empty((0, model.header.dim), np.float32))
    if not outputs:
        _check_finite(_lengths_of(labels, codebooks.threads or kernels.cores()), "output")
        return replace(model, input=inputs)
    of_labels = replace(
        codebooks,
        width=min(OUTPUT_WIDTH, model.header.dim),
        progress=lambda x: done(share + (1 - share) * x),
    )
    return replace(model, input=inputs, output=quantise_rows(labels, of_labels, "output"))


def quantise_rows(rows: Float32, codebooks: Codebooks, name: str = "input") -> QuantisedRows:
    """Quantise float32[n, dim], which may be mapped and at any alignment; `name` is for errors."""
    n, dim = rows.shape
    codebooks = replace(codebooks, width=min(codebooks.width, dim))
    if n < kernels.CENTROIDS:
        raise DataError(
            f"the {name} matrix has {n} rows, and its codebooks {kernels.CENTROIDS} centroids a "
            "part: quantised it would be larger; "
            + ("leave its rows as they are" if name == "input" else "leave outputs (qout) out")
        )
    parts = -(-dim // codebooks.width)
    if n * parts > CODE_BYTES_MAX:
        raise DataError(
            f"the {name} matrix would have {n:,} x {parts} bytes of codes, and the format holds "
            f"{CODE_BYTES_MAX:,}: set cutoff, or a larger dsub"
        )
    threads = codebooks.threads or kernels.cores()
    lengths = _lengths_of(rows, threads)
    _check_finite(lengths, name)
    scales: Float32 | None = None
    if codebooks.norms:
        scales = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    done = _QuantisingShares(codebooks.progress, parts, -(-n // _rows_together(dim)))
    sample = _sample_of(n, codebooks.seed)
    centroids = _train(rows, scales, sample, codebooks, threads, done.trained)
    codes = _encode(rows, scales, centroids, codebooks.width, threads, done.encoded)
    quantiser = Quantiser(centroids)
    if not codebooks.norms:
        return QuantisedRows((n, dim), codes, quantiser)
    alone = lengths.reshape(-1, 1)
    norms = _train(alone, None, sample, replace(codebooks, width=1), threads, _ignore)
    norm_codes = _encode(alone, None, norms, 1, threads, _ignore).ravel()
    return QuantisedRows((n, dim), codes, quantiser, norm_codes, norms[0].ravel())


class _QuantisingShares:
    """Shares of the work: half of it is training codebooks, the other half encoding rows."""

    def __init__(self, progress: Callable[[float], object], parts: int, chunks: int) -> None:
        self._progress, self._parts, self._chunks = progress, parts, chunks

    def trained(self, parts: int) -> None:
        self._progress(parts / self._parts / 2)

    def encoded(self, chunks: int) -> None:
        self._progress((1 + chunks / self._chunks) / 2)


def _ignore(count: int) -> None:
    """Progress of what takes no time."""


def _sample_of(n: int, seed: int) -> Counts:
    """Draw the rows that codebooks are trained on, in the order of the file."""
    if n <= SAMPLE:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, SAMPLE, replace=False))


def _train(
    rows: Float32,
    scales: Float32 | None,
    sample: Counts,
    codebooks: Codebooks,
    threads: int,
    done: Callable[[int], None],
) -> list[Float32]:
    """Train the centroids of each part, float32[256, columns of the part]."""
    n, dim = len(sample), rows.shape[1]
    # Column by column, so that the kernel's lanes hold neighbouring points.
    columns = np.zeros((dim, -(-n // kernels.POINTS) * kernels.POINTS), np.float32)
    for start in range(0, n, SAMPLE // 16):
        drawn = sample[start : start + SAMPLE // 16]
        values = rows[drawn] if scales is None else rows[drawn] * scales[drawn, None]
        columns[:, start : start + len(drawn)] = values.T

    def trained(first: int) -> Float32:
        part = columns[first : first + codebooks.width]
        random = np.random.default_rng((codebooks.seed, first))
        start = random.choice(n, kernels.CENTROIDS, replace=False)
        centroids = np.ascontiguousarray(part[:, start].T)
        kernels.train_codebook(part, n, centroids, ROUNDS)
        return centroids

    parts: list[Float32] = []
    for centroids in in_order(trained, range(0, dim, codebooks.width), threads):
        parts.append(centroids)
        done(len(parts))
    return parts


def _encode(
    rows: Float32,
    scales: Float32 | None,
    parts: list[Float32],
    width: int,
    threads: int,
    done: Callable[[int], None],
) -> npt.NDArray[np.uint8]:
    """Return uint8[n, parts]: the number of the centroid of each part of each row."""
    codes = np.empty((len(rows), len(parts)), np.uint8)
    centroids = np.concatenate([part.ravel() for part in parts])

    def encoded(chunk: slice) -> None:
        of_rows = None if scales is None else scales[chunk]
        kernels.encode_rows(rows[chunk], centroids, width, codes[chunk], of_rows)

    for count, _ in enumerate(in_order(encoded, _chunks(rows), threads), 1):
        done(count)
    return codes


def _check_finite(lengths: Float32, name: str) -> None:
    if not np.isfinite(lengths).all():
        raise ModelFileError(
            f"row {int(np.argmin(np.isfinite(lengths))):,} of the {name} matrix is not finite: the "
            "training diverged or the file is damaged; train again with a lower learning rate"
        )


def _lengths_of(rows: Float32, threads: int) -> Float32:
    """Return the length of each row, float32[n]; not finite if one of its values is not."""

    def measured(chunk: slice) -> Float32:
        values = np.array(rows[chunk])  # aligned
        squares: Float32 = np.einsum("ij,ij->i", values, values)
        return np.sqrt(squares)

    return np.concatenate([*in_order(measured, _chunks(rows), threads)])


def _rows_together(dim: int) -> int:
    return max(1, _CHUNK_BYTES // (4 * dim))


def _chunks(rows: Float32) -> Iterator[slice]:
    step = _rows_together(rows.shape[1])
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))


def _full(rows: Float32 | QuantisedRows) -> Float32:
    if isinstance(rows, QuantisedRows):
        raise ModelFileError(
            "the model is quantised already: quantise the .bin that it was made from"
        )
    return rows


def _used_grams(model: BinModel) -> Counts:
    """Return the n-gram rows of all words, rising, counted from 0."""
    header, n = model.header, len(model.words)
    if not header.bucket or header.grams[1] == 0:
        return np.empty(0, np.int64)
    is_used = np.zeros(header.bucket, np.bool_)
    for start in range(0, n, SAMPLE):
        words = model.words[start : start + SAMPLE]
        _, ids = subwords_csr(words, *header.grams, header.bucket)
        is_used[ids[ids >= len(words)] - len(words)] = True
    return np.flatnonzero(is_used)


def _with_rows(model: BinModel, rows: Float32, order: Counts) -> BinModel:
    """Return the model with only these input rows, which rise: words, then n-grams."""
    first = len(model.words)
    words, grams = order[order < first], order[order >= first] - first
    buckets = grams
    if model.pruned is not None:  # whose rows have the buckets of its pairs
        pairs = model.pruned.pairs
        buckets = pairs[np.argsort(pairs[:, 1]), 0][grams]
    pairs = np.stack((buckets, np.arange(len(grams))), axis=1).astype(np.int32)
    return replace(
        model,
        words=PackedWords.of(model.words).take(words),
        counts=model.counts[words],
        input=rows[order],
        pruned=KeptGrams(pairs),
    )
