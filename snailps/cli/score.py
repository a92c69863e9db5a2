"""Judgements of models: ``snailps predict``, ``test`` and ``eval``.

    predict: MODEL.bin, text (or standard input) -> rows of line, label, probability
             MODEL.bin, --input FILE...          -> a line of labels a line of the files
             MODEL.npz, file (or standard input) -> a line of numbers an example
             MODEL.npz of kge or mf, lines with a ? -> rows of line, name, score
    test:    MODEL.bin, labelled text -> rows of label, lines, precision, recall
             MODEL.npz, file -> the figures of a training's `test`
    eval:    MODEL, files of word pairs and analogies -> rows of test, score, asked, skipped

Parses and prints; the work is done in `snailps.vectors` and `snailps.estimators`, of which each
command imports its own part.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from snailps.cli.figures import short_seconds_text
from snailps.cli.options import OverwriteOption
from snailps.cli.printing import (
    Cell,
    JsonObjectOption,
    JsonRowsOption,
    live_line,
    print_figures,
    print_json,
    print_rows,
)
from snailps.cli.signals import exits_by_signals
from snailps.data.file_kinds import whole_lines
from snailps.data.reading import format_of
from snailps.data.unpacking import is_packed, open_content, read_errors
from snailps.errors import ConfigError, DataError
from snailps.outward import without_secrets
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.estimators.embeddings import NameEstimator
    from snailps.estimators.sparse import SparseEstimator
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.evaluate import OovRule
    from snailps.vectors.label_files import Format, LabelWriter

_LINES_BYTES = 1 << 16

KOption = Annotated[int, typer.Option("-k", min=-1, help="Most labels a line; -1: all.")]
ThresholdOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Least probability of a label.")
]


def score_predict(
    model: Annotated[
        Path,
        typer.Argument(
            help="A .bin of a classifier, fastText's own too; a .npz of any other model but words'."
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            help="A line of text, for a .npz a file; `-`: lines of standard input.",
            show_default=False,
        ),
    ] = None,
    k: KOption = 1,
    threshold: ThresholdOption = 0.0,
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of TEXT: a file, folder, pattern, URL or `-`, whose lines are labelled, "
            "one line of output each, of tables each row.  May be given several times.",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="With --input: the file for the labels; `-`: standard output.", metavar="FILE"
        ),
    ] = None,
    format: Annotated[
        Literal["tsv", "jsonl", "parquet"],
        typer.Option(help="With --input: how a line of output is written."),
    ] = "tsv",
    column: Annotated[
        str,
        typer.Option(help="With --input: of a table, the column of the texts.", metavar="NAME"),
    ] = "",
    threads: Annotated[int, typer.Option(min=0, help="With --input: threads; 0: one a core.")] = 0,
    overwrite: OverwriteOption = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="With a .npz: print metrics of the predictions instead of the predictions.",
            metavar="",
        ),
    ] = False,
    label_column: Annotated[
        str,
        typer.Option(
            help="With --metrics: the column of a table that has the labels, if it is another "
            "than in training.",
            metavar="NAME",
        ),
    ] = "",
    as_json: JsonRowsOption = False,
) -> None:
    """The best labels of a text, with their probabilities; or predictions for a file of examples.

    With --json: an object a line with line, label, probability, or with the scores of an example.

    For example: snailps predict out/sections.bin "plays chess over the network" -k 3

    Of files, on all cores: snailps predict out/sections.bin --input 'web/*.jsonl.gz' --column text

    There a line has its labels and probabilities, separated by tabs, or `-` for both: `paste` puts
    them beside the input. --format jsonl or parquet: two lists a line.

    In a pipe: number of the line, label, probability, separated by tabs, with all digits; a line
    without a label above the threshold has `-` for both. A line without a known word, even an empty
    one, is judged by its end, as by fastText.

    With a .npz: one line per example with the probability of yes, the value, or the probability of
    each class, separated by tabs, with all digits: read back, they are what Python has. Lines of
    LIBSVM must have labels; only --metrics uses them.

    For example: snailps predict out/clicks.npz test.svm --metrics

    With a .npz of kge or mf: a line per line of the file with its score; for a line with ? as head,
    tail or item the K best names.

    For example: snailps predict out/graph.npz questions.txt -k 5
    """
    if input or output is not None:
        _label_files(model, text, input or [], output, format, column, k, threshold, threads,
                     overwrite, metrics=metrics, as_json=as_json)  # fmt: skip
        return
    if column or threads or overwrite or format != "tsv":
        raise ConfigError("--column, --threads, --format and --overwrite are for --input FILE")
    if text is None:
        raise ConfigError("nothing to label: give a TEXT, or --input FILE for the lines of files")
    if model.suffix == ".npz":
        from snailps.estimators.loading import embedding_of

        if (embeddings := embedding_of(model)) is not None:
            _answer(embeddings, text, k, metrics, as_json)
        else:
            _predict_examples(model, text, metrics, label_column, as_json)
        return
    if metrics:
        raise ConfigError("--metrics is for a .npz; snailps test judges classifiers")
    import numpy as np

    from snailps.vectors.label_prediction import LabelModel

    classifier = LabelModel(model)
    number = 0
    line = text.removesuffix("\n") + "\n"  # also for an empty line
    pieces = _input_lines() if text == "-" else iter([line.encode("utf-8", "surrogateescape")])
    for lines in classifier.predict_pieces(pieces, k, threshold):
        rows: list[tuple[int, str | None, Any]] = []
        for found in lines:
            number += 1
            # Probabilities are float32: 0.9, not 0.8999999761581421.
            rows += [(number, to_text(label), np.float32(p)) for label, p in found]
            if not found:
                rows.append((number, None, None))
        print_rows(("line", "label", "probability"), rows, as_json=as_json)


def _label_files(
    path: Path, text: str | None, input: Sequence[str], output: Path | None, format: Format,
    column: str, k: int, threshold: float, threads: int, overwrite: bool, *, metrics: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Label all lines of files; a line of progress on a terminal."""
    from snailps.config.output import refuse_existing
    from snailps.data.atomic import atomic_file
    from snailps.data.blocks import files_of
    from snailps.vectors.fasttext_bin import is_large
    from snailps.vectors.label_files import LabelWriter, label_files
    from snailps.vectors.label_prediction import LabelModel

    if text is not None or not input:
        raise ConfigError("give either a TEXT, or --input FILE for the lines of files")
    if path.suffix == ".npz" or metrics or as_json:
        raise ConfigError(
            "--input is for a classifier (a .bin), and writes --format tsv, jsonl or parquet"
        )
    if output is not None and str(output) == "-":
        output = None
    if format == "parquet" and output is None:
        raise ConfigError("--format parquet needs --output FILE: it is no stream of lines")
    if output is not None and is_packed(str(output)):
        raise ConfigError(f"--output {output}: labels are not packed: pack the file afterwards")
    if output is not None and output.suffix == ".parquet" and format != "parquet":
        raise ConfigError(f"--output {output}: add --format parquet, or name it otherwise")
    if column and "-" in input:
        raise ConfigError("--column is for tables, which are files: standard input is text")
    paths = [one for given in input for one in ([given] if given == "-" else files_of([given]))]
    inputs = [path, *map(Path, paths)]
    if output is not None and output.resolve() in [one.resolve() for one in inputs]:
        raise ConfigError(f"--output: {output} is what is read here: name another file")
    if output is not None and not overwrite:
        refuse_existing([str(output)], unfinished=False, option="--output")
    # What is not too large is copied: it may be written over in place meanwhile.
    model, progress = LabelModel(path, mapped=is_large(path)), _LinesProgress(paths)
    with ExitStack() as stack:
        stack.enter_context(exits_by_signals())
        file: IO[bytes] = sys.stdout.buffer
        if output is not None:
            file = stack.enter_context(atomic_file(output))
        writer = progress.writer = LabelWriter(file, model.labels, format, threshold)
        if output is not None or not sys.stdout.isatty():
            stack.enter_context(live_line(progress.line))
        try:
            label_files(model, paths, writer, k, column=column, threads=threads, note=progress.note)
        except BaseException:
            writer.abandon()
            raise
        file.flush()


