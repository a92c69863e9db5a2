"""How a job reads tables: the texts of a column, or examples from columns by name.

    settings -> Reading -> Scratch: which files are tables, and what is read instead of them

Only says how.  The option `tables` (`registry`) reads, `data/table_files.py`: imported for the
first table only, because most jobs read none, and would start later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.formats import ENDINGS, FORMATS, format_of
from snailps.files.host_cache import Make, ScratchFile
from snailps.registry import named

VERSION = 4
"""Version of what is made of a table: copies that another version left here are not used."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a job reads tables.

    Attributes
    ----------
    form : str
        ``text``, ``examples``, ``names``, or empty: the job reads no tables.
    column : str
        Column of the texts; empty: files of a text job are no tables.
    label_column : str
        Column of the labels; empty: files of an examples job are no tables.
    columns : tuple of str
        ``name:kind`` of every column of examples.
    label_prefix : str
        Put in front of each label in the lines of text.
    weight_column : str
        Column of the texts' weights; empty: they have none.  Written as the label ``:NUMBER``.
    soft_labels : bool
        The labels of a column may end with their weights.  If not, and the texts have weights, each
        label is written with a ``:`` at its end, so that none is taken for a weight.
    on_bad_line : str
        ``stop`` or ``skip``, for CSV and TSV.
    needs_labels : bool
        The column of labels must exist.  In CSV and TSV it always must.
    label_names : tuple of str
        All labels, if they are texts; examples hold their numbers in this tuple.
    names : tuple of str
        What the columns of names are called.
    is_valued : bool
        A column of values may follow the names.
    time_column : int
        The one with times among all of them, counted from 1; 0: none.
    """

    form: Literal["text", "examples", "names", ""] = ""
    column: str = ""
    label_column: str = ""
    columns: tuple[str, ...] = ()
    label_prefix: str = "__label__"
    weight_column: str = ""
    soft_labels: bool = False
    on_bad_line: str = "stop"
    needs_labels: bool = True
    label_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_valued: bool = False
    time_column: int = 0

    @property
    def identity(self) -> str:
        """Differs between jobs that make different things of a table; part of a copy's name."""
        return f"{VERSION}\0{self!r}"

    def takes(self, path: str) -> bool:
        """Whether this job reads a file as a table: it names a column.

        DataError: a column is named and the file is no table; or none is named and the file can be
        nothing else (Parquet, Arrow, ORC; JSON lines if the job reads tables at all).  CSV and TSV
        without a named column are text.
        """
        if self.form == "names":  # CSV and TSV are lines of names
            return is_table(path)
        setting = "column" if self.form == "text" else "label_column"
        named = self.column if self.form == "text" else self.label_column
        format = format_of(path)
        if named and format is None:
            raise DataError(
                f"{path} is no table, but {setting} is set ({named}): the names of tables end in "
                f"{ENDINGS}"
            )
        said = FORMATS[format].said if format else ""
        if not named and said and (format != "jsonl" or self.form):
            raise DataError(f"{path} {said}: {self._cure(setting)}")
        return bool(named)

    def write(self, path: str, make: Make, on_piece: Callable[[], object]) -> ScratchFile:
        """Write what the job reads instead of a table; calls `on_piece` often, which may raise."""
        file: ScratchFile = named("tables").write_table(self, path, make, on_piece)
        return file

    def refuse_header(self, head: bytes, path: str) -> None:
        """DataError for CSV or TSV that is about to be read as plain text, though it names columns.

        `head`: the first `CSV_BYTES` of the file.
        """
        if self.form == "text" and not self.column and format_of(path) in ("csv", "tsv"):
            named("tables").refuse_header(head, path)

    def _cure(self, setting: str) -> str:
        if not self.form:
            return (
                "this model reads no tables. A model of your own reads texts from a table if its "
                "settings have a field `column`"
            )
        what = "texts" if self.form == "text" else "labels"
        return f"set {setting} to the name of the column that has the {what}"


def is_table(path: str) -> bool:
    """Whether a file is a table that nobody could take for lines of text."""
    format = format_of(path)
    return format is not None and bool(FORMATS[format].said)
