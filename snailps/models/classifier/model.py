"""fastText's supervised mode: labels for lines of text, from the mean of their words' vectors.

    survey: words, labels -> counts -> two vocabularies      (once, merged at the master)
    prepare: bytes -> features and labels -> keys -> PULL    (next block, beside the training)
    train: kept rows -> kernel threads -> deltas -> PUSH, exchanged with other workers'
    export: tables -> .bin, which the official fasttext package loads

Owns which rows a block needs; `kernels.train_labels` computes, `data._labelled` reads features.
Keys: word i is key i of table "input", hash bucket b (of n-grams of words and characters) is key
``BUCKET_KEY + b``; label k is key k of table "output".
After A. Joulin et al., "Bag of tricks for efficient text classification", EACL 2017.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.passes import EPOCHS, Passes
from snailps.api.tables import Table
from snailps.api.worker import Block, Pending, Results
from snailps.config import JobSettings
from snailps.data._labelled import LineReader, Lines, number_rows
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order
from snailps.data._text import WordCounter
from snailps.data.reading import Reading
from snailps.data.vocabulary import Vocabulary
from snailps.models.classifier import warm_start
from snailps.models.classifier.curvature import Curvature
from snailps.models.classifier.passes import (
    STEPS,
    STEPS_GRAMS,
    enough_epochs,
    is_small,
    lines_in,
)
from snailps.models.classifier.settings import LR, ClassifierSettings
from snailps.models.local_sgd import Contention, Copies, Floats, Keys, LocalSgd, RowLayout
from snailps.models.ngram_rows import chosen, surveyed, with_rows
from snailps.models.shared_rows import KeptRows, SharedRows, of_curvature
from snailps.models.text_model import BUCKET_KEY, TextModel, key_ranges
from snailps.vectors import BinHeader, write_bin
from snailps.vectors.fasttext_bin import bin_bytes
from snailps.vectors.label_prediction import warn_of_unread

Ints = NDArray[np.int32]

NOISE_POWER = 0.5
"""fastText draws negatives by the square root of a label's count."""
LOSSES = {"softmax": 0, "ova": 1, "ns": 2}
"""Numbers of the losses in `kernels.train_labels`."""
PLACES_MAX = 1 << 26
"""Features that a table of places is kept for, at most; 4 bytes each."""
SEEN_BYTES_MAX = 128 << 20
"""Memory of blocks whose places are kept for later epochs; the first blocks get it."""
CURVATURE = 2.0
"""Curvature of the loss in an input row, a gradient, where copies are trained (ssp, bsp)."""
ROUND_BLOCKS = 10
"""Blocks of a round of one of several workers, at most."""
ROUND_GROWTH = 8
"""A round is at most 1 / ROUND_GROWTH of a worker's blocks so far."""
ROUND_TOKENS_ALONE = 16_000_000
"""Tokens between pushes of an only worker: about two seconds' work, lost with it."""
ROUNDS_ALONE = 2
"""Rounds of an only worker's training, at least."""
STEPS_MIN = (0.4, 4.0)
"""`SharedRows.steps_min` of words and labels; a word's step is 1 / the length of its line."""
GROWTH = (1 / 8, 1 / 256)
"""`SharedRows.growth` of words and labels."""
SAMPLE = 1 << 18
"""Features of a block whose steps are counted, at most."""
EXCHANGE_LINES = 64
"""Lines between exchanges of label rows with ssp; docs/classifier.md has the accuracies."""


def _shuffled(lines: Lines, seed: int) -> Lines:
    order = drawn_order(seed, len(lines.label_ptr) - 1)
    return lines._replace(
        feature_ptr=pointers_in_order(lines.feature_ptr, order),
        features=entries_in_order(lines.features, lines.feature_ptr, order),
        label_ptr=pointers_in_order(lines.label_ptr, order),
        labels=entries_in_order(lines.labels, lines.label_ptr, order),
    )


def _label_keys(labels: Ints) -> Keys:
    return labels.astype(np.uint64)


def pack_summary(words: Vocabulary, labels: Vocabulary) -> bytes:
    first = words.to_bytes()
    return len(first).to_bytes(8, "little") + first + labels.to_bytes()


