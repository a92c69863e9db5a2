"""The files of an input as a job's master finds them, in this process."""

from contextlib import contextmanager

from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch


@contextmanager
def found(folder, *paths, reading=None):
    tables = reading or Reading("text")
    with Scratch(str(folder / "scratch"), 0, tables=tables) as scratch:
        yield InputFiles(expand([str(path) for path in paths], scratch), scratch)
