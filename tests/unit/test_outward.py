"""Text on its way out of a process: no password of an address, no control character of a peer."""

import json
import logging
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from snailps.cli import common, entry, json_lines
from snailps.cli.options import command_line
from snailps.config import RawConfig
from snailps.errors import DataError, RemoteError
from snailps.files.blocks import InputFile
from snailps.filtering import job as filter_job
from snailps.filtering import kept_scores
from snailps.filtering.job import FilterJob
from snailps.filtering.kept_scores import ScoreFolder
from snailps.filtering.tasks import Task, names_of
from snailps.master.checkpoints import CheckpointSaver
from snailps.master.effects import Fact
from snailps.master.event_log import EventLog
from snailps.master.job import input as job_input
from snailps.master.job.ended_jobs import EndedJob, EndedJobs
from snailps.master.job.input import JobInput
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.state import decode
from snailps.master.journal import Journal
from snailps.models import CLASSES
from snailps.outward import outward, printable, without_secrets
from snailps.store.checkpoint.lock import LOCK


@pytest.mark.parametrize(("text", "shown"), [
    ("https://me:hun@ter2@h:80/x.txt?Signature=sig", "https://***@h:80/x.txt?***"),
    ("http://me:a/b?c@h/x", "http://***@h/x"),
    ("https://token@h/x, s3://key:secret@b/y", "https://***@h/x, s3://***@b/y"),
    ("cannot read https://h/x?sig=1: 403.", "cannot read https://h/x?***: 403."),
    ("https://h/a?x=1,https://h/b?y=2", "https://h/a?***,https://h/b?***"),
    ("{'url': 'http://u:it's@h/x'}", "{'url': 'http://***@h/x'}"),
    ("zip://a.txt::https://h/x.zip?sig=1", "zip://a.txt::https://h/x.zip?***"),
    ("gs://b/x?generation=5", "gs://b/x?***"),
    ("https:/u:p@h/x?s=1: no such file", "https:/***@h/x?***: no such file"),
    ("x/s3:/k:p@b/y,s3:/k:p@b/z", "x/s3:/***@b/y,s3:/***@b/z"),
])  # fmt: skip
def test_address_leaves_without_password_and_query(text, shown):
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


def test_long_text_of_a_peer_takes_little_time():
    begun = time.process_time()
    for text in ("a" * 1_000_000 + "://", "http://a:b" * 20_000, "a://" * 20_000 + "?"):
        without_secrets(text)
    assert time.process_time() - begun < 10  # by the square of the length: minutes


@pytest.mark.parametrize("text", [
    "https://h:8080/a@2x.png", "s3://bucket/part-?.txt", "abfs://container@account.dfs/x",
    "tcp://node1:16831", "http://[::1]:80/a@b", "sftp://me@host/x",
    "mail a@b, see http://h and c@d", "s3://b/c=?/x=1.txt", "://", "",
    "nfs3:/a:b@c/x?y=1", "host:/a?b=1",
])  # fmt: skip
def test_address_without_secrets_stays(text):
    assert without_secrets(text) == text


def test_control_characters_are_escaped_but_for_lines_and_tabs():
    assert (
        printable("a\x1b]52;c;x\x07\r\x9b2K\tb\nü日") == r"a\x1b]52;c;x\x07\x0d\x9b2K" + "\tb\nü日"
    )
    assert outward({"a\x1b": ["http://u:p@h", 1, None]}) == {"a\\x1b": ["http://***@h", 1, None]}


def test_errors_of_this_side_and_of_peers_are_fit_to_be_shown():
    assert str(DataError("cannot read https://u:p@h/x?s=1")) == "cannot read https://***@h/x?***"
    assert str(RemoteError("no\x1b[2K", "x")) == "no\\x1b[2K"


def test_log_lines_and_events_are_fit_to_be_shown_and_have_date_and_zone(capfd):
    log = logging.getLogger("snailps")
    before = log.handlers[:], log.level, log.propagate
    try:
        common.set_up_logging("info", "server")
        log.warning("cannot read %s: \x1b[2K", "https://u:p@h/x?s=1")
        common.log_begin("the server")
        common.log_end("server 2", 3)
    finally:
        log.handlers[:], log.level, log.propagate = before[0], before[1], before[2]
    first, begun, ended = capfd.readouterr().err.splitlines()
    stamp, _, text = first.partition(" server: ")
    assert text == "cannot read https://***@h/x?***: \\x1b[2K"
    assert len(stamp) == len("2026-11-29 14:05:10 +0000")
    assert stamp[-5] in "+-"
    assert "the server begins: snailps " in begun
    assert f"process {os.getpid()} on " in begun
    assert ended.endswith("server 2 ends with exit code 3")
    events = EventLog(lambda kind, fact: None, 0.0)
    events.on_event("warning", "", "a block of https://u:p@h/x?s=1", 1.0)
    assert events.listed()[0]["text"] == "a block of https://***@h/x?***"


def test_traceback_of_a_bug_is_fit_to_be_shown(capfd):
    try:
        raise ValueError("url='https://u:p@h/x?s=1'")
    except ValueError as error:
        entry.report_error(type(error), error, error.__traceback__)
    assert "ValueError: url='https://***@h/x?***'" in capfd.readouterr().err


