"""Whole clusters of real processes: every shape, every way to be reached, every kind of input."""

import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import official_fasttext
import pytest
from cluster_models import COUNTER, write_numbers
from processes import Cluster, Gate, environment, free_port, run_snailps, run_well
from texts import ANIMALS, TOOLS, topic_contrast, write_topics
from waiting import LIMIT_S, until

from snailps.cli.masters import ask
from snailps.vectors.files import load

LINES, ROWS = 1000, 50


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks; its result is known."""
    write_numbers(tmp_path / "in.txt", LINES, ROWS)
    return {"worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 2}


def figures_of(master):
    """The object on the last line of standard output, which is the only line."""
    (line,) = master.stdout.splitlines()
    return json.loads(line)


def assert_counted(path, times, rows=ROWS, lines=LINES):
    """Every line was counted exactly `times` times."""
    with np.load(path) as saved:
        assert saved["counts.keys"].tolist() == list(range(rows))
        assert np.unique(saved["counts.rows"]).tolist() == [times * lines / rows]


def journal_of(folder):
    """Lines of `Counter.journal` by process id: lists of (block, epoch, seed)."""
    return {
        int(file.name): [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
        for file in folder.iterdir()
    }


def test_peak_rss_is_of_the_process_and_not_of_the_one_that_started_it():
    """What `getrusage` says of a program begins with the size of the process that started it."""
    child = "from snailps.node.usage import peak_rss_mb; print(peak_rss_mb())"
    parent = (
        "import subprocess, sys; held = b'1' * 500_000_000;"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    found = subprocess.check_output([sys.executable, "-c", parent], env=environment())
    assert 10 < float(found) < 400


# --- shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 2)])
def test_cluster_of_any_shape_counts_every_line_once_an_epoch(tmp_path, job, servers, workers):
    master = run_well(tmp_path, job=job, servers=servers, workers=workers)
    assert_counted(tmp_path / "out.npz", times=2)
    figures = figures_of(master)
    assert figures["examples"] == 2 * LINES
    assert figures["train_loss"] == 1.0
    assert figures["loss_by_epoch"] == [1.0, 1.0]
    assert figures["epochs"] == 2
    assert figures["blocks"] == 2 * figures["blocks_per_epoch"] >= 20
    assert figures["bytes_per_example"] > 0
    assert figures["peak_rss_mb"] > 30 * (1 + servers + workers)
    assert figures["wall_s"] > figures["train_s"] > 0
    assert figures["examples_per_s"] > 0
    assert (figures["servers"], figures["workers"]) == (servers, workers)
    assert figures["rows"] == ROWS


@pytest.mark.parametrize("model", ["Surveyed", "Together"])
def test_cluster_with_survey_gives_every_worker_the_summary(tmp_path, job, model):
    job |= {"worker_class": f"cluster_models:{model}", "lines": LINES}
    run_well(tmp_path, job=job, workers=2)
    assert_counted(tmp_path / "out.npz", times=2)


# --- how processes find each other ------------------------------------------------------------


def test_cluster_with_worker_started_before_the_master_waits_for_it(tmp_path, job):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.port = free_port()
        with socket.create_server(("127.0.0.1", cluster.port)) as listener:
            nodes = [cluster.start("worker"), cluster.start("server")]
            for _ in nodes:  # both have tried, and found no master
                listener.accept()[0].close()
        master = cluster.master(port=cluster.port)
        assert cluster.codes() == [0, 0, 0], master.stderr
    assert_counted(tmp_path / "out.npz", times=2)


def test_cluster_started_again_on_the_same_ports_works_at_once(tmp_path, job):
    ports = [free_port(), free_port()]
    for _ in range(2):
        with Cluster(tmp_path, job={**job, "overwrite": "true"}) as cluster:
            master = cluster.master(port=ports[0])
            cluster.start("server", f"listen_addr=127.0.0.1:{ports[1]}")
            cluster.start("worker")
            assert cluster.codes() == [0, 0, 0], master.stderr
        assert_counted(tmp_path / "out.npz", times=2)


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_cluster_on_ipv6_works(tmp_path, job):
    master = run_well(tmp_path, job=job, host="::1", workers=2)
    assert "registered from [::1]:" in master.stderr
    assert_counted(tmp_path / "out.npz", times=2)


def test_cluster_on_host_name_works(tmp_path, job):
    run_well(tmp_path, job=job, host="localhost")


def test_server_with_port_range_listens_within_it(tmp_path, job):
    gate = Gate(tmp_path / "gates", 0)
    low = free_port()
    ports = range(low, min(low + 20, 65535))
    job["gates"] = tmp_path / "gates"
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        server = cluster.start("server", f"port_range={ports[0]}-{ports[-1]}")
        cluster.start("worker")
        gate.meet()
        (port,) = listening_ports(server)
        assert port in ports
        gate.open()
        assert cluster.codes() == [0, 0, 0]


def listening_ports(process):
    """Where a process listens over IPv4."""
    own, found = set(), []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(entry.readlink()))
    for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]:
        _, address, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in own:
            found.append(int(address.rpartition(":")[2], 16))
    return found


class Relay:
    """Forwards connections to a port, as a NAT gateway does."""

    def __init__(self, to):
        self.connections = 0
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                inner, _ = self._listener.accept()
                self.connections += 1
                outer = socket.create_connection(("127.0.0.1", self._to))
                for pair in [(inner, outer), (outer, inner)]:
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_server_with_advertise_addr_is_reached_there(tmp_path, job):
    inside = free_port()
    with Relay(inside) as relay, Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        cluster.start(
            "server",
            f"listen_addr=127.0.0.1:{inside}",
            f"advertise_addr=127.0.0.1:{relay.port}",
        )
        cluster.start("worker")
        assert cluster.codes() == [0, 0, 0], master.stderr
        assert relay.connections >= 2  # the worker's, and the master's for the export
    assert_counted(tmp_path / "out.npz", times=2)


def test_server_with_two_shards_and_one_advertised_port_refuses(tmp_path):
    with Cluster(tmp_path, {"shard_num": 2}, cores=2) as cluster:
        server = cluster.start("server", "master_addr=127.0.0.1:9", "advertise_addr=127.0.0.1:10")
        assert server.wait() == 1
        (error,) = server.errors
        assert "advertise_addr gives 2 shards one port" in error


# --- input ------------------------------------------------------------------------------------


def write_parts(folder, files, lines):
    folder.mkdir()
    for number in range(files):
        write_numbers(folder / f"part-{number:03d}.txt", lines, ROWS)


def test_cluster_with_folder_glob_and_packed_file_reads_all(tmp_path, job):
    write_parts(tmp_path / "folder", 60, ROWS)
    write_parts(tmp_path / "globbed", 2, ROWS)
    (tmp_path / "globbed" / "ignored.csv").write_text("no number\n")
    with gzip.open(tmp_path / "packed.gz", "wb") as packed:
        packed.write((tmp_path / "in.txt").read_bytes())
    job |= {"input": "folder, globbed/*.txt, packed.gz, in.txt", "scratch_dir": "scratch"}
    master = run_well(tmp_path, job=job, workers=2)
    assert_counted(tmp_path / "out.npz", times=2, lines=62 * ROWS + 2 * LINES)
    assert "64 files" in master.stderr
    assert {path.name for path in (tmp_path / "scratch").iterdir()} == set()


def test_worker_that_lacks_the_path_is_sent_the_bytes(tmp_path, job):
    """The input is a descriptor that the master alone has."""
    descriptor = os.open(tmp_path / "in.txt", os.O_RDONLY)
    path = f"/proc/self/fd/{descriptor}"
    try:
        with Cluster(tmp_path, job={**job, "input": path}, workers=2) as cluster:
            master = cluster.master(pass_fds=(descriptor,))
            _, workers = cluster.nodes()
            assert cluster.codes() == [0, 0, 0, 0], master.stderr
            assert any("asking the master for the bytes" in w.stderr for w in workers)
    finally:
        os.close(descriptor)
    assert_counted(tmp_path / "out.npz", times=2)


def test_worker_that_lacks_the_path_is_told_how_the_file_begins(tmp_path):
    """Names that have commas are in a line that a block begins with."""
    triples = "".join(f"n{n} next n{n + 1}\n" for n in range(300))
    (tmp_path / "in.txt").write_text(triples + "Paris,Texas next Rome,Ohio\n" * 300)
    descriptor = os.open(tmp_path / "in.txt", os.O_RDONLY)
    job = {
        "worker_class": "snailps.models.embeddings.kge:KnowledgeGraph",
        "input": f"/proc/self/fd/{descriptor}", "output": "out", "dim": 4, "epochs": 1,
        "block_bytes": 2048,
    }  # fmt: skip
    try:
        with Cluster(tmp_path, job=job) as cluster:
            master = cluster.master(pass_fds=(descriptor,))
            _, (worker,) = cluster.nodes()
            assert cluster.codes() == [0, 0, 0], master.stderr
            assert "asking the master for the bytes" in worker.stderr
    finally:
        os.close(descriptor)
    with np.load(tmp_path / "out.npz") as saved:
        assert "Paris,Texas" in saved["entities"].tobytes().decode().split("\n")


# --- workers come and go ----------------------------------------------------------------------


def test_worker_with_sigterm_leaves_and_the_others_finish(tmp_path, job):
    gate, last = (Gate(tmp_path / "gates", number) for number in (0, 19))
    (tmp_path / "journal").mkdir()
    job |= {"gates": tmp_path / "gates", "journal": tmp_path / "journal"}
    with Cluster(tmp_path, job=job, workers=2) as cluster:
        master, _, workers = cluster.started_at(gate)
        stuck = gate.who(workers)
        stuck.send(signal.SIGTERM)
        master.wait_line("SIGTERM")
        gate.open()
        assert f"{cluster.name_of(stuck)} (" in master.wait_line(" left, ")
        last.open()  # else the job may end with that block
        assert cluster.codes() == [0, 0, 0, 0], master.stderr
    assert_counted(tmp_path / "out.npz", times=2)
    assert [block for block, *_ in journal_of(tmp_path / "journal")[stuck.pid]] == [0]


def holds(cluster, worker, blocks):
    """Waits until a worker has leased so many blocks: one trains, others are prepared beside it."""

    def leased():
        nodes = ask(cluster.address, LIMIT_S)["nodes"]
        return [node["leased"] for node in nodes if node["pid"] == worker.pid]

    until(lambda: leased() == [blocks], lambda: f"{blocks} leased blocks: {leased()}")


def test_worker_that_joins_late_takes_blocks(tmp_path, job):
    first, third = Gate(tmp_path / "gates", 0), Gate(tmp_path / "gates", 3)
    (tmp_path / "journal").mkdir()
    job |= {"gates": tmp_path / "gates", "journal": tmp_path / "journal"}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        _, (early,) = cluster.nodes()
        first.meet()
        holds(cluster, early, 2)  # blocks 0 and 1
        late = cluster.start("worker")
        third.meet()  # so another worker has come to block 3
        first.open()
        third.open()
        assert cluster.codes() == [0, 0, 0, 0], master.stderr
    assert_counted(tmp_path / "out.npz", times=2)
    journal = journal_of(tmp_path / "journal")
    assert {block for block, *_ in journal[late.pid]} >= {2, 3}
    done = sorted(block for lines in journal.values() for block, *_ in lines)
    assert done == list(range(20))
    assert set(journal) == {early.pid, late.pid}


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 3])
def test_worker_with_threads_tells_the_model_and_without_output_nothing_is_written(
    tmp_path, job, threads
):
    job |= {"worker_class": "cluster_models:Threaded", "output": ""}
    master = run_well(tmp_path, {"threads": threads}, job, cores=5)
    assert figures_of(master)["train_loss"] == (threads or 5)
    assert not list(tmp_path.rglob("*.npz"))


def test_cluster_with_shards_and_fragments_as_set_spreads_them(tmp_path, job):
    with Cluster(tmp_path, {"shard_num": 200, "frag_num": 7}, job, cores=3) as cluster:
        codes, master = cluster.run()
        assert codes == [0, 0, 0]
        assert "3 shards, 7 fragments" in master.stderr
        assert "shard_num: 200 is more than this machine's 3 core(s)" in (
            cluster.processes[1].stderr
        )
    assert_counted(tmp_path / "out.npz", times=2)


# --- word vectors -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """fastText vectors of a text of two topics, by 2 servers and 2 workers: (folder, master)."""
    folder = tmp_path_factory.mktemp("vectors")
    write_topics(folder / "text.txt")
    job = {
        "worker_class": "snailps.models.word_vectors:WordVectors",
        "input": "text.txt",
        "output": "out",
        "formats": "bin, vec, npz",
        "dim": 20,
        "epochs": 5,
        "sample": 0.01,
        "bucket": 3000,
    }
    master = run_well(folder, job=job, servers=2, workers=2)
    return folder, master


def test_word_vectors_in_the_official_package_are_equal(vectors):
    folder, _ = vectors
    official = official_fasttext.module().load_model(str(folder / "out.bin"))
    ours = {kind: load(folder / f"out.{kind}") for kind in ("bin", "vec", "npz")}
    assert set(official.words) == {*ANIMALS, *TOOLS, "</s>"}
    for word in [*ANIMALS, *TOOLS, "houndish", "unspannered", "zz"]:
        theirs = official.get_word_vector(word)
        np.testing.assert_allclose(ours["bin"].vector(word), theirs, atol=1e-6)
        if word in ANIMALS:
            for kind in ("vec", "npz"):
                np.testing.assert_allclose(ours[kind].vector(word), theirs, atol=1e-4)
    for word in ("hound", "chisel", "houndish"):
        theirs = official.get_nearest_neighbors(word, 5)
        told = run_snailps("nn", folder / "out.bin", word, "-k", 5)
        rows = [line.split("\t") for line in told.stdout.splitlines()]
        assert [near for _, near, _ in rows] == [name for _, name in theirs]
        np.testing.assert_allclose(
            [float(score) for _, _, score in rows], [score for score, _ in theirs], atol=1e-5
        )
    assert topic_contrast({w: ours["bin"].vector(w) for w in [*ANIMALS, *TOOLS]}) > 0.3
