"""fastText's supervised mode: predicts labels of lines of text from the mean of their word vectors.

    survey: words, labels -> counts -> two vocabularies      (once, merged at the master)
    prepare: bytes -> features and labels -> keys -> PULL    (next block, beside the training)
    train: kept rows -> kernel threads -> deltas -> PUSH, exchanged with other workers'
    export: tables -> .bin, which the official fasttext package loads

Owns which rows a block needs, and how long push periods are; `kernels.train_labels` computes,
`data._labelled` reads features.  Keys: word i is key i of table "input", hash bucket b (of n-grams
of words and characters) is key ``BUCKET_KEY + b``; label k is key k of table "output".
After A. Joulin et al., "Bag of tricks for efficient text classification", EACL 2017.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.api.concurrency import COUNTED_FOR, Concurrency
from snailps.api.passes import EPOCHS, Passes
from snailps.api.tables import Table
from snailps.api.traits import Adopted, Reported, SurveyPart
from snailps.api.validation import Validation
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.data._key_numbering import WordNumbers, renumber
from snailps.data._labelled import Lines, without_weights
from snailps.data._text import WordCounter
from snailps.data.label_words import like_weights
from snailps.data.vocabulary import Vocabulary
from snailps.errors import DataError, shown_bytes
from snailps.files.input_files import InputFiles
from snailps.files.reading import Reading
from snailps.models.block_trainer import Prepared, Rates, Span, Sums
from snailps.models.classifier import held_out, warm_start
from snailps.models.classifier.curvature import Curvature
from snailps.models.classifier.held_out import split_of
from snailps.models.classifier.lines import LineSteps, begin, stepped
from snailps.models.classifier.outputs import Outputs, output_rows
from snailps.models.classifier.passes import (
    STEPS,
    STEPS_GRAMS,
    epochs_of,
    has_one_label,
    is_small,
)
from snailps.models.classifier.settings import LR, ClassifierSettings
from snailps.models.classifier.weights import (
    LabelSums,
    WeighedPart,
    WeighedSurveyor,
    counts_in,
    factors_in,
    factors_of,
    weighed,
    weights_of_lines,
    with_counts,
    with_factors,
)
from snailps.models.copied_rows import CopiedRows
from snailps.models.exchange_times import ExchangeRule
from snailps.models.kept_rows import KeptRows, of_curvature
from snailps.models.local_sgd import Contention, Floats, LocalSgd, RowLayout
from snailps.models.ngram_rows import AUTO, chosen, surveyed, with_rows
from snailps.models.pace import Pace, of_workers
from snailps.models.pretrained import counted
from snailps.models.rows import Scale, Trained
from snailps.models.seen_blocks import SeenBlocks
from snailps.models.stopping import decided_by
from snailps.models.text_model import (
    TextModel,
    WordPart,
    WordSurveyor,
    bucket_keys,
    normal_form_of,
    write_model,
)
from snailps.vectors.calibration import path_beside
from snailps.vectors.fasttext_bin import bin_bytes
from snailps.vectors.label_prediction import warn_of_unread

log = logging.getLogger(__name__)

Ints = NDArray[np.int32]

PLACES_MAX = 1 << 26
"""Most features for which a table of places is kept, of 4 bytes each."""
CURVATURE = 2.0
"""Curvature of the loss along an input row per gradient; for jobs that train copies (ssp, bsp)."""
PERIOD_PART = 0.25
"""With several workers: largest part of a worker's share of an epoch in one push period."""
PERIOD_GROWTH = 8
"""A period is at most 1 / PERIOD_GROWTH of the worker's blocks so far."""
PERIOD_TOKENS = 16_000_000
"""Most tokens of a period: two to four seconds of a core, lost with a worker that dies."""
PERIOD_TOKENS_ALONE = 2 * PERIOD_TOKENS
"""The same of a single worker, which pushes nearly all of its rows in each period."""
TOKEN_FEATURES, TOKEN_LABELS, TOKEN_DIM = 6, 12, 100
"""Features of a token, steps on rows of labels for each, and floats of a row, beyond which the
token counts as several."""
STEPS_MIN = (0.4, 4.0)
"""`ExchangeRule.steps_min` of words and labels; a word's step is 1 / the length of its line."""
RARE_STEPS = (0.1, 0.0)
"""`ExchangeRule.rare_steps` of words and labels.  0 with n-grams: nearly all of them are rare, and
together they decide many labels."""
SAID_BYTES = 100_000_000
"""Size of a model file from which a job logs what would make it smaller."""
SMALL_DIM = 25
GROWTH = (1 / 8, 1 / 256)
"""`ExchangeRule.growth` of words and labels."""
GROWTH_OF_ALL = 0.08
"""`ExchangeRule.growth_of_all` of both."""
SAMPLE = 1 << 18
"""Most features of a block whose steps are counted."""
EXCHANGE_LINES = 64
"""Lines between exchanges of label rows with ssp; docs/classifier.md has the accuracies."""


