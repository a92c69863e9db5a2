"""Metrics: their text, the table, what the counters become, and the server that tells them."""

import contextlib
import http.client
import math
import socket
import threading

import pytest
from waiting import LIMIT_S, until

from snailps.errors import WaitTimeout
from snailps.node import metrics_server
from snailps.node.metric_samples import (
    WAITS_MAX,
    BlockTally,
    of_master,
    of_process,
    of_server,
    of_waits,
    of_worker,
)
from snailps.node.metrics import (
    CONTENT_TYPE,
    FAMILIES,
    Histogram,
    Sample,
    describe,
    family_of,
    render,
)
from snailps.node.metrics_server import MetricsServer, serve_metrics
from tests.support.master_world import World


def test_render_writes_the_text_format():
    text = render(
        [
            Sample("snailps_pulls_total", {"shard": "0", "copy": "primary"}, 12),
            Sample("snailps_loss", {}, 2.5),
            Sample("snailps_pulls_total", {"shard": "1", "copy": "standby"}, 1 << 60),
        ]
    ).decode()
    assert text.splitlines() == [
        "# HELP snailps_loss Mean loss of the last blocks.",
        "# TYPE snailps_loss gauge",
        "snailps_loss 2.5",
        "# HELP snailps_pulls_total Pulls that a shard has answered.",
        "# TYPE snailps_pulls_total counter",
        'snailps_pulls_total{shard="0",copy="primary"} 12',
        'snailps_pulls_total{shard="1",copy="standby"} 1.152921504606847e+18',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.1, "0.1"), (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)
def test_render_of_special_numbers(value, text):
    assert render([Sample("snailps_loss", {}, value)]).decode().endswith(f"snailps_loss {text}\n")


def test_render_escapes_what_a_user_named():
    sample = Sample("snailps_waits_seconds", {"who": 'a"b\\c\nd', "whom": "é"}, 1)
    line = render([sample]).decode().splitlines()[-1]
    assert line == 'snailps_waits_seconds{who="a\\"b\\\\c\\nd",whom="é"} 1'


def test_histogram_counts_are_cumulative():
    histogram = Histogram("snailps_block_seconds", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, **{"pass": "train"})
    found = [(s.name.rpartition("_")[2], s.labels.get("le"), s.value) for s in histogram.samples()]
    assert found == [
        ("bucket", "0.1", 2), ("bucket", "1", 3), ("bucket", "+Inf", 4),
        ("sum", None, pytest.approx(7.65)), ("count", None, 4),
    ]  # fmt: skip


def test_families_follow_the_conventions():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith(("snailps_", "process_"))
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.help.endswith(".")
    assert family_of("snailps_block_seconds_bucket") == "snailps_block_seconds"
    assert family_of("snailps_events_total") == "snailps_events_total"


def test_describe_names_every_family():
    assert all(f"| `{family.name}` |" in describe() for family in FAMILIES)


def test_samples_of_a_master_are_all_of_known_families_and_labels():
    world = World()
    world.forms()
    status, counts = world.status(), world.report.events.counts
    samples = of_master(status, counts, replicated=True, servers=2, heartbeat_interval=1.0)
    known = {family.name: set(family.labels) for family in FAMILIES}
    for sample in [*samples, *of_process("master", 0)]:
        assert set(sample.labels) - {"le"} == known[family_of(sample.name)]
    values = {(s.name, *s.labels.values()): s.value for s in samples}
    assert values["snailps_members", "worker"] == 2
    assert values["snailps_events_total", "joined"] == 1
    assert values["snailps_events_total", "lost"] == 0
    assert values["snailps_phase", "idle"] == 1
    assert values["snailps_shards_without_standby",] == 1
    render(samples)
    alone = of_master(status, counts, replicated=True, servers=1, heartbeat_interval=1.0)
    assert [s.value for s in alone if s.name == "snailps_shards_without_standby"] == [0]


def test_samples_of_a_server_tell_primaries_and_standbys_apart():
    stats = {
        "shards": [
            {"shard": 0, "pulls": 5, "rows": 7,
             "replica": {"state": "ready", "lag_bytes": 9, "lag_s": 0.5}},
            {"shard": 2, "pulls": 1, "rows": 1, "replica": {"state": "none"}},
        ],
        "standbys": [{"shard": 1, "pulls": 0, "rows": 3, "replica": {"state": "ready"}}],
    }  # fmt: skip
    found = [(s.name, tuple(s.labels.values()), s.value) for s in of_server(stats)]
    assert ("snailps_pulls_total", ("0", "primary"), 5) in found
    assert ("snailps_shard_rows", ("1", "standby"), 3) in found
    assert [f for f in found if "lag" in f[0]] == [
        ("snailps_standby_lag_bytes", ("0",), 9), ("snailps_standby_lag_seconds", ("0",), 0.5)
    ]  # fmt: skip


def test_samples_of_tables_are_sums_over_the_shards_of_a_server():
    def shard(number, *tables):
        counts = ("rows", "bytes", "made", "refused", "evicted", "expired")
        return {
            "shard": number,
            "tables": {
                at: {"name": name, **{key: value + i for i, key in enumerate(counts)}}
                for at, (name, value) in enumerate(tables)
            },
        }

    stats = {"shards": [shard(0, ("ids", 10), ("w", 1)), shard(1, ("ids", 20))],
             "standbys": [shard(2, ("ids", 5))]}  # fmt: skip
    samples = of_server(stats)
    known = {family.name: set(family.labels) for family in FAMILIES}
    assert all(set(s.labels) == known[s.name] for s in samples)
    found = {(s.name, s.labels["copy"], s.labels["table"]): s.value for s in samples}
    assert found["snailps_table_rows", "primary", "ids"] == 30
    assert found["snailps_table_bytes", "primary", "ids"] == 32
    assert found["snailps_table_rows_refused_total", "primary", "w"] == 4
    assert found["snailps_table_rows_expired_total", "standby", "ids"] == 10
    assert len(samples) == 18
    render(samples)