def test_traceback_of_a_thread_is_fit_to_be_shown(capfd, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", entry.report_error)
    error = OSError("https://u:p@h/x?s=1")
    entry.report_error_of_thread(threading.ExceptHookArgs((OSError, error, None, None)))
    assert capfd.readouterr().err == "OSError: https://***@h/x?***\n"


def test_values_that_are_no_json_and_quoted_words_are_fit_to_be_shown():
    line = json_lines.Identity(lambda: "server").line("info", "x", error=OSError("s3://k:p@b/y"))
    assert json.loads(line)["error"] == "s3://***@b/y"
    assert command_line(["train", "--input=http://u:it's-p@h/x"]).endswith("http://***@h/x'")


def test_settings_of_a_checkpoint_stay_as_they_are_but_for_secrets():
    job = SimpleNamespace(
        dump=lambda now, clock: SimpleNamespace(done=0, units=0, figures={}),
        identity=lambda names: {},
        schedule=SimpleNamespace(plan=SimpleNamespace(share=float)), unit="words",
        plain_settings=lambda: {"separator": "\x1f", "input": PATHS[0]},
    )  # fmt: skip
    members = SimpleNamespace(table_registry=SimpleNamespace(used=[]))
    saver = SimpleNamespace(_hooks=SimpleNamespace(of_job=True), _members=members)
    about = CheckpointSaver.dump_job(saver, job, 0, 0.0)[1]
    assert about["settings"] == {"separator": "\x1f", "input": "https://***@h/x?***"}


PATHS = ["https://u:old@h/x?sig=1&part=1", "https://u:old@h/x?sig=2&part=2", "https://h/y"]


def found_input(monkeypatch, paths):
    cls, settings = _logistic()
    made = JobInput(cls, settings)
    monkeypatch.setattr(
        job_input, "expand", lambda inputs, scratch: [InputFile(path, 100) for path in paths]
    )
    made.find()
    made.cut(settings, 1, 1)
    return made


def _logistic():
    raw = RawConfig.from_mapping({"worker_class": CLASSES["word2vec"], "input": PATHS[0]}, "test")
    job = Job(raw)
    assert "old" not in json.dumps(JobRecord(job).identity(()))
    return job.model.cls, job.settings


def test_journal_and_checkpoints_name_addresses_without_secrets_and_a_later_run_has_its_own(
    monkeypatch,
):
    """A signature is another one by the time that a run goes on."""
    first = found_input(monkeypatch, PATHS)
    about, cuts = first.dump()
    assert about["paths"] == ["https://***@h/x?***", "https://***@h/x?*** (2)", "https://h/y"]
    assert "old" not in json.dumps(about)
    paths = [path.replace("old", "new").replace("sig=", "sig=9") for path in PATHS]
    later = found_input(monkeypatch, paths)
    more = {"figures": {}, "clock": 0, "has_summary": False}
    arrays = {"cuts": cuts, "summary": cuts[:0].view("u1"), "outcomes": _no_outcomes()}
    state = decode(about | more, arrays)
    assert sorted(state.sources) == sorted(later.sources) == sorted(first.sources)
    later.load(state)
    assert [block.path for block in later.blocks] == [
        path.replace("old", "new").replace("sig=", "sig=9")
        for path in (block.path for block in first.blocks)
    ]
    assert later.dump()[0]["paths"] == about["paths"]
    # Of a release that wrote whole addresses.
    whole = {"paths": PATHS, "sources": [[path, 100] for path in PATHS]}
    state = decode(about | more | whole, arrays)
    assert state.sources == first.sources
    later.load(state)
    assert list(dict.fromkeys(block.path for block in later.blocks)) == paths
    assert later.dump()[0]["paths"] == about["paths"]


def _no_outcomes():
    import numpy as np

    from snailps.master.leases.records import OUTCOME

    return np.zeros(0, OUTCOME)


def test_journal_of_a_session_names_addresses_of_its_jobs_without_secrets():
    facts = []
    ended = EndedJobs(SimpleNamespace(journal=lambda kind, fact: facts.append(fact)))
    ended.newest = 1
    ended.note({"input": PATHS[0]})
    ended.keep(EndedJob({"input": PATHS[0]}, {}, "failed"))
    assert ended[1].settings["input"] == PATHS[0]  # for its driver
    assert len(facts) == 2
    assert "old" not in json.dumps(facts)


def test_files_of_a_filter_name_addresses_without_secrets(tmp_path, monkeypatch):
    """Its manifest, the names of its outputs, and of scores that are kept."""
    paths = ["https://u:old@h/a/x.txt?sig=1", "https://u:old@g/b/y.txt"]
    assert names_of(paths) == ["h/a/x.txt", "g/b/y.txt"]
    monkeypatch.setattr(filter_job, "version_now", lambda path: "v")
    task = Task(paths[0], "h/a/x.txt", (), 5, "v")
    one = SimpleNamespace(
        command=SimpleNamespace(column="text", models={"m": "m.bin"}, skips_bad=False),
        judge=SimpleNamespace(condition=SimpleNamespace(text="m > 1"), added={}, computed=set(),
                              benchmarks=None), tasks=[task],
        _versions={"m.bin": "v"},
    )  # fmt: skip
    assert "old" not in json.dumps(FilterJob.identify(one))
    monkeypatch.setattr(kept_scores, "version_of_model", lambda path: "v")
    scores = ScoreFolder(tmp_path, {"m": "m.bin"}, "text")
    assert "old" not in json.dumps(scores.header(task, "m"))


def test_journal_is_of_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        journal = Journal(tmp_path / "journal")
        journal.take()
        journal.begin([Fact("cluster", {"cluster_id": 1})])
        journal.close()
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "journal").iterdir() if path.name != LOCK]
    assert files
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
