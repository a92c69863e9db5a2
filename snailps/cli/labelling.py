"""``snailps predict --input``: labels all lines of files on all cores, and shows the progress.

MODEL.bin, files -> label_files -> LabelWriter -> one line of labels per line of the files

Checks the options against each other; `vectors.label_files` reads, labels and writes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from snailps.cli.figures import counted, short_seconds_text
from snailps.cli.options import rows_file
from snailps.cli.printing import live_line
from snailps.cli.signals import exits_by_signals
from snailps.config.output import refuse_results
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.files.atomic import atomic_file
from snailps.files.blocks import files_of
from snailps.files.formats import format_of
from snailps.files.unpacking import is_packed
from snailps.vectors.fasttext_bin import is_large
from snailps.vectors.label_files import LabelWriter, label_files
from snailps.vectors.label_prediction import LabelModel

if TYPE_CHECKING:
    from snailps.vectors.label_files import Format


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels are written, and where; `output` None is standard output."""

    output: Path | None
    format: Format
    k: int
    threshold: float | None


def label_lines(
    model: Path, inputs: Sequence[str], labels: Labels, column: str, threads: int, *,
    overwrite: bool,
) -> None:  # fmt: skip
    """Label all lines of files, with a line of progress on standard error."""
    output = rows_file(labels.output, labels.format)
    if output is not None and is_packed(str(output)):
        raise ConfigError(
            f"--output {output}: labels are written uncompressed: choose a name without that "
            "ending, and compress the file afterwards"
        )
    if column and "-" in inputs:
        raise ConfigError("--column is for files with columns: standard input is lines of text")
    paths = [file for path in inputs for file in ([path] if path == "-" else files_of([path]))]
    if output is not None:
        refuse_results([output], [model, *paths], overwrite=overwrite)
    # Only a large model is mapped: a file that is overwritten in place would change under a map.
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
    """How far the labelling is: lines, speed, share of the files' bytes, time left.

    For compressed files and tables the bytes of text are not the bytes of the file.  Their ratio
    comes from the files that are finished, so the time left is unknown until the first one is.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        files = [Path(path) for path in paths]
        self._sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
        self._paths, self._index, self._text, self._finished_text = paths, -1, 0, 0
        self._begun = time.monotonic()
        self.writer: LabelWriter | None = None

    def note(self, path: str, size: int | None) -> None:
        """Record that `size` bytes of a file's text were labelled; None: the file was begun."""
        if size is None:
            self._index += 1
            self._finished_text, self._text = self._finished_text + self._text, 0
        else:
            self._text += size

    def line(self) -> str:
        lines = self.writer.lines if self.writer else 0
        spent = max(time.monotonic() - self._begun, 1e-9)
        words = f"{counted(lines, 'line')}, {lines / spent:,.0f} a second"
        if len(self._paths) > 1:
            words += f", file {self._index + 1:,} of {len(self._paths):,}"
        share = self._share()
        if share and spent > 2:
            words += f", {share:.0%}, {short_seconds_text(spent / share - spent)} left"
        return words

    def _share(self) -> float:
        """Estimate the labelled share of all bytes of the files; 0: unknown."""
        index = max(self._index, 0)
        path, finished = self._paths[index], sum(self._sizes[:index])
        ratio = (
            finished / self._finished_text
            if self._finished_text
            else float(not is_packed(path) and format_of(path) is None)
        )
        if 0 in self._sizes or not ratio:
            return 0.0
        current = min(self._text * ratio, self._sizes[self._index])
        return (finished + current) / sum(self._sizes)
