"""Workers that keep rows: others that join, checkpoints that must not miss anything."""

import signal
from functools import partial

import numpy as np
import pytest
from processes import Cluster, Gate
from test_cluster import figures_of, holds
from test_linear import FEATURES, planted
from texts import ANIMALS, TOOLS, topic_contrast, write_topics

from snailps.models.sparse.worker import PERIOD_BLOCKS
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

FIRST, LATER = 3, 8
"""Blocks at which the early and the late worker stop: no worker has leased the second ahead when
the first is at work."""


def sparse(folder, model, **settings):
    (folder / "input").write_text(planted(4000, 1))
    (folder / "test.svm").write_text(planted(2000, 2))
    return {"worker_class": f"joining_models:{model}", "test": "test.svm", "lr": 0.3, **settings}


def labelled(folder):
    """Lines of a topic, and now and then a word of the other one."""
    random = np.random.default_rng(5)
    lines = write_topics(folder / "topics", 2000).read_text().splitlines()
    odd = random.random(len(lines)) < 0.2
    names = [("animals", "tools")[number % 2] for number in range(len(lines))]
    made = [
        f"__label__{name} {' '.join((lines[at - 1] if odd[at] else line).split()[:3])}\n"
        for at, (name, line) in enumerate(zip(names, lines, strict=True))
    ]
    (folder / "input").write_text("".join(made[:1600]))
    (folder / "test").write_text("".join(made[1600:]))
    return {"worker_class": "joining_models:GatedClassifier", "dim": 10, "lr": 0.2, "bucket": 1000}


def topics(folder):
    write_topics(folder / "input", 1500)
    return {
        "worker_class": "joining_models:GatedVectors",
        "dim": 20,
        "sample": 0.01,
        "bucket": 3000,
    }


def loss_of(folder, figures):
    return figures["test"]["log_loss"]


def errors_of(folder, figures):
    return 1 - evaluate_labels(LabelModel(folder / "out.bin"), folder / "test").precision


def blur_of(folder, figures):
    vectors = load(folder / "out.vec")
    return 1 - topic_contrast({word: vectors.vector(word) for word in [*ANIMALS, *TOOLS]})


CASES = [
    pytest.param(partial(sparse, model="GatedLinear", optimizer="ftrl"), loss_of, 0.69, id="ftrl"),
    pytest.param(partial(sparse, model="GatedLinear", optimizer="sgd"), loss_of, 0.69, id="sgd"),
    pytest.param(partial(sparse, model="GatedFm", factors=4), loss_of, 0.69, id="fm"),
    pytest.param(
        partial(sparse, model="GatedNet", batch_size=50, lr=0.05), loss_of, 0.69, id="net"
    ),
    pytest.param(labelled, errors_of, 0.5, id="classifier"),
    pytest.param(topics, blur_of, 1.0, id="words"),
]
"""What writes the input, what says how bad a model is, and what it says of an untrained one."""


def journal(folder):
    """By process: block -> (workers it knows of, whether its rows are kept)."""
    return {
        int(path.name): {
            int(number): (int(workers), kept == "1")
            for number, workers, kept in map(str.split, path.read_text().splitlines())
        }
        for path in (folder / "journal").iterdir()
    }