class _LinesProgress:
    """How far the lines of files are.

    Of packed files and tables the bytes of text say how much of the file was read once one of them
    is finished, by its ratio; until then no time is told.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        sizes = (Path(path) for path in paths)
        self._sizes = [path.stat().st_size if path.is_file() else 0 for path in sizes]
        self._paths, self._at, self._text, self._of_finished = paths, -1, 0, 0
        self._begun = time.monotonic()
        self.writer: LabelWriter | None = None

    def note(self, path: str, size: int | None) -> None:
        """Bytes of text of a file were answered; None: it is begun."""
        if size is None:
            self._at += 1
            self._of_finished, self._text = self._of_finished + self._text, 0
        else:
            self._text += size

    def line(self) -> str:
        lines = self.writer.lines if self.writer else 0
        spent = max(time.monotonic() - self._begun, 1e-9)
        words = f"{lines:,} lines, {lines / spent:,.0f} a second"
        if len(self._paths) > 1:
            words += f", file {self._at + 1:,} of {len(self._paths):,}"
        share = self._share()
        if share and spent > 2:
            words += f", {share:.0%}, {short_seconds_text(spent / share - spent)} left"
        return words

    def _share(self) -> float:
        """Estimate the answered share of all bytes of the files; 0: unknown."""
        path, finished = self._paths[max(self._at, 0)], sum(self._sizes[: max(self._at, 0)])
        ratio = (
            finished / self._of_finished
            if self._of_finished
            else float(not is_packed(path) and format_of(path) is None)
        )
        if 0 in self._sizes or not ratio:
            return 0.0
        here = min(self._text * ratio, self._sizes[self._at])
        return (finished + here) / sum(self._sizes)


def _answer(
    model: GraphModel | FactorModel, file: str, k: int, metrics: bool, as_json: bool
) -> None:
    """Print scores of lines, or the best names in the place of a ``?``."""
    if metrics:
        raise ConfigError(f"--metrics: snailps test {model.path} {file} judges this model")
    if k < 1:
        raise ConfigError(f"-k: expected at least 1 name, got {k}: -1 is for labels of texts")
    unknown, why = 0, ""
    with ExitStack() as stack:
        stack.enter_context(read_errors(file))
        pieces, name = _input_lines(), "standard input"
        if file != "-":
            pieces, name = whole_lines(stack.enter_context(open_content(file)), file), file
        for number, best in enumerate(model.answers(pieces, k, name), 1):
            rows: list[tuple[Any, ...]] = [(number, None, None)]
            if isinstance(best, DataError):
                unknown, why = unknown + 1, why or f"line {number}: {best}"
            elif best is not None:
                rows = [(number, *entry) for entry in best]
            print_rows(("line", "name", "score"), rows, as_json=as_json)
    if unknown:
        typer.echo(f"snailps: lines with unknown names: {unknown:,}, the first {why}", err=True)


def _predict_examples(
    model: Path, file: str, metrics: bool, label_column: str, as_json: bool
) -> None:
    from snailps.estimators.loading import rows_model_of

    estimator = rows_model_of(model)
    if metrics:
        _judge(estimator, model, file, label_column, (), as_json)
        return
    path = "/dev/stdin" if file == "-" else file
    names = getattr(estimator, "classes_", [])
    for scores in estimator.predictions(path):
        lines = (scores if scores.ndim == 2 else scores[:, None]).tolist()
        if as_json:
            best = scores.argmax(1) if scores.ndim == 2 else (scores > 0.5).astype(int)
            for values, at in zip(lines, best.tolist(), strict=True):
                of_class = isinstance(name := names[at] if len(names) else 0, str)
                print_json({"scores": values, **({"label": str(name)} if of_class else {})})
            continue
        rows = ("\t".join(map(repr, line)) for line in lines)
        typer.echo("\n".join(rows), nl=len(lines) > 0)


def _judge_of(path: Path) -> SparseEstimator | NameEstimator | None:
    from snailps.estimators.loading import judge_of

    return judge_of(path)


def _judge(
    estimator: SparseEstimator | NameEstimator, path: Path, file: str, label_column: str,
    known: Sequence[str], as_json: bool,
) -> None:  # fmt: skip
    """Print figures of a model of examples or names on a file, as a training does for `test`."""
    from snailps.estimators.embeddings import NameEstimator

    file = "/dev/stdin" if file == "-" else file
    if isinstance(estimator, NameEstimator):
        if label_column:
            raise ConfigError(f"--label-column: lines of {path} have names, and no labels")
        figures = estimator.judged_by(file, list(map(Path, known)) or None)
    elif known:
        raise ConfigError(f"--known is for kge and mf, and {path} is of examples")
    else:
        figures = estimator.evaluate(file, label_column or None)
    if as_json:
        print_json({"model": str(path), "file": without_secrets(file), **figures})
    else:
        print_figures(figures)


def _input_lines() -> Iterator[bytes]:
    """Standard input, some whole lines at a time; line by line from a terminal."""
    stream = typer.get_binary_stream("stdin")
    yield from whole_lines(stream, "standard input", 1 if stream.isatty() else _LINES_BYTES)


def score_test(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file: a classifier's .bin (fastText's too) or the .npz of any other model. "
            "Not word vectors."
        ),
    ],
    file: Annotated[
        str, typer.Argument(help="Lines of labels and words, or what the model was trained on.")
    ],
    k: KOption = 1,
    threshold: ThresholdOption = 0.0,
    column: Annotated[
        str, typer.Option(help="Of a table: the column of the texts.", show_default=False)
    ] = "",
    label_column: Annotated[
        str, typer.Option(help="Of a table: the column of their labels.", show_default=False)
    ] = "",
    average_precision: Annotated[
        bool,
        typer.Option(
            "--average-precision",
            help="Also the average precision, by the probabilities of all labels.",
            metavar="",
        ),
    ] = False,
    at_recall: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Also the best precision at this recall or more, and the threshold for it.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="Of kge and mf: a file of the training, whose answers ranks and lists leave out.  "
            "May be given several times.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonObjectOption = False,
) -> None:
    """Precision, recall and F1 of the K best labels of each line, in total and per label.

    Precision: the share of predicted labels that the lines have. Recall: the share of the lines'
    labels that were predicted. F1: their harmonic mean. Lines without a known label, or without a
    known word or end, are left out, as in fastText.

    For example: snailps test out/sections.bin held-out.txt -k 1; of a table:
    snailps test out/stars.bin held-out.parquet --column text --label-column stars

    What threshold has a recall of .9? snailps test hq.bin held-out.txt --at-recall .9

    In a pipe: label, lines that have it, times it was predicted, precision, recall, F1 (and average
    precision, precision at the recall, threshold), separated by tabs; the first row, `all`, is for
    all labels together (micro), the second, `macro`, has means of the labels.

    With a .npz: the figures that training prints for --test. Of kge MRR and hits@k, raw and
    filtered, of mf the errors of ratings, or recall and NDCG of lists.

    For example: snailps test out/graph.npz test.txt --known train.txt --known valid.txt
    """
    if model.suffix == ".npz" and (estimator := _judge_of(model)):
        of_texts = {"-k": k != 1, "--threshold": threshold, "--column": column}
        of_texts |= {"--average-precision": average_precision, "--at-recall": at_recall is not None}
        for option in (name for name, is_given in of_texts.items() if is_given):
            raise ConfigError(f"{option} is for a .bin: a classifier of text")
        _judge(estimator, model, file, label_column, known or [], as_json)
        return
    if known and model.exists():
        raise ConfigError("--known is for a .npz of kge or mf")
    from snailps.vectors.label_prediction import LabelModel, evaluate_labels

    scores = evaluate_labels(
        LabelModel(model), file, k, threshold, column=column, label_column=label_column,
        ranking=average_precision, recall=at_recall,
    )  # fmt: skip
    labels = [{**asdict(entry), "label": to_text(entry.label)} for entry in scores.labels]
    if as_json:
        print_json(
            {"model": str(model), "file": without_secrets(file), **asdict(scores), "labels": labels}
        )
        return
    title = f"{model} at k = {k}" + (f", {scores.skipped:,} lines left out" * bool(scores.skipped))
    count = sum(entry.predicted for entry in scores.labels)
    columns = {"label": "label", "lines": "lines", "predicted": "said", "precision": "precision"}
    columns |= {"recall": "recall", "f1": "F1"}
    if average_precision:
        columns["average_precision"] = "average precision"
    if at_recall is not None:
        columns |= {"precision_at_recall": f"precision at {at_recall:g}", "threshold": "threshold"}
    first = {**asdict(scores), "label": "all", "predicted": count}
    second = {**asdict(scores.macro), "label": "macro"}
    rows: list[tuple[Cell, ...]] = [
        tuple(row.get(name) for name in columns) for row in (first, second, *labels)
    ]
    print_rows(tuple(columns.values()), rows, title=title)


def score_eval(
    model: Annotated[Path, typer.Argument(help="A .bin, .vec or .npz file.")],
    similarity: Annotated[
        list[Path] | None,
        typer.Option(help="Lines of word, word, score.  May be given several times."),
    ] = None,
    analogies: Annotated[
        Path | None, typer.Option(help="Lines of four words under ': section' lines.")
    ] = None,
    restrict: Annotated[
        int, typer.Option(min=0, help="Analogies among the first N words only; 0: all.")
    ] = 0,
    oov: Annotated[
        Literal["skip", "subword"],
        typer.Option(help="Pairs with unknown words: left out, or scored by subwords."),
    ] = "skip",
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Name the pairs and questions skipped.", metavar=""),
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Score a model: Spearman correlation on similarity files, accuracy on an analogy file.

    Words may differ in case.  Words outside the vocabulary are skipped and counted; --verbose and
    --json list them.

    For example: snailps eval out/corpus.bin --similarity wordsim353.tsv

    In a pipe: test, score, asked, skipped, separated by tabs; with --verbose followed by lines of
    test and skipped words.
    """
    figures = _evaluate(model, similarity or [], analogies, restrict, oov)
    if as_json:
        print_json(figures)
        return
    tests = list(_tests(figures))
    columns = ("test", "score", "asked", "skipped")
    print_rows(columns, [row for row, _ in tests], title=str(model))
    if verbose:
        skipped = [(row[0], " ".join(words)) for row, some in tests for words in some]
        print_rows(("test", "skipped"), skipped)