def pack_summary(words: Vocabulary, labels: Vocabulary) -> bytes:
    first = words.to_bytes()
    return len(first).to_bytes(8, "little") + first + labels.to_bytes()


def unpack_summary(summary: bytes) -> tuple[Vocabulary, Vocabulary]:
    _, summary = factors_in(summary)
    _, summary = counts_in(summary)
    size = 8 + int.from_bytes(summary[:8], "little")
    return Vocabulary.from_bytes(summary[8:size]), Vocabulary.from_bytes(summary[size:])


def part_of(s: ClassifierSettings, text_of: Callable[[Block], bytes]) -> WordPart:
    """A worker's part of the survey, of texts without the lines that are not trained."""
    if not s.sums_labels:
        return WordPart(text_of)
    shares = s.loss != "ova"
    return WeighedPart(s.label.encode(), text_of, weighed=s.has_weights, shares=shares)


class _Seen(NamedTuple):
    """A parsed block: its features are places in `used`, which are ids; or, where rows are kept,
    both are places of kept rows.
    """

    lines: Lines
    used: Ints


class _BlockLines(NamedTuple):
    """Lines of a block and their output rows, by places of rows."""

    lines: Lines
    outputs: Outputs


def _unpack(results: Results) -> tuple[ClassifierSettings, Vocabulary, Vocabulary]:
    assert isinstance(results.settings, ClassifierSettings)
    s, summary = surveyed(results.settings.decided(small=False), results.summary)
    return s, *unpack_summary(summary)


def surveyor_of(settings: ClassifierSettings, summarize: Callable[..., bytes]) -> WordSurveyor:
    """What counts words and labels, and the labels' weights where these decide anything."""
    return WeighedSurveyor(summarize) if settings.sums_labels else WordSurveyor(summarize)


def _warn_of_weights(s: ClassifierSettings, labels: Vocabulary) -> None:
    """Warn of labels that were probably meant as weights. Labels of a column have none."""
    if s.has_weights or s.label_column:
        return
    known = {*labels.words}
    if weights := like_weights(known, known, s.label.encode()):
        log.warning(
            "%d of %d labels look like weights, such as %s: soft_labels: true (--soft-labels true) "
            "reads them as weights of labels and lines; they are labels now",
            len(weights), len(known), shown_bytes(min(weights)),
        )  # fmt: skip