def unpack_summary(summary: bytes) -> tuple[Vocabulary, Vocabulary]:
    size = 8 + int.from_bytes(summary[:8], "little")
    return Vocabulary.from_bytes(summary[8:size]), Vocabulary.from_bytes(summary[size:])


class _Seen(NamedTuple):
    """A block as read, for later epochs; `used` are ids, or places of kept rows."""

    lines: Lines
    used: Ints
    numbering: int | None

    @property
    def nbytes(self) -> int:
        return int(self.lines.features.nbytes + self.used.nbytes + self.lines.feature_ptr.nbytes)


class _Examples(NamedTuple):
    """Lines and negatives of a block, with places of features and labels in arrays of rows."""

    lines: Lines
    noise: Ints


@dataclass(slots=True)
class _Batch:
    """A prepared block; `examples` have places among its keys or, with `kept`, kept rows."""

    examples: _Examples
    input_keys: Keys
    output_keys: Keys
    copies: Copies | None = None
    kept: tuple[KeptRows, KeptRows] | None = None
    label_places: Ints | None = None


def _unpack(results: Results) -> tuple[ClassifierSettings, Vocabulary, Vocabulary]:
    assert isinstance(results.settings, ClassifierSettings)
    s, summary = surveyed(results.settings.decided(small=False), results.summary)
    return s, *unpack_summary(summary)


