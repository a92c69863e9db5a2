"""`ModelReader` without a cluster: whose tables it reads, and what a cancelled export leaves."""

from types import SimpleNamespace

import pytest

from snailps.api.export_progress import ExportCancelled, ExportProgress
from snailps.api.worker import Worker
from snailps.master.job.job import Inspected
from snailps.master.job.model_reader import ModelReader
from snailps.transport.security.trust import OPEN


class Readers(ModelReader):
    """Reads the tables of the job that it was asked for, without connections."""

    def __init__(self):
        super().__init__(1.0, OPEN, 7)
        self.connects, self.left = lambda: None, []

    def _results(self, job, reading, progress=None):
        self.connects()
        checks = SimpleNamespace(check=lambda: None)
        results = SimpleNamespace(tables_of=job.name, figures={}, exporting=progress or checks)
        return results, lambda: self.left.append(job.name)


class Looks(Worker):
    @classmethod
    def after_round(cls, results, round_):
        return {"tables of": results.tables_of}


def job(name):
    return SimpleNamespace(
        name=name,
        model=SimpleNamespace(cls=Looks),
        settings=None,
        schedule=SimpleNamespace(slots=None),
        inspected=Inspected(),
    )


READING = SimpleNamespace(figures={})


def test_job_behind_one_that_failed_while_its_first_round_was_looked_at_reads_its_own_tables():
    readers = Readers()
    readers.connects = readers.leave_rounds  # the first job fails while its look connects
    assert readers.after_round(job("first"), 0, READING) == {"tables of": "first"}
    readers.connects = lambda: None
    second = job("second")
    for round_ in range(2):
        assert readers.after_round(second, round_, READING) == {"tables of": "second"}
    assert readers.left == ["first"]


def test_export_that_was_cancelled_makes_no_later_reading_give_up():
    readers, progress = Readers(), ExportProgress()
    readers.connects = progress.cancel
    with pytest.raises(ExportCancelled):
        readers.export(job("first"), READING, progress)
    assert not readers.gives_up()
