"""Settings of a job as its master completes them by the files and what is in them."""

from snailps.data.blocks import expand
from snailps.data.input_files import InputFiles
from snailps.data.scratch import Scratch
from snailps.data.table_copies import TableCopies


def completed(cls, settings):
    adopted = cls.adopt(settings, {}.get)
    with Scratch(adopted.scratch_dir, 0, tables=TableCopies(cls.reading(adopted))) as scratch:
        return cls.measure(adopted, InputFiles(expand(adopted.input, scratch), scratch))
