"""`ModelReader` without a cluster: whose tables it reads, and what a cancelled export leaves."""

from types import SimpleNamespace

import pytest

from snailps.api.export_progress import ExportCancelled, ExportProgress
from snailps.api.worker import Worker
from snailps.master.job.job import Inspected
from snailps.master.job.model_class import ByInput, Look
from snailps.master.job.model_reader import ModelReader
from snailps.master.services import ModelAccess
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


def look_after_round(readers, job, round_):
    look = Look(("round",), lambda results, n: {"tables of": results.tables_of, "round": n}, True)
    return readers.look(job, [look], round_, READING, stays=True)


def job(name):
    return SimpleNamespace(
        name=name,
        model=SimpleNamespace(cls=Worker, by_input=ByInput()),
        settings=None,
        inspected=Inspected(),
    )


READING = ModelAccess(iter([1]), {}, {})


def test_job_behind_one_that_failed_while_its_first_round_was_looked_at_reads_its_own_tables():
    readers = Readers()
    readers.connects = readers.leave_rounds  # the first job fails while its look connects
    assert look_after_round(readers, job("first"), 0) == [{"tables of": "first", "round": 0}]
    readers.connects = lambda: None
    second = job("second")
    for round_ in range(2):
        seen = look_after_round(readers, second, round_)
        assert seen == [{"tables of": "second", "round": round_}]
    assert readers.left == ["first"]


def test_export_that_was_cancelled_makes_no_later_reading_give_up():
    readers, progress = Readers(), ExportProgress()
    readers.connects = progress.cancel
    with pytest.raises(ExportCancelled):
        readers.export(job("first"), READING, progress)
    assert not readers.gives_up()
