"""A job as the master sees it: blocks, leases, figures, with the clock in the test's hand."""

import json
import math
import re
from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each
from cluster_models import COUNTER, Counter, write_numbers
from connected import block_of
from idx_files import write_pictures
from master_parts import TimedJob

from snailps.abi.key_hash import seed_of
from snailps.api.class_loading import load_named
from snailps.api.concurrency import Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import EPOCHS_AUTO, Passes
from snailps.api.range_passes import RangePasses
from snailps.api.worker import Worker
from snailps.config import JobSettings, RawConfig, setting
from snailps.config.settings import MasterSettings
from snailps.data.name_columns import NameCounts
from snailps.errors import ClusterError, ConfigError, DataError, MisuseError, ProtocolError
from snailps.files.input_files import InputFiles
from snailps.master.job.ending import lacks_rounds
from snailps.master.job.job import Job
from snailps.master.job.loss_watch import LossWatch
from snailps.master.job.metrics import FLAT_EPOCHS, RATE_WINDOW_S
from snailps.master.job.settings import job_settings
from snailps.master.job.state import decode, pack, unpack
from snailps.master.job.survey import SurveyMerge
from snailps.master.leases import CLOCKS_AHEAD
from snailps.master.leases.queue import ENTRIES_AHEAD
from snailps.master.status_report import pass_text
from snailps.models.embeddings.kge import TRIPLES_A_WORKER, KnowledgeGraph
from snailps.models.embeddings.settings import KgeSettings
from snailps.models.text_model import WordPart
from snailps.models.word_vectors.block_size import BLOCK_BYTES_MIN
from snailps.models.word_vectors.model import BYTES_A_WORKER
from snailps.transport import messages
from snailps.transport.messages.terms import Step


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
        made.append(TimedJob(raw, (JobSettings, MasterSettings), clock))
        made[-1].prepare(workers)
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.fixture
def begun(make):
    """Makes jobs whose training has begun."""

    def begun(workers=1, nodes=(), **settings):
        job = make(workers, **settings)
        job.begin_pass("train", nodes)
        return job

    return begun


def done(number, pass_="train", units=100, **metrics):
    return messages.Done(pass_, number, units, 1.0, metrics, b"part")


def exact_state(job):
    """What a master that takes over has of a job."""
    state = job.dump(exact=True)
    return decode(state.about, state.arrays, job.record.base())


def test_job_without_class_or_input_says_what_to_write(make):
    with pytest.raises(ConfigError, match="worker_class is not set"):
        Job(RawConfig())
    with pytest.raises(ConfigError, match="input is not set"):
        make(input="")
    with pytest.raises(DataError, match="does not exist"):
        make(input="nowhere")


def test_losses_are_of_the_epochs_that_were_begun(make):
    job = make(epochs="100000")
    job.begin_pass("train")
    assert job.figures({})["loss_by_epoch"] == []
    lease = job.lease(1)
    job.done(messages.Done("train", lease.number, 5, 1.0, {"loss": 2.0, "examples": 1.0}), 1)
    figures = job.figures({})
    assert (figures["loss_by_epoch"], figures["epochs"]) == ([2.0], 1)
    assert len(job.dump(exact=True).about["exact"]["metrics"]["losses"]) == 1


@each(
    "model, refused",
    [
        ("snailps.models.word_vectors:WordVectors", ("sgd",)),
        ("snailps.models.classifier:Classifier", ("sgd", "adagrad")),
        ("snailps.models.sparse.linear:Linear", ("add",)),
        ("snailps.models.sparse.fm:FactorizationMachine", ("add", "adam", "average")),
        ("snailps.models.sparse.net:Net", ("add",)),
        ("snailps.models.mlp:Mlp", ("add",)),
        ("examples.logistic:Logistic", ("add",)),
    ],
)
def test_job_with_optimizer_that_its_model_does_not_support_refuses(make, tmp_path, model, refused):
    write_pictures(tmp_path, "images", 20, 1)
    (tmp_path / "x.libsvm").write_text("0 1:1\n1 2:1\n")
    images = {"input": str(tmp_path / "images"), "labels": str(tmp_path / "images-labels")}
    examples = {"input": str(tmp_path / "x.libsvm")}
    files = images if "Mlp" in model else examples if "sparse" in model else {}
    for name in refused:
        with pytest.raises(ConfigError, match=rf"optimizer.*{name}|{name}.*optimizer"):
            make(worker_class=model, optimizer=name, **files)


def test_job_with_setting_of_its_own_or_of_a_role_builds_and_with_unknown_one_refuses(make):
    assert make(dim="3", expected_node_num="4").settings.dim == 3
    with pytest.raises(ConfigError, match="did you mean 'journal'"):
        make(journl="x")


@pytest.mark.parametrize(
    ("model", "output", "prefix"),
    [
        ("embeddings.mf:MatrixFactorization", "out/m.npz", "out/m"),
        ("sparse.linear:Linear", "m.npz", "m"),
        ("sparse.linear:Linear", "m.npz.npz", "m.npz"),
        ("classifier.model:Classifier", "m.bin", "m"),
        ("classifier.model:Classifier", "m.npz", "m.npz"),
        ("word_vectors.model:WordVectors", "m.bin", "m"),
        ("word_vectors.model:WordVectors", "m.v2", "m.v2"),
        ("embeddings.mf:MatrixFactorization", "out/.npz", "out/.npz"),
        ("embeddings.mf:MatrixFactorization", "", ""),
    ],
)
def test_output_may_be_the_name_of_a_file_that_the_model_writes(model, output, prefix):
    raw = RawConfig.from_mapping({"output": output}, "test")
    cls = load_named(f"snailps.models.{model}", "here", Worker)
    assert job_settings(cls, raw).output == prefix