def prepare(folder, write):
    """Writes the input; settings of a job of four epochs of twenty blocks each."""
    (folder / "journal").mkdir(parents=True)
    job = write(folder) | {"input": "input", "output": "out", "epochs": 4}
    return job | {"block_bytes": (folder / "input").stat().st_size // 20 + 1}


def run_joined(folder, write):
    """A job of one worker, which another one joins; its figures, the two workers, settings."""
    job = prepare(folder, write)
    with Cluster(folder, job=job) as cluster:
        first, after, later = (
            Gate(folder / "gates", number) for number in (FIRST, FIRST + 1, LATER)
        )
        master = cluster.master()
        _, workers = cluster.nodes()
        first.meet()
        ahead = 2 if job["worker_class"].endswith(("GatedLinear", "GatedFm")) else 1
        holds(cluster, workers[0], 1 + ahead)
        workers.append(cluster.start("worker"))
        later.meet()  # any worker but the first
        first.open()
        after.meet()  # what the first one kept is pushed, and not long after all else
        after.open()
        later.open()
        assert set(cluster.codes()) == {0}, master.stderr
    return figures_of(master), workers, job


def run_killed(folder, write):
    """A job of two workers, of which one is killed in the middle; its figures."""
    job = prepare(folder, write) | {"on_node_loss": "recover"}
    with Cluster(folder, job=job, workers=2) as cluster:
        middle = Gate(folder / "gates", 40)
        master = cluster.master()
        _, workers = cluster.nodes()
        middle.meet()
        victim = middle.who(workers)
        victim.send(signal.SIGKILL)
        master.wait_line("is lost")
        middle.open()
        codes = cluster.codes()
        assert codes.count(0) == len(codes) - 1, master.stderr
    return figures_of(master)


@pytest.mark.long(but=["ftrl", "classifier"])
@pytest.mark.parametrize(("write", "badness", "untrained"), CASES)
def test_worker_that_joins_shares_the_rows_and_the_model_learns(
    tmp_path, write, badness, untrained
):
    folder = tmp_path / "joined"
    figures, workers, job = run_joined(folder, write)
    assert figures["blocks"] == 80
    text = (folder / "input").read_text()
    if "words" in figures:
        assert figures["words"] == 4 * (len(text.split()) + text.count("\n"))
    else:
        assert figures["examples"] == 4 * text.count("\n")
    # How good it is differs from run to run: tests/quality.
    assert badness(folder, figures) < 0.85 * untrained
    early, other = (journal(folder)[worker.pid] for worker in workers)
    assert set(early) | set(other) == set(range(80))
    assert not set(early) & set(other)
    keeps = not job["worker_class"].endswith(("GatedVectors", "GatedNet"))
    for number, found_then in early.items():
        assert found_then == (1 if number <= FIRST else 2, keeps), number
    assert set(other.values()) == {(2, keeps)}


@pytest.mark.parametrize(
    ("write", "badness", "untrained"),
    [case for case in CASES if case.id in ("ftrl", "classifier")],
)
def test_worker_killed_with_kept_rows_leaves_a_model_that_has_learnt(
    tmp_path, write, badness, untrained
):
    """What it takes along are the deltas of a round's blocks at most: 4 of 80, and one at work."""
    folder = tmp_path / "killed"
    figures = run_killed(folder, write)
    trained = [number for seen in journal(folder).values() for number in seen]
    assert set(trained) == set(range(80))
    assert len(trained) <= 80 + 4  # those it had leased
    assert badness(folder, figures) < 0.85 * untrained  # as above


def gates_of_two(folder):
    """For two workers: the one that stands at the first has leased at most two of the others."""
    return [Gate(folder / "gates", number) for number in (FIRST, *range(LATER, LATER + 3))]


def behind(first, later, workers):
    """Waits until two workers stand at gates; the one that stands at a later one."""
    first.meet()
    return Gate.meet_one(later).who(workers)


def test_worker_that_is_lost_is_no_longer_counted(tmp_path):
    (tmp_path / "journal").mkdir()
    job = sparse(tmp_path, "GatedLinear") | {"input": "input", "output": "out", "epochs": 4}
    job["block_bytes"] = (tmp_path / "input").stat().st_size // 20 + 1
    first, *later = gates_of_two(tmp_path)
    with Cluster(tmp_path, job=job, workers=2) as cluster:
        master = cluster.master("on_node_loss=recover")
        _, workers = cluster.nodes()
        lost = behind(first, later, workers)
        (left,) = set(workers) - {lost}
        lost.send(signal.SIGKILL)
        master.wait_line("is lost")
        for gate in (*later, first):  # who passes the first may soon be at a later one
            gate.open()
        assert left.wait() == 0
        assert master.wait() == 0
        lost.wait()
    known = [workers for workers, _ in journal(tmp_path)[left.pid].values()]
    assert known == sorted(known, reverse=True)
    assert set(known) == {2, 1}
    assert figures_of(master)["blocks"] == 80


def test_checkpoint_counts_blocks_only_once_what_is_kept_of_them_is_pushed(tmp_path):
    (tmp_path / "journal").mkdir()
    job = sparse(tmp_path, "SettlingLinear") | {"input": "input", "output": "out", "epochs": 1}
    job["block_bytes"] = (tmp_path / "input").stat().st_size // 20 + 1
    gate = Gate(tmp_path / "gates", PERIOD_BLOCKS + 2)
    # By the clock: one that came between push and block would be the last one by pushes.
    job["checkpoint_interval"] = 1
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master("on_node_loss=stop")
        _, (first,) = cluster.nodes()
        gate.meet()  # two blocks behind the push, and a third one at work
        master.wait_line(
            rf"checkpoint \d+: {PERIOD_BLOCKS / 20:.0%} of the training, {FEATURES + 1} rows"
        )
        first.send(signal.SIGKILL)
        cluster.codes()
        gate.open()
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        assert codes == [0, 0, 0], master.stderr
        second = cluster.processes[-1]
    trained = journal(tmp_path)
    assert list(trained[first.pid]) == list(range(PERIOD_BLOCKS + 2))
    assert list(trained[second.pid]) == list(range(PERIOD_BLOCKS, 20))
    assert figures_of(master)["examples"] == 4000


def test_network_whose_worker_is_killed_and_started_again_has_lost_nothing(tmp_path):
    (tmp_path / "journal").mkdir()
    job = sparse(tmp_path, "GatedNet", batch_size=50, lr=0.05, first_layer="servers")
    job |= {"input": "input", "output": "out", "epochs": 4}
    job["block_bytes"] = (tmp_path / "input").stat().st_size // 20 + 1
    first, *later = gates_of_two(tmp_path)
    with Cluster(tmp_path, job=job, servers=2, workers=2) as cluster:
        master = cluster.master("on_node_loss=recover")
        _, workers = cluster.nodes()
        lost = behind(first, later, workers)
        lost.send(signal.SIGKILL)
        master.wait_line("is lost")
        for gate in later:
            gate.open()
        again = cluster.start("worker")
        cluster.name_of(again)
        first.open()
        codes = cluster.codes()
        assert codes.count(0) == len(codes) - 1, master.stderr
    figures = figures_of(master)
    trained = [number for blocks in journal(tmp_path).values() for number in blocks]
    assert set(trained) == set(range(80))
    assert figures["examples"] == 4 * 4000
    assert figures["test"]["log_loss"] < 0.47  # of the planted weights 0.42
