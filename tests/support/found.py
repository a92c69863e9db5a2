"""The files of an input as a job's master finds them, in this process."""

from contextlib import contextmanager

from snailps.data.blocks import expand
from snailps.data.input_files import InputFiles
from snailps.data.reading import Reading
from snailps.data.scratch import Scratch
from snailps.data.table_copies import TableCopies


@contextmanager
def found(folder, *paths, reading=None):
    tables = TableCopies(reading or Reading("text"))
    with Scratch(str(folder / "scratch"), 0, tables=tables) as scratch:
        yield InputFiles(expand([str(path) for path in paths], scratch), scratch)
