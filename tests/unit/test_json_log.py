"""Records of a run: what the file does not take at once must not stop the master."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from waiting import LIMIT_S

from snailps.errors import ConfigError
from snailps.monitor import json_log
from snailps.monitor.json_log import JsonLog


def numbers(read):
    return [json.loads(line)["number"] for line in read.splitlines()]


@pytest.fixture(autouse=True)
def waits_as_long_as_it_takes(monkeypatch):
    monkeypatch.setattr(json_log, "END_S", LIMIT_S)


@pytest.fixture
def is_stuck(monkeypatch, waits_as_long_as_it_takes):
    """The end of a log does not wait for a writer that no test lets go."""
    monkeypatch.setattr(json_log, "END_S", 0.0)


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "log.fifo"
    os.mkfifo(path)
    return str(path)


def test_records_are_appended_in_their_order(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"number": -1}\n')
    log = JsonLog(str(path))
    for number in range(json_log.LINES_MAX):  # so many fit, however late the thread is
        log.on_status({"number": number, "nodes": [1], "events": [2]})
    log.close()
    assert numbers(path.read_text()) == list(range(-1, json_log.LINES_MAX))
    assert "nodes" not in path.read_text()


def test_reader_that_has_stopped_holds_nothing_up_and_what_is_lost_is_said(fifo, caplog, is_stuck):
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    log = JsonLog(fifo)
    long, total = "x" * 100_000, json_log.LINES_MAX + 50  # the pipe takes less than one
    for number in range(total):
        log.on_status({"number": number, "long": long})
    log.close()
    assert caplog.text.count("is too slow: records are dropped") == 1
    assert f"{total} of {total} records are not in {fifo}" in caplog.text
    os.close(reader)
    log.lines.close(LIMIT_S)  # else its thread says in the next test that the pipe is broken


def test_pipe_that_nothing_reads_holds_nothing_up(fifo, caplog, is_stuck):
    log = JsonLog(fifo)
    log.on_status({"number": 1})
    log.close()
    assert f"1 of 1 records are not in {fifo}" in caplog.text
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    log.lines._end.result(LIMIT_S)
    os.close(reader)


def test_pipe_with_a_late_reader_gets_what_was_written_before(fifo, caplog):
    log, read = JsonLog(fifo), []
    log.on_status({"number": 1})
    reader = threading.Thread(target=lambda: read.append(Path(fifo).read_text()), daemon=True)
    reader.start()
    log.close()
    reader.join(LIMIT_S)
    assert numbers(read[0]) == [1]
    assert not caplog.text


def test_full_disk_is_said_once_and_later_records_are_whole(tmp_path, caplog, monkeypatch):
    """The first write is torn, two fail, then there is room again."""
    path, write = tmp_path / "log", os.write
    takes = iter([5, None, None])  # bytes; None: no room

    def on_full_disk(file, data):
        room = next(takes, len(data))
        if room is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:room])

    monkeypatch.setattr(json_log.os, "write", on_full_disk)
    log = JsonLog(str(path))
    for number in range(4):
        log.on_status({"number": number})
    log.close()
    assert numbers(path.read_text()) == [0, 2, 3]
    assert caplog.text.count("No space left on device") == 1
    assert f"1 of 4 records are not in {path}" in caplog.text


def test_file_in_no_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="name a file in a folder that exists"):
        JsonLog(str(tmp_path / "no" / "log"))