@pytest.mark.parametrize(("block_bytes", "blocks"), [("0", 10), ("100", 28), ("1G", 10)])
def test_job_with_block_bytes_cuts_at_least_ten_blocks(begun, block_bytes, blocks, caplog):
    """A size that is not taken is said: in `bsp` a step is a number of blocks."""
    job = begun(block_bytes=block_bytes)
    assert job.schedule.size == 2 * blocks
    assert job.input.total_bytes == 2800
    said = [record.message for record in caplog.records if "block_bytes" in record.message]
    assert len(said) == (block_bytes == "1G")
    for text in said:
        assert "1.1 GB is too much for an input of 2.8 kB: its blocks have 280 B" in text
        assert "an epoch has 10." in text


def test_job_in_training_gives_leases_with_seeds_and_takes_results(begun, clock):
    job = begun(seed="5")
    leases = [job.lease(node=7) for _ in range(3)]
    assert [lease.number for lease in leases] == [0, 1, 2]
    assert [(lease.piece.start, lease.piece.stop) for lease in leases] == [
        (0, 280), (280, 560), (560, 840),
    ]  # fmt: skip
    assert [lease.seed for lease in leases] == [seed_of(5, number) for number in range(3)]
    assert leases[1].progress == (0.05, 0.1)
    assert [lease.first for lease in leases] == [True, False, False]
    assert job.lease(node=8, back=True) is None  # there are no clocks that others wait for
    assert (job.metrics.loss, job.metrics.lr) == (None, None)
    clock.now_s += 4
    assert job.done(done(0, loss=50.0, examples=100.0, lr=0.5), node=7)
    assert job.done(done(1, loss=30.0, examples=100.0), node=7)
    assert not job.done(done(1), node=7)  # a second time
    assert not job.done(done(2), node=8)  # not its lease
    assert not job.done(done(2, pass_="survey"), node=7)  # another pass
    assert (job.metrics.loss, job.metrics.lr, job.metrics.units) == (0.4, 0.5, 200)
    assert job.rate() == 200 / 4
    clock.now_s += RATE_WINDOW_S + 1
    assert job.rate() == 0
    clock.now_s += 100
    # Another master continues, and has seen nothing so far.
    job.record.continue_from(150.0, 120.0, clock.now_s)
    clock.now_s += 2
    assert job.done(done(2), node=7)
    assert job.rate() == done(2).units / 2


def test_job_whose_first_block_comes_back_says_that_others_may_have_pushed(begun):
    job = begun()
    assert job.lease(node=7).first
    job.schedule.retire(7)
    again = job.lease(node=8)
    assert (again.number, again.progress[0], again.first) == (0, 0.0, False)


def test_job_at_its_end_has_figures(begun, clock):
    job = begun()
    while (lease := job.lease(1)) is not None:
        clock.now_s += 0.5
        loss = 200.0 if lease.epoch == 0 else 100.0
        job.done(done(lease.number, loss=loss, examples=100.0), 1)
    job.end_pass()
    clock.now_s += 3
    assert job.schedule.over
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


def test_job_with_max_steps_ends_after_so_many_blocks_with_all_of_its_progress(begun):
    job = begun(max_steps="12", epochs="100")
    leases = []
    while (lease := job.lease(1)) is not None:
        leases.append(lease)
        job.done(done(lease.number, loss=2.0, examples=1.0), 1)
    assert len(leases) == 12
    assert leases[-1].progress[1] == 1.0
    job.end_pass()
    figures = job.figures({})
    assert (figures["ended_by"], figures["blocks"], figures["progress"]) == ("max_steps", 12, 1.0)
    assert job.epochs_done == pytest.approx(1.2)  # of 10 blocks each
    assert (figures["epochs"], figures["loss_by_epoch"]) == (2, [2.0, 2.0])


def test_job_with_more_max_steps_than_blocks_ends_by_epochs(begun):
    job = begun(max_steps="20")
    assert job.figures({})["ended_by"] == "epochs"
    assert job.schedule.size == 20


def test_job_with_max_seconds_shares_go_by_the_clock_where_that_is_faster(begun, clock):
    job = begun(max_seconds="8", epochs="5")
    first, second = job.lease(1), job.lease(1)
    assert first.progress == (0.0, 0.02)  # of 50 blocks; nothing is known of the speed
    clock.now_s += 1
    assert job.done(done(0), 1)  # took 1 s, the next one begins at once and is leased already
    third = job.lease(1)
    assert third.progress == (pytest.approx((1 + 1) / 8), pytest.approx((1 + 2) / 8))
    assert job.progress == 1 / 8
    assert job.limit_reached() == ""
    clock.now_s += 6.9
    assert job.lease(1).progress == (1.0, 1.0)
    assert job.limit_reached() == ""
    clock.now_s += 0.1
    assert job.limit_reached() == "max_seconds"
    assert job.progress == 1.0
    job.end_early("max_seconds")
    assert job.lease(1) is None
    assert not job.schedule.over  # blocks at work
    assert job.done(done(second.number), 1)
    assert job.figures({})["ended_by"] == "max_seconds"


def test_job_with_max_seconds_and_fast_blocks_has_the_shares_of_its_bytes(begun):
    job = begun(max_seconds="1e6")
    assert [job.lease(1).progress for _ in range(2)] == [(0.0, 0.05), (0.05, 0.1)]


def test_job_with_target_loss_ends_once_an_epoch_of_blocks_is_that_good(begun):
    job = begun(target_loss="0.5")
    for number in range(9):
        job.done(done(job.lease(1).number, loss=10.0, examples=100.0), 1)
        assert job.limit_reached() == "", number  # 0.1 is good enough, but not ten blocks yet
    job.done(done(job.lease(1).number, loss=410.0, examples=100.0), 1)
    assert job.metrics.loss == 0.5
    assert job.limit_reached() == "target_loss"
    # What a worker may have leased meanwhile is trained, whenever the master looks.
    for _ in range(ENTRIES_AHEAD):
        job.done(done(job.lease(1).number, loss=100.0, examples=100.0), 1)
        assert job.limit_reached() == "target_loss"
    assert job.lease(1) is None
    assert job.schedule.over