class Classifier(TextModel):
    """fastText's supervised mode as a parameter-server model; see the module's docstring."""

    completed: ClassVar[tuple[str, ...]] = ("minn", "maxn", "lr")
    Settings = ClassifierSettings
    settings: ClassifierSettings
    unit: ClassVar[Literal["line", "word"]] = "line"

    def tables(self) -> Sequence[Table]:
        """Input rows start at +-1/dim, label rows at zero, as fastText's."""
        s = self.settings
        return (
            Table("input", s.dim, init="uniform", scale=1.0 / s.dim, seed=s.seed, wire=s.wire),
            Table("output", s.dim, wire=s.wire),
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "classifier"

    @classmethod
    def summarize(cls, settings: JobSettings, counter: WordCounter) -> bytes:
        assert isinstance(settings, ClassifierSettings)
        s, prefix = settings.decided(small=False), settings.label.encode()
        warn_of_unread(counter.unread, "the input")
        if s.continue_from:
            words, labels = warm_start.count_on(s, counter)
        else:
            labels = Vocabulary.labels_from_counter(counter, s.min_count_label, prefix)
            words = Vocabulary.from_counter(counter, s.min_count, label_prefix=prefix)
        summary = pack_summary(words, labels)
        if not s.has_ngrams:
            return summary
        places = counter.tokens * (s.word_ngrams - 1)
        return with_rows(summary, chosen(s, words.words, places))

    @classmethod
    def reading(cls, settings: JobSettings) -> Reading:
        assert isinstance(settings, ClassifierSettings)
        return Reading(
            "text",
            column=settings.column,
            label_column=settings.label_column,
            label_prefix=settings.label,
        )

    @classmethod
    def adopt(cls, settings: JobSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Take shape and loss from `continue_from`; else the text's length decides ``auto``."""
        assert isinstance(settings, ClassifierSettings)
        if settings.continue_from:
            return warm_start.adopt(settings, explicit).decided(small=False)
        return settings.decided(small=is_small(settings.input)) if settings.input else settings

    @classmethod
    def shuffles(cls, settings: JobSettings) -> bool:
        assert isinstance(settings, ClassifierSettings)
        return settings.shuffle

    @classmethod
    def passes(cls, settings: JobSettings, total_bytes: int) -> Passes:
        """Small texts get the epochs that their lines need, unless a model is continued."""
        assert isinstance(settings, ClassifierSettings)
        epochs = EPOCHS
        if not settings.continue_from:
            steps = STEPS_GRAMS if settings.maxn > 0 else STEPS
            lines = lines_in(settings.input, total_bytes)
            epochs = enough_epochs(lines, settings.lr or LR, steps)
        return Passes(epochs, epochs)

    @classmethod
    def loader(cls, settings: JobSettings) -> Callable[[Results], None] | None:
        assert isinstance(settings, ClassifierSettings)
        if not settings.continue_from:
            return None
        return lambda results: warm_start.put_model(results, *_unpack(results))

    # --- at a worker -------------------------------------------------------------------------

    def setup(self) -> None:
        self.settings, summary = surveyed(self.settings.decided(small=False), self.summary)
        s, (words, labels) = self.settings, unpack_summary(summary)
        self._words, self._labels = len(words), len(labels)
        self._reader = LineReader(
            words.words,
            labels.words,
            label_prefix=s.label.encode(),
            word_ngrams=s.word_ngrams,
            minn=s.minn,
            maxn=s.maxn,
            bucket=s.bucket,
        )
        self._noise_sum = np.cumsum(labels.noise(NOISE_POWER))
        space = self._reader.space
        self._places = np.full(space, -1, np.int32) if space <= PLACES_MAX else None
        self._seen: dict[tuple[str, int, int], _Seen] = {}
        self._seen_bytes = 0
        self.sgd = LocalSgd(self, RowLayout.padded(s.dim))
        self._shared: tuple[SharedRows, SharedRows] | None = None
        self._trained = self._closed = 0  # blocks of this round, and of the one before
        if s.consistency == "async":
            self._motions = of_curvature(s.dim), of_curvature(s.dim)
            inputs, outputs = (
                SharedRows(
                    self.sgd,
                    table.name,
                    motion,
                    steps_min=steps_min,
                    growth=growth,
                    pulls_bases=True,
                    fill_first=table.fill_first,
                )
                for table, motion, steps_min, growth in zip(
                    self.tables(), self._motions, STEPS_MIN, GROWTH, strict=True
                )
            )
            self._shared = inputs, outputs
            self._curvature = Curvature(s.loss, s.dim)
            self._blocks = 0

    def _input_keys(self, features: Ints) -> Keys:
        keys = features.astype(np.uint64)
        keys[features >= self._words] += np.uint64(BUCKET_KEY - self._words)
        return keys

    def prepare(self, block: Block) -> _Batch | Lines:
        seen = self._read(block)
        lines = seen.lines
        if len(lines.features) == 0 or len(lines.labels) == 0:
            return lines
        label_ids, labels, noise = self._outputs(lines, block.seed)
        if self._shared is not None:
            return self._place(block, seen, label_ids, labels, noise)
        input_keys = self._input_keys(seen.used)
        examples = _Examples(self._ordered(lines._replace(labels=labels), block.seed), noise)
        batch = _Batch(examples, input_keys, _label_keys(label_ids))
        batch.copies = self.sgd.pull({"input": input_keys})
        return batch

    def _ordered(self, lines: Lines, seed: int) -> Lines:
        return _shuffled(lines, seed) if self.settings.shuffle else lines

    def _place(
        self, block: Block, seen: _Seen, label_ids: Ints, labels: Ints, noise: Ints
    ) -> _Batch:
        """Make the batch of a block with kept rows, and keep the block with its places."""
        assert self._shared is not None
        of_input, of_output = self._shared
        if self._blocks == 0 and not (block.first and self.loader(self.settings) is None):
            for shared in self._shared:
                shared.begin_known()
        lines = seen.lines
        found = None
        if seen.numbering is not None:
            found = of_input.find_again(seen.numbering, seen.used)
            if found is None:  # evicted
                self._forget(block)
                seen = self._read(block)
                lines = seen.lines
        if found is None:
            found = of_input.find(self._input_keys(seen.used))
        label_found = of_output.find(_label_keys(label_ids))
        part = self._round_part(block, lines.tokens)
        inputs, outputs = of_input.ask([found], part), of_output.ask([label_found], part)
        if seen.numbering is None:
            lines = lines._replace(features=found.places[lines.features])
            self._keep(block, _Seen(lines, found.places, of_input.numbering))
        label_at = label_found.places
        return _Batch(
            _Examples(
                self._ordered(lines._replace(labels=label_at[labels]), block.seed),
                label_at[noise],
            ),
            found.keys,
            label_found.keys,
            kept=(inputs, outputs),
            label_places=label_at,
        )

    def _round_part(self, block: Block, tokens: int) -> float:
        """Part of a round that the next block is; the first rounds of several workers are short."""
        self._blocks += 1
        if self.workers == 1:
            before, after = block.progress
            return max((after - before) * ROUNDS_ALONE, tokens / ROUND_TOKENS_ALONE)
        return max(1 / ROUND_BLOCKS, ROUND_GROWTH / self._blocks)

    def train(self, block: Block) -> Mapping[str, float]:
        batch: _Batch | Lines = block.prepared
        if self._shared is not None:
            self._trained += 1
        rates = [self.settings.lr * (1.0 - share) for share in block.progress]
        if isinstance(batch, Lines):  # nothing to learn from
            return {"units": float(batch.tokens), "lr": rates[1]}
        lines = batch.examples.lines
        if batch.kept is not None:
            loss, examples = self._train_kept(batch, batch.kept, rates, block.seed)
        else:
            assert batch.copies is not None
            ((inputs,),) = self.sgd.load(batch.copies).values()
            # Within a step of bsp rows stay as they are, however often they are pulled.
            exchanging = block.clock < 0
            loss, examples = self._train_exchanging(
                batch, inputs, rates, block.seed, exchanging=exchanging
            )
            own = self._steps(lines, len(batch.input_keys))
            others = own * np.float32(self.workers - 1)
            contention = Contention(own, others, rates[0] * CURVATURE)
            self.sgd.push(batch.copies, lambda _table, _trained, deltas: contention.scale(deltas))
        return {
            "units": float(lines.tokens),
            "lr": rates[1],
            "loss": loss,
            "examples": float(examples),
        }

    def workers_changed(self) -> None:
        for shared in self._shared or ():
            shared.workers = self.workers

    @property
    def owes(self) -> int:
        """Blocks of this round, and of the last one while some of its rows are not pushed."""
        sends = any(shared.sends for shared in self._shared or ())
        return self._trained + self._closed * sends

    def finish(self) -> None:
        for shared in self._shared or ():
            shared.flush()
        self._shared = None  # the rows are the largest thing here, and the export follows
        self._seen.clear()
        super().finish()

    def _train_kept(
        self,
        batch: _Batch,
        kept: tuple[KeptRows, KeptRows],
        rates: Sequence[float],
        seed: int,
    ) -> tuple[float, int]:
        """Train a block on kept rows, with exchanges between spans; loss, lines."""
        assert self._shared is not None
        of_input, of_output = self._shared
        inputs, outputs = of_input.ready(kept[0]), of_output.ready(kept[1])
        line_num = len(batch.examples.lines.label_ptr) - 1
        if self.workers > 1:
            self._begin(batch, inputs, outputs, rates[0])
        loss, examples, first = 0.0, 0, 0
        while first < line_num:
            last = min(line_num, first + min(of_input.span(), of_output.span()))
            span_rates = np.interp((first, last), (0, line_num), rates).tolist()
            if self.workers > 1:
                self._curvature.begin_span(outputs)
            done = self._train_lines(
                batch.examples, inputs, outputs, (first, last), span_rates, seed
            )
            loss, examples = loss + done[0], examples + done[1]
            if self.workers > 1:
                if self._curvature.trained(last - first):
                    lines = batch.examples.lines
                    self._curvature.measure(
                        inputs, outputs, lines.feature_ptr[first:], lines.features
                    )
                self._set_steps(outputs, span_rates[1])
            for shared in self._shared:
                shared.exchange(last - first)
            first = last
        # With one thread a seed gives the same bits each time: no row is read while it is trained.
        later = self.threads > 1
        for shared, rows in zip(self._shared, kept, strict=True):
            if rows.closes:
                shared.close_round(later=later)
        if kept[0].closes:
            self._closed, self._trained = self._trained, 0
        return loss, examples

    def _begin(self, batch: _Batch, inputs: Floats, outputs: Floats, rate: float) -> None:
        """Measure the loss's curvature and count steps on rows in a block's first lines."""
        assert self._shared is not None
        assert batch.label_places is not None
        of_input, of_output = self._shared
        lines, noise = batch.examples
        line_num = len(lines.label_ptr) - 1
        met = np.concatenate((lines.labels, noise)) if len(noise) else lines.labels
        self._curvature.begin(met, line_num, len(outputs))
        self._curvature.measure(inputs, outputs, lines.feature_ptr, lines.features)
        self._curvature.begin_span(outputs)
        self._set_steps(outputs, rate)
        some = max(1, min(line_num, line_num * SAMPLE // max(1, len(lines.features))))
        share = some / line_num
        lengths = np.diff(lines.feature_ptr[: some + 1])
        weights = np.repeat(1 / np.maximum(lengths, 1), lengths).astype(np.float32)
        of_input.saw(lines.features[: len(weights)], some, share, weights)
        if self.settings.loss == "ns":
            counted = lines.labels[: lines.label_ptr[some]], noise[: int(len(noise) * share)]
            of_output.saw(np.concatenate(counted), some, share)
        else:
            every = np.full(len(batch.label_places), some, np.float32)
            of_output.saw(batch.label_places, some, share, every)

    def _set_steps(self, outputs: Floats, rate: float) -> None:
        of_rows, of_labels = self._motions
        of_rows.a_step, of_labels.a_step = self._curvature.steps(rate, outputs, self.workers - 1)

    def _train_exchanging(
        self,
        batch: _Batch,
        inputs: Floats,
        rates: Sequence[float],
        seed: int,
        *,
        exchanging: bool = True,
    ) -> tuple[float, int]:
        """Train a block; push and pull its label rows every few lines, or once if not `exchanging`.

        A push starts when the previous one is done, so a pull lacks at most the last one.  Pulls
        overtake deltas of the previous block's input rows.
        """
        loss, examples = 0.0, 0
        push: Pending | None = None
        line_num = len(batch.examples.lines.label_ptr) - 1
        edges = [0, line_num]
        if exchanging:
            edges = self._exchanges(line_num, len(batch.output_keys))
        rate_at = np.interp(edges, (0, edges[-1]), rates).tolist()
        for at, lines in enumerate(itertools.pairwise(edges)):
            pull = self.pull_async("output", batch.output_keys, ahead=True)
            base = pull.wait()
            if push is not None:
                self.correct(pull, push)
            outputs = kernels.padded(*base.shape)
            kernels.copy_rows(base, outputs)
            span_rates = rate_at[at : at + 2]
            done = self._train_lines(batch.examples, inputs, outputs, lines, span_rates, seed)
            loss, examples = loss + done[0], examples + done[1]
            if push is not None:
                push.wait()
            delta = outputs[:, : base.shape[1]] - base
            push = self.push_async("output", batch.output_keys, delta)
        if push is not None:
            push.wait()
        return loss, examples

    def _exchanges(self, line_num: int, output_num: int) -> list[int]:
        """Lines at which label rows are pushed and pulled again."""
        lines = EXCHANGE_LINES
        if self.settings.loss == "ns":  # few rows a line: not before most of them were touched
            lines = max(lines, output_num // (1 + self.settings.negatives))
        pieces = max(1, line_num // lines)
        return [line_num * at // pieces for at in range(pieces + 1)]

    def _train_lines(
        self,
        examples: _Examples,
        inputs: Floats,
        outputs: Floats,
        span: tuple[int, int],
        rates: Sequence[float],
        seed: int,
    ) -> tuple[float, int]:
        """Train lines from `span[0]` to before `span[1]` with all threads; loss, lines."""
        s = self.settings
        lines, noise = examples
        first, last = span
        # Parts of about as many features; all run at once, so each has the rates of the span.
        ptr = lines.feature_ptr
        wanted = np.linspace(float(ptr[first]), float(ptr[last]), self.threads + 1)[1:-1]
        inner = np.clip(np.searchsorted(ptr, wanted), first, last)
        edges = sorted({first, *inner.tolist(), last})
        tasks = [
            self.sgd.pool.submit(
                kernels.train_labels,
                inputs,
                outputs,
                s.dim,
                lines.feature_ptr,
                lines.features,
                lines.label_ptr,
                lines.labels,
                noise,
                loss=LOSSES[s.loss],
                negatives=s.negatives if len(noise) else 0,
                shared=len(edges) > 2,
                lr_start=rates[0],
                lr_stop=rates[1],
                seed=(seed + begin) & ((1 << 64) - 1),
                first=begin,
                last=end,
            )
            for begin, end in itertools.pairwise(edges)
        ]
        for task, shared in itertools.product(tasks, self._shared or ()):
            while not task.done() and shared.send_some():
                pass  # what the last round has left
        results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(count for _, count in results)

    def _read(self, block: Block) -> _Seen:
        name = (block.path, block.start, block.stop)
        if name in self._seen:
            return self._seen[name]
        lines = self._reader.read(block.data)
        if self._places is not None:
            used, rows = number_rows(lines.features, self._places), lines.features
        else:
            used, places = np.unique(lines.features, return_inverse=True)
            rows = places.astype(np.int32)
        seen = _Seen(lines._replace(features=rows), used, None)
        if self._shared is None:
            self._keep(block, seen)
        return seen

    def _keep(self, block: Block, seen: _Seen) -> None:
        if self._seen_bytes + seen.nbytes <= SEEN_BYTES_MAX:
            self._seen_bytes += seen.nbytes
            self._seen[block.path, block.start, block.stop] = seen

    def _forget(self, block: Block) -> None:
        self._seen_bytes -= self._seen.pop((block.path, block.start, block.stop)).nbytes

    def _outputs(self, lines: Lines, seed: int) -> tuple[Ints, Ints, Ints]:
        """Labels whose rows a block needs, its labels as places among them, and its negatives."""
        none = np.zeros(0, np.int32)
        if self.settings.loss != "ns":
            return np.arange(self._labels, dtype=np.int32), lines.labels, none
        if self._labels > 1:
            rng = np.random.default_rng(seed)
            draws = self.settings.negatives * (len(lines.label_ptr) - 1)
            at = np.searchsorted(self._noise_sum, rng.random(draws) * self._noise_sum[-1])
            none = at.astype(np.int32)
        used, places = np.unique(np.concatenate((lines.labels, none)), return_inverse=True)
        places = places.astype(np.int32)
        own = len(lines.labels)
        return used.astype(np.int32), places[:own].copy(), places[own:].copy()

    @staticmethod
    def _steps(lines: Lines, input_num: int) -> Floats:
        """Estimated gradients of each input row; a line's is divided by its length."""
        lengths = np.diff(lines.feature_ptr)
        share = np.repeat(1 / np.maximum(lengths, 1), lengths)
        return np.bincount(lines.features, share, input_num).astype(np.float32)

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        return (f"{settings.output}.bin",)

    @classmethod
    def file_sizes(cls, settings: JobSettings, summary: bytes) -> Mapping[str, int]:
        assert isinstance(settings, ClassifierSettings)
        s, rest = surveyed(settings, summary)
        words, labels = unpack_summary(rest)
        rows = len(words) + len(labels) + s.buckets
        return {f"{s.output}.bin": bin_bytes([words.words, labels.words], rows, s.dim)}

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the .bin; rows are pulled in pieces."""
        s, words, labels = _unpack(results)
        header = BinHeader(
            dim=s.dim,
            bucket=s.buckets,
            minn=s.minn if s.maxn else 0,
            maxn=s.maxn,
            epochs=s.epochs,
            min_count=s.min_count,
            negatives=s.negatives,
            word_ngrams=s.word_ngrams,
            loss=s.loss,
            model="supervised",
            tokens=words.tokens,
        )
        path = f"{s.output}.bin"
        progress, what = results.exporting, f"writing {path}"
        progress.plan([len(words) + s.buckets, len(labels)])
        inputs = key_ranges(results, "input", (0, len(words)), (BUCKET_KEY, s.buckets))
        outputs = key_ranges(results, "output", (0, len(labels)))
        write_bin(
            path,
            header,
            words.words,
            words.counts,
            progress.count(what, len(words) + s.buckets, "rows", inputs),
            progress.count(what, len(labels), "rows", outputs),
            labels.words,
            labels.counts,
        )
        return {"files": [path], "vocabulary": len(words), "labels": len(labels)}
