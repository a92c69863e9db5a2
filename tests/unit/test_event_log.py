"""What the status tells of the run's past: events, the course of the training, settings, usage."""

import io
import itertools
import logging

from snailps.config import MasterSettings, RawConfig
from snailps.config.origins import HIDDEN, with_origins
from snailps.master.event_log import LINE_CHARS_MAX, LINES_MAX, EventLog, LogTail
from snailps.master.events import Gone
from snailps.master.member import cpu_share
from snailps.master.observers import RunHistory
from snailps.node.course import POINTS_MAX
from snailps.node.status import EVENTS_MAX
from snailps.node.usage import usage
from snailps.transport import messages as m
from tests.support.master_world import World


def unkept(kind, data):
    """There is no journal."""


def status_at(at_s, units=7, job=1, rate=1.0, loss=None):
    """What a history reads of a status."""
    return {
        "elapsed_s": at_s, "units": units, "units_per_s": rate, "loss": loss,
        "session": {"jobs": job},
    }  # fmt: skip


def events_of(world):
    return [(e["kind"], e["who"], e["text"]) for e in world.status()["events"]]


def test_events_of_a_cluster_tell_its_start_and_losses():
    world = World()
    world.forms()
    assert events_of(world) == [
        ("joined", "", "the cluster is complete: 1 server and 2 workers"),
    ]
    worker = world.join("worker")
    world.tick(times=3)
    world.handle(Gone(worker, "its connection was closed"))
    joined, lost = events_of(world)[1:]
    assert joined == ("joined", "worker 4", "worker 4 joined")
    text = "worker 4 was lost (its connection was closed); the others go on"
    assert lost == ("lost", "worker 4", text)


def test_events_of_a_lost_server_name_its_successors():
    world = World(expected_node_num=4, expected_servers=2)
    world.does = lambda order: (
        m.Report({"endpoint": ["h", 1]})
        if isinstance(order, m.HostStandby)
        else World.does(world, order)
    )
    first, second = world.join("server"), world.join("server")
    for _ in range(2):
        world.join("worker")
    placement = world.core.replication.standbys.placement
    for _ in range(5):
        world.tick()
        for shard in placement.shards:
            if shard.standby is not None:  # as its primary would tell
                placement.complete(shard, shard.standby)
    assert {s["standby"] for s in world.status()["shards"]} == {1, 2}
    world.handle(Gone(second, "no heartbeat for 3 s"))
    lost = [event for event in events_of(world) if event[0] == "lost"]
    text = (
        "server 2 was lost (no heartbeat for 3 s); server 1 takes over its shard, no push is lost"
    )
    assert lost == [("lost", "server 2", text)]
    assert first == 1


def test_events_are_bounded_and_the_newest_are_kept():
    events = EventLog(unkept, 5.0)
    for number in range(EVENTS_MAX + 7):
        events.on_event("joined", f"worker {number}", "text", 6.0 + number)
    listed = events.listed()
    assert len(listed) == EVENTS_MAX
    assert listed[0]["who"] == "worker 7"
    assert listed[0]["at_s"] == 8.0


def test_events_of_an_earlier_master_come_before_the_begin():
    facts = []
    events = EventLog(lambda kind, data: facts.append(data), 5.0, 1000.0)
    events.on_event("lost", "server 2", "server 2 was lost", 7.0)
    events.on_event("checkpoint", "", "checkpoint 3 saved", 7.0)
    assert [data["kind"] for data in facts] == ["lost"]  # the folder tells of checkpoints
    later = EventLog(unkept, 50.0, 1000.0, facts)
    assert later.listed() == [
        {"at_s": -43.0, "kind": "lost", "who": "server 2", "text": "server 2 was lost"}
    ]


def test_events_that_the_journal_has_dropped_still_count():
    facts = []
    events = EventLog(lambda kind, data: facts.append(data), 5.0)
    for kind in ("left", "checkpoint", "lost", "lost"):
        events.on_event(kind, "worker 2", "text", 7.0)
    later = EventLog(unkept, 50.0, 0.0, facts[-1:])
    assert later.counts == events.counts == {"left": 1, "checkpoint": 1, "lost": 2}


def test_history_goes_on_at_a_master_that_takes_over():
    facts = []
    first = RunHistory(lambda kind, data: facts.append(data), 5000.0)
    for second in range(2000):
        first.on_progress(status_at(float(second), second, rate=2.0, loss=1.0))
    assert len(facts) < POINTS_MAX + 600
    second = RunHistory(unkept, 7010.0, facts)
    before, after = first.columns(), second.columns()
    assert [at + 7010.0 for at in after["at_s"]] == [at + 5000.0 for at in before["at_s"]]
    assert {**after, "at_s": 0} == {**before, "at_s": 0}
    second.on_progress(status_at(1.0))
    assert second.columns()["at_s"][-2:] == [after["at_s"][-1], 1.0]