def test_samples_of_a_worker_have_its_counters_and_waits():
    counters = {"bytes_in": 3, "bytes_out": 4, "open": 1, "batches_forgotten": 9}
    waits = [["pull", "server 1", 2.0]]
    found = {s.name: s.value for s in of_worker("worker 3", counters, waits, 1.5)}
    assert found == {
        "snailps_client_received_bytes_total": 3,
        "snailps_client_sent_bytes_total": 4,
        "snailps_client_open_requests": 1,
        "snailps_worker_waited_seconds_total": 1.5,
        "snailps_waits_seconds": 2.0,
    }


def test_tally_counts_words_of_the_training_alone():
    tally = BlockTally()
    tally.done("survey", 3, 1000, 0.2, "words")
    tally.done("train", 1, 50, 0.3, "words")
    tally.done("train", 1, 50, 0.4, "words")
    found = {
        (s.name, s.labels.get("pass")): s.value for s in tally.samples() if "le" not in s.labels
    }
    assert found["snailps_blocks_done_total", "survey"] == 3
    assert found["snailps_blocks_done_total", "train"] == 2
    assert found["snailps_words_total", "train"] == 100
    assert found["snailps_block_seconds_count", "train"] == 2
    assert ("snailps_words_total", "survey") not in found


def test_waits_have_labels_that_stay_the_same():
    waits = [
        ("server 1", "server 2 to take 3.1 MB of shard 0", 2.0),
        ("server 1", "server 2 to take 17.0 MB of shard 0", 1.0),
        ("12 requests at shard 3", "clock 4", 0.0),
        ("the master", "1 more of 4 nodes (here: server 1 (h, process 9))", 5.0),
    ]
    assert [(*s.labels.values(), s.value) for s in of_waits(waits)] == [
        ("server 1", "server 2 to take MB of shard 0", 2.0),
        ("requests at shard 3", "clock 4", 0.0),
        ("the master", "more of 4 nodes", 5.0),
    ]
    assert len(of_waits([(f"worker {n}", "x", 1.0) for n in range(500)])) == WAITS_MAX


# --- the server ----------------------------------------------------------------------------------


@pytest.fixture
def served():
    """A server of one metric; its address."""
    server = MetricsServer("127.0.0.1:0", lambda: [Sample("snailps_loss", {}, 0.25)])
    yield server.address
    server.close()


def get(address, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_server_tells_the_metrics(served):
    status, headers, text = get(served)
    assert (status, headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert text.splitlines()[-1] == "snailps_loss 0.25"
    assert headers["Server"].strip() == "snailps"


def test_server_has_no_other_page_and_takes_no_other_method(served):
    assert get(served, "/")[0] == 404
    assert get(served, "/metrics/../etc")[0] == 404
    assert get(served, method="POST")[0] == 501
    assert get(served, "/metrics?x=1")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("[::1]:80", 200), ("evil.example", 403), ("10.0.0.1", 403)],
)
def test_server_on_loopback_refuses_other_names(served, host, status):
    assert get(served, Host=host)[0] == status


def test_server_says_when_the_process_cannot_answer():
    def collect():
        raise WaitTimeout("the master did not answer within 5 s")

    server = MetricsServer("127.0.0.1:0", collect)
    try:
        status, _, text = get(server.address)
    finally:
        server.close()
    assert (status, text) == (503, "the master did not answer within 5 s\n")


def test_server_bounds_open_requests_and_their_time(monkeypatch):
    monkeypatch.setattr(metrics_server, "LIMIT_S", 0.0)
    monkeypatch.setattr(metrics_server, "ANSWERS_MAX", 2)
    server = MetricsServer("127.0.0.1:0", list)
    host, _, port = server.address.rpartition(":")
    try:
        silent = [socket.create_connection((host, int(port)), LIMIT_S) for _ in range(3)]
        # None of them says a word: two are let go when their time is over, one at once.
        assert [one.recv(1) for one in silent] == [b""] * 3
        for one in silent:
            one.close()
        server._http.limit_s = LIMIT_S
        assert _gets(server.address)
    finally:
        server.close()


def _gets(address):
    """Whether a request is answered in the end: the threads of others let go one by one."""

    def answer():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return get(address)

    return until(answer, "an answer")[0] == 200


def test_server_takes_another_port_where_its_own_is_taken(served, caplog):
    with caplog.at_level("WARNING", "snailps"):
        server = MetricsServer(served, list)
    assert server.address != served
    assert "another one is used" in caplog.text
    server.close()


def test_serving_nowhere_or_where_nothing_can_listen_ends_no_run(caplog):
    assert serve_metrics("", list) is None
    assert serve_metrics("192.0.2.1:0", list) is None
    assert "no metrics" in caplog.text


def test_server_does_nothing_until_it_is_asked():
    asked = threading.Event()

    def collect():
        asked.set()
        return []

    server = MetricsServer("127.0.0.1:0", collect)
    try:
        assert not asked.is_set()
        get(server.address)
        assert asked.is_set()
    finally:
        server.close()
