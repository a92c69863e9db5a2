"""master.job.state: what became of blocks, and a job's snapshot as bytes."""

import base64
import io
import json
import zipfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from test_job import Clock, done, make

from snailps.api.rotation import Rotation
from snailps.api.traits import Gathered
from snailps.dataclass import asdict
from snailps.errors import CheckpointError
from snailps.master.job.state import JobState, decode, pack, unpack
from snailps.master.leases.records import OUTCOME, RECORD
from snailps.node.metric_samples import BlockTally
from snailps.transport import messages
from snailps.worker.context import JobContext
from snailps.worker.orders import Orders
from snailps.worker.reports import JobReports
from snailps.worker.resume_state import ResumeState

__all__ = ["make"]


@pytest.fixture
def clock():
    return Clock()


def some_state(records=OUTCOME, summary=b"\x00voc", **about):
    outcomes = np.zeros(3, records)
    outcomes[1] = (2, 7, 100, 3.25, 50.0, 1, 0.5)[: len(records)]
    plain = {
        "sources": [["/a b\udcff.txt", 10], ["/c", 5]],
        "paths": ["/a b\udcff.txt", "/c"],
        "block_bytes": 10,
        "has_summary": summary is not None,
        "clock": 4,
        "figures": FIGURES,
    }
    arrays = {
        "cuts": np.array([[0, 0, 10], [1, 0, 5]]),
        "outcomes": outcomes,
        "summary": np.frombuffer(summary or b"", np.uint8),
    }
    return decode({**plain, **about}, arrays)


GOLDEN = (
    "c-pO0!H&}~5OsFDu-#oD4*LNi2U4VLX}hh2Rz0kQgoG+kE*wyag5$U}+BB(RyR<5m7F6*AaO5NQ2e@$MCpd8B$_>"
    "HTNtPynR45Z!<9VL3GxNr_d)t*Gl*$eC^yX*hdnQ$Mh_Dw6UXR8z4P8fAOWkt)=Ha6U_G1lA(A@MXBZ+yUn=eGuv"
    "~+V2Cp^KC8z(-M_&ppl3OF0$F$KHUYIUqzmcG#cS@z}zi$y{xGfwn=-?)u+?}_lqU{L2%ZdiJ=;aEE01m+zF=EfN"
    "Fq4NIKS-MFVFO12V>&>{@w%Gt^h?&d8XoQm)Ks*tUh(V+um~EI3f@dO8{&OQtKsD-(4&Y2A6FPI%Ms*25NrFh(Eo"
    "DE)VW`Y@x*U)*^?PvYv9nm%1#UjPKkw$;>;gALaF$bZk$L6%x72ilJL^#cr*B9NDoGA#C448-#Z0e#`S>c&^Z+u2"
    "9whOIUS>PZwwab1@#{*q{hG-*=2T|f6>Sp|s+m#j7Xc9koGAoqqmVFWDKN+YI>n=LNQ<C{eK!mu`ZLy9r?STzw)~"
    "pa{*!FMxC+BBa&wyM`==WEJ1MeuxBBvJ&e}e(mR*^gv}NYFME~LSXm4D|Jv51l-P5*?wu{f7eBI=zt|WS{Ds%Z5m"
    "c!)DyvT0fZXxU)1m^d&93{J4cCZ`=g{ap+)N0R{BW0zRSt<7mk=+Vft-IaZxgr-T@O=XPts<=-B#}90"
)
"""`some_state`, as release 0.1.0 wrote it into a checkpoint."""
FIGURES = {"lr": 0.05, "survey_s": 1.5, "train_s": 2.5, "wall_s": 4.5, "ticks": [0, 3]}


def test_checkpoint_of_an_earlier_release_is_read_and_written_again():
    golden = zlib.decompress(base64.b85decode(GOLDEN))
    assert contents(pack(some_state())) == contents(golden)
    assert contents(pack(unpack(golden))) == contents(golden)
    assert told(unpack(golden)) == told(some_state())


