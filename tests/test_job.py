"""A job as the master sees it: blocks, leases, figures, with the clock in the test's hand."""

import pytest
from cluster_models import COUNTER, write_numbers

from snailps.config import JobSettings, RawConfig
from snailps.config.settings import MasterSettings
from snailps.errors import ConfigError, DataError, ProtocolError
from snailps.roles.job import RATE_WINDOW_S, Job, block_seed
from snailps.transport import messages


class Clock:
    """A clock that stands still."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(tmp_path, clock, monkeypatch):
    write_numbers(tmp_path / "in.txt", 1000)  # 2,800 bytes
    made = []

    def make(workers=1, **settings):
        values = {"worker_class": COUNTER, "input": str(tmp_path / "in.txt"), "epochs": "2"}
        raw = RawConfig.from_mapping({**values, **settings}, "test")
        made.append(Job(raw, (JobSettings, MasterSettings), clock))
        made[-1].prepare(workers)
        return made[-1]

    yield make
    for job in made:
        job.close()


def done(number, pass_="train", units=100, **metrics):
    return messages.Done(pass_, number, units, 1.0, metrics, b"part")


def test_job_without_class_or_input_says_what_to_write(make):
    with pytest.raises(ConfigError, match="worker_class is not set"):
        Job(RawConfig())
    with pytest.raises(ConfigError, match="input is not set"):
        make(input="")
    with pytest.raises(DataError, match="does not exist"):
        make(input="nowhere")


def test_job_with_setting_of_its_own_or_of_a_role_builds_and_with_unknown_one_refuses(make):
    assert make(dim="3", expected_node_num="4").settings.dim == 3
    with pytest.raises(ConfigError, match="did you mean 'journal'"):
        make(journl="x")


@pytest.mark.parametrize(("block_bytes", "blocks"), [("0", 10), ("100", 28), ("1G", 10)])
def test_job_with_block_bytes_cuts_at_least_ten_blocks(make, block_bytes, blocks):
    job = make(block_bytes=block_bytes)
    job.begin_pass("train")
    assert job.ledger.size == 2 * blocks
    assert job.total_bytes == 2800


def test_job_in_training_gives_leases_with_seeds_and_takes_results(make, clock):
    job = make(seed="5")
    job.begin_pass("train")
    leases = [job.lease(node=7) for _ in range(3)]
    assert [lease.number for lease in leases] == [0, 1, 2]
    assert [(lease.start, lease.stop) for lease in leases] == [(0, 280), (280, 560), (560, 840)]
    assert [lease.seed for lease in leases] == [block_seed(5, number) for number in range(3)]
    assert leases[1].progress == [0.05, 0.1]
    assert (job.loss, job.lr) == (None, None)
    clock.now_s += 4
    assert job.done(done(0, loss=50.0, examples=100.0, lr=0.5), node=7)
    assert job.done(done(1, loss=30.0, examples=100.0), node=7)
    assert not job.done(done(1), node=7)  # a second time
    assert not job.done(done(2), node=8)  # not its lease
    assert not job.done(done(2, pass_="survey"), node=7)  # another pass
    assert (job.loss, job.lr, job.units) == (0.4, 0.5, 200)
    assert job.rate() == 200 / 4
    clock.now_s += RATE_WINDOW_S + 1
    assert job.rate() == 0


def test_job_at_its_end_has_figures(make, clock):
    job = make()
    job.begin_pass("train")
    while (lease := job.lease(1)) is not None:
        clock.now_s += 0.5
        loss = 200.0 if lease.epoch == 0 else 100.0
        job.done(done(lease.number, loss=loss, examples=100.0), 1)
    job.end_pass()
    clock.now_s += 3
    assert job.ledger.over
    figures = job.figures({"bytes_in": 6000.0, "bytes_out": 2000.0, "peak_rss_mb": 50.04})
    assert figures == {
        "ended_by": "epochs",
        "examples_per_s": 200.0,
        "examples": 2000,
        "train_s": 10.0,
        "survey_s": 0.0,
        "wall_s": 13.0,
        "train_loss": 1.0,
        "loss_by_epoch": [2.0, 1.0],
        "progress": 1.0,
        "epochs": 2,
        "blocks": 20,
        "blocks_per_epoch": 10,
        "block_examples_max": 100,
        "bytes_per_example": 4.0,
        "peak_rss_mb": 50.0,
    }


def test_job_with_survey_merges_the_parts(make):
    job = make(worker_class="cluster_models:Surveyed")
    job.begin_pass("survey")
    assert job.ledger.size == 10  # whatever `epochs` says
    while (lease := job.lease(1)) is not None:
        assert job.done(done(lease.number, pass_="survey"), 1)
    job.end_pass()
    job.end_survey()
    assert job.summary == b"part" * 10
    assert job.start_message(3).survey


@pytest.mark.parametrize(("number", "unit"), [(-1, "line"), (20, "line"), (0, "byte")])
def test_job_content_of_what_is_no_block_is_the_peers_error(make, number, unit):
    job = make()
    with pytest.raises(ProtocolError, match="no such block"):
        job.content(0, "line")  # before the first pass
    job.begin_pass("train")
    with pytest.raises(ProtocolError, match="no such block"):
        job.content(number, unit)


def test_job_content_of_all_blocks_is_the_file(make, tmp_path):
    job = make(block_bytes="99")
    job.begin_pass("train")
    parts = [job.content(number, "line") for number in range(job.ledger.size // 2)]
    assert b"".join(parts) == (tmp_path / "in.txt").read_bytes()
    assert all(part.endswith(b"\n") for part in parts)


def test_block_seed_of_different_leases_differs_and_fits_64_bits():
    seeds = {block_seed(seed, number) for seed in range(20) for number in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert block_seed(1, 0) == block_seed(1, 0)
