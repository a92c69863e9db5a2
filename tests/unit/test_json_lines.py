"""Structured logs: every line is one object, whoever writes it."""

import io
import json
import logging
import re

import pytest

from snailps.cli.json_lines import Identity, JsonFormatter, JsonLines, is_object
from snailps.local.launcher import as_text
from snailps.node.phrases import OWN_ERROR

KEYS = ["time", "level", "process", "host", "pid", "message"]


@pytest.fixture
def identity():
    return Identity(lambda: "server 2")


@pytest.fixture
def out():
    return io.StringIO()


def objects(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_record_has_time_process_and_its_fields(identity):
    record = logging.LogRecord("snailps.x", logging.WARNING, "x.py", 1, "lost %s", ("it",), None)
    record.event, record.created = "lost", 0.25
    told = json.loads(JsonFormatter(identity).format(record))
    assert list(told)[:6] == KEYS
    assert told["time"] == "1970-01-01T00:00:00.250Z"
    assert (told["level"], told["process"], told["message"]) == ("warning", "server 2", "lost it")
    assert (told["event"], told["logger"]) == ("lost", "snailps.x")


def test_record_of_an_exception_has_its_trace_in_one_line(identity):
    try:
        raise ValueError("no\ngood")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("snailps", logging.ERROR, "x.py", 1, "failed", (), info)
    line = JsonFormatter(identity).format(record)
    assert "\n" not in line
    assert "ValueError: no\ngood" in json.loads(line)["exception"]


def test_fields_of_a_record_do_not_replace_the_usual_ones(identity):
    record = logging.LogRecord("snailps", logging.INFO, "x.py", 1, "text", (), None)
    record.pid, record.host = "other", "other"
    told = json.loads(JsonFormatter(identity).format(record))
    assert told["pid"] != "other"
    assert told["host"] != "other"


def test_lines_of_a_stream_become_objects_when_they_end(identity, out):
    stream = JsonLines(out, identity)
    stream.write("one")
    assert out.getvalue() == ""
    stream.write(" line\ntwo\n\n  \nthree")
    stream.end()
    assert [told["message"] for told in objects(out)] == ["one line", "two", "three"]
    assert {told["level"] for told in objects(out)} == {"info"}


def test_own_error_is_an_error_without_its_prefix(identity, out):
    JsonLines(out, identity).write("snailps: error: no such file\nsnailps: worker 1: stopped\n")
    first, second = objects(out)
    assert (first["level"], first["message"], first["fatal"]) == ("error", "no such file", True)
    assert (second["level"], second["message"]) == ("info", "worker 1: stopped")


def test_objects_of_another_process_pass_unchanged(identity, out):
    line = Identity(lambda: "worker 3").line("info", "hello", 1.0, event="x")
    JsonLines(out, identity).write(line + '\n{"a": 1}\n{broken\n')
    assert out.getvalue().startswith(line + "\n")
    assert [told["process"] for told in objects(out)] == ["worker 3", "server 2", "server 2"]
    assert objects(out)[1]["message"] == '{"a": 1}'


@pytest.mark.parametrize("text", ["\x00\x1b[31m red", "\ud800 lone", "ünïcode 蝸牛", '"quoted" \\'])
def test_any_text_is_a_line_of_ascii(identity, out, text):
    JsonLines(out, identity).write(text + "\n")
    assert out.getvalue().isascii()
    assert objects(out)[0]["message"] == text
    assert is_object(out.getvalue().strip())


def test_stream_takes_text_alone_and_is_no_terminal(identity, out):
    stream = JsonLines(out, identity)
    with pytest.raises(TypeError):
        stream.write(b"bytes")
    assert not stream.isatty()
    assert re.fullmatch("utf-8", stream.encoding)


def test_launcher_reads_a_childs_own_error(identity):
    line = identity.line("error", "disk full", fatal=True)
    assert as_text(line) == OWN_ERROR + "disk full"
    trace = identity.line("error", "ValueError: x", fatal=True, exception="Traceback ...")
    for other in (trace, "{", '{"fatal": true', "plain", identity.line("info", "x")):
        assert as_text(other) == other