def test_history_of_a_long_training_is_bounded_and_even():
    history = RunHistory(unkept, 0.0)
    for second in range(10_000):
        history.on_progress(status_at(float(second), second, loss=1 / (1 + second)))
    at_s = history.columns()["at_s"]
    assert POINTS_MAX / 2 < len(at_s) <= POINTS_MAX
    gaps = {later - earlier for earlier, later in itertools.pairwise(at_s[:-1])}
    assert max(gaps) <= 33
    assert (at_s[0], at_s[-1] > 9_960) == (0.0, True)


def test_history_of_another_job_begins_anew():
    history = RunHistory(unkept, 0.0)
    history.on_progress(status_at(1.0, 1))
    history.on_progress(status_at(9.0, 5, job=2, loss=0.5))
    assert history.columns() == {"at_s": [9.0], "units": [5], "units_per_s": [1.0], "loss": [0.5]}


def test_settings_with_origins_name_file_override_and_default():
    raw = RawConfig.load(None, environ={"SNAILPS_FRAG_NUM": "64"}, overrides=["init_timeout=7"])
    told = {name: (value, origin) for name, value, origin in with_origins(_built(raw), raw)}
    assert told["init_timeout"] == ("7.0", "--set init_timeout")
    assert told["frag_num"] == ("64", "environment SNAILPS_FRAG_NUM")
    assert told["request_timeout"] == ("60.0", "default")


def test_settings_with_origins_show_no_password(monkeypatch):
    raw = RawConfig.from_mapping({"journal_dir": "s3://me:pass@host/x"}, "file:1")
    told = {name: value for name, value, _ in with_origins(_built(raw), raw)}
    assert told["journal_dir"] == "s3://***@host/x"
    monkeypatch.setattr(
        "snailps.config.origins.to_mapping",
        lambda settings: {"api_token": "x", "init_timeout": "1"},
    )
    assert [value for _, value, _ in with_origins(_built(raw), raw)] == [HIDDEN, "1"]


def test_settings_with_origins_are_as_long_as_a_reader_reads(monkeypatch):
    raw = RawConfig.from_mapping({}, "file:1")
    monkeypatch.setattr("snailps.config.origins.to_mapping", lambda settings: {"x": "y" * 98_000})
    ((_, told, _),) = with_origins(_built(raw), raw)
    assert told == "y" * 1000 + "... (97,000 more characters)"


def _built(raw):
    return raw.build(MasterSettings)


def test_log_tail_keeps_the_newest_lines_and_cuts_long_ones():
    tail, log = LogTail(), logging.getLogger("snailps.test_log_tail")
    tail.open()
    try:
        for number in range(LINES_MAX + 1):
            log.warning("line %d", number)
        log.warning("x" * 9999)
    finally:
        tail.close()
    log.warning("after")
    lines = tail.lines()
    assert len(lines) == LINES_MAX
    assert lines[-2].endswith(f"warning line {LINES_MAX}")
    assert len(lines[-1]) == LINE_CHARS_MAX


def test_log_tail_has_what_a_quiet_log_leaves_out(monkeypatch):
    package, shown = logging.getLogger("snailps"), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(package, "handlers", [shown])
    monkeypatch.setattr(package, "propagate", False)
    monkeypatch.setattr(package, "level", logging.WARNING)
    tail = LogTail()
    tail.open()
    logging.getLogger("snailps.test_log_tail").info("the cluster is complete")
    tail.close()
    assert tail.lines()[0].endswith("info the cluster is complete")
    assert shown.stream.getvalue() == ""
    assert package.level == logging.WARNING


def test_usage_of_this_process_is_measured():
    now = usage()
    assert now["cpu_s"] > 0
    assert now["rss_bytes"] > 1e6
    assert cpu_share(now, {}) is None
    assert cpu_share({"cpu_s": 2.0, "time_s": 9.0}, {"cpu_s": 1.0, "time_s": 7.0}) == 0.5
    assert cpu_share(now, now) is None


def test_usage_of_all_processes_is_in_the_status():
    world = World()
    told = {"cpu_s": 1.0, "time_s": 10.0, "rss_bytes": 5_000_000}
    world.does = lambda order: (
        m.Report({"shards": [], "standbys": [], "usage": dict(told)})
        if isinstance(order, m.Ask)
        else World.does(world, order)
    )
    world.forms()
    world.tick(1.1)
    told.update(cpu_s=2.5, time_s=11.0)
    world.tick(1.1)
    world.report.take_usage({"cpu_s": 1.0, "time_s": 1.0, "rss_bytes": 7})
    world.report.take_usage({"cpu_s": 1.5, "time_s": 2.0, "rss_bytes": 8})
    status = world.status()
    assert [(n["cpu"], n["rss_bytes"]) for n in status["nodes"]] == [(1.5, 5_000_000)] * 3
    assert (status["master"]["cpu"], status["master"]["rss_bytes"]) == (0.5, 8)


def test_history_of_a_master_whose_clock_was_set_back_goes_on():
    point = {"at": 5000.0, "job": 1, "units": 7, "rate": 1.0, "loss": None}
    history = RunHistory(unkept, 1400.0, [point])  # an hour earlier than the point
    history.on_progress(status_at(1.0))
    assert history.columns()["at_s"] == [0.0, 1.0]