def _say_how_to_shrink(s: ClassifierSettings, summary: bytes) -> None:
    """Log what a large model file consists of, and the settings that make it smaller."""

    def size(**others: Any) -> int:
        (file_bytes,) = Classifier.file_sizes(replace(s, **others), summary).values()
        return file_bytes

    rows = surveyed(s, summary)[0].bucket
    whole, shown = size(), f"{rows:,} rows of n-grams, {s.dim} numbers each"
    if whole < SAID_BYTES or 4 * s.dim * rows < whole / 2:
        return
    ways = {f"bucket={rows // 10}": size(bucket=rows // 10)}
    if s.dim > SMALL_DIM:
        ways[f"dim={SMALL_DIM}"] = size(dim=SMALL_DIM)
    if s.word_ngrams == 1:
        ways["maxn=0"] = size(maxn=0, minn=0)
    log.warning(
        "%s.bin will have %.0f MB, most of it %s; it would have %s",
        s.output, whole / 1e6, shown,
        ", ".join(f"{made / 1e6:,.0f} MB with {way}" for way, made in ways.items()),
    )  # fmt: skip


LINES_A_WORKER = 400
"""Lines of an epoch that each worker needs: with 100 each, eight have .05 to .18 less precision."""


class Classifier(TextModel, Adopted, Reported):
    """fastText's supervised mode as a parameter-server model; see the module's docstring."""

    completed: ClassVar[tuple[str, ...]] = ("minn", "maxn", "lr")
    Settings = ClassifierSettings
    settings: ClassifierSettings
    unit: ClassVar[Literal["line", "word"]] = "line"

    @classmethod
    def pace(cls, settings: Any, workers: int) -> Pace:
        """Blocks and periods; copied rows grow as old as a block, so blocks are smaller there."""
        if not steps_of(settings).rows_may_stay:
            return of_workers(workers, *cls.paces)
        part = PERIOD_PART / (workers * settings.epochs)
        alone = replace(cls.paces[0], period_examples=PERIOD_TOKENS_ALONE)
        several = replace(
            alone,
            period_part=part,
            period_examples=PERIOD_TOKENS,
            period_growth=PERIOD_GROWTH,
        )
        return of_workers(workers, alone, several)

    def tables(self) -> Sequence[Table]:
        """Input rows start within +-1/dim, label rows at zero, like fastText's."""
        s = self.settings
        return (
            Table("input", s.dim, init="uniform", scale=1.0 / s.dim, seed=s.seed, wire=s.wire),
            Table("output", s.dim, wire=s.wire),
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "classifier"

    @classmethod
    def surveyor(cls, settings: Any) -> WordSurveyor:
        def summarize(*counts: Any) -> bytes:
            summary = cls.summarize(settings, *counts)
            s, rest = surveyed(settings.decided(small=False), summary)
            held_out.check_tested(s, *unpack_summary(rest))
            return summary

        return surveyor_of(settings, summarize)

    @classmethod
    def summarize(
        cls, settings: ClassifierSettings, counter: WordCounter, sums: LabelSums | None = None
    ) -> bytes:
        s, prefix = settings.decided(small=False), settings.label.encode()
        warn_of_unread(counter.unread, "the input")
        if s.held_out and not counter.tokens:
            raise DataError(
                f"held_out: expected lines that are trained, got none: {s.held_out:g} of the "
                "input's lines are held out. Hold out fewer, or give more lines"
            )
        if s.continue_from:
            words, labels = warm_start.count_on(s, counter)
        else:
            labels = Vocabulary.labels_from_counter(counter, s.min_count_label, prefix)
            words = Vocabulary.from_counter(counter, s.min_count, label_prefix=prefix)
        if sums is not None and not sums.of(labels.words).any():
            raise DataError(
                "expected a weight above 0 of a text or a label, got 0 for all: nothing would be "
                "learnt"
            )
        of_text = words.words  # n-grams that only words of a file of vectors have are not trained
        if s.pretrained:
            words = words.extended(counted(s), 1, label_prefix=prefix)
        if len(labels) == 1:
            log.warning(
                "all labelled lines have %s: there is no other label to distinguish it from, so "
                "every text will get it. Add lines with other labels%s",
                shown_bytes(labels.words[0]),
                ", or lower min_count_label" * (s.min_count_label > 1),
            )
        _warn_of_weights(s, labels)
        summary = pack_summary(words, labels)
        if s.continue_from and s.loss == "ns":
            summary = with_counts(summary, labels.counts_in(counter))
        if s.class_weights:
            factors = factors_of(s.class_weights, labels, prefix, sums)
            summary = with_factors(summary, factors)
        if not s.has_ngrams:
            return summary
        places = counter.tokens * (s.word_ngrams - 1)
        summary = with_rows(summary, chosen(s, of_text, places))
        if s.output and s.bucket == AUTO and not s.continue_from:
            _say_how_to_shrink(s, summary)
        return summary

    @classmethod
    def reading(cls, settings: ClassifierSettings) -> Reading:
        return held_out.reading_of(settings)

    @classmethod
    def check(cls, settings: Any) -> None:
        super().check(settings)
        held_out.check(settings)

    @classmethod
    def adopt(
        cls, settings: ClassifierSettings, explicit: Callable[[str], str | None]
    ) -> JobSettings:
        """Take the shape and the loss of `continue_from`, or the dimension of `pretrained`."""
        return warm_start.adopt(settings, explicit)

    @classmethod
    def measure(cls, settings: ClassifierSettings, files: InputFiles) -> JobSettings:
        """The number of trained lines decides what is ``auto``."""
        return settings.decided(small=is_small(files, split_of(settings)))

    @classmethod
    def shuffles(cls, settings: ClassifierSettings) -> bool:
        return settings.shuffle

    @classmethod
    def passes(cls, settings: ClassifierSettings, files: InputFiles) -> Passes:
        """Small texts get the epochs that their lines need, unless a model is continued, or there
        is nothing to learn."""
        epochs, split = EPOCHS, split_of(settings)
        if not settings.continue_from:
            steps = STEPS_GRAMS if settings.maxn > 0 else STEPS
            epochs = epochs_of(files, settings.lr or LR, steps, split)
        if epochs > EPOCHS and has_one_label(
            files, settings.label.encode(), has_weights=settings.has_weights, split=split
        ):
            epochs = EPOCHS
        return Passes(epochs, epochs)

    @classmethod
    def workers_at_once(cls, settings: ClassifierSettings, files: InputFiles) -> Concurrency:
        """A worker for every `LINES_A_WORKER` lines."""
        lines = files.trained_lines(COUNTED_FOR * LINES_A_WORKER, split_of(settings))
        return Concurrency.by_size(lines, LINES_A_WORKER, "lines")

    @classmethod
    def loader(cls, settings: ClassifierSettings) -> Callable[[Results], None] | None:
        if settings.continue_from:
            return lambda results: warm_start.put_model(results, *_unpack(results))
        if settings.pretrained:
            return lambda results: warm_start.put_vectors(results, *_unpack(results)[:2])
        return None

    # --- at a worker -------------------------------------------------------------------------

    def survey_part(self) -> SurveyPart:
        s, split = self.settings, split_of(self.settings)
        normal = normal_form_of(s.normalize, s.label.encode())

        def counted(block: Block) -> bytes:
            if s.has_weights and split is not None:  # wrong ones are refused now, not at a test
                without_weights(split.held(block.data), s.label.encode())
            return normal(self._trained_text(block))

        return part_of(s, counted)

    def _trained_text(self, block: Block) -> bytes:
        """The lines of a block that are trained."""
        split = split_of(self.settings)
        return block.data if split is None else split.trained(block.data)

    def setup(self) -> None:
        self.settings, summary = surveyed(self.settings.decided(small=False), self.summary)
        s, (words, labels) = self.settings, unpack_summary(summary)
        self._factors, rest = factors_in(summary)
        of_text, _ = counts_in(rest)
        self._words = len(words)
        self._outputs = output_rows(s.loss, of_text if len(of_text) else labels.counts, s.negatives)
        self._reader = held_out.line_reader(s, words, labels)
        space = self._reader.space
        self._numbers = WordNumbers(space) if space <= PLACES_MAX else None
        self._seen = SeenBlocks[_Seen](s.epochs)
        self.sgd = LocalSgd(self, RowLayout.padded(s.dim))
        # Within a step of bsp rows stay as they are, however often they are pulled.
        apart = None if steps_of(s).are_sums else self._lines_apart
        self.rows = CopiedRows(self.sgd, "input"), CopiedRows(self.sgd, "output", apart=apart)
        self._estimates, self._lead = (of_curvature(s.dim), of_curvature(s.dim)), 1.0
        if steps_of(s).rows_may_stay:
            self._curvature = Curvature(s.loss, s.dim)
            self.rows = tuple(
                KeptRows(
                    self.sgd,
                    table.name,
                    estimate,
                    rule=ExchangeRule(
                        steps_min=steps_min,
                        growth=growth,
                        growth_of_all=GROWTH_OF_ALL,
                        rare_steps=0.0 if s.has_ngrams or s.saves_checkpoints else rare_steps,
                    ),
                    recalls=True,
                    fill_first=table.fill_first,
                )
                for table, estimate, steps_min, rare_steps, growth in zip(
                    self.tables(), self._estimates, STEPS_MIN, RARE_STEPS, GROWTH, strict=True
                )
            )

    def _lines_apart(self, rows: int) -> int:
        """Lines between exchanges of output rows: not before most were touched."""
        return max(EXCHANGE_LINES, int(rows / self._outputs.steps_a_line))

    def prepare(self, block: Block) -> Prepared:
        of_input, of_output = self.rows
        seen = self._seen.find(block, of_input.numbering)
        lines, used = seen or self._read(block)
        metrics = {"units": float(lines.tokens)}
        if len(lines.features) == 0 or len(lines.labels) == 0:
            return Prepared(None, 0, metrics)
        if seen and of_input.keeps:
            found = of_input.find_again(used)
        else:
            found = of_input.find(held_out.input_keys(used, self._words))
        outputs = self._outputs.of(lines, block.seed)
        of_labels = of_output.find(outputs.rows.astype(np.uint64))
        label_steps = (len(lines.label_ptr) - 1) * self._outputs.steps_a_line
        features = len(lines.features)
        work = max(lines.tokens, features / TOKEN_FEATURES, label_steps / TOKEN_LABELS)
        work *= max(1.0, self.settings.dim / TOKEN_DIM)
        asked = self.ask(block, [[found], [of_labels]], round(work))
        if not seen:
            if of_input.keeps:
                renumber(lines.features, found.places)  # now: `ask` has completed the places
                used = found.places
            size = lines.features.nbytes + lines.feature_ptr.nbytes + used.nbytes
            self._seen.keep(block, _Seen(lines, used), size, of_input.numbering)
        outputs = outputs.at(of_labels.places)
        lines = self._ordered(lines._replace(labels=outputs.labels), block.seed)
        examples = _BlockLines(lines, outputs)
        return Prepared(examples, len(lines.label_ptr) - 1, metrics, asked)

    def _ordered(self, lines: Lines, seed: int) -> Lines:
        return stepped(lines, self.settings.loss, shuffle=seed if self.settings.shuffle else None)

    def rates(self, block: Block) -> Rates:
        begin, end = (self.settings.lr * (1.0 - share) for share in block.progress)
        return begin, end

    def finish(self) -> None:
        self._seen.clear()
        super().finish()

    def step(
        self, batch: _BlockLines, rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        (inputs,), (outputs,) = rows
        exchanges = self.rows[0].exchanges
        self.narrow_rows = exchanges  # a single worker gives the same bits each time
        if exchanges:
            self._curvature.begin_span(outputs)
        self._estimates[0].lead = self._lead  # of this span: `exchange` counts its steps by it
        sums = self._train_lines(batch, inputs, outputs, span, rates, seed)
        if exchanges:
            if self._curvature.trained(span[1] - span[0]):
                ptr, features = batch.lines.feature_ptr, batch.lines.features
                self._curvature.measure(inputs, outputs, ptr[span[0] :], features)
                self._set_lead()
            self._set_steps(outputs, rates[1])
        return sums

    def count_steps(self, batch: _BlockLines, rows: Sequence[Trained], rate: float) -> None:
        """Measure the loss's curvature, and count steps on rows, in a block's first lines."""
        of_input, of_output = self.rows
        (inputs,), (outputs,) = rows
        lines, needed = batch
        line_num = len(lines.label_ptr) - 1
        steps = self._outputs.steps(needed, lines, line_num)
        self._curvature.begin(steps, line_num, len(outputs))
        self._curvature.measure(inputs, outputs, lines.feature_ptr, lines.features)
        self._curvature.begin_span(outputs)
        self._set_steps(outputs, rate)
        self._set_lead()
        sampled = max(1, min(line_num, line_num * SAMPLE // max(1, len(lines.features))))
        share = sampled / line_num
        lengths = np.diff(lines.feature_ptr[: sampled + 1])
        of_lines = weights_of_lines(lines, self.settings.loss)
        shares = of_lines[:sampled] / np.maximum(lengths, 1)
        weights = np.repeat(shares, lengths).astype(np.float32)
        of_input.saw(lines.features[: len(weights)], sampled, share, weights)
        steps = self._outputs.steps(needed, lines, sampled)
        if steps is not None:
            of_output.saw(steps, sampled, share)
        else:
            every = np.full(len(needed.rows), of_lines[:sampled].sum(), np.float32)
            of_output.saw(needed.rows, sampled, share, every)

    def scales(
        self, batch: _BlockLines, rows: Sequence[Trained], rate: float
    ) -> Sequence[Scale | None]:
        """Scale the deltas of word rows; deltas of label rows add up as they are."""

        def scale(trained: Trained, deltas: Floats) -> None:
            steps = self._steps(batch.lines, len(deltas), self.settings.loss)
            others = steps * np.float32(self.workers - 1)
            Contention(steps, others, rate * CURVATURE).scale(deltas)

        return scale, None

    def _set_steps(self, outputs: Floats, rate: float) -> None:
        of_rows, of_labels = self._estimates
        of_rows.a_step, of_labels.a_step = self._curvature.steps(rate, outputs, self.workers - 1)

    def _set_lead(self) -> None:
        """Let copies of word rows lead as long as others' steps on them would be steps like these.

        Called when the curvature is measured: a row's push needs the mean since its last exchange.
        """
        self._lead = self._curvature.lead(self._estimates[0].a_step, self.workers)

    def workers_changed(self) -> None:
        self._lead = 1.0  # until it is measured for as many workers
        super().workers_changed()

    def _train_lines(
        self,
        examples: _BlockLines,
        inputs: Floats,
        outputs: Floats,
        span: Span,
        rates: Rates,
        seed: int,
    ) -> Sums:
        s = self.settings
        steps = LineSteps(s.dim, s.loss, s.negatives, rates, seed, self._lead)
        tasks = begin(
            self.sgd.start,
            self.threads,
            (inputs, outputs),
            examples.lines,
            examples.outputs,
            span,
            steps,
        )
        results = self.results_of(tasks)
        return sum(loss for loss, _ in results), sum(count for _, count in results)

    def _read(self, block: Block) -> _Seen:
        lines = self._reader.read(self._trained_text(block))
        if self._numbers is not None:
            used, rows = self._numbers.number_in_place(lines.features), lines.features
        else:
            used, places = np.unique(lines.features, return_inverse=True)
            rows = places.astype(np.int32)
        s = self.settings
        lines = weighed(lines, self._factors, s.loss, are_soft=s.soft_labels)
        return _Seen(lines._replace(features=rows), used)

    @staticmethod
    def _steps(lines: Lines, input_num: int, loss: str) -> Floats:
        """Estimate the gradients of each input row; a line's is its weight over its length."""
        lengths, weights = np.diff(lines.feature_ptr), weights_of_lines(lines, loss)
        share = np.repeat(weights / np.maximum(lengths, 1), lengths)
        return np.bincount(lines.features, share, input_num).astype(np.float32)

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def validation(cls, settings: ClassifierSettings) -> Validation | None:
        if not held_out.has_held_out(settings):
            return None
        by = settings.stop_by
        figures = held_out.figures_for(settings)
        return decided_by(by, figures, cls._test, settings.stop_after)

    @classmethod
    def _test(cls, results: Results) -> Mapping[str, float]:
        """Figures of the held-out lines by the rows of now."""
        s, words, labels = _unpack(results)
        first = not results.memo
        return held_out.figures_of(
            held_out.scored(results, s, words, labels), labels, s, warns=first
        )

    @classmethod
    def result_files(cls, settings: ClassifierSettings) -> Sequence[str]:
        path = f"{settings.output}.bin"
        return (path, str(path_beside(path))) if settings.calibrate else (path,)

    @classmethod
    def file_sizes(cls, settings: ClassifierSettings, summary: bytes) -> Mapping[str, int]:
        s, rest = surveyed(settings, summary)
        words, labels = unpack_summary(rest)
        rows = len(words) + len(labels) + s.buckets
        return {f"{s.output}.bin": bin_bytes([words.words, labels.words], rows, s.dim)}

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the `.bin`, from rows that are pulled in pieces."""
        s, words, labels = _unpack(results)
        path = f"{s.output}.bin"
        header = {"word_ngrams": s.word_ngrams, "loss": s.loss, "prefix": s.prefix_bytes}
        results.exporting.plan([len(words) + s.buckets, len(labels)])
        write_model(
            results, path, words, labels, s.buckets, s, bucket_keys, model="supervised", **header
        )
        figures: dict[str, Any] = {"vocabulary": len(words), "labels": len(labels)}
        if not s.calibrate:
            return {"files": [path], **figures}
        figures |= held_out.calibrated(s, path)
        is_written = figures.get("temperature", 1) != 1 or "shift" in figures
        files = [path, str(path_beside(path))] if is_written else [path]
        return {"files": files, **figures}