def test_job_without_limits_or_without_a_loss_never_reaches_one(begun, clock):
    for settings in ({}, {"target_loss": "100"}):
        job = begun(**settings)
        clock.now_s += 1e9
        while (lease := job.lease(1)) is not None:
            job.done(done(lease.number), 1)
        assert job.limit_reached() == ""


def test_job_with_survey_merges_the_parts(make):
    job = make(worker_class="cluster_models:Surveyed")
    job.begin_pass("survey")
    assert job.schedule.size == 10  # whatever `epochs` says
    while (lease := job.lease(1)) is not None:
        assert job.done(done(lease.number, pass_="survey"), 1)
    job.end_pass()
    job.end_survey()
    assert job.survey.summary == b"part" * 10
    assert job.start_message(3).survey


class Choosy:
    """A surveyor that fails at some parts."""

    def __init__(self):
        self.parts = []

    def add(self, part):
        if part == b"bad":
            raise KeyError("a bug of the model's")
        self.parts.append(part)

    def result(self):
        return b"".join(self.parts)


@pytest.mark.parametrize("consistency", ["async", "bsp"])
def test_job_whose_surveyor_fails_at_a_part_has_that_block_counted_again(make, consistency):
    job = make(worker_class="cluster_models:Surveyed", consistency=consistency)
    job.survey.merge = SurveyMerge(Choosy(), in_order=consistency == "bsp")
    job.begin_pass("survey")
    numbers = [job.lease(1).number for _ in range(10)]
    for number in (1, 0, 2, *range(4, 10)):
        assert job.done(messages.Done("survey", number, 1, 1.0, {}, b"%d." % number), 1)
    with pytest.raises(KeyError):
        job.done(messages.Done("survey", 3, 1, 1.0, {}, b"bad"), 1)
    assert job.schedule.records.held_by(1) == [3]
    assert job.metrics.units == 9
    assert job.schedule.release(1) == [3]
    assert job.lease(2).number == numbers[3]
    assert job.done(messages.Done("survey", 3, 1, 1.0, {}, b"3."), 2)
    job.end_survey()
    assert sorted(job.survey.summary.split(b".")[:-1]) == [b"%d" % number for number in numbers]


def test_job_in_bsp_whose_surveyor_fails_at_a_part_that_came_early_has_no_summary(make):
    job = make(worker_class="cluster_models:Surveyed", consistency="bsp")
    job.survey.merge = SurveyMerge(Choosy(), in_order=True)
    job.begin_pass("survey")
    numbers = [job.lease(1).number for _ in range(10)]
    job.done(messages.Done("survey", 1, 1, 1.0, {}, b"bad"), 1)
    with pytest.raises(KeyError):
        job.done(messages.Done("survey", 0, 1, 1.0, {}, b"0."), 1)
    for number in (0, *numbers[2:]):
        job.done(messages.Done("survey", number, 1, 1.0, {}, b"part"), 1)
    with pytest.raises(ClusterError, match="block 1 could not be merged"):
        job.end_survey()


@pytest.mark.parametrize(("number", "unit"), [(-1, "line"), (20, "line"), (0, "byte")])
def test_job_content_of_what_is_no_block_is_the_peers_error(make, number, unit):
    job = make()
    with pytest.raises(ProtocolError, match="no such block"):
        job.content(0, "line")  # before the first pass
    job.begin_pass("train")
    with pytest.raises(ProtocolError, match="no such block"):
        job.content(number, unit)


