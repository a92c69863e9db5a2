"""How a job reads files that are tables: text of a column, or examples of columns by name.

    settings -> Reading -> Scratch: which files are tables, and what `table_files` makes of them

Names only: `table_files` reads tables.
"""

from __future__ import annotations

from typing import Literal

from snailps.data.formats import ENDINGS, FORMATS, format_of
from snailps.dataclass import dataclass
from snailps.errors import DataError

VERSION = 4
"""Version of what is made of a table: other versions' copies are not used."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a job reads tables.

    `form` is text, examples, or empty (reads no tables).  `column` is that of the texts; empty:
    files are no tables.  `label_column` is that of the labels; without it files of examples are no
    tables. `columns` has ``name:kind`` of every column of examples; `label_prefix` is of texts'
    labels. `needs_labels`: the column of the labels must exist; CSV and TSV always have it.
    `label_names` are all labels that are texts, which examples have by their numbers.
    """

    form: Literal["text", "examples", ""] = ""
    column: str = ""
    label_column: str = ""
    columns: tuple[str, ...] = ()
    label_prefix: str = "__label__"
    on_bad_line: str = "stop"
    needs_labels: bool = True
    label_names: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Distinguishes what different jobs make of a table."""
        return f"{VERSION}\0{self!r}"

    def takes(self, path: str) -> bool:
        """Whether a file is a table for this job.

        CSV and TSV are if the job names a column; Parquet and Arrow always, JSON lines for a model
        that knows columns.  DataError for a table without a named column, and the reverse.
        """
        setting = "column" if self.form == "text" else "label_column"
        named = self.column if self.form == "text" else self.label_column
        found = format_of(path)
        if named and found is None:
            raise DataError(
                f"{path} is no table, but {setting} is set ({named}): the names of tables end in "
                f"{ENDINGS}"
            )
        said = FORMATS[found].said if found else ""
        if not named and said and (found != "jsonl" or self.form):
            raise DataError(f"{path} {said}: {self._cure(setting)}")
        return bool(named)

    def _cure(self, setting: str) -> str:
        if not self.form:
            return (
                "this model reads no tables; a model of your own reads the column that its field "
                "`column` names, as text"
            )
        what = "texts" if self.form == "text" else "labels"
        return f"set {setting} to the name of the column that has the {what}"
