"""Rotation in real processes: no part has two writers, and each checkout takes place."""

import json
import re
import signal
import sys
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from processes import Cluster, Gate, environment, run_well
from rotation_models import PART_KEYS
from test_cluster import figures_of
from test_failures import LONG_S
from test_master_dies import Mortal
from waiting import until
from with_time import Clock

from snailps.api.rotation import outputs_for

LINES = 400
INTERRUPTED = 130


@pytest.fixture
def job(tmp_path):
    """Twenty blocks in two chunks an epoch, two epochs: four chunks."""
    (tmp_path / "in.txt").write_text("".join(f"{n:04}\n" for n in range(LINES)))
    (tmp_path / "journal").mkdir()
    return {
        "worker_class": "rotation_models:Rotating",
        "input": tmp_path / "in.txt",
        "output": tmp_path / "out",
        "epochs": 2,
        "block_bytes": 100,
        "journal": tmp_path / "journal",
    }


def rows_of(tmp_path, table):
    found = np.load(tmp_path / "out.npz")
    return dict(zip(found[f"{table}.keys"].tolist(), found[f"{table}.rows"], strict=True))


def assert_checked_out(tmp_path, *, lost=0, chunks=4):
    """Each (chunk, input, output) was checked out once, and again as far as workers were lost."""
    checkouts = defaultdict(dict)
    for key, row in rows_of(tmp_path, "checkouts").items():
        chunk, rest = divmod(key, PART_KEYS**2)
        checkouts[chunk][divmod(rest, PART_KEYS)] = row[0]
    assert sorted(checkouts) == list(range(chunks))
    for pairs in checkouts.values():
        parts = max(part for part, _ in pairs) + 1
        assert sorted(pairs) == [(i, j) for i in range(parts) for j in range(outputs_for(parts))]
    counts = np.array([count for pairs in checkouts.values() for count in pairs.values()])
    assert counts.min() == 1
    assert (counts - 1).sum() <= lost
    sums = rows_of(tmp_path, "sums")
    whole = sum(range(LINES))
    for chunk, pairs in checkouts.items():
        for part in {part for part, _ in pairs}:
            lines, total = sums[chunk * PART_KEYS + part]
            times = lines / (LINES // 2)  # more than once if a partition was trained again
            assert times == 1 or (lost and times == 2)
            halves = (whole // 2 - LINES * LINES // 8, whole // 2 + LINES * LINES // 8)
            assert total / times in halves
    return counts


def assert_one_holder(tmp_path):
    """No output partition was held by two partitions at a time."""
    spans = defaultdict(list)
    for path in (tmp_path / "journal").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        last = max(float(at) for at, *_ in lines)
        held = {}
        for at, what, chunk, part, output_parts, _ in lines:
            if what == "checks_out":
                held[chunk, part, output_parts] = float(at)
            else:
                spans[output_parts].append((held.pop((chunk, part, output_parts)), float(at)))
        for (_, _, output_parts), since in held.items():  # it was killed, not before its last line
            spans[output_parts].append((since, last))
    for taken in spans.values():
        taken.sort()
        for (_, end), (since, _) in pairwise(taken):
            assert end <= since
    return sum(map(len, spans.values()))


def test_rotation_trains_each_pair_of_partitions_once(tmp_path, job):
    master = run_well(tmp_path, job=job, servers=2, workers=3)
    counts = assert_checked_out(tmp_path)
    assert counts.max() == 1
    assert assert_one_holder(tmp_path) == len(counts)
    figures = figures_of(master)
    assert (figures["progress"], figures["examples"]) == (1.0, len(counts))
    assert (figures["chunks"], figures["parts_max"], figures["ended_by"]) == (2, 3, "epochs")
    assert figures["loss_by_epoch"] == [2.0, 2.0]


def test_block_that_servers_have_lost_is_encoded_again(tmp_path, job):
    master = run_well(tmp_path, job=job | {"loses": "true"}, workers=2, servers=2)
    assert assert_checked_out(tmp_path).max() == 1
    assert "encodes block 1 of chunk 1 once more: servers have lost it" in master.stderr
    assert figures_of(master)["progress"] == 1.0


def test_rotation_goes_on_where_a_worker_is_killed_in_a_checkout(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover", "epochs": 4}
    job["pace_s"] = 0.03
    gate = Gate(tmp_path / "gates", "1-1-2", "checkout")
    later = Gate(tmp_path / "gates", "5-0-1", "checkout")  # parts of chunk 3 may be decided already
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master, _, workers = cluster.started_at(gate)
        victim = gate.who(workers)
        victim.send(signal.SIGKILL)
        gate.open()
        victim.wait()
        later.meet()
        another = cluster.start("worker")
        cluster.await_joined(another)
        later.open()
        codes = cluster.codes()
        assert [code for code in codes if code] == [-signal.SIGKILL]
    counts = assert_checked_out(tmp_path, lost=2, chunks=8)
    assert 8 * 2 * 4 < len(counts) < 8 * 3 * 6  # two workers for a while, three before and after
    assert counts.sum() >= len(counts)
    assert_one_holder(tmp_path)
    assert figures_of(master)["examples"] == len(counts)


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("master_too", [False, True])
def test_worker_killed_behind_a_durable_checkout_leaves_only_the_others(tmp_path, job, master_too):
    """Six checkouts, of which two and two more are durable; the fifth is checked in, not durable.

    So one checkout is trained twice, and the row that is input has each once.
    """
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover", "durable_every": 2}
    gate = Gate(tmp_path / "gates", "1-1-5", "checkout")
    with Mortal(tmp_path, job=job, servers=2, workers=3) as cluster:
        master = cluster.begin()
        gate.meet()
        victim = gate.who(cluster.processes)
        await_durable(tmp_path, number=18 + 10 + 1, times=2)
        if master_too:
            master = cluster.kill(master)
            master.wait_line("took over from the previous master")
        victim.send(signal.SIGKILL)
        gate.open()
        victim.wait()
        codes = cluster.codes()
        assert [code for code in codes if code] == [-signal.SIGKILL]
    counts = assert_checked_out(tmp_path, lost=1)
    assert counts.sum() == len(counts) + 1
    output_parts = dict.fromkeys(rows_of(tmp_path, "inputs"), 0)
    for key in rows_of(tmp_path, "checkouts"):
        output_parts[key // PART_KEYS] += 1
    assert {key: row[0] for key, row in rows_of(tmp_path, "inputs").items()} == output_parts
    assert_one_holder(tmp_path)
    figures = figures_of(master)
    assert (figures["examples"], figures["progress"]) == (len(counts), 1.0)
    assert figures["loss_by_epoch"] == [2.0, 2.0]


@pytest.mark.long(but=["skipgram", "ratings"])
@pytest.mark.parametrize("model", ["skipgram", "cbow", "ratings"])
def test_model_goes_on_behind_what_a_killed_worker_had_made_durable(tmp_path, model):
    """It dies when it has checked in its fifth part; each quarter of the lease is durable."""
    rng, common = np.random.default_rng(1), {"epochs": 3, "dim": 8, "threads": 1}
    if model == "ratings":
        places = np.divmod(rng.permutation(200 * 200), 200)
        lines = [f"u{u} i{i} {(u % 7 + i % 5) / 2}" for u, i in zip(*places, strict=True)]
        units, kind = len(lines), "snailps.models.embeddings.mf:MatrixFactorization"
    else:
        words = rng.integers(600, size=(14_000, 20))
        lines = [" ".join(f"w{word}" for word in line) for line in words.tolist()]
        units, kind = 21 * 14_000, "snailps.models.word_vectors:WordVectors"
        common |= {"maxn": 0, "model": model, "sample": 0}
    (tmp_path / "in.txt").write_text("\n".join([*lines, ""]))
    files = {"input": tmp_path / "in.txt", "output": tmp_path / "out"}
    job = {"worker_class": kind, **common, **files, "on_node_loss": "recover"}
    trainer = "snailps.models.rotation.trainer"
    wish = {"set": {f"{trainer}:DURABLE_SECONDS": 0.0, f"{trainer}:DURABLE_ROWS": 2.0}}
    death = {"die": "snailps.worker.checkouts:LeaseCheckouts.check_in", "call": 5, "when": "after"}
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master = cluster.master()
        for _ in range(2):
            cluster.start("server")
        hurt = {"program": [sys.executable, "-m", "faults.hurt"]}
        for more in ({}, {}, death):
            worker = cluster.start("worker", env=environment(HURT=json.dumps(wish | more)), **hurt)
        assert worker.wait() == -signal.SIGKILL
        number = int(re.search(r"worker (\d+)", master.wait_line("is lost")).group(1))
        facts = (tmp_path / "out.journal" / "facts").read_text()
        codes = cluster.codes()
        assert [code for code in codes if code] == [-signal.SIGKILL]
    durable = [json.loads(line[9:])[1] for line in facts.splitlines() if '["checkouts",' in line]
    parts = [len(fact["parts"]) for fact in durable if fact["node"] == number]
    assert parts == ([3] if model == "ratings" else [2, 2])  # of 12, by two sweeps, and of 6
    figures = figures_of(master)
    trained = figures["examples" if model == "ratings" else "words"]
    assert (trained, figures["progress"]) == (3 * units, 1.0)
    assert np.isfinite(figures["loss_by_epoch"]).all()


def await_durable(tmp_path, number, times):
    """Waits until the journal has it so often that checkouts of a partition are durable."""
    fact, facts = b'["checkouts",{"number":%d,' % number, tmp_path / "out.journal" / "facts"
    until(
        lambda: facts.read_bytes().count(fact) >= times,
        f"{times} facts of partition {number}",
    )


def test_rotation_survives_its_master(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover"}
    gates = [
        Gate(tmp_path / "gates", "0-1-2", "checkout"),
        Gate(tmp_path / "gates", "2-3", "block"),
    ]
    with Mortal(tmp_path, job=job, servers=2, workers=3) as cluster:
        master = cluster.killed_at(*gates, line="took over from the previous master")
    counts = assert_checked_out(tmp_path)
    assert counts.max() == 1
    assert_one_holder(tmp_path)
    assert figures_of(master)["examples"] == len(counts)


def test_rotation_of_one_worker_grows_and_shrinks_to_one_again(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover", "epochs": 4}
    joins = Gate(tmp_path / "gates", "1-0-1", "checkout")
    dies = Gate(tmp_path / "gates", "4-1-2", "checkout")
    with Cluster(tmp_path, job=job, servers=2, workers=1) as cluster:
        master, _, (first,) = cluster.started_at(joins)
        second = cluster.start("worker")
        cluster.await_joined(second)
        joins.open()
        dies.meet()
        victim = dies.who((first, second))
        victim.send(signal.SIGKILL)
        dies.open()
        codes = cluster.codes()
        assert [code for code in codes if code] == [-signal.SIGKILL]
    counts = assert_checked_out(tmp_path, lost=4, chunks=8)
    assert 8 * 2 < len(counts) < 8 * 2 * 4  # one worker, two workers, one worker
    assert_one_holder(tmp_path)
    figures = figures_of(master)
    assert (figures["parts_max"], figures["examples"]) == (2, len(counts))


def test_rotation_that_is_interrupted_goes_on_from_its_checkpoint(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "checkpoint_dir": tmp_path / "saved"}
    job["checkpoint_interval"] = 1000  # the last one is written in any case
    gate = Gate(tmp_path / "gates", "1-1-1", "checkout")
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master, *_ = cluster.started_at(gate)
        master.send(signal.SIGINT)
        master.wait_line("interrupted: finishing")
        gate.open()
        codes = cluster.codes()
        assert codes == [INTERRUPTED, *[0] * 5], master.stderr
        early = figures_of(master)
    assert early["ended_by"] == "interrupt"
    assert 0.0 < early["progress"] < 1.0
    master = run_well(tmp_path, job=job, servers=1, workers=2)
    assert_checked_out(tmp_path, lost=6 * 6)  # of partitions that had not had all parts
    figures = figures_of(master)
    assert (figures["progress"], figures["ended_by"]) == (1.0, "epochs")
    assert (figures["parts_max"], figures["continued_from"]) == (3, 1)


def test_worker_that_leaves_a_rotation_ends_its_partition_first(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "epochs": 4}  # parts of chunk 3 may be decided already
    gate = Gate(tmp_path / "gates", "1-1-2", "checkout")
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master, _, workers = cluster.started_at(gate)
        leaver = gate.who(workers)
        leaver.send(signal.SIGTERM)
        master.wait_line("SIGTERM")
        gate.open()
        assert cluster.codes() == [0] * 6
    counts = assert_checked_out(tmp_path, chunks=8)
    assert counts.max() == 1
    assert len(counts) < 8 * 18  # two workers at the end
    assert_one_holder(tmp_path)


def test_rotation_whose_time_is_up_ends_after_the_checkouts_under_way(tmp_path, job):
    gate, clock = Gate(tmp_path / "gates", "1-1-2", "checkout"), Clock(tmp_path)
    job |= {"gates": tmp_path / "gates", "max_seconds": LONG_S - 1, "epochs": 1000}
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master = cluster.master(program=clock.program)  # others' requests have a limit of time, too
        cluster.nodes()
        gate.meet()
        clock.advance(LONG_S)
        gate.open()
        assert cluster.codes() == [0] * 6
    figures = figures_of(master)
    assert figures["ended_by"] == "max_seconds"
    assert figures["progress"] < 1.0
    assert figures["examples"] == sum(row[0] for row in rows_of(tmp_path, "checkouts").values())
    assert_one_holder(tmp_path)
