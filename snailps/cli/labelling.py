"""``snailps predict --input``: labels of all lines of files, on all cores, with progress.

MODEL.bin, files -> label_files -> LabelWriter -> a line of labels a line of the files
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from snailps.cli.figures import short_seconds_text
from snailps.cli.printing import live_line
from snailps.cli.signals import exits_by_signals
from snailps.config.output import refuse_existing
from snailps.data.atomic import atomic_file
from snailps.data.blocks import files_of
from snailps.data.formats import format_of
from snailps.data.unpacking import is_packed
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.vectors.fasttext_bin import is_large
from snailps.vectors.label_files import LabelWriter, label_files
from snailps.vectors.label_prediction import LabelModel

if TYPE_CHECKING:
    from snailps.vectors.label_files import Format


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels of a line are written, and where: None is standard output."""

    output: Path | None
    format: Format
    k: int
    threshold: float


def label_lines(
    model: Path, inputs: Sequence[str], labels: Labels, column: str, threads: int, *,
    overwrite: bool,
) -> None:  # fmt: skip
    """Label all lines of files; a line of progress on a terminal."""
    output = None if str(labels.output) == "-" else labels.output
    if labels.format == "parquet" and output is None:
        raise ConfigError("--format parquet needs --output FILE: it is no stream of lines")
    if output is not None and is_packed(str(output)):
        raise ConfigError(f"--output {output}: labels are not packed: pack the file afterwards")
    if output is not None and output.suffix == ".parquet" and labels.format != "parquet":
        raise ConfigError(f"--output {output}: add --format parquet, or name it otherwise")
    if column and "-" in inputs:
        raise ConfigError("--column is for tables, which are files: standard input is text")
    paths = [one for path in inputs for one in ([path] if path == "-" else files_of([path]))]
    read = [model, *map(Path, paths)]
    if output is not None and output.resolve() in [one.resolve() for one in read]:
        raise ConfigError(f"--output: {output} is what is read here: name another file")
    if output is not None and not overwrite:
        refuse_existing([str(output)], unfinished=False, option="--output")
    # What is not too large is copied: it may be written over in place meanwhile.
    classifier, progress = LabelModel(model, mapped=is_large(model)), LinesProgress(paths)
    with ExitStack() as stack:
        stack.enter_context(exits_by_signals())
        file: IO[bytes] = sys.stdout.buffer
        if output is not None:
            file = stack.enter_context(atomic_file(output))
        writer = progress.writer = LabelWriter(
            file, classifier.labels, labels.format, labels.threshold
        )
        if output is not None or not sys.stdout.isatty():
            stack.enter_context(live_line(progress.line))
        try:
            label_files(
                classifier, paths, writer, labels.k, column=column, threads=threads,
                note=progress.note,
            )  # fmt: skip
        except BaseException:
            writer.abandon()
            raise
        file.flush()


class LinesProgress:
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
