"""master.job.position: what became of blocks, and a job's position as bytes."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from test_job import Clock, done, make

from snailps.config import RawConfig, WorkerSettings
from snailps.data.blocks import Block
from snailps.errors import CheckpointError
from snailps.master.job.position import Position, pack, unpack
from snailps.master.leases.records import OUTCOME
from snailps.transport import messages
from snailps.worker.process import WorkerProcess

__all__ = ["make"]


@pytest.fixture
def clock():
    return Clock()


def some_position(**changes):
    outcomes = np.zeros(3, OUTCOME)
    outcomes[1] = (2, 7, 100, 3.25, 50.0, 1)
    plain = {
        "sources": [("/a b\udcff.txt", 10), ("/c", 5)],
        "blocks": [Block(0, "/a b\udcff.txt", 0, 10), Block(1, "/c", 0, 5)],
        "block_bytes": 10,
        "outcomes": outcomes,
        "summary": b"\x00voc",
        "clock": 4,
        "figures": {"lr": 0.05, "ticks": [0, 3]},
    }
    return Position(**{**plain, **changes})


@pytest.mark.parametrize("summary", [None, b"", b"\x00voc"])
def test_position_comes_back_as_it_was(summary):
    position = some_position(summary=summary)
    again = unpack(pack(position))
    assert (again.outcomes == position.outcomes).all()
    assert again.done == [1]
    assert again.units == 100
    for name in ("sources", "blocks", "block_bytes", "summary", "clock", "figures"):
        assert getattr(again, name) == getattr(position, name)


def test_bytes_that_are_no_position_refuse():
    good = pack(some_position())
    other = io.BytesIO()
    np.savez(other, about=np.zeros(3, np.uint8))
    for data in (b"", b"PK", good[:-30], other.getvalue()):
        with pytest.raises(CheckpointError, match="no position of a job"):
            unpack(data)


def test_job_resumed_has_the_figures_and_the_blocks_of_the_other(make, clock):
    job = make()
    job.begin_pass("train")
    for _ in range(5):
        lease = job.lease(node=7)
        clock.now_s += 2
        job.done(done(lease.number, loss=50.0 + lease.number, examples=100.0, lr=0.5), 7)
    job.ledger.settle([0, 1, 3], 7)
    position = unpack(pack(job.position()))
    assert position.done == [0, 1, 3]
    again = make(block_bytes="100")  # cut otherwise: the position's blocks count
    clock.now_s += 1000
    again.begin_pass("train", (), position)
    assert again.ledger.size == job.ledger.size
    assert (again.units, again.lr) == (300, 0.5)
    assert again.loss == (50 + 51 + 53) / 300
    leases = [again.lease(node=1) for _ in range(4)]
    assert [lease.number for lease in leases] == [2, 4, 5, 6]
    assert leases[0].start == 560
    for lease in leases:
        again.done(done(lease.number, loss=1.0, examples=100.0), 1)
    again.end_pass()
    assert again.figures({})["train_s"] == 10.0
    assert again.figures({})["blocks"] == 7


def test_ledger_share_is_that_of_bytes(make):
    job = make(block_bytes="100")
    job.begin_pass("train")
    assert job.ledger.share([]) == 0
    assert job.ledger.share([0, 1]) == pytest.approx(200 / 5600)
    assert job.ledger.share(range(job.ledger.size)) == 1.0


def test_worker_that_owes_pushes_settles_its_blocks_with_the_last():
    told = []
    process = WorkerProcess(WorkerSettings(), RawConfig(()))
    process._client = SimpleNamespace(open_pushes=list)
    process._control = SimpleNamespace(note=told.append)
    for number, owes in enumerate([False, True, True, False]):
        process._model = SimpleNamespace(owes=owes)
        process._note_settled(number)
    assert told == [messages.Settled([0]), messages.Settled([1, 2, 3])]
