"""`snailps.reader`: rows for serving, while servers and whole clusters are lost and come back."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
import session_models as models
from cluster_models import gated_job
from processes import LIMIT_S, PACKAGE, SUPPORT, Cluster, Gate, driver_of, free_port
from waiting import joined, until

import snailps
from snailps.abi.key_hash import fragment_of
from snailps.errors import ClusterError, ConfigError, RemoteError, SnailError
from snailps.serving import reader

KEYS = np.arange(1, 2001, dtype=np.uint64) * 7919
PATIENT = {"timeout_s": LIMIT_S, "init_timeout": LIMIT_S}
INIT = {"init": "uniform", "scale": 0.25, "seed": 5}


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text("correct-horse-battery-staple")
    file.chmod(0o600)
    return str(file)


def session(tmp_path, secret, servers=2, **settings):
    settings = {"secret_file": secret, "frag_num": 64, **settings}
    return Cluster(tmp_path, settings, servers=servers, workers=0)


def started(cluster, **more):
    """Master and servers of a session without workers."""
    return cluster.master(options=["--session"], **more), cluster.nodes()[0]


def filled(owner, value):
    """The table, each row of which has been pushed to `value` since its first one."""
    table = owner.table("users", dim=4, **INIT)
    table.push(KEYS, np.full((len(KEYS), 4), value, np.float32))
    return table


def live(rows):
    """The part of a reader that asks the servers."""
    return rows._live


@contextlib.contextmanager
def hurried(rows, limit_s):
    """Inside, a lookup may take so long: where a server is gone and nothing has to come in time."""
    asked = live(rows)
    before, asked.limit_s = asked.limit_s, limit_s
    try:
        yield
    finally:
        asked.limit_s = before


def test_reader_goes_on_while_a_standby_takes_the_place_of_a_killed_server(tmp_path, secret):
    with session(tmp_path, secret) as cluster:
        master, (victim, _) = started(cluster)
        with snailps.connect(cluster.address, secret_file=secret, timeout_s=LIMIT_S) as owner:
            table = filled(owner, 1.0)
            expected = table.pull(KEYS)
            expected_after = expected + 1
            until(lambda: all(s["state"] == "ready" for s in owner.status()["shards"]))
            with snailps.reader(
                cluster.address, "users", secret_file=secret, max_age_s=0.0, unreachable="stale",
                cache_bytes=1 << 20, **PATIENT,
            ) as rows:  # fmt: skip
                assert np.array_equal(rows.pull(KEYS), expected)  # now its cache has all
                over, wrong = threading.Event(), []

                def serve():
                    while not over.is_set():
                        try:
                            found = rows.pull(KEYS)
                            if not ((found == expected) | (found == expected_after)).all():
                                wrong.append(found)
                        except SnailError as error:
                            wrong.append(error)

                threads = [threading.Thread(target=serve) for _ in range(2)]
                with hurried(rows, 0.1):
                    for thread in threads:
                        thread.start()
                    try:
                        victim.send(signal.SIGKILL)
                        master.wait_line("is lost")
                        table.push(KEYS, np.ones((len(KEYS), 4), np.float32))
                    finally:
                        over.set()
                        joined(*threads)
                assert not wrong
                # Half of it can only be from the new primary.
                until(lambda: np.array_equal(rows.pull(KEYS), expected_after))
                assert rows.connected
            owner.shut_down()
        assert cluster.codes() == [0, -signal.SIGKILL, 0], master.stderr


def test_reader_outlives_its_cluster_and_joins_the_next_one(tmp_path, secret):
    """Without a standby a lost server ends the cluster; another one begins at its address."""
    with session(tmp_path, secret, servers=1, replication="none") as cluster:
        _, (victim,) = started(cluster, port=free_port())
        with snailps.connect(cluster.address, secret_file=secret, timeout_s=LIMIT_S) as owner:
            expected = filled(owner, 1.0).pull(KEYS)
            first = owner.table("users", dim=4, **INIT).pull([1, 2, 3])
            options = {"secret_file": secret, "max_age_s": None, **PATIENT}
            readers = {
                policy: snailps.reader(cluster.address, "users", unreachable=policy, **options)
                for policy in ("error", "stale", "first")
            }
            for rows in readers.values():
                rows.pull(KEYS)
        victim.send(signal.SIGKILL)
        cluster.codes()
        until(lambda: not any(rows.connected for rows in readers.values()))
        for rows in readers.values():  # what the cache has needs no server
            assert np.array_equal(rows.pull(KEYS), expected)
        assert np.array_equal(readers["first"].pull([1, KEYS[0], 2, 3])[[0, 2, 3]], first)
        assert readers["first"].stats().first == 3
        for policy in ("error", "stale"):
            with hurried(readers[policy], 0.2), pytest.raises(ClusterError, match="out of reach"):
                readers[policy].pull([1])
        cluster.processes.clear()
        started(cluster, port=cluster.port)
        with snailps.connect(cluster.address, secret_file=secret, timeout_s=LIMIT_S) as owner:
            expected = filled(owner, 2.0).pull(KEYS)
            for rows in readers.values():
                until(lambda rows=rows: rows.connected)
                assert np.array_equal(rows.pull(KEYS), expected)  # though none has an age limit
                rows.close()
            owner.shut_down()
        assert cluster.codes() == [0, 0]


def test_server_that_hangs_delays_its_own_keys_alone(tmp_path, secret, monkeypatch):
    with session(tmp_path, secret, replication="none") as cluster:
        master, servers = started(cluster)
        with snailps.connect(cluster.address, secret_file=secret, timeout_s=LIMIT_S) as owner:
            table = filled(owner, 1.0)
            before = table.pull(KEYS)
            route = driver_of(owner).route
            named = {cluster.name_of(server): server for server in servers}
            hung = named[f"server {route.shards[0].server}"]  # whose answer is awaited first
            lost = route.owner[fragment_of(KEYS, route.frag_num)] == 0
            assert 0.2 < lost.mean() < 0.8
            with snailps.reader(
                cluster.address, "users", secret_file=secret, max_age_s=0.0, unreachable="stale",
                **PATIENT,
            ) as rows:  # fmt: skip
                rows.pull(KEYS)
                table.push(KEYS, np.ones((len(KEYS), 4), np.float32))
                monkeypatch.setattr(reader, "AGAIN_S", 0.0)  # each lookup asks the one that hangs
                hung.send(signal.SIGSTOP)
                client, patient = live(rows)._joined[0].client, []
                pulled = client.counters()["rows_pulled"]
                lookup = threading.Thread(target=lambda: patient.append(rows.pull(KEYS)))
                lookup.start()
                try:
                    until(
                        lambda: client.counters()["rows_pulled"] - pulled == (~lost).sum(),
                        "rows of the other server while this one's are awaited",
                    )
                    for lookups in range(1, 10):
                        with hurried(rows, 0.2 * 2**lookups):  # until that is enough for the other
                            found = rows.pull(KEYS)
                        assert np.array_equal(found[lost], before[lost])
                        if np.array_equal(found[~lost], before[~lost] + 1):
                            break
                        assert np.array_equal(found[~lost], before[~lost])
                    late = (lookups - 1) * (~lost).sum()
                    assert rows.stats().stale == lookups * lost.sum() + late
                    assert np.array_equal(found[~lost], before[~lost] + 1)
                finally:
                    hung.send(signal.SIGCONT)
                joined(lookup)
                assert np.array_equal(patient[0], before + 1)
            owner.shut_down()
        assert cluster.codes() == [0, 0, 0], master.stderr


def test_reader_of_a_cluster_that_trains_its_own_job(tmp_path):
    gate = Gate(tmp_path / "gates", 9)
    with Cluster(tmp_path, job=gated_job(tmp_path)) as cluster:
        cluster.started_at(gate)
        with pytest.raises(
            ConfigError, match=r"no table 'rows' in the cluster at .*: there are counts"
        ):
            snailps.reader(cluster.address, "rows", **PATIENT)
        with snailps.reader(cluster.address, "counts", max_age_s=0.0, **PATIENT) as rows:
            assert until(lambda: rows.pull(np.arange(50)).sum() >= 900)
            gate.open()
            assert cluster.codes() == [0] * 3
            until(lambda: not rows.connected)
    with pytest.raises(ClusterError, match="closed"):
        rows.pull([52])


def test_reader_says_why_it_cannot_join(tmp_path):
    with pytest.raises(ClusterError, match=r"no cluster at 127.0.0.1:1: "):
        snailps.reader("127.0.0.1:1", "users", init_timeout=0.3)
    with pytest.raises(ConfigError, match="did you mean 'request_timeout'"):
        snailps.reader("127.0.0.1:1", "users", request_timeot=3)
    with pytest.raises(ConfigError, match="unreachable"):
        snailps.reader("127.0.0.1:1", "users", unreachable="never")


def test_reader_finds_the_table_of_the_next_job(tmp_path, monkeypatch):
    """Each job of a session makes its tables anew, under other numbers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    text = tmp_path / "in.txt"
    with snailps.local_cluster() as cluster:
        text.write_text("a b c\n" * 50)
        cluster.run(models.Lines, {"epochs": 1}, input=text)
        options = {"max_age_s": 0.0, "unreachable": "stale", **PATIENT}
        with snailps.reader(cluster.address, "lines", **options) as rows:
            assert rows.pull([1]) == 50
            text.write_text("a b c\n" * 80)
            cluster.run(models.Lines, {"epochs": 1}, input=text)
            until(lambda: rows.pull([1]) == 80)


def test_lookup_that_is_refused_costs_neither_the_connection_nor_the_cache(tmp_path, secret):
    with session(tmp_path, secret, servers=1, modules="python_methods") as cluster:
        started(cluster)
        with snailps.connect(cluster.address, secret_file=secret, timeout_s=LIMIT_S) as owner:
            owner.table("faulty", dim=4, access="python_methods:Faulty").push(
                KEYS, np.ones((len(KEYS), 4))
            )
            options = {"secret_file": secret, "max_age_s": None, **PATIENT}
            with snailps.reader(cluster.address, "faulty", **options) as rows:
                rows.pull(KEYS)
                before, joins = rows.stats(), live(rows).joins()
                with pytest.raises(RemoteError, match="planted failure in init"):
                    rows.pull([13])
                rows.pull(KEYS)
                after = rows.stats()
                assert rows.connected
                assert (after.hits - before.hits, live(rows).joins()) == (len(KEYS), joins)
            owner.shut_down()
        assert cluster.codes() == [0, 0]