def _evaluate(
    model: Path, similarity: list[Path], analogies: Path | None, restrict: int, oov: OovRule
) -> dict[str, Any]:
    """All scores of a model as plain values, ready for JSON; an undefined score is None."""
    if not similarity and analogies is None:
        raise ConfigError("nothing to evaluate: give --similarity FILE, --analogies FILE, or both")
    from snailps.vectors.evaluate import evaluate_analogies, evaluate_similarity
    from snailps.vectors.files import load

    vectors = load(model)
    figures: dict[str, Any] = {
        "model": str(model),
        "words": len(vectors),
        "dim": vectors.dim,
        "oov": oov,
        "similarity": [
            {"file": str(path), **asdict(evaluate_similarity(vectors, path, oov))}
            for path in similarity
        ],
        "analogies": None,
    }
    if analogies is not None:
        result = asdict(evaluate_analogies(vectors, analogies, restrict))
        figures["analogies"] = {"file": str(analogies), "restrict": restrict, **result}
    return figures


def _tests(figures: dict[str, Any]) -> Iterator[tuple[tuple[Cell, ...], list[list[str]]]]:
    """The row of each test, and the words of each pair or question that it skipped."""
    for one in figures["similarity"]:
        row = (Path(one["file"]).name, one["spearman"], one["pairs"], one["oov"])
        yield row, one["skipped"]
    if found := figures["analogies"]:
        name = Path(found["file"]).name
        parts = [(f"{name}: {part['name']}", part) for part in found["sections"]]
        for title, part in [(name, {**found, "skipped": []}), *parts]:
            yield (title, part["accuracy"], part["asked"], part["oov"]), part["skipped"]
