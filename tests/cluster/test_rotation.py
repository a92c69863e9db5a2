"""Rotation in real processes: no part has two writers, and each visit takes place."""

import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from processes import Cluster, Gate
from rotation_models import PART_KEYS
from test_cluster import figures_of
from test_master_dies import Mortal

LINES = 400


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


def assert_visited(tmp_path, *, lost=0, chunks=4):
    """Each (chunk, part, visiting part) was visited once, and again as far as workers were lost."""
    visits = defaultdict(dict)
    for key, row in rows_of(tmp_path, "visits").items():
        chunk, rest = divmod(key, PART_KEYS**2)
        visits[chunk][divmod(rest, PART_KEYS)] = row[0]
    assert sorted(visits) == list(range(chunks))
    for pairs in visits.values():
        parts = max(part for part, _ in pairs) + 1
        assert sorted(pairs) == [(i, j) for i in range(parts) for j in range(2 * parts)]
    counts = np.array([count for pairs in visits.values() for count in pairs.values()])
    assert counts.min() == 1
    assert (counts - 1).sum() <= lost
    sums = rows_of(tmp_path, "sums")
    whole = sum(range(LINES))
    for chunk, pairs in visits.items():
        for part in {part for part, _ in pairs}:
            lines, total = sums[chunk * PART_KEYS + part]
            assert lines == LINES // 2
            assert total in (whole // 2 - LINES * LINES // 8, whole // 2 + LINES * LINES // 8)
    return counts


def assert_one_holder(tmp_path):
    """No visiting part was held by two tenancies at a time."""
    spans = defaultdict(list)
    for path in (tmp_path / "journal").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        last = max(float(time) for time, *_ in lines)
        held = {}
        for time, what, chunk, part, visiting, _ in lines:
            if what == "borrows":
                held[chunk, part, visiting] = float(time)
            else:
                spans[visiting].append((held.pop((chunk, part, visiting)), float(time)))
        for (_, _, visiting), since in held.items():  # it was killed, not before its last line
            spans[visiting].append((since, last))
    for taken in spans.values():
        taken.sort()
        for (_, until), (since, _) in pairwise(taken):
            assert until <= since
    return sum(map(len, spans.values()))


def test_rotation_visits_each_pair_of_parts_once(tmp_path, job):
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        codes, master = cluster.run()
        assert codes == [0] * 6
    counts = assert_visited(tmp_path)
    assert counts.max() == 1
    assert assert_one_holder(tmp_path) == len(counts)
    figures = figures_of(master)
    assert (figures["progress"], figures["examples"]) == (1.0, len(counts))
    assert (figures["chunks"], figures["parts_max"], figures["ended_by"]) == (2, 3, "epochs")
    assert figures["loss_by_epoch"] == [2.0, 2.0]


def test_rotation_with_one_worker_is_none(tmp_path, job):
    job["worker_class"] = "cluster_models:Counter"
    del job["journal"]
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        assert codes == [0] * 3
    assert "chunks" not in figures_of(master)


def test_rotation_goes_on_where_a_worker_is_killed_in_a_visit(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover", "epochs": 4}
    job["pace_s"] = 0.03
    gate = Gate(tmp_path / "gates", "1-1-2", "visit")
    later = Gate(tmp_path / "gates", "3-0-1", "visit")
    with Cluster(tmp_path, job=job, servers=2, workers=3) as cluster:
        master, _, workers = cluster.started_at(gate)
        victim = next(w for w in workers if _waits_at(w, gate))
        victim.send(signal.SIGKILL)
        gate.open()
        victim.wait()
        later.meet()
        another = cluster.start("worker")
        master.wait_line(rf"process {another.pid}\) registered")
        later.open()
        codes = cluster.codes()
        assert [code for code in codes if code] == [-signal.SIGKILL]
    counts = assert_visited(tmp_path, lost=2, chunks=8)
    assert 8 * 2 * 4 < len(counts) < 8 * 3 * 6  # two workers for a while, three before and after
    assert counts.sum() >= len(counts)
    assert_one_holder(tmp_path)
    assert figures_of(master)["examples"] == len(counts)


def _waits_at(process, gate):
    """Whether a process has opened the pipe of a gate."""
    files = Path(f"/proc/{process.pid}/fd").iterdir()
    return any(file.readlink() == gate.path for file in files)


def test_rotation_survives_its_master(tmp_path, job):
    job |= {"gates": tmp_path / "gates", "on_node_loss": "recover"}
    gates = [Gate(tmp_path / "gates", "0-1-2", "visit"), Gate(tmp_path / "gates", "2-3", "slice")]
    with Mortal(tmp_path, job=job, servers=2, workers=3) as cluster:
        master = cluster.killed_at(*gates, line="took over from the previous master")
    counts = assert_visited(tmp_path)
    assert counts.max() == 1
    assert_one_holder(tmp_path)
    assert figures_of(master)["examples"] == len(counts)