def test_job_content_of_all_blocks_is_the_file(begun, tmp_path):
    job = begun(block_bytes="99")
    parts = [job.content(number, "line") for number in range(job.schedule.size // 2)]
    assert b"".join(parts) == (tmp_path / "in.txt").read_bytes()
    assert all(part.endswith(b"\n") for part in parts)


def test_seed_of_different_leases_differs_and_fits_64_bits():
    seeds = {seed_of(seed, number) for seed in range(20) for number in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert seed_of(1, 0) == seed_of(1, 0)


# --- blocks once the survey is known ----------------------------------------------------------

SURVEYED = {"worker_class": "snailps.models.word_vectors:WordVectors", "min_count": "1"}


def surveyed(make, tmp_path, **settings):
    """A job of word vectors behind its survey; and how many blocks that had."""
    words = [b"word%04d" % (i * i % 7919) for i in range(20_000)]
    (tmp_path / "words.txt").write_bytes(b" ".join(words))
    job = make(input=str(tmp_path / "words.txt"), **SURVEYED, **settings)
    job.begin_pass("survey")
    part = WordPart()
    part.add(block_of((tmp_path / "words.txt").read_bytes()))
    size = job.schedule.size
    for at in range(size):
        assert job.lease(7).number == at
        job.done(messages.Done("survey", at, 1, 1.0, {}, part.take()), 7)
    job.end_pass()
    job.end_survey()
    job.begin_pass("train")
    return job, size


def test_job_with_rows_beyond_the_memory_of_a_worker_cuts_smaller_blocks(make, tmp_path):
    job, counted = surveyed(make, tmp_path, dim="1000", worker_memory="1M", epochs="1")
    # The smallest blocks; those of the survey, of one worker that rotates, are small already.
    assert job.schedule.size == -(-job.input.total_bytes // BLOCK_BYTES_MIN) > counted
    blocks = [job.schedule.plan.entry(i).piece for i in range(job.schedule.size)]
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
    assert blocks[-1].stop == job.input.total_bytes


@pytest.mark.parametrize("settings", [{}, {"worker_memory": "1M", "block_bytes": "50000"}])
def test_job_with_memory_enough_or_a_size_of_the_users_keeps_its_blocks(make, tmp_path, settings):
    job, counted = surveyed(make, tmp_path, dim="1000", epochs="1", **settings)
    assert job.schedule.size == counted


def test_job_started_after_the_survey_still_tells_workers_of_it(make, tmp_path):
    job, _ = surveyed(make, tmp_path)
    assert job.start_message(1).survey


# --- clocks ----------------------------------------------------------------------------------


def test_job_in_bsp_cuts_and_tells_workers_as_if_micro_batches_were_workers(make):
    jobs = [make(workers=workers, consistency="bsp", micro_batches="3") for workers in (1, 4)]
    assert [job.start_message(9).workers for job in jobs] == [3, 3]
    for job in jobs:
        job.begin_pass("train", [7])
    assert jobs[0].schedule.size == jobs[1].schedule.size
    lease = jobs[0].lease(7)
    assert lease.terms == Step(0, 0, 3)
    assert make(workers=4).start_message(9).workers == 9


class ManyWorkers(KnowledgeGraph):
    """The documentation's way to more workers."""

    @classmethod
    def triples_a_worker(cls, settings):
        return 40_000


@pytest.mark.parametrize(
    ("model", "most"), [("transe", 2), ("complex", 2), ("rotate", 2), ("distmult", 1)]
)
def test_job_on_a_graph_has_as_many_workers_train_as_its_model_bears(make, tmp_path, model, most):
    graph = tmp_path / "graph.tsv"
    graph.write_text("a\tr\tb\n" * 480_005)
    where = "snailps.models.embeddings.kge:KnowledgeGraph"
    settings = {"worker_class": where, "input": str(graph), "model": model}
    assert make(workers=8, **settings).model.by_input.concurrency.workers == most
    settings["worker_class"] = f"{__name__}:ManyWorkers"
    assert make(workers=8, **settings).model.by_input.concurrency.workers == 12
    counts = NameCounts(2)
    counts.add(0, [b"%d" % n for n in range(5000)])
    counts.add(1, [b"r"] * 480_005)
    summary = counts.dump()
    size, chosen = graph.stat().st_size, KgeSettings(model=model)
    for cls, parts in ((KnowledgeGraph, most), (ManyWorkers, 8)):
        rotation = cls.rotation(chosen, size, 8, summary)
        assert (1 if rotation is None else rotation.most_parts) == parts


def test_job_on_few_lines_has_as_many_workers_train_as_learn_what_one_does(make, tmp_path):
    graph = tmp_path / "graph.tsv"
    graph.write_text("a\tr\tb\n" * (2 * TRIPLES_A_WORKER["complex"] + 5))
    settings = {"worker_class": "snailps.models.embeddings.kge:KnowledgeGraph", "input": str(graph)}
    settings["model"] = "complex"
    job = make(workers=8, **settings)
    assert job.model.by_input.concurrency == Concurrency(2, "more learn less from 480,005 triples")
    assert [job.start_message(workers).workers for workers in (1, 2, 8)] == [1, 2, 2]
    assert job.input.block_bytes == make(workers=2, **settings).input.block_bytes
    assert make(workers=8, **settings, loss="softmax").model.by_input.concurrency.workers == 2
    why = "complex with loss: margin learns less by several; consistency: bsp lets more train"
    assert make(workers=8, **settings, loss="margin").model.by_input.concurrency == Concurrency(
        1, why
    )
    assert (
        make(workers=8, **settings, consistency="bsp").model.by_input.concurrency == Concurrency()
    )
    job.begin_pass("train", nodes=(1, 2, 3))
    assert [job.lease(node) is not None for node in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("lines", "most"), [(399, 1), (800, 2), (1999, 4)])
def test_job_on_few_labelled_lines_has_a_worker_for_every_400(make, tmp_path, lines, most):
    text = tmp_path / "few.txt"
    text.write_text("__label__a b\n" * lines)
    job = make(workers=8, worker_class="snailps.models.classifier:Classifier", input=str(text))
    assert job.model.by_input.concurrency == Concurrency(
        most, f"more learn less from {lines:,} lines"
    )


@pytest.mark.parametrize(
    ("name", "lines", "most"),
    [("linear:Linear", 300, 1), ("fm:FactorizationMachine", 599, 2), ("net:Net", 1000, 5)],
)
def test_job_on_few_examples_has_a_worker_for_every_200(make, tmp_path, name, lines, most):
    examples = tmp_path / "few.svm"
    examples.write_text("# a comment\n0 1:1\n" + "1 3:1 7:2\n" * (lines - 1))
    job = make(workers=8, worker_class=f"snailps.models.sparse.{name}", input=str(examples))
    why = f"more learn less from {lines:,} examples"
    assert job.model.by_input.concurrency == Concurrency(most, why)


@pytest.mark.parametrize(
    ("settings", "workers"),
    [({"consistency": "ssp"}, 2), ({"max_steps": "99"}, 2), ({}, 8)],
)
def test_job_on_little_text_has_as_many_workers_train_by_blocks(make, tmp_path, settings, workers):
    text = tmp_path / "text"
    text.write_text("so many words\n" * (5 * BYTES_A_WORKER // 28))
    cls = "snailps.models.word_vectors:WordVectors"
    job = make(workers=8, worker_class=cls, input=str(text), **settings)
    assert job.as_counted(8) == workers


def test_job_in_bsp_takes_losses_in_the_order_of_slots_and_ends_two_clocks_later(begun):
    def play(order):
        job = begun(consistency="bsp", micro_batches="2", target_loss="1.17", nodes=[1])
        ended = None
        while not job.schedule.over:
            numbers = []
            while len(numbers) < 2 and (lease := job.lease(1)) is not None:
                numbers.append(lease.number)
            for number in sorted(numbers, reverse=order):
                assert job.done(done(number, loss=80.0 - 4 * number, examples=50.0), 1)
                if ended is None and job.limit_reached():
                    job.end_early(job.limit_reached())
                    ended = job.schedule.slots.open
        return job.schedule.slots.open, ended, job.figures({})["loss_by_epoch"], job.rules.ended_by

    assert play(order=False) == play(order=True)
    clocks, ended, _, why = play(order=False)
    assert why == "target_loss"
    # Twelve blocks, six clocks, have a mean of 58 / 50; two more clocks may have been leased.
    assert (ended, clocks) == (6, 8)


def test_job_in_rounds_tells_a_newcomer_of_as_many_workers_as_there_are_parts(make):
    job = make(worker_class="clock_models:Mean", epochs="5", input="")
    assert job.start_message(3).workers == 3
    job.begin_pass("train", [4, 5, 6])
    for lost in (4, 5):
        job.schedule.retire(lost)
    job.schedule.join(7)
    assert job.start_message(2).workers == 3  # its index may be up to 2


def test_job_in_rounds_that_a_limit_ends_before_the_first_has_no_model(make):
    """An interrupt may: it saves what there is."""
    job = make(worker_class="clock_models:Mean", epochs="5", input="", max_seconds="0.01")
    job.begin_pass("train", [4])
    assert lacks_rounds(job) == ""
    job.end_early("max_seconds")
    assert lacks_rounds(job).startswith("max_seconds: 0.01 s end before the first round does")
    job.rules.ended_by = "interrupt"
    assert lacks_rounds(job) == ""
    job.end_early("max_seconds")
    job.schedule.rounds.advance()
    assert lacks_rounds(job) == ""


@pytest.mark.parametrize("steps", range(9))
def test_job_in_bsp_goes_on_from_any_checkpoint_to_the_same_end(make, steps):
    """Also from those of the two steps behind the one that reached the target."""

    def train(job, until):
        while not job.schedule.over and job.schedule.slots.open < until:
            number = job.lease(1).number
            assert job.done(done(number, loss=80.0 - 4 * number, examples=50.0), 1)
            if not job.schedule.closed and job.limit_reached():
                job.end_early(job.limit_reached())

    settings = {"consistency": "bsp", "micro_batches": "2", "target_loss": "1.17"}
    job, again = make(**settings), make(**settings)
    job.begin_pass("train", [1])
    train(job, steps)
    again.begin_pass("train", [1], unpack(pack(job.dump(clock=steps))))
    if again.limit_reached():
        again.end_early(again.limit_reached())
    train(again, 99)
    assert (again.schedule.slots.open, again.rules.ended_by) == (8, "target_loss")


def test_job_in_bsp_leases_nothing_behind_its_end_before_the_limit_is_looked_at(begun):
    """A step that all slots of are pushed is applied: the result would depend on the moment."""
    job = begun(consistency="bsp", micro_batches="1", target_loss="1.17", nodes=[1])
    numbers = []
    while (lease := job.lease(1)) is not None:
        numbers.append(lease.number)
        assert job.done(done(lease.number, loss=80.0 - 4 * lease.number, examples=50.0), 1)
    # The mean of the twelve first blocks is 58 / 50.
    assert numbers == [*range(14)]
    assert job.schedule.over
    assert job.figures({})["ended_by"] == "target_loss"


def test_job_in_bsp_taken_over_at_its_target_leases_nothing_behind_its_end(make):
    """The journal was compacted before the limit was looked at."""
    job, other = (make(consistency="bsp", micro_batches="1", target_loss="1.17") for _ in range(2))
    job.begin_pass("train", [1])
    for number in range(12):
        assert job.done(done(job.lease(1).number, loss=80.0 - 4 * number, examples=50.0), 1)
    assert job.rules.has_reached
    other.begin_pass("train", [1], exact_state(job))
    assert [lease.number for lease in iter(lambda: other.lease(1), None)] == [12, 13]


def test_job_that_goes_on_from_a_checkpoint_has_the_rate_of_now(make, clock):
    job, again = make(), make()
    job.begin_pass("train")
    clock.now_s += 1000.0
    again.begin_pass("train", snapshot=unpack(pack(job.dump())))
    clock.now_s += 1.0
    assert again.done(done(again.lease(1).number, units=100), 1)
    assert again.rate() == pytest.approx(100.0)
    assert again.elapsed_s == pytest.approx(1001.0)


def test_job_in_bsp_merges_a_survey_in_the_order_of_blocks(make, tmp_path):
    for order in (1, -1):
        job = make(worker_class="cluster_models:Surveyed", consistency="bsp")
        job.begin_pass("survey")
        numbers = []
        while (lease := job.lease(1)) is not None:
            numbers.append(lease.number)
        for number in numbers[::order]:
            job.done(messages.Done("survey", number, 1, 1.0, {}, b"%d." % number), 1)
        job.end_survey()
        assert job.survey.summary == b"0.1.2.3.4.5.6.7.8.9."


def test_job_in_bsp_has_learning_rates_that_do_not_depend_on_time(begun, clock):
    job = begun(consistency="bsp", max_seconds="10", nodes=[1])
    clock.now_s += 9
    assert job.lease(1).progress == (0.0, 0.05)
    clock.now_s += 2
    assert job.limit_reached() == "max_seconds"


def test_job_in_ssp_deals_blocks_and_tells_how_far_ahead_anybody_was(begun):
    job = begun(consistency="ssp", staleness="1", nodes=[4, 5])
    for _ in range(2):
        job.done(done(job.lease(4).number), 4)
    assert job.lease(4) is None
    assert job.figures({})["ahead_max"] == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"staleness": "3"}, "staleness has no effect with consistency: async"),
        ({"staleness": "3", "consistency": "bsp"}, "staleness has no effect with consistency: bsp"),
        ({"micro_batches": "3", "consistency": "ssp"}, "micro_batches has no effect with .* ssp"),
        (
            {"consistency": "bsp", "worker_class": "clock_models:Mean", "epochs": "5"},
            "consistency has no effect in a job in rounds",
        ),
        (
            {"epochs": "3", "worker_class": "clock_models:Mean"},
            "epochs has no effect in a job in rounds",
        ),
        ({"epochs": "3", "worker_class": "clock_models:MeanByEpochs"}, None),
        ({"staleness": "3", "consistency": "ssp"}, None),
        ({"micro_batches": "3", "consistency": "bsp"}, None),
    ],
)
def test_job_with_a_setting_of_another_consistency_is_refused(make, settings, said):
    if said is None:
        make(**settings)
        return
    with pytest.raises(ConfigError, match=f"test: {said}"):
        make(**settings)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("consistency", ["async", "bsp"])
def test_job_with_a_loss_that_is_no_number_has_diverged(begun, loss, consistency):
    job = begun(consistency=consistency, nodes=[1])
    job.done(done(job.lease(1).number, loss=80.0, examples=50.0), 1)
    assert job.rules.diverged == ""
    job.done(done(job.lease(1).number, loss=loss, examples=50.0), 1)
    assert re.match(
        rf"Counter\.train \(.*cluster_models\.py, line \d+\), block 1: the loss is {loss}: the "
        "training has diverged",
        job.rules.diverged,
    )


def counted(cls, settings, counts, units):
    """A judgement that refuses one count in ten units."""
    refused = "too many" * any(10 * count > units for count in counts.values())
    figures = {"odd": dict(counts), "of": np.int64(units)}
    return Counted(replace(settings, seed=99), figures, refused)


def test_counts_of_blocks_are_judged_after_an_epoch_and_at_the_end(begun, monkeypatch):
    monkeypatch.setattr(Counter, "counted", classmethod(counted))
    jobs = [begun(nodes=[1]) for _ in range(2)]
    for job, count in zip(jobs, (10, 11), strict=True):
        for _ in range(10):
            assert job.rules.refused == ""
            job.done(done(job.lease(1).number, **{"count x": float(count), "y": 7.0}), 1)
        assert job.rules.refused == ("too many" if count > 10 else "")
        assert job.settings.seed == 1  # what a checkpoint is compared by
    job = jobs[0]
    again = begun(nodes=[1])
    again.metrics.resume(job.metrics.snapshot())
    assert again.metrics.counts == {"x": 100.0}
    job.done(done(job.lease(1).number, **{"count z": 3.0}), 1)
    job.end_pass()
    assert (job.rules.refused, job.settings.seed) == ("", 99)
    figures = job.figures({})
    assert (figures["odd"], figures["of"]) == ({"x": 100.0, "z": 3.0}, 1100)
    assert json.dumps(figures)  # also where the model's are NumPy's


def test_counts_of_a_model_that_judges_none_are_summed_without_an_error(begun, caplog):
    job = begun(nodes=[1], worker_class="tests.unit.test_job:OnlyTrained")
    for _ in range(10):
        job.done(done(job.lease(1).number, **{"count x": 1.0}), 1)
    job.end_pass()
    assert (job.rules.refused, job.metrics.counts) == ("", {"x": 10.0})
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class OnlyTrained(Worker):
    """Has no trait."""

    def train(self, block):
        return {"units": 1}


class AtOnce(OnlyTrained):
    """Says with a number, and nothing else, how many workers train at a time."""

    @classmethod
    def workers_at_once(cls, settings, files):
        return 3


def test_answer_of_a_class_that_is_of_another_type_is_named(make):
    with pytest.raises(ConfigError, match=r"AtOnce\.workers_at_once returned 3: .*Concurrency"):
        make(worker_class="tests.unit.test_job:AtOnce")


def test_job_with_clocks_and_rows_that_expire_is_refused(make, tmp_path):
    (tmp_path / "x.libsvm").write_text("0 1:1\n1 2:1\n")
    linear = {"worker_class": "snailps.models.sparse.linear:Linear", "consistency": "bsp"}
    with pytest.raises(ConfigError, match="rows cannot expire in a job with clocks"):
        make(**linear, expire_after="1", input=str(tmp_path / "x.libsvm"))


# --- epochs: auto ---------------------------------------------------------------------------------


class Judged(Counter):
    """Its epochs: from 2 to 30, while the loss falls."""

    Settings = make_dataclass(
        "JudgedSettings",
        [("epochs", int, setting(0, **EPOCHS_AUTO))],
        bases=(Counter.Settings,),
        frozen=True,
        slots=True,
    )

    @classmethod
    def passes(cls, settings, files):
        assert files.total_bytes == 2800
        return Passes(30, 2)


AUTO = {"worker_class": f"{__name__}:Judged", "epochs": "auto", "block_bytes": "2000"}
FALL = 7
"""Epochs until the loss is flat."""


ENDS_AT = FALL + FLAT_EPOCHS + 1
"""Epochs that are begun: the last one has `ENTRIES_AHEAD` entries."""


def loss_of(job, number):
    return 50.0 * max(1.0, FALL - number // len(job.input.blocks))


def train_on(job, until=999):
    """Trains until the job ends, or so many blocks are done."""
    while not job.schedule.over and job.schedule.finished < until:
        number = job.lease(1).number
        assert job.done(done(number, loss=loss_of(job, number), examples=50.0), 1)
        if not job.schedule.closed and job.limit_reached():
            job.end_early(job.limit_reached())
    return job


def test_job_of_auto_epochs_ends_when_its_loss_stops_falling(make):
    job = make(**AUTO)
    assert job.settings.epochs == 30
    assert job.start_message(1).settings["epochs"] == "30"  # rates that fall go by these
    job.begin_pass("train")
    assert pass_text(job) == "epoch 1, at most 30"
    train_on(job)
    figures = job.figures({})
    assert (figures["ended_by"], figures["epochs"]) == ("converged", ENDS_AT)
    assert figures["blocks"] == (FALL + FLAT_EPOCHS) * len(job.input.blocks) + ENTRIES_AHEAD
    assert [loss for loss in figures["loss_by_epoch"] if loss is not None] == [
        float(max(1, FALL - epoch)) for epoch in range(ENDS_AT)
    ]
    assert "loss_falls" not in figures


def test_job_of_given_epochs_trains_them_all_and_tells_that_its_loss_still_falls(begun):
    job = begun(**{**AUTO, "epochs": "4"})
    assert pass_text(job) == "epoch 1 of 4"
    figures = train_on(job).figures({})
    assert (figures["ended_by"], figures["epochs"], figures["blocks"]) == ("epochs", 4, 40)
    assert figures["loss_falls"] == 0.2


@pytest.mark.parametrize(("least", "by_heart", "said"), [(1, True, True), (1, False, False)])
def test_job_says_that_its_lines_may_be_learnt_by_heart(begun, monkeypatch, least, by_heart, said):
    """Where the model chose so many epochs, and the loss fell below half of the first epoch's."""
    passes = classmethod(
        lambda cls, settings, files: Passes(30, least, relative=False, by_heart=by_heart)
    )
    monkeypatch.setattr(Judged, "passes", passes)
    figures = train_on(begun(**AUTO)).figures({})
    losses = [loss for loss in figures["loss_by_epoch"] if loss is not None]
    assert losses[-1] < losses[0] / 2
    assert figures.get("by_heart", False) == said


def test_job_gives_no_advice_against_the_number_of_epochs_that_its_model_chose(begun, monkeypatch):
    for least, falls in ((4, False), (2, True)):
        passes = classmethod(lambda cls, settings, files, least=least: Passes(4, least))
        monkeypatch.setattr(Judged, "passes", passes)
        figures = train_on(begun(**AUTO)).figures({})
        assert (figures["ended_by"], figures["epochs"]) == ("epochs", 4)
        assert ("loss_falls" in figures) == falls


@pytest.mark.parametrize("ranges", [8, 9, 11, 12])
def test_losses_of_passes_over_ranges_are_of_whole_epochs_and_give_no_advice(make, ranges):
    job = make(**AUTO | {"epochs": "3"})
    job.begin_pass("train", plan=RangePasses(2, 6, per_epoch=2, before=1))
    for _ in range(len(job.input.blocks) + 2 + ranges):
        lease = job.lease(1)
        assert job.done(done(lease.number, loss=60.0 - lease.number, examples=1.0), 1)
    if ranges < 12:
        job.end_early("max_seconds")
    figures = job.figures({})
    known = [loss is not None for loss in figures["loss_by_epoch"]]
    assert known == [True] * (ranges // 4) + [False] * (ranges % 4 > 0)
    assert figures["train_loss"] == figures["loss_by_epoch"][ranges // 4 - 1]
    assert "loss_falls" not in figures


def test_job_that_learns_less_than_a_constant_says_so(begun, monkeypatch):
    monkeypatch.setattr(Counter, "constant_loss", classmethod(lambda cls, settings: 0.5))
    for epochs, told in (("3", True), ("1", False)):
        job = begun(epochs=epochs)
        assert (train_on(job).figures({}).get("constant_loss") == 0.5) == told
    monkeypatch.setattr(Counter, "constant_loss", classmethod(lambda cls, settings: 99.0))
    job = begun(epochs="3")
    assert "constant_loss" not in train_on(job).figures({})


def test_job_of_a_model_that_does_not_decide_has_the_epochs_of_its_setting(begun):
    assert Counter.passes(Counter.Settings(), InputFiles([], None)) == Passes(5, 5)
    job = begun(epochs="3")
    figures = train_on(job).figures({})
    assert (figures["ended_by"], figures["epochs"]) == ("epochs", 3)
    assert "loss_falls" not in figures


@pytest.mark.parametrize("steps", [0, 1, 10, 22, 24, 25])
def test_job_of_auto_epochs_goes_on_from_a_checkpoint_to_the_same_end(make, steps):
    job, again = make(**AUTO), make(**AUTO)
    job.begin_pass("train")
    train_on(job, steps)
    job.schedule.records.make_all_durable(1)
    again.begin_pass("train", snapshot=unpack(pack(job.dump())))
    if again.limit_reached():
        again.end_early(again.limit_reached())
    figures = train_on(again).figures({})
    assert (figures["ended_by"], figures["epochs"]) == ("converged", ENDS_AT)


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("looks", [1, 2, 5])
def test_job_of_auto_epochs_ends_at_the_same_entry_however_late_the_master_looks(
    make, ahead, looks, taken_over
):
    job = make(**AUTO)
    job.begin_pass("train", [1])
    held, numbers = [], []
    while not job.schedule.over:
        while len(held) <= ahead and (lease := job.lease(1)) is not None:
            held.append(lease.number)
        numbers.append(number := held.pop(0))
        assert job.done(done(number, loss=loss_of(job, number), examples=50.0), 1)
        if len(numbers) % looks == 0 and not job.schedule.closed and job.limit_reached():
            job.end_early(job.limit_reached())
        if taken_over and len(numbers) % 7 == 6:
            job, before = make(**AUTO), job
            job.begin_pass("train", [1], exact_state(before))
            for number in held:
                assert job.schedule.claim(number, 1)
    blocks = len(job.input.blocks)
    assert numbers == [*range((FALL + FLAT_EPOCHS) * blocks + ENTRIES_AHEAD)]


def test_interrupt_after_the_limit_leases_nothing_more(make):
    job = make(**AUTO)
    job.begin_pass("train", [1])
    while not job.schedule.closed:
        number = job.lease(1).number
        assert job.done(done(number, loss=loss_of(job, number), examples=50.0), 1)
        if job.limit_reached():
            job.end_early(job.limit_reached())
    job.end_early("interrupt")
    assert job.schedule.over
    assert job.lease(1) is None


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_job_of_auto_epochs_in_bsp_ends_at_the_same_clock(make, order, taken_over):
    settings = {**AUTO, "consistency": "bsp", "micro_batches": "4", "block_bytes": "1000"}
    job = make(**settings)
    blocks = len(job.input.blocks)
    job.begin_pass("train", [1])
    numbers = []
    for clock in range(999):
        leases = [job.lease(1) for _ in range(4)]
        here = [lease.number for lease in leases if lease is not None]
        if not here:
            break
        numbers += here
        for number in here[::order]:
            assert job.done(done(number, loss=loss_of(job, number), examples=50.0), 1)
        if taken_over and clock % 7 == 6:
            job, before = make(**settings), job
            job.begin_pass("train", [1], exact_state(before))
    last = -(-(FALL + FLAT_EPOCHS) * blocks // 4)  # clocks
    assert numbers == [*range(4 * (last + CLOCKS_AHEAD))]
    assert job.limit_reached() == "converged"
    job.end_early("converged")
    assert job.schedule.over
    assert job.figures({})["ended_by"] == "converged"


@each(
    "total, ends, passes",
    [
        (1, True, Passes(300, 5)), (1, False, Passes(50, 50)), (100, True, Passes(10, 5)),
        (100, False, Passes(10, 10)), (10**12, True, Passes(5, 5)), (0, True, Passes(300, 5)),
    ],
)  # fmt: skip
def test_passes_are_as_many_as_the_input_is_small(total, ends, passes):
    assert Passes.by_size(total, 1000, ends=ends) == passes


@each("least, most", [(0, 1), (2, 1)])
def test_passes_that_are_none_are_refused(least, most):
    with pytest.raises(MisuseError, match="least"):
        Passes(most, least)


def test_small_input_of_many_epochs_has_fewer_blocks_an_epoch(make):
    """Each lease takes about 1 ms; 50 blocks of all epochs are enough."""
    for epochs, blocks in (("2", 10), ("5", 10), ("10", 5), ("25", 2), ("50", 1), ("200", 1)):
        assert len(make(epochs=epochs, block_bytes="4000").input.blocks) == blocks
    assert len(make(2, epochs="50", block_bytes="4000").input.blocks) == 2
    assert len(make(epochs="50", block_bytes="4000", consistency="bsp").input.blocks) == 10


def test_blocks_of_a_job_that_shuffles_are_over_all_files_and_are_found_again(
    make, begun, tmp_path, monkeypatch
):
    """By the names of the files, whatever order the input has them in."""
    monkeypatch.setattr(Counter, "shuffles", classmethod(lambda cls, settings: True))
    paths = [tmp_path / f"{letter}.txt" for letter in "cab"]
    for path in paths:
        path.write_text(f"{path.stem}\n" * 700)
    settings = {"epochs": "1", "block_bytes": "600"}
    job = begun(input=", ".join(map(str, paths)), **settings)
    first = job.lease(1)
    assert first.piece.path == f"{tmp_path}/a.txt and 2 more"
    assert first.layout.spread == 4200
    assert [file[:3] for file in first.layout.files] == [
        (str(tmp_path / f"{letter}.txt"), 1400 * at, 1400) for at, letter in enumerate("abc")
    ]
    lines = job.content(first.number, "line").split()
    assert {line: len(lines) / lines.count(line) for line in lines} == pytest.approx(
        {b"a": 3, b"b": 3, b"c": 3}, abs=0.5
    )
    assert job.content(first.number, "line", 9) == b""
    assert job.done(done(first.number), 1)
    job.schedule.records.make_durable([first.number], 1)
    snapshot = unpack(pack(job.dump()))
    again = make(input=", ".join(map(str, sorted(paths))), **settings)
    again.begin_pass("train", snapshot=snapshot)
    left = [job.lease(1) for _ in range(job.schedule.size - 1)]
    assert [again.lease(1) for _ in left] == left


def test_job_whose_loss_is_far_beyond_its_first_one_several_times_has_diverged(begun, monkeypatch):
    """One block may have an outlier; what to change is said."""
    monkeypatch.setattr(Counter, "loss_bound", 100.0)
    job = begun(nodes=[1, 2])
    job.start_message(2)
    for loss in (5.0, 400.0, 600.0, 600.0, 5.0, 600.0, 600.0):
        job.done(done(job.lease(1).number, loss=50 * loss, examples=50.0), 1)
        assert job.rules.diverged == ""
    number = job.lease(1).number
    job.done(done(number, loss=50 * 600.0, examples=50.0), 1)
    said = f"block {number}: the loss is 600, and began with 5: the training has diverged"
    assert f", {said}" in job.rules.diverged
    assert "The steps of workers add up (2 here): if fewer workers learn" in job.rules.diverged


def test_advice_of_a_divergence_names_the_settings_that_give_weights():
    plain = {"lr": 0.5, "weight_column": "", "soft_labels": False, "class_weights": ()}
    for weights, advice in (
        ({}, ". The steps"),
        (
            {"weight_column": "votes", "class_weights": ("a=5",)},
            ", or divide the weights (weight_column, class_weights) by their mean. The steps",
        ),
    ):
        watch = LossWatch(math.inf, 0.0, SimpleNamespace(**plain | weights))
        assert f" Lower lr (it is 0.5){advice}" in watch.check("block 1", math.nan)


def test_job_that_begins_with_a_small_loss_may_have_larger_ones(begun, monkeypatch):
    """A model that is continued has learnt the first block; what is of another text is no error."""
    monkeypatch.setattr(Counter, "loss_bound", 100.0)
    job = begun(nodes=[1])
    for loss in (1e-6, 90.0, 90.0, 90.0, 90.0):
        job.done(done(job.lease(1).number, loss=50 * loss, examples=50.0), 1)
    assert job.rules.diverged == ""


def test_job_of_a_model_without_a_bound_may_have_any_finite_loss(begun):
    job = begun(nodes=[1])
    for loss in (1.0, 1e30, 1e30, 1e30, 1e30):
        job.done(done(job.lease(1).number, loss=50 * loss, examples=50.0), 1)
    assert job.rules.diverged == ""


def test_class_answers_before_the_training_and_is_not_asked_in_it(make, monkeypatch):
    """In the master's loop a method of the model's class may take seconds, or raise."""
    asked = []

    def noting(name):
        answer = getattr(Counter, name)

        def asks(cls, settings):
            asked.append(name)
            return answer.__func__(cls, settings)

        return classmethod(asks)

    names = {"model_name", "expires", "constant_loss", "tester", "validation"}
    for name in names:
        monkeypatch.setattr(Counter, name, noting(name))
    job = make()
    assert names == {*asked}
    asked.clear()
    job.begin_pass("train", [7])
    for _ in range(5):
        assert job.done(done(job.lease(7).number, loss=9.0, examples=10.0), node=7)
        job.limit_reached()
        job.figures({})
        exact_state(job)
    job.end_early("interrupt")
    job.end_pass()
    assert job.figures({})["ended_by"] == "interrupt"
    assert asked == []