def contents(data):
    """Names and bytes of an archive's files, whose headers are those of the running Python."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def told(state):
    arrays = {name: (array.dtype, array.tolist()) for name, array in state.arrays.items()}
    return state.about, arrays, state.blocks


def test_progress_alone_comes_back_with_the_input_of_its_base():
    base = some_state()
    about = {"clock": 9, "figures": {"lr": 0.5}, "exact": {"schedule": {"losses": []}}}
    arrays = {"outcomes": np.zeros(2, RECORD), "owner": np.arange(3)}
    again = decode(json.loads(json.dumps(about)), arrays, base)
    assert told(again) == told(
        JobState({**base.about, **about}, {**base.arrays, **arrays}, base.blocks)
    )
    assert (again.clock, again.figures, again.sources) == (9, {"lr": 0.5}, base.sources)
    with pytest.raises(CheckpointError, match="no snapshot of a job: KeyError"):
        decode(about, arrays)


@pytest.mark.parametrize("summary", [None, b"", b"\x00voc"])
def test_state_comes_back_as_it_was(summary):
    state = some_state(summary=summary)
    again = unpack(pack(state))
    assert told(again) == told(state)
    assert (again.summary, again.done, again.units) == (summary, [1], 100)


def test_bytes_that_are_no_position_refuse():
    good = pack(some_state())
    other = io.BytesIO()
    np.savez(other, about=np.zeros(3, np.uint8))
    for data in (b"", b"PK", good[:-30], other.getvalue()):
        with pytest.raises(CheckpointError, match="no snapshot of a job"):
            unpack(data)


def test_job_resumed_has_the_figures_and_the_blocks_of_the_other(make, clock):
    job = make()
    job.begin_pass("train")
    for _ in range(5):
        lease = job.lease(node=7)
        clock.now_s += 2
        job.done(done(lease.number, loss=50.0 + lease.number, examples=100.0, lr=0.5), 7)
    job.schedule.records.make_durable([0, 1, 3], 7)
    snapshot = unpack(pack(job.dump()))
    assert snapshot.done == [0, 1, 3]
    again = make(block_bytes="100")  # cut otherwise: the snapshot's blocks count
    clock.now_s += 1000
    again.begin_pass("train", (), snapshot)
    assert again.schedule.size == job.schedule.size
    assert (again.metrics.units, again.metrics.lr) == (300, 0.5)
    assert again.metrics.loss == (50 + 51 + 53) / 300
    leases = [again.lease(node=1) for _ in range(4)]
    assert [lease.number for lease in leases] == [2, 4, 5, 6]
    assert leases[0].piece.start == 560
    assert not leases[0].first
    for lease in leases:
        again.done(done(lease.number, loss=1.0, examples=100.0), 1)
    again.end_pass()
    assert again.figures({})["train_s"] == 10.0
    assert again.figures({})["blocks"] == 7


def test_schedule_share_is_that_of_bytes(make):
    job = make(block_bytes="100")
    job.begin_pass("train")
    assert job.schedule.plan.share([]) == 0
    assert job.schedule.plan.share([0, 1]) == pytest.approx(200 / 5600)
    assert job.schedule.plan.share(range(job.schedule.size)) == 1.0


@pytest.mark.parametrize(
    ("owed", "durable"),
    [
        ([False, True, True, False], [[0], [1, 2, 3]]),
        ([False, np.True_, np.True_, np.False_], [[0], [1, 2, 3]]),  # as `(array > 0).any()` is
        ([1, 2, 3, 1], [[0, 1, 2]]),  # the first three are sent while the fourth is trained
        ([1, 2, 1, 2, 9, 0], [[0, 1], [2, 3, 4, 5]]),
    ],
)
def test_blocks_of_a_worker_with_open_pushes_are_durable_with_the_last(owed, durable):
    notes, model = [], type("Model", (Gathered,), {"unpushed": 0})()
    client, calls = SimpleNamespace(open_pushes=list), SimpleNamespace(note=notes.append)
    job = JobContext(model, client, calls, ResumeState(), Orders(), BlockTally(), 10.0)
    reports = JobReports(job)
    for number, unpushed in enumerate(owed):
        model.unpushed = unpushed
        reports.note_durable(number)
    assert notes == [messages.Durable(numbers) for numbers in durable]


@pytest.mark.parametrize("lacking", ["survey_s", "rotation", "metrics", "tested"])
def test_checkpoint_of_another_version_is_refused_with_what_to_do(make, lacking):
    job = make()
    job.begin_pass("train")
    state = job.dump(clock=-1)
    job.record.check_state(state)
    state.figures["rotation"] = {**asdict(Rotation(2, 2)), "metrics": job.metrics.snapshot()}
    job.record.check_state(state)
    if lacking == "rotation":
        del state.figures["rotation"]["sweeps"]
    elif lacking == "metrics":
        state.figures["rotation"]["metrics"] = {}
    elif lacking == "tested":
        state.figures["tested"] = {"tests": []}
    else:
        del state.figures[lacking]
    with pytest.raises(CheckpointError, match=r"another version .*, such as 0\.2\.0, .*begin anew"):
        job.record.check_state(state)
